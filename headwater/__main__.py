"""The command `headwater`: finds the program, which is no part of what other programs import, and runs it."""

from __future__ import annotations

import sys
from pathlib import Path


def main() -> None:
    """The entry point of the command, and of `python -m headwater`."""
    here = Path(__file__).resolve().parent
    installed = here / "_program"
    # First, and in this process alone: nobody else is to find packages that are called `server` or `sql`.
    sys.path.insert(0, str(installed if installed.is_dir() else here.parent))
    from server.commands.cli import main as command

    command()


if __name__ == "__main__":
    main()
