"""The tour in the README, typed once more: every answer must be the one that is printed there."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable
from pathlib import Path

from tests.e2e.commands.test_cli import HEADWATER, Served, environment, serve

README = Path(__file__).parents[3] / "README.md"
PROMPT = re.compile(r"^postgres(=|-|\()?\*?# ?", re.MULTILINE)

__all__ = ["serve"]  # the fixture


def tour() -> tuple[str, str]:
    """What is typed, and what is answered."""
    typed, answered = [], []
    for block in re.findall(r"<!-- tour -->\n```console\n(.*?)```", README.read_text(), re.DOTALL):
        for line in block.splitlines():
            (typed if PROMPT.match(line) else answered).append(PROMPT.sub("", line).rstrip())
    return "\n".join(typed), "\n".join(answered)


def test_tour_of_the_readme_is_true(serve: Callable[..., Served]) -> None:
    served = serve()
    typed, expected = tour()
    assert typed.count("create_stream_table") == 5
    session = subprocess.run(
        [*HEADWATER, "psql", "--data", str(served.data), "-X", "-P", "pager=off"],
        input=typed,
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=300,
    )
    assert "\n".join(line.rstrip() for line in session.stdout.splitlines()) == expected
