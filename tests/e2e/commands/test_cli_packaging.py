"""What is written down beside the code (compose file, image, Makefile, lock file) agrees with the code."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import threading
import tomllib
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.e2e.commands.test_cli import environment, headwater
from tests.spark_servers import SparkProgram

ROOT = Path(__file__).parents[3]
PROGRAMS = Path(sys.executable).parent
HADOLINT = PROGRAMS / "hadolint"


@pytest.fixture(scope="module")
def compose() -> dict[str, Any]:
    loaded: dict[str, Any] = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
    return loaded


@pytest.fixture(scope="module")
def serve_help() -> str:
    return headwater("serve", "--help").stdout


def locked(package: str) -> str:
    found = re.search(rf"^{package}==(\S+)", (ROOT / "requirements.lock").read_text(), re.MULTILINE)
    assert found is not None
    return found[1]


def test_compose_has_postgres_spark_and_headwater(compose: dict[str, Any]) -> None:
    services = compose["services"]
    assert services["postgres"]["image"] == "postgres:18"
    spark = [name for name, service in services.items() if str(service.get("image", "")).startswith("apache/spark")]
    assert spark == ["spark-master", "spark-worker-1", "spark-worker-2"]
    for name, service in services.items():
        if name not in ("headwater", "permissions"):  # the image of these two brings its own
            assert service["healthcheck"]["test"]
        for dependency in service.get("depends_on", {}):
            assert dependency in services


def test_compose_runs_the_spark_that_is_locked(compose: dict[str, Any]) -> None:
    images = {s["image"] for s in compose["services"].values() if "spark" in str(s.get("image"))}
    assert images == {f"apache/spark:{locked('pyspark')}"}


@pytest.mark.parametrize("name", ["spark-master", "spark-worker-1"])
def test_spark_accepts_the_options_of_compose(compose: dict[str, Any], tmp_path: Path, name: str) -> None:
    script, *arguments = compose["services"][name]["command"]
    assert script == "/opt/spark/bin/spark-class"
    program = SparkProgram(tmp_path, name, [*arguments, "--help"])
    assert program.process.wait(120) == 0, program.log  # 1 if it does not understand what comes before --help


def test_compose_passes_options_that_exist(compose: dict[str, Any], serve_help: str) -> None:
    service = compose["services"]["headwater"]
    command, *options = service["command"]
    assert command == "serve"
    for option in options[::2]:
        assert option in serve_help
    for variable in service["environment"]:
        assert variable in serve_help


def test_compose_command_is_accepted(compose: dict[str, Any], tmp_path: Path) -> None:
    service = compose["services"]["headwater"]
    url = service["environment"]["HEADWATER_POSTGRES"].replace("${POSTGRES_PASSWORD}", "secret")
    result = headwater(*service["command"], "--data", tmp_path / "data", HEADWATER_POSTGRES=url)
    assert result.returncode == 1  # there is no host "postgres" here, and that is all that is wrong
    assert "could not connect to the PostgreSQL at postgresql://postgres@postgres:5432/postgres" in result.stderr


def test_compose_shares_the_mirror_at_one_path(compose: dict[str, Any]) -> None:
    data = re.search(r"HEADWATER_DATA=(\S+)", (ROOT / "Dockerfile").read_text())
    assert data is not None
    for name in ("headwater", "spark-worker-1", "spark-worker-2"):
        mounts = [volume.split(":") for volume in compose["services"][name]["volumes"]]
        assert [path for volume, path, *_ in mounts if volume == "mirror"] == [f"{data[1]}/mirror"]


def test_compose_gives_prometheus_and_grafana_what_their_files_name(compose: dict[str, Any]) -> None:
    services = compose["services"]
    places = {}
    for name in ("prometheus", "grafana"):
        mounts = [volume.split(":") for volume in services[name]["volumes"] if volume.startswith("./")]
        places[name] = {inside: ROOT / outside for outside, inside, *_ in mounts}
        assert all(path.exists() for path in places[name].values())
    given = places["prometheus"]
    (read,) = [option.partition("=")[2] for option in services["prometheus"]["command"] if "config.file" in option]
    prometheus = yaml.safe_load(given[read].read_text())
    assert set(prometheus["rule_files"]) <= set(given)
    (job,) = prometheus["scrape_configs"]
    options = services["headwater"]["command"]
    port = options[options.index("--metrics") + 1].rpartition(":")[2]
    assert job["static_configs"] == [{"targets": [f"headwater:{port}"]}]
    assert f'up{{job="{job["job_name"]}"}}' in given["/etc/prometheus/alerts.yml"].read_text()
    provisioning = places["grafana"]["/etc/grafana/provisioning"]
    (source,) = yaml.safe_load((provisioning / "datasources/prometheus.yml").read_text())["datasources"]
    assert source["url"] == "http://prometheus:9090"
    (provider,) = yaml.safe_load((provisioning / "dashboards/headwater.yml").read_text())["providers"]
    assert list(places["grafana"][provider["options"]["path"]].glob("*.json"))


def test_image_sets_variables_that_exist(serve_help: str) -> None:
    text = (ROOT / "Dockerfile").read_text()
    for variable in re.findall(r"HEADWATER_\w+", text):
        assert variable in serve_help
    context = (ROOT / ".dockerignore").read_text().splitlines()
    for sources in re.findall(r"^COPY (?!--from)(.+) \S+$", text, re.MULTILINE):
        for source in sources.split():
            assert (ROOT / source).exists()
            assert f"!{source}" in context  # the rest of the folder is not sent to the builder


def test_image_is_clean_to_hadolint() -> None:
    done = subprocess.run([HADOLINT, ROOT / "Dockerfile"], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "")


def test_image_runs_as_nobody_else_passes_signals_on_and_asks_whether_clients_may_come() -> None:
    last = (ROOT / "Dockerfile").read_text().rpartition("\nFROM ")[2]
    user = re.search(r"^USER (\d+):(\d+)$", last, re.MULTILINE)
    assert user is not None
    assert f"--uid {user[1]} " in last
    assert f"groupadd --system --gid {user[2]} " in last
    # The forms without a shell, which would keep signals for itself.
    assert re.search(r'^ENTRYPOINT \["tini", "--", "headwater"\]$', last, re.MULTILINE)
    assert re.search(r'^CMD \["serve"\]$', last, re.MULTILINE)
    metrics = re.search(r"HEADWATER_METRICS=127\.0\.0\.1:(\d+)$", last, re.MULTILINE)
    assert metrics is not None
    health = re.search(r"^HEALTHCHECK .*\\\n +CMD (\[.+\])$", last, re.MULTILINE)
    assert health is not None
    assert f"http://127.0.0.1:{metrics[1]}/readyz" in health[1]


@pytest.mark.parametrize("status", [200, 503])
def test_health_check_of_the_image_succeeds_where_the_server_is_ready(status: int) -> None:
    health = re.search(r"^ +CMD (\[.+\])$", (ROOT / "Dockerfile").read_text(), re.MULTILINE)
    assert health is not None
    python, *arguments = json.loads(health[1])
    assert python == "python"

    class Page(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(status if self.path == "/readyz" else 404)
            self.end_headers()

        def log_message(self, *arguments: object) -> None:
            """Nobody reads it."""

    with HTTPServer(("127.0.0.1", 0), Page) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        arguments[-1] = arguments[-1].replace("9187", str(server.server_port))
        done = subprocess.run([sys.executable, *arguments], capture_output=True, timeout=60)
        server.shutdown()
    assert (done.returncode == 0) == (status == 200)


def test_compose_file_has_the_form_that_docker_compose_wants() -> None:
    """By the schema of the Compose specification."""
    command = [PROGRAMS / "check-jsonschema", "--builtin-schema", "vendor.compose-spec", ROOT / "docker-compose.yml"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


def test_lock_files_have_every_dependency_with_hashes_and_agree() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    assert extras["dev"][0] == "headwater[console,iceberg,otel,spark]"
    for file, names in (
        ("requirements.lock", ("dev", "iceberg", "otel", "spark", "mirror")),
        ("deploy/image/off.lock", ("otel",)),
        ("deploy/image/sail.lock", ("iceberg", "otel", "sail", "mirror")),
        ("deploy/image/spark.lock", ("iceberg", "otel", "spark", "mirror")),
    ):
        for requirement in sum((extras[name] for name in names), project["dependencies"]):
            name = re.match(r"[\w-]+", requirement)
            assert name is not None
            if name[0] != "headwater":
                line = rf"^{name[0]}(\[\w+\])?==\S+ .*\\\n    --hash=sha256:"
                assert re.search(line, (ROOT / file).read_text(), re.MULTILINE), requirement
    pinned = {
        file: set(re.findall(r"^([\w.-]+)(?:\[\w+\])?==(\S+)", file.read_text(), re.MULTILINE))
        for file in (ROOT / "requirements.lock", *(ROOT / "deploy" / "image").glob("*.lock"))
    }
    everything = pinned[ROOT / "requirements.lock"]
    assert {name for pins in pinned.values() for name, _ in pins - everything} == {"pyspark-client"}


def test_configuration_page_names_every_option(serve_help: str) -> None:
    page = (ROOT / "docs" / "configuration.md").read_text()
    for option in set(re.findall(r"--[a-z-]+", serve_help)) - {"--help"}:
        assert f"`{option}" in page
    for variable in re.findall(r"HEADWATER_\w+", serve_help):
        assert variable in page


@pytest.mark.skipif(shutil.which("make") is None, reason="make is not installed")
@pytest.mark.parametrize(
    ("python", "message"), [("no-such-python", "install Python 3.11"), ("./old", "Python 3.11 or newer is needed")]
)
def test_make_refuses_a_missing_or_old_python(tmp_path: Path, python: str, message: str) -> None:
    for name in ("Makefile", "pyproject.toml", "requirements.lock"):
        shutil.copy(ROOT / name, tmp_path)
    old = tmp_path / "old"
    old.write_text('#!/bin/sh\n[ "$1" = --version ] && echo Python 3.9.2\nexit 1\n')
    old.chmod(0o755)
    result = subprocess.run(
        ["make", "install", f"PYTHON={python}"], cwd=tmp_path, env=environment(), capture_output=True, text=True
    )
    assert result.returncode != 0
    assert message in result.stderr
    assert not (tmp_path / ".venv").exists()
