"""SUBSCRIBE as drivers send it: parameters in every place, and what is said when something is wrong."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from datetime import timedelta
from itertools import islice

import asyncpg
import psycopg
import pytest
from psycopg import errors

from tests.e2e.conftest import Database, Headwater, _database


@pytest.fixture(scope="module")
def numbers(server: Headwater) -> Iterator[Database]:
    """One database for all of this file."""
    for database in _database(server):
        database.run("CREATE TABLE numbers (n int)")
        database.run("INSERT INTO numbers VALUES (1), (2), (3)")
        yield database


@pytest.mark.parametrize("period", ["1 hour", timedelta(hours=1)])
def test_parameter_of_up_to_whose_type_only_its_cast_says(numbers: Database, period: object) -> None:
    query = "SUBSCRIBE (SELECT n FROM numbers WHERE n > %s) UP TO now() + %s::interval"
    with numbers.connect().cursor() as cursor:
        rows = list(islice(cursor.stream(query, (1, period)), 2))
    assert sorted(row[2] for row in rows) == [2, 3]


def test_parameters_that_stand_in_another_order_than_their_numbers(numbers: Database) -> None:
    async def first() -> asyncpg.Record:
        server = numbers.server
        connection = await asyncpg.connect(host="127.0.0.1", port=server.port, database=numbers.name, **server._login())
        try:
            async with connection.transaction():
                query = "SUBSCRIBE (SELECT n FROM numbers WHERE n > $2) UP TO now() + $1::interval"
                async for row in connection.cursor(query, timedelta(hours=1), 2, prefetch=1):
                    return row
        finally:
            await connection.close()
        raise AssertionError("the subscription has ended")

    assert asyncio.run(first())["n"] == 3


def test_parameter_that_nobody_has_bound(numbers: Database) -> None:
    with pytest.raises(errors.UndefinedParameter, match=r"there is no parameter \$1"):
        numbers.run("SUBSCRIBE (SELECT n FROM numbers WHERE n > $1)")
    assert numbers.rows("SELECT 1") == [(1,)]


@pytest.mark.parametrize("kind", ["", "TEMPORARY"])
def test_table_that_only_its_session_sees(numbers: Database, kind: str) -> None:
    with psycopg.connect(numbers.server.dsn(numbers.name)) as connection:
        connection.execute(f"CREATE {kind} TABLE mine (n int)")
        with pytest.raises(errors.UndefinedTable, match='relation "mine" does not exist') as caught:
            connection.execute("DECLARE c CURSOR FOR SUBSCRIBE mine")
        assert caught.value.diag.message_hint == "It may be temporary, or its transaction has not committed."
