"""What in a database may make requests without being named by a statement that uses it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import asyncpg
import pytest

from catalog.install import install
from catalog.systems import SYSTEMS
from engine.requests.callers import Callers, has_callers
from engine.session.pool import DatabasePool, PooledSession
from server.postgres.cluster import EmbeddedPostgres
from tests.clusters import new_database

Login = dict[str, Any]


@pytest.fixture(scope="module")
def login(cluster: EmbeddedPostgres) -> Iterator[Login]:
    """The way into a database with everything that the server installs."""
    with new_database(cluster, "callers") as name:
        login = {"host": str(cluster.socket_dir), "port": cluster.port, "database": name}
        login |= {"user": cluster.user, "password": cluster.password}
        asyncio.run(_install(login))
        yield login


async def _install(login: Login) -> None:
    connection = await asyncpg.connect(**login)
    for system in SYSTEMS:
        await install(PooledSession(connection), system=system)
    await connection.close()


PLPGSQL = "create function public.f(t text) returns void language plpgsql as $$ begin {} end $$"
SQL = "create function public.f() returns int language sql as $$ {} $$"


@pytest.mark.parametrize(
    ("definition", "calls"),
    [
        pytest.param("select 1", False, id="nothing"),
        pytest.param(PLPGSQL.format("perform pgtrickle.Create_Stream_Table(t, 'select 1 as a');"), True, id="PL/pgSQL"),
        pytest.param(PLPGSQL.format("EXECUTE t;"), True, id="EXECUTE"),
        pytest.param(PLPGSQL.format("insert into executed values (t);"), False, id="other PL/pgSQL"),
        pytest.param(SQL.format("select pgtrickle.retain_history('t', '1 hour'); select 1"), True, id="SQL"),
        pytest.param(SQL.format("select pgtrickle.publish('t', 'delta', '/t'); select 1"), True, id="publish"),
        pytest.param(SQL.format("select count(*)::int from pg_publication"), False, id="publication"),
        pytest.param(SQL.format("select count(*)::int from pg_prepared_xacts"), False, id="other SQL"),
        pytest.param(
            "create function public.f() returns void begin atomic select pgtrickle.refresh_stream_table('t'); end",
            True,
            id="parsed SQL",
        ),
        pytest.param("create function public.f() returns int return 1", False, id="other parsed SQL"),
        pytest.param("create view public.v as select pgtrickle.drop_stream_table('t')::text", True, id="view"),
        pytest.param("create view public.v as select * from pgtrickle.pgt_status()", False, id="other view"),
        pytest.param(
            "create table public.t (d bool default (pgtrickle.drop_stream_table('t') is null))",
            True,
            id="default",
        ),
        pytest.param("select pgque.create_queue('q')", False, id="queue"),
        pytest.param(
            'select accum.register_create(\'r\', \'{"d": "int"}\', \'{"v": "numeric"}\')', False, id="register"
        ),
    ],
)
async def test_is_found_by_what_it_says_or_depends_on(login: Login, definition: str, calls: bool) -> None:
    connection = await asyncpg.connect(**login)
    try:
        transaction = connection.transaction()
        await transaction.start()
        await connection.execute("set local check_function_bodies = off")
        await connection.execute(definition)
        assert await has_callers(PooledSession(connection)) is calls
        await transaction.rollback()
    finally:
        await connection.close()


async def test_is_looked_for_again_when_a_while_has_passed(login: Login, monkeypatch: pytest.MonkeyPatch) -> None:
    server = {key: value for key, value in login.items() if key != "database"}
    pool = DatabasePool(login["database"], lambda _: server)
    try:
        callers = Callers(pool, False)
        found: list[str] = []
        assert not callers.to_be_looked_for
        monkeypatch.setattr("engine.requests.callers.LOOK_SECONDS", 0.0)
        assert callers.to_be_looked_for
        await callers.look(lambda: found.append("nothing"))
        assert (callers.present, found) == (False, [])
        async with pool.session() as session:
            await session.execute("create procedure public.p(t text) language plpgsql as 'begin execute t; end'")
        await callers.look(lambda: found.append("procedure"))
        assert (callers.present, callers.to_be_looked_for, found) == (True, False, ["procedure"])
    finally:
        await pool.close()
