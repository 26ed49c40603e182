"""The examples of a page of the documentation, typed into psql: every answer must be the one that is printed there."""

from __future__ import annotations

import re
import subprocess
import time
from pathlib import Path

from server.postgres.cluster import binaries
from tests.e2e.conftest import Database

EXAMPLE = re.compile(r"(<!-- soon -->\n)?```sql\n(.*?)```\n```\n(.*?)```\n", re.DOTALL)
SECONDS = 60.0


def page(name: str) -> str:
    """The text of a file of docs/."""
    return (Path(__file__).parents[2] / "docs" / name).read_text()


def typed(database: Database, statements: str) -> str:
    """What psql answers."""
    done = subprocess.run(
        [str(binaries() / "psql"), database.server.dsn(database.name), "-X", "-P", "pager=off"],
        input=statements,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=SECONDS,
    )
    return done.stdout


def assert_examples_are_true(database: Database, text: str) -> None:
    """From the first to the last; an answer behind `<!-- soon -->` may come a moment later, shorter till then."""
    examples = EXAMPLE.findall(text)
    assert len(examples) == text.count("```sql")
    for soon, statements, expected in examples:
        deadline = time.monotonic() + SECONDS
        while (answer := typed(database, statements)) != expected and soon and time.monotonic() < deadline:
            assert "(0 rows)" in answer or len(answer) < len(expected)
        assert answer == expected, statements
