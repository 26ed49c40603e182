"""The relayed connection as the engine's SQL session: values, errors, COPY."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import asyncpg
import psycopg
import pytest
from psycopg import conninfo, errors

from catalog.session import RequestSession, SqlError
from tests.server.conftest import Engaged

Work = Callable[[RequestSession], Awaitable[Any]]


@pytest.fixture
def carry_out(engaged: Engaged) -> Callable[[Work], Any]:
    """Has one piece of work done in an engine request; returns its result."""

    def run(work: Work, before: str = "select 1") -> Any:
        results: list[Any] = []

        async def create(session: RequestSession, name: str, query: str) -> None:
            results.append(await work(session))

        engaged.engine._create = create  # type: ignore[method-assign]
        with psycopg.connect(engaged.dsn, autocommit=True) as client:
            client.execute(before)
            client.execute("select pgtrickle.create_stream_table('x', '')")
        return results[0]

    return run


def test_values_come_back_as_they_went(carry_out: Callable[[Work], Any]) -> None:
    texts = ["", "a,b", '"quoted"', "back\\slash", "NULL", "{}", "ä€😀", " space "]

    async def work(session: RequestSession) -> Any:
        return await session.fetch(
            "SELECT $1::text, $2::text, $3::bigint, $4::float8, $5::bool, $6::text[], $7::bigint[], $8::text,"
            " 1.50::numeric",
            *("it's ä€😀", None, -(2**62), 1e-7, True, texts, [1, -2], ""),
        )

    assert carry_out(work) == [("it's ä€😀", None, -(2**62), 1e-7, True, texts, [1, -2], "", "1.50")]


def test_values_do_not_depend_on_the_clients_settings(carry_out: Callable[..., Any]) -> None:
    async def work(session: RequestSession) -> Any:
        return await session.fetch(
            "SELECT $1::text, date '2020-02-01', 'x'::bytea, 0.1::float8 + 0.2, interval '1 day'", "€😀"
        )

    before = (
        "set client_encoding = latin1; set datestyle = 'SQL, DMY'; set extra_float_digits = -5;"
        " set bytea_output = escape"
    )
    assert carry_out(work, before) == [("€😀", "2020-02-01", "\\x78", 0.30000000000000004, "1 day")]


def test_many_and_long_rows(carry_out: Callable[[Work], Any]) -> None:
    async def work(session: RequestSession) -> Any:
        rows = await session.fetch("SELECT n, repeat('x', 10) FROM pg_catalog.generate_series(1, 50000) n")
        ((long,),) = await session.fetch("SELECT repeat('y', 3000000)")
        ((length,),) = await session.fetch("SELECT length($1::text)", "z" * 3_000_000)
        return len(rows), sum(row[0] for row in rows), len(long), length

    assert carry_out(work) == (50_000, 1_250_025_000, 3_000_000, 3_000_000)


def test_execute_returns_the_command_tag(carry_out: Callable[[Work], Any]) -> None:
    async def work(session: RequestSession) -> Any:
        created = await session.execute("CREATE TABLE public.w(a int)")
        return created, await session.execute("INSERT INTO public.w SELECT pg_catalog.generate_series(1, 5)")

    assert carry_out(work) == ("CREATE TABLE", "INSERT 0 5")


def test_error_carries_everything_and_a_savepoint_undoes_it(carry_out: Callable[[Work], Any]) -> None:
    async def work(session: RequestSession) -> Any:
        await session.execute("SAVEPOINT s")
        try:
            await session.execute("SELECT * FROM nowhere")
        except SqlError as error:
            await session.execute("ROLLBACK TO SAVEPOINT s")
            return error.sqlstate, error.message, await session.fetch("SELECT 1")

    assert carry_out(work) == ("42P01", 'relation "nowhere" does not exist', [(1,)])


async def _blocks(*blocks: bytes) -> AsyncIterator[bytes]:
    for block in blocks:
        yield block


def test_copy_in(carry_out: Callable[[Work], Any]) -> None:
    async def work(session: RequestSession) -> Any:
        await session.execute('CREATE TABLE public."My Table"(a int, "B b" text)')
        rows = [b'%d,"ro""w %d"\n' % (n, n) for n in range(100_000)]
        count = await session.copy_in("public", "My Table", ["a", "B b"], _blocks(*rows, b"7,\n"))
        return count, await session.fetch('SELECT sum(a)::bigint, max("B b"), count("B b") FROM public."My Table"')

    assert carry_out(work) == (100_001, [(4_999_950_007, 'ro"w 99999', 100_000)])


def test_copy_in_that_postgresql_refuses(carry_out: Callable[[Work], Any]) -> None:
    async def work(session: RequestSession) -> Any:
        await session.execute("CREATE TABLE public.c(a int)")
        found = []
        for table, block in (("c", b"x\n"), ("nowhere", b"1\n")):
            await session.execute("SAVEPOINT s")
            try:
                await session.copy_in("public", table, ["a"], _blocks(*[block] * 10_000))
            except SqlError as error:
                found.append(error.sqlstate)
                await session.execute("ROLLBACK TO SAVEPOINT s")
        return found, await session.copy_in("public", "c", ["a"], _blocks(b"1\n2\n"))

    assert carry_out(work) == (["22P02", "42P01"], 2)


def test_copy_in_whose_source_fails(carry_out: Callable[[Work], Any]) -> None:
    async def broken() -> AsyncIterator[bytes]:
        yield b"1\n"
        raise SqlError("58030", "source is gone")

    async def work(session: RequestSession) -> Any:
        await session.execute("CREATE TABLE public.c(a int)")
        await session.copy_in("public", "c", ["a"], broken())

    with pytest.raises(errors.IoError, match="source is gone"):
        carry_out(work)


def test_restart_is_refused_in_the_clients_transaction(carry_out: Callable[..., Any]) -> None:
    async def work(session: RequestSession) -> Any:
        return session.autocommit

    assert carry_out(work) is True
    assert carry_out(work, "begin") is False


def test_restart_begins_a_repeatable_read_transaction(carry_out: Callable[..., Any]) -> None:
    async def work(session: RequestSession) -> Any:
        ((before,),) = await session.fetch("SELECT pg_catalog.pg_current_xact_id()::text")
        await session.restart()
        settings = "SELECT current_setting('transaction_isolation'), current_setting('search_path')"
        ((after,),) = await session.fetch("SELECT pg_catalog.pg_current_xact_id()::text")
        return await session.fetch(settings), before != after

    assert carry_out(work, "set search_path = public") == ([("repeatable read", "pg_catalog, pg_temp")], True)


async def test_asyncpg_makes_requests(engaged: Engaged) -> None:
    options = conninfo.conninfo_to_dict(engaged.dsn)
    options["database"] = options.pop("dbname")
    client = await asyncpg.connect(**options)
    await client.fetchval("select pgtrickle.create_stream_table($1, $2)", "a", "select 1 as a")
    await client.execute("select pgtrickle.create_stream_table('b', 'select 1 as a'); select * from b")
    async with client.transaction():
        await client.fetchval("select make($1, 'select 2 as a')", "c")
        assert await client.fetchval("select a from c") == 2
    with pytest.raises(asyncpg.FeatureNotSupportedError) as caught:
        await client.execute("select pgtrickle.create_stream_table($1, $2)", "refused", "")
    assert caught.value.hint == "Use another name."
    await client.fetchval("select make($1, 'select 2 as a')", "d")
    assert engaged.engine.autocommit == [True, False, False, True, False]
    assert await client.fetchval("select 1") == 1
    await client.close()
    assert engaged.tables() == {"a", "b", "c", "d"}


def test_what_is_executed_later_is_executed_before_the_next_statement_and_gives_no_rows_to_it(
    carry_out: Callable[[Work], Any],
) -> None:
    async def work(session: RequestSession) -> Any:
        await session.execute_later("SELECT set_config('a.x', $1::text, true) FROM generate_series(1, 3)", "ä")
        await session.execute_later("SELECT set_config('a.x', current_setting('a.x') || '€', true)")
        return [await session.fetch("SELECT current_setting('a.x')"), await session.execute("SELECT 1 WHERE false")]

    assert carry_out(work) == [[("ä€",)], "SELECT 0"]


def test_what_is_executed_later_is_executed_where_no_statement_comes_after_it(engaged: Engaged) -> None:
    async def create(session: RequestSession, name: str, query: str) -> None:
        await session.execute_later("CREATE TABLE public.later (a int)")
        await session.execute_later("INSERT INTO public.later VALUES (1)")

    engaged.engine._create = create  # type: ignore[method-assign]
    with psycopg.connect(engaged.dsn, autocommit=True) as client:
        client.execute("select pgtrickle.create_stream_table('x', '')")
        assert client.execute("select * from public.later").fetchall() == [(1,)]


def test_an_error_of_what_is_executed_later_is_the_next_statements_which_is_not_run(engaged: Engaged) -> None:
    async def create(session: RequestSession, name: str, query: str) -> None:
        await session.execute_later("SAVEPOINT s")
        await session.execute_later("SELECT 1 / $1::int", 0)
        with pytest.raises(SqlError, match="division by zero"):
            await session.execute("CREATE TABLE public.never (a int)")
        await session.execute("ROLLBACK TO SAVEPOINT s")
        assert await session.fetch("SELECT to_regclass('public.never') IS NULL") == [(True,)]

    engaged.engine._create = create  # type: ignore[method-assign]
    with psycopg.connect(engaged.dsn, autocommit=True) as client:
        client.execute("select pgtrickle.create_stream_table('x', '')")
