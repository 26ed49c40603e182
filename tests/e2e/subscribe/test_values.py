"""Values of all kinds come out of a SUBSCRIBE as they come out of a SELECT, whichever way they are asked for."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from tests.e2e.conftest import Database, Headwater, _database

TABLE = """
CREATE TYPE mood AS ENUM ('sad', 'ok');
CREATE TYPE pair AS (a int, b text);
CREATE DOMAIN count AS int CHECK (value > 0);
CREATE DOMAIN counts AS count CHECK (value < 100);
CREATE TABLE kinds (m mood, p counts, pr pair, ints int[], moods mood[], j jsonb, ts timestamptz, d date, i interval,
    f float8, n numeric(10, 2), u uuid, bytes bytea, r int4range, bo bool, ch char(5), bits bit(3), nm name, tx text);
INSERT INTO kinds VALUES ('ok', 3, (1, 'a b'), '{1,NULL,3}', '{ok,NULL}', '{"a": [1, 2]}', '2026-01-02 03:04:05+00',
    '2026-05-06', '1 day 2 hours', 1.5, 12.30, 'a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11', '\\xdeadbeef', '[1,5)', true,
    'ab', '101', 'nm', 'tab\tline\nquote"'), ('sad', 4, (NULL, NULL), '{}', '{}', '[]', '1999-12-31 23:59:59.999999+00',
    '2000-02-29', '-1 s', 'NaN', 'NaN', NULL, '', 'empty', false, '', '000', '', '');
INSERT INTO kinds (m) VALUES (NULL);
"""


@pytest.fixture(scope="module")
def kinds(server: Headwater) -> Iterator[Database]:
    for database in _database(server):
        database.connection.execute(TABLE)
        yield database


@pytest.mark.parametrize("binary", [False, True])
@pytest.mark.parametrize("way", ["stream", "fetch"])
def test_values(kinds: Database, way: str, binary: bool) -> None:
    connection = kinds.connect(autocommit=False)
    cursor = connection.cursor(binary=binary)
    expected = raw(cursor.execute("SELECT * FROM kinds"), 0)
    found: list[list[bytes | None]] = []
    if way == "stream":
        for _ in cursor.stream("SUBSCRIBE kinds"):
            found += raw(cursor, 2)
            if len(found) == len(expected):
                break
    else:
        found = fetched(cursor, len(expected))
    assert sorted(found, key=str) == sorted(expected, key=str)


def test_texts_follow_the_clients_settings(kinds: Database) -> None:
    settings = {
        "datestyle": "SQL,DMY",
        "timezone": "Asia/Tokyo",
        "intervalstyle": "iso_8601",
        "bytea_output": "escape",
        "extra_float_digits": "0",
        "client_encoding": "LATIN1",
    }
    options = " ".join(f"-c {name}={value}" for name, value in settings.items())
    connection = kinds.connect(autocommit=False, options=options)
    cursor = connection.cursor()
    expected = raw(cursor.execute("SELECT * FROM kinds"), 0)
    assert sorted(fetched(cursor, len(expected)), key=str) == sorted(expected, key=str)


def fetched(cursor: psycopg.Cursor[Any], count: int) -> list[list[bytes | None]]:
    """The first rows of a subscription, read by FETCH."""
    cursor.execute("DECLARE c CURSOR FOR SUBSCRIBE kinds")
    found: list[list[bytes | None]] = []
    while len(found) < count:
        found += raw(cursor.execute("FETCH ALL c"), 2)
    return found


def raw(cursor: psycopg.Cursor[Any], first: int) -> list[list[bytes | None]]:
    """The rows of the last result as they came, from a column on."""
    result = cursor.pgresult
    assert result is not None
    return [[result.get_value(row, column) for column in range(first, result.nfields)] for row in range(result.ntuples)]
