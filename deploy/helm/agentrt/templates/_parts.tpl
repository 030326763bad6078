{{- define "agentrt.name" -}}
{{ .Release.Name | trunc 50 | trimSuffix "-" }}
{{- end }}

{{/* The labels that select the pods of one part. The argument is a list: the root, the part. */}}
{{- define "agentrt.selector" -}}
{{- $root := index . 0 -}}
app.kubernetes.io/name: agentrt
app.kubernetes.io/instance: {{ $root.Release.Name }}
app.kubernetes.io/component: {{ index . 1 }}
{{- end }}

{{/* The settings that the pods of all parts share. */}}
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

{{/* The claim of a volume that each pod has for itself. The argument is a list: the root, the
volume's name, the volume's size. */}}
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
