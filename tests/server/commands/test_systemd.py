"""The unit of systemd: what it starts is a command that there is, and systemd takes all of it."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import typer

from server.commands.cli import app

ROOT = Path(__file__).parents[3]
UNIT = ROOT / "deploy" / "systemd" / "headwater.service"
COMMAND = re.compile(r"^ExecStart=(.*)$", re.MULTILINE)


def test_unit_starts_the_server() -> None:
    (line,) = COMMAND.findall(UNIT.read_text())
    _, name, *arguments = shlex.split(line)
    group = typer.main.get_command(app)
    assert isinstance(group, typer.core.TyperGroup)
    context = group.commands[name].make_context(name, arguments)
    assert name == "serve"
    assert context.params["data"] == Path("/var/lib/headwater")


def test_systemd_takes_the_unit(tmp_path: Path) -> None:
    analyse = shutil.which("systemd-analyze")
    if analyse is None:
        pytest.skip("systemd-analyze is not here")
    unit = tmp_path / UNIT.name
    # What it starts must be there.
    unit.write_text(COMMAND.sub(f"ExecStart={Path(sys.executable).parent / 'headwater'} serve", UNIT.read_text()))
    done = subprocess.run([analyse, "verify", "--man=no", str(unit)], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert UNIT.name not in done.stderr
