"""Processes of Python's that have the program's modules, wherever it is installed."""

from __future__ import annotations

import json
import sys
from pathlib import Path


def python_command(program: str) -> list[str]:
    """The command that runs a text of Python in a process which finds modules where this one does.

    The process knows nothing else of this one; what is in its current directory is no module.
    """
    here = str(Path(__file__).resolve().parents[1])
    path = json.dumps([here, *(entry for entry in sys.path if entry and entry != here)])
    return [sys.executable, "-P", "-c", f"import json, sys; sys.path[:0] = json.loads(sys.argv[1])\n{program}", path]
