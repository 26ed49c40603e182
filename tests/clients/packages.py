"""Client libraries of other languages, installed by those languages' own tools from their registries, once.

They are kept in pytest's cache. Where a tool is missing or a registry cannot be reached, the test is skipped.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

PROGRAMS = Path(__file__).parent / "programs"
NODE = ("pg@8", "pg-cursor@2", "pg-copy-streams@7")
JDBC = "org.postgresql:postgresql:42.7.4"
PGX = "github.com/jackc/pgx/v5@v5.11.0"
PGQUE = "pgque-py==0.2.2"
INSTALL_SECONDS = 600.0


def tool(name: str) -> str:
    """The path of a program, or the test is skipped."""
    path = shutil.which(name)
    if path is None:
        pytest.skip(f"there is no {name} on this machine")
    return path


def _install(command: Sequence[str], folder: Path) -> None:
    try:
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=INSTALL_SECONDS)
    except subprocess.TimeoutExpired:
        pytest.skip(f"{command[0]} did not end in {INSTALL_SECONDS:g} s")
    if done.returncode != 0:
        pytest.skip(f"{' '.join(command[:3])} failed: {(done.stderr or done.stdout)[-400:]}")


def python(folder: Path) -> list[str]:
    """The Python of the tests, whose packages they are."""
    return [sys.executable]


def pgque(folder: Path) -> Path:
    """The directory of PgQue's Python client, which goes on the path; psycopg it shares with the tests."""
    if not (folder / "pgque").exists():
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        _install([*pip, "--no-deps", "--target", str(folder), PGQUE], folder)
    return folder


def environment(folder: Path, *requirements: str) -> Path:
    """The directory of programs of an environment with packages that would not agree with the project's."""
    programs = folder / "bin"
    if not (folder / "installed").exists():
        _install([sys.executable, "-m", "venv", str(folder)], folder)
        _install([str(programs / "pip"), "install", "--quiet", "--disable-pip-version-check", *requirements], folder)
        (folder / "installed").touch()
    return programs


def node(folder: Path) -> list[str]:
    """node, beside whose modules a program has to stand."""
    program = tool("node")
    if not (folder / "node_modules" / "pg").exists():
        _install([tool("npm"), "install", "--no-audit", "--no-fund", "--prefix", str(folder), *NODE], folder)
    return [program]


def java(folder: Path) -> list[str]:
    """java with PostgreSQL's JDBC driver, from Java 17 on."""
    program = tool("java")
    _, name, version = JDBC.split(":")
    jar = folder / f"{name}-{version}.jar"
    if not jar.exists():
        copy = ["dependency:copy", f"-Dartifact={JDBC}", f"-DoutputDirectory={folder}"]
        _install([tool("mvn"), "--quiet", "--batch-mode", *copy], folder)
    return [program, "-cp", str(jar)]


def go(folder: Path) -> list[str]:
    """A program that is compiled with pgx."""
    program = tool("go")
    shutil.copy(PROGRAMS / "with_pgx.go", folder / "main.go")
    if not (folder / "go.mod").exists():
        _install([program, "mod", "init", "with_pgx"], folder)
        _install([program, "get", PGX], folder)
    subprocess.run([program, "build", "-o", "with_pgx", "."], cwd=folder, check=True)
    return [str(folder / "with_pgx")]


def rust(folder: Path) -> list[str]:
    """A program that is compiled with tokio-postgres."""
    program = tool("cargo")
    shutil.copytree(PROGRAMS / "tokio_postgres", folder, dirs_exist_ok=True)
    _install([program, "fetch", "--quiet"], folder)
    subprocess.run([program, "build", "--quiet"], cwd=folder, check=True)
    return [str(folder / "target" / "debug" / "with_tokio_postgres")]
