"""The stream tables' API as programs know it: functions (`stream_table_signatures.txt`) and relations with their
columns (`stream_table_columns.txt`)."""

from __future__ import annotations

from typing import Any

import pytest

from tests.catalog.conftest import Connect
from tests.catalog.signatures import Rows, arguments, declared_lines, wrong_functions


@pytest.fixture
def rows(connect: Connect) -> Rows:
    """Runs statements in a database with the catalog."""
    connection = connect()

    def run(statement: str, *parameters: Any) -> list[tuple[Any, ...]]:
        return connection.execute(statement, parameters or None).fetchall()

    return run


def test_functions(rows: Rows) -> None:
    lines = declared_lines("stream_table_signatures.txt")
    assert wrong_functions(rows, "pgtrickle", lines) == []
    assert len(lines) > 40


def test_relations(rows: Rows) -> None:
    wrong = []
    for line in declared_lines("stream_table_columns.txt"):
        relation, _, declared = line.removesuffix(")").partition("(")
        found = dict(
            rows(
                "SELECT attname, format_type(atttypid, atttypmod) FROM pg_attribute"
                " WHERE attrelid = to_regclass('pgtrickle.' || %s) AND attnum > 0 AND NOT attisdropped",
                relation,
            )
        )
        if not found:
            wrong.append(relation)
        for column in arguments(declared):
            [(kind,)] = rows("SELECT %s::regtype::text", column.type)
            if found.get(column.name) != kind:
                wrong.append(f"{relation}.{column.name} {column.type}: {found.get(column.name)}")
    assert wrong == []
