{{- define "agentrt.name" -}}
{{ .Release.Name | trunc 50 | trimSuffix "-" }}
{{- end }}

{{/* What selects the pods of one part, which stands behind the root in a list. */}}
{{- define "agentrt.selector" -}}
{{- $root := index . 0 -}}
app.kubernetes.io/name: agentrt
app.kubernetes.io/instance: {{ $root.Release.Name }}
app.kubernetes.io/component: {{ index . 1 }}
{{- end }}

{{/* What the pods of all parts have in common. */}}
{{- define "agentrt.pod" -}}
automountServiceAccountToken: false
enableServiceLinks: false
{{- with .Values.imagePullSecrets }}
imagePullSecrets: {{- toYaml . | nindent 2 }}
{{- end }}
securityContext:
  runAsNonRoot: true
  runAsUser: 10001
  fsGroup: 10001
  fsGroupChangePolicy: OnRootMismatch
  seccompProfile: {type: RuntimeDefault}
{{- end }}

{{- define "agentrt.container" -}}
image: {{ .Values.image | quote }}
imagePullPolicy: {{ .Values.imagePullPolicy }}
securityContext:
  allowPrivilegeEscalation: false
  capabilities: {drop: [ALL]}
{{- end }}

{{- define "agentrt.shm" -}}
name: shm
emptyDir: {medium: Memory, sizeLimit: {{ .Values.sharedMemory }}}
{{- end }}

{{/* A volume of its own for each pod: the root, its name, its size. */}}
{{- define "agentrt.claim" -}}
metadata:
  name: {{ index . 1 }}
spec:
  accessModes: [ReadWriteOnce]
  {{- with (index . 0).Values.storage.className }}
  storageClassName: {{ . }}
  {{- end }}
  resources:
    requests: {storage: {{ index . 2 }}}
{{- end }}
