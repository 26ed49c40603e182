"""A project of dbt's in a directory of the test's own, and dbt in an environment of its own to run it with.

dbt wants other versions of packages than the server (protobuf, for one). So `integrations/dbt/requirements.lock` is
installed, once, into a virtual environment in pytest's cache, and the adapter from its sources, as users install it.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from psycopg import conninfo

from tests.clients.packages import environment
from tests.e2e.conftest import Database

ADAPTER = Path(__file__).parents[2] / "integrations" / "dbt"
SECONDS = 300.0


@dataclass(frozen=True)
class Dbt:
    """dbt's environment, and the directory into which the adapter is installed, as it is now."""

    programs: Path
    adapter: Path

    def run(self, program: str, *arguments: str, folder: Path) -> subprocess.CompletedProcess[str]:
        """Run a program of the environment in a directory."""
        inherited = {key: value for key, value in os.environ.items() if not key.startswith("DBT_")}
        return subprocess.run(
            [str(self.programs / program), *arguments],
            cwd=folder,
            env={**inherited, "PYTHONPATH": str(self.adapter)},
            capture_output=True,
            text=True,
            timeout=SECONDS,
        )


def installed(request: pytest.FixtureRequest, work: Path) -> Dbt:
    """dbt from the cache, or from its registry; the adapter from its sources."""
    lock = ADAPTER / "requirements.lock"
    digest = hashlib.sha256(lock.read_bytes()).hexdigest()[:16]
    assert request.config.cache is not None
    folder = Path(request.config.cache.mkdir(f"dbt-{digest}"))
    dbt = Dbt(environment(folder, "--no-deps", "--require-hashes", "-r", str(lock)), work / "installed")
    sources = work / "sources"
    shutil.copytree(ADAPTER, sources, ignore=shutil.ignore_patterns("build", "*.egg-info", "__pycache__", ".*"))
    options = ["--quiet", "--disable-pip-version-check", "--no-index", "--no-deps", "--no-build-isolation"]
    done = dbt.run("pip", "install", *options, "--target", str(dbt.adapter), str(sources), folder=work)
    assert done.returncode == 0, done.stdout + done.stderr
    return dbt


class Project:
    """A project with two targets, `dev` in the schema `analytics` and `next` in `analytics_next`."""

    def __init__(self, dbt: Dbt, folder: Path, database: Database):
        self.installed = dbt
        self.folder = folder
        self.database = database
        self.models = folder / "models"
        self.models.mkdir(parents=True)
        options = conninfo.conninfo_to_dict(database.server.dsn(database.name))
        target = {
            **{"type": "headwater", "threads": 2, "dbname": database.name, "port": int(str(options["port"]))},
            **{key: options[key] for key in ("host", "user", "password")},
        }
        outputs = {"dev": {**target, "schema": "analytics"}, "next": {**target, "schema": "analytics_next"}}
        self._json("profiles.yml", {"shop": {"target": "dev", "outputs": outputs}})
        flags = {"send_anonymous_usage_stats": False}
        self._json("dbt_project.yml", {"name": "shop", "version": "1.0", "profile": "shop", "flags": flags})

    def _json(self, name: str, content: Any) -> None:
        (self.folder / name).write_text(json.dumps(content))

    def model(self, name: str, text: str, **config: Any) -> None:
        """Write a model, with its configuration."""
        said = ", ".join(f"{key}={value!r}" for key, value in config.items())
        (self.models / f"{name}.sql").write_text(f"{{{{ config({said}) }}}}\n{text}\n")

    def properties(self, content: Any) -> None:
        """Write the file of properties: descriptions, tests, sources. YAML takes JSON."""
        self._json("models/properties.yml", content)

    def dbt(self, *arguments: str, fails: bool = False) -> str:
        """Run dbt, and return what it has written."""
        options = ["--profiles-dir", str(self.folder)]
        done = self.installed.run("dbt", "--no-use-colors", *arguments, *options, folder=self.folder)
        assert (done.returncode != 0) == fails, done.stdout + done.stderr
        return done.stdout

    def results(self) -> dict[str, str]:
        """What the last run says of each node, in the order in which they ended: its message, else its status."""
        content = json.loads((self.folder / "target" / "run_results.json").read_text())
        return {
            result["unique_id"].split(".")[2]: result["message"] or result["status"] for result in content["results"]
        }

    def artifact(self, name: str) -> Any:
        """One of the files that dbt has made."""
        return json.loads((self.folder / "target" / name).read_text())
