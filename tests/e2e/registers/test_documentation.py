"""The examples of docs/registers.md, from the first to the last: every answer must be the one that is printed there."""

from __future__ import annotations

from tests.e2e.conftest import Database
from tests.e2e.documentation import assert_examples_are_true, page


def test_examples_of_the_documentation_are_true(live_db: Database) -> None:
    live_db.run(f"ALTER DATABASE {live_db.name} SET TimeZone = 'UTC'")
    assert_examples_are_true(live_db, page("registers.md"))
