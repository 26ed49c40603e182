"""The Kustomize base: its parts belong together, fit the image and the server, and Kubernetes takes them."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml

from server import __version__
from server.commands.cli import app
from tests.clients.packages import environment

ROOT = Path(__file__).parents[3]
BASE = ROOT / "deploy" / "kubernetes"
IMAGE = (ROOT / "Dockerfile").read_text().rpartition("\nFROM ")[2]
KUBERNETES = ("1.31.0", "1.37.0")


def objects(text: str) -> dict[tuple[str, str], Any]:
    """The objects of a stream of YAML documents, by kind and name."""
    return {(one["kind"], one["metadata"]["name"]): one for one in yaml.safe_load_all(text)}


@pytest.fixture(scope="module")
def kustomization() -> dict[str, Any]:
    loaded: dict[str, Any] = yaml.safe_load((BASE / "kustomization.yaml").read_text())
    return loaded


@pytest.fixture(scope="module")
def base(kustomization: dict[str, Any]) -> dict[tuple[str, str], Any]:
    return objects("\n---\n".join((BASE / name).read_text() for name in kustomization["resources"]))


@pytest.fixture(scope="module")
def pod(base: dict[tuple[str, str], Any]) -> dict[str, Any]:
    spec: dict[str, Any] = base["StatefulSet", "headwater"]["spec"]["template"]["spec"]
    return spec


@pytest.fixture(scope="module")
def container(pod: dict[str, Any]) -> dict[str, Any]:
    (one,) = pod["containers"]
    return dict(one)


@pytest.fixture(scope="module")
def variables() -> dict[str, str]:
    lines = (BASE / "headwater.env").read_text().splitlines()
    return dict(line.split("=", 1) for line in lines if line and not line.startswith("#"))


def test_every_file_is_used(kustomization: dict[str, Any]) -> None:
    (generator,) = kustomization["configMapGenerator"]
    used = {"kustomization.yaml", *kustomization["resources"], *generator["envs"]}
    assert used == {path.name for path in BASE.iterdir()}


def test_server_takes_the_variables(
    monkeypatch: pytest.MonkeyPatch, container: dict[str, Any], variables: dict[str, str]
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    (secret,) = container["env"]
    monkeypatch.setenv(secret["name"], "postgresql://headwater:secret@db.example:5432/shop")
    group = typer.main.get_command(app)
    assert isinstance(group, typer.core.TyperGroup)
    name, *arguments = container["args"]
    parameters = group.commands[name].make_context(name, arguments).params
    assert parameters["spark"] == "local[2]"
    assert parameters["spark_conf"] == ["spark.driver.memory=2g"]
    assert parameters["postgres"].database == "shop"
    known = {option.envvar for option in group.commands[name].params}
    assert variables.keys() <= known


def test_probes_ask_pages_that_there_are(container: dict[str, Any], variables: dict[str, str]) -> None:
    pages = (ROOT / "server" / "metrics" / "service.py").read_text()
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    for probe, path in (("startupProbe", "/healthz"), ("livenessProbe", "/healthz"), ("readinessProbe", "/readyz")):
        asked = container[probe]["httpGet"]
        assert asked["path"] == path
        assert f'"{path}": self._' in pages
        assert variables["HEADWATER_METRICS"] == f"0.0.0.0:{ports[asked['port']]}"


def test_pod_fits_the_image_and_has_no_rights(pod: dict[str, Any], container: dict[str, Any]) -> None:
    user = re.search(r"^USER (\d+):(\d+)$", IMAGE, re.MULTILINE)
    assert user is not None
    context = pod["securityContext"]
    assert context["runAsNonRoot"]
    assert (context["runAsUser"], context["runAsGroup"], context["fsGroup"]) == (
        int(user[1]),
        int(user[2]),
        int(user[2]),
    )
    assert context["seccompProfile"] == {"type": "RuntimeDefault"}
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    mounts = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
    assert f"HEADWATER_DATA={mounts['data']} " in IMAGE
    assert mounts["tmp"] == "/tmp"
    for port in container["ports"]:
        assert re.search(rf"^EXPOSE .*\b{port['containerPort']}\b", IMAGE, re.MULTILINE)
    assert pod["terminationGracePeriodSeconds"] >= 60  # what docker-compose.yml gives it
    assert not pod["automountServiceAccountToken"]
    assert not pod["enableServiceLinks"]


def test_services_and_policy_name_ports_of_the_container(
    base: dict[tuple[str, str], Any], container: dict[str, Any]
) -> None:
    names = {port["name"] for port in container["ports"]}
    services = [one for (kind, _), one in base.items() if kind == "Service"]
    assert {port["targetPort"] for one in services for port in one["spec"]["ports"]} == names
    policy = base["NetworkPolicy", "headwater"]["spec"]
    assert {port["port"] for rule in policy["ingress"] for port in rule["ports"]} == names
    assert ("Service", base["StatefulSet", "headwater"]["spec"]["serviceName"]) in base


@pytest.fixture(scope="module")
def built() -> str:
    """What `kubectl apply -k` would send."""
    kubectl = shutil.which("kubectl")
    if kubectl is None:
        pytest.skip("there is no kubectl here")
    return subprocess.run([kubectl, "kustomize", BASE], capture_output=True, text=True, check=True).stdout


def test_kustomize_builds_the_base(built: str) -> None:
    made = objects(built)
    label = {"app.kubernetes.io/name": "headwater"}
    template = made["StatefulSet", "headwater"]["spec"]["template"]
    assert template["metadata"]["labels"] == label
    assert made["NetworkPolicy", "headwater"]["spec"]["podSelector"] == {"matchLabels": label}
    for (kind, _), one in made.items():
        if kind == "Service":
            assert one["spec"]["selector"] == label
    (container,) = template["spec"]["containers"]
    assert container["image"] == f"headwater:{__version__}"
    (source,) = container["envFrom"]
    assert ("ConfigMap", source["configMapRef"]["name"]) in made  # with a hash: a change of it restarts the pod


@pytest.mark.long
@pytest.mark.parametrize("version", KUBERNETES)
def test_objects_have_the_form_that_kubernetes_wants(
    request: pytest.FixtureRequest, tmp_path: Path, built: str, version: str
) -> None:
    """By the schemas of the Kubernetes API: 100 MB, so that they are installed for this test alone."""
    programs = environment(request.config.cache.mkdir("kubernetes-validate"), "kubernetes-validate>=1.37")
    file = tmp_path / "objects.yaml"

    def validate(text: str) -> subprocess.CompletedProcess[str]:
        file.write_text(text)
        command = [programs / "kubernetes-validate", "--strict", "--kubernetes-version", version, file]
        return subprocess.run(command, capture_output=True, text=True)

    taken = validate(built)
    assert taken.returncode == 0, taken.stdout + taken.stderr
    assert validate(built.replace("readinessProbe:", "readynessProbe:")).returncode != 0
