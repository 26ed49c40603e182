"""SUBSCRIBE as drivers send it: parameters in every place, and what is said when something is wrong."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from datetime import timedelta
from decimal import Decimal
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


def test_functions_of_the_user_in_the_times(numbers: Database) -> None:
    numbers.run("CREATE SCHEMA times")
    numbers.run("CREATE FUNCTION times.soon() RETURNS timestamptz LANGUAGE sql RETURN now() + interval '1 hour'")
    numbers.run("CREATE FUNCTION times.mine() RETURNS regrole LANGUAGE sql RETURN quote_ident(current_user)::regrole")
    client = numbers.connect()
    client.execute("SET search_path = times, public")
    with client.cursor() as cursor:
        assert next(cursor.stream("SUBSCRIBE (SELECT n FROM numbers WHERE n > 2) UP TO soon()"))[2] == 3
    assert client.execute("SUBSCRIBE numbers AS OF soon() UP TO soon()").fetchall() == []
    # What the function does, it does with the client's rights.
    numbers.run("CREATE ROLE times_reader")
    numbers.run("GRANT USAGE ON SCHEMA times TO times_reader")
    numbers.run("GRANT SELECT ON numbers TO times_reader")
    client.execute("SET ROLE times_reader")
    with pytest.raises(errors.InvalidDatetimeFormat, match='"times_reader"'):
        client.execute("SUBSCRIBE numbers UP TO mine()")


@pytest.mark.parametrize(
    ("query", "message", "detail"),
    [
        (
            "SELECT random() AS r",
            'volatile function "random" is not supported in SUBSCRIBE',
            "It gives another result at each evaluation.",
        ),
        (
            "TABLE stale",
            'materialized view "stale" is not supported in SUBSCRIBE',
            "Changes of it cannot be captured.",
        ),
        ("SELECT n FROM ONLY numbers", "FROM ONLY is not supported in SUBSCRIBE", None),
    ],
)
def test_what_cannot_be_followed_is_named(numbers: Database, query: str, message: str, detail: str | None) -> None:
    numbers.run("CREATE MATERIALIZED VIEW IF NOT EXISTS stale AS TABLE numbers")
    with pytest.raises(errors.FeatureNotSupported) as caught:
        numbers.run(f"SUBSCRIBE ({query})")
    diag = caught.value.diag
    assert (diag.message_primary, diag.message_detail) == (message, detail)
    assert diag.message_hint == "Subscribe to a stream table of this query that is refreshed in FULL mode."


def test_domains(numbers: Database) -> None:
    """That do not allow NULL, which is what was before; in both formats."""
    numbers.run("CREATE DOMAIN amount AS numeric(8, 2) CHECK (VALUE > 0); CREATE DOMAIN price AS amount NOT NULL")
    numbers.run("CREATE TABLE goods (id int PRIMARY KEY, name text, price price)")
    numbers.run("INSERT INTO goods VALUES (1, 'bolt', 2.50)")
    for binary in (False, True):
        for key, others in (("id", ("bolt", Decimal("2.50"))), ("price", (1, "bolt")), ("name", (1, Decimal("2.50")))):
            first = {"id": 1, "price": Decimal("2.50"), "name": "bolt"}[key]
            asked = f"SUBSCRIBE goods ENVELOPE DEBEZIUM (KEY ({key}))"
            with numbers.connect() as connection, connection.cursor(binary=binary) as cursor:
                rows = cursor.stream(asked)
                assert next(rows)[1:] == ("insert", first, None, None, *others)
                numbers.run("DELETE FROM goods")
                assert next(rows)[1:] == ("delete", first, *others, None, None)
                rows.close()
                numbers.run("INSERT INTO goods VALUES (1, 'bolt', 2.50)")


def test_query_that_would_take_too_large_a_statement(numbers: Database) -> None:
    """PostgreSQL would need gigabytes to plan it, be it for three rows."""
    other = "SELECT d.n, e.n FROM numbers d RIGHT JOIN numbers e ON d.n = e.n WHERE NOT (a.n = 1)"
    query = (
        f"SELECT (SELECT max(c.n) FROM numbers c WHERE (a.n, b.n) NOT IN ({other}) OR c.n > 1 GROUP BY c.n ORDER BY 1"
        " LIMIT 1) AS most FROM numbers a FULL JOIN numbers b ON a.n = b.n"
    )
    with pytest.raises(errors.FeatureNotSupported, match="a query of this complexity is not supported in SUBSCRIBE"):
        numbers.run(f"SUBSCRIBE ({query})")
    numbers.run("SELECT pgtrickle.create_stream_table('intricate', %s, refresh_mode => 'AUTO')", query)
    assert numbers.rows("SELECT most FROM intricate") == numbers.rows(query)
    mode = "SELECT refresh_mode FROM pgtrickle.pgt_stream_tables WHERE pgt_name = 'intricate'"
    assert numbers.value(mode) == "FULL"


def test_stream_table_in_full_mode_follows_what_cannot_be_followed_itself(numbers: Database) -> None:
    numbers.run("CREATE MATERIALIZED VIEW old AS TABLE numbers")
    numbers.run("SELECT pgtrickle.create_stream_table('fresh', 'TABLE old', refresh_mode => 'FULL')")
    client = numbers.connect(autocommit=False)
    client.execute("DECLARE c CURSOR FOR SUBSCRIBE fresh")
    assert sorted(row[1:] for row in client.execute("FETCH 3 c")) == [(1, 1), (1, 2), (1, 3)]
    numbers.run("DELETE FROM numbers WHERE n = 2")
    numbers.run("REFRESH MATERIALIZED VIEW old")
    numbers.run("SELECT pgtrickle.refresh_stream_table('fresh')")
    assert [row[1:] for row in client.execute("FETCH 1 c")] == [(-1, 2)]
    numbers.run("INSERT INTO numbers VALUES (2)")


def test_locking_clause(numbers: Database) -> None:
    with pytest.raises(errors.FeatureNotSupported, match="FOR UPDATE or FOR SHARE is not supported") as caught:
        numbers.run("SUBSCRIBE (SELECT n FROM numbers FOR UPDATE)")
    assert caught.value.diag.message_hint == "Remove the row-locking clause."


@pytest.mark.parametrize("change", ["ATTACH PARTITION apart FOR VALUES IN (2)", "DETACH PARTITION one"])
def test_another_set_of_partitions_ends_it(numbers: Database, change: str) -> None:
    numbers.run("DROP TABLE IF EXISTS whole, one, apart")
    numbers.run("CREATE TABLE whole (n int) PARTITION BY LIST (n)")
    numbers.run("CREATE TABLE one PARTITION OF whole FOR VALUES IN (1)")
    numbers.run("CREATE TABLE apart (n int)")
    numbers.run("INSERT INTO one VALUES (1)")
    numbers.run("INSERT INTO apart VALUES (2)")
    client = numbers.connect(autocommit=False)
    client.execute("DECLARE c CURSOR FOR SUBSCRIBE whole")
    assert [row[1:] for row in client.execute("FETCH 1 c")] == [(1, 1)]
    numbers.run(f"ALTER TABLE whole {change}")
    with pytest.raises(errors.ObjectNotInPrerequisiteState, match=r"partitions of .* were added or removed") as caught:
        client.execute("FETCH 1 c")
    assert caught.value.diag.message_hint == "Subscribe again."
    client.rollback()
    client.execute("DECLARE c CURSOR FOR SUBSCRIBE whole")
    rows = client.execute("FETCH ALL c WITH (timeout = '1s')").fetchall()
    assert sorted(row[2] for row in rows) == ([1, 2] if change.startswith("ATTACH") else [])


def test_terminated_by_another_session(numbers: Database) -> None:
    client = numbers.connect()
    pid = client.info.backend_pid
    with pytest.raises(errors.AdminShutdown), client.cursor() as cursor:
        for row in cursor.stream("SUBSCRIBE (SELECT n FROM numbers WHERE n = 1)"):
            assert row[1:] == (1, 1)
            assert numbers.value("SELECT pg_terminate_backend(%s)", pid)
