"""Expressions of every kind: PostgreSQL's canonical form is read and written to the letter, and is maintained."""

from __future__ import annotations

import re
from collections.abc import Iterator

import psycopg
import pytest

from server.postgres.cluster import EmbeddedPostgres
from sql import NotDifferentiable, regenerate
from tests.sql.conftest import Workspace, open_workspace
from tests.sql.expressions import EXPRESSIONS, ROWS, TABLE
from tests.sql.harness import view

UNSTABLE = re.compile(r"^(CURRENT_|LOCALTIME|now\(|age\(ts\)$|'e'::regclass)")
"""What differs from refresh to refresh, or by search_path."""

AMBIGUOUS = {"ci IS DISTINCT FROM 'b'", "NULLIF(ci, 'x')", "CASE ci WHEN 'a' THEN 1 END"}
"""What PostgreSQL writes without the schema of its operator; the engine refuses them (`tests/e2e/test_definitions`)."""

CHANGES = (
    "UPDATE e SET id = id + 10 WHERE id < 3",
    "UPDATE e SET id = 14, i = 2, t = 'xyz', jb = '{\"a\":1}', tc = NULL WHERE id = 4; DELETE FROM e WHERE id = 3",
    f"INSERT INTO e VALUES {ROWS}",
)


@pytest.fixture(scope="module")
def workspace(cluster: EmbeddedPostgres) -> Iterator[Workspace]:
    """A database with the table."""
    yield from open_workspace(cluster, "sql_expressions", TABLE, ["e"])


def test_canonical_form_comes_back_to_the_letter(workspace: Workspace) -> None:
    connection = workspace.connection
    wrong = []
    for expression in EXPRESSIONS:
        canonical, _ = view(connection, f"SELECT id, {expression} AS x FROM e WHERE ({expression}) IS NOT NULL")
        try:
            again, _ = view(connection, regenerate(canonical))
        except (NotDifferentiable, psycopg.Error) as error:
            again = str(error)
        # What PostgreSQL writes is not always what it makes of the same text.
        if again not in (canonical, view(connection, canonical)[0]):
            wrong.append((expression, canonical, again))
    assert wrong == []


def test_expressions_are_maintained(workspace: Workspace) -> None:
    stable = [
        expression for expression in EXPRESSIONS if not UNSTABLE.match(expression) and expression not in AMBIGUOUS
    ]
    workspace.execute("TRUNCATE e", f"INSERT INTO e VALUES {ROWS}")
    streams = []
    for start in range(0, len(stable), 40):
        some = stable[start : start + 40]
        columns = ", ".join(f"{expression} AS x{n}" for n, expression in enumerate(some))
        streams.append(workspace.stream(f"expressions {start}", f"SELECT id, {columns} FROM e"))
    for change in CHANGES:
        workspace.execute(change)
        for stream in streams:
            stream.refresh()
            assert stream.difference() == []


def test_all_fields_of_composite_values_are_given_out(workspace: Workspace) -> None:
    workspace.execute("TRUNCATE e", f"INSERT INTO e VALUES {ROWS}")
    stream = workspace.stream("fields", "SELECT id, (pr).*, (app.make(i, t)).a AS c, (app.make(i, t)).b AS d FROM e")
    for change in CHANGES:
        workspace.execute(change)
        stream.refresh()
        assert stream.difference() == []


def test_row_without_a_type_is_refused_as_postgresql_refuses_it(workspace: Workspace) -> None:
    with pytest.raises(psycopg.errors.InvalidTableDefinition, match="pseudo-type record"):
        workspace.stream("rows", "SELECT id, ROW(i, t) AS r FROM e")
