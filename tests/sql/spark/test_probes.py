"""Which of the probed expressions Spark computes: the table in docs/sql.md, and that it is nearly all of them.

That it computes them as PostgreSQL does is for `test_render` to show, with the same expressions.
``UPDATE_FIXTURES=1 pytest tests/sql/spark/test_probes.py`` writes the table.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import asyncpg
from psycopg import conninfo

from catalog.install import install
from engine.session.pool import SESSION_SETTINGS, PooledSession
from engine.spark.environment import environment_of
from engine.stream_tables.analysis import column
from sql import Source
from sql.spark.protocol import Environment
from sql.spark.render import NotExpressible, render_spark
from tests.sql.spark import generated_values, probes
from tests.sql.spark.spark_edge_cases import TYPES, canonical

PAGE = Path(__file__).parents[3] / "docs/sql.md"
BEGIN, END = "<!-- begin: what Spark computes -->\n", "<!-- end: what Spark computes -->\n"


def _queries() -> Iterator[tuple[str, str, str]]:
    """Family, expression, and a query that has it."""
    for family, expressions in probes.SCALARS.items():
        yield from ((family, each, f"SELECT k, {each} AS x FROM many") for each in expressions)
    yield from (("aggregates", each, f"SELECT g, {each} AS x FROM many GROUP BY g") for each in probes.AGGREGATES)
    yield from (("queries", each, each) for each in probes.QUERIES)


async def test_table_of_what_spark_computes_is_what_it_computes(dsn: str) -> None:
    login = conninfo.conninfo_to_dict(dsn)
    options = {name: str(login[name]) for name in ("host", "user", "password")}
    connection = await asyncpg.connect(
        **options, port=int(str(login["port"])), database=str(login["dbname"]), server_settings=SESSION_SETTINGS
    )
    try:
        found = await _reasons(connection)
    finally:
        await connection.close()
    assert {each for (_, each), reason in found.items() if reason} == probes.REFUSED
    computed = sum(not reason for reason in found.values())
    assert computed / len(found) >= 140 / 148
    page = PAGE.read_text()
    before, rest = page.split(BEGIN)
    written = f"{before}{BEGIN}{_table(found)}{END}{rest.split(END)[1]}"
    if os.environ.get("UPDATE_FIXTURES"):
        PAGE.write_text(written)
    else:
        assert page == written


async def _reasons(connection: asyncpg.Connection) -> dict[tuple[str, str], str]:
    """Of each expression why Spark does not compute it, nothing if it does."""
    session = PooledSession(connection)
    await install(session)
    await connection.execute(TYPES)
    await connection.execute("SET search_path = public, pg_catalog")
    await connection.execute(f"CREATE TABLE public.many ({', '.join(generated_values.COLUMNS)})")
    await connection.execute("RESET search_path; SET timezone = 'UTC'")
    oid, described = await connection.fetchrow(
        "SELECT c::oid::bigint, pgtrickle._columns(c)::text FROM (SELECT 'public.many'::regclass) x(c)"
    )
    source = Source(oid, "public", "many", tuple(column(each) for each in json.loads(described)))
    environment = await environment_of(session, [oid])
    return {(family, each): await _reason(connection, query, source, environment) for family, each, query in _queries()}


async def _reason(connection: asyncpg.Connection, query: str, source: Source, environment: Environment) -> str:
    text = await canonical(connection, query)
    try:
        render_spark(text, [source], environment=environment, total_orders=False)
    except NotExpressible as reason:
        return str(reason)
    return ""


def _table(found: dict[tuple[str, str], str]) -> str:
    lines = ["| | expressions | on Spark | which | in PostgreSQL, and why |", "|---|---:|---:|---|---|"]
    families = dict.fromkeys(family for family, _ in found)
    for family in families:
        mine = {each: reason for (of, each), reason in found.items() if of == family}
        computed = [_code(each) for each, reason in mine.items() if not reason]
        refused = [f"{_code(each)} ({reason})" for each, reason in mine.items() if reason]
        numbers = f"{len(mine)} | {len(computed)}"
        lines.append(f"| {family} | {numbers} | {', '.join(computed)} | {', '.join(refused)} |")
    lines.append(f"| sum | {len(found)} | {sum(not reason for reason in found.values())} | | |")
    return "\n".join(lines) + "\n"


def _code(expression: str) -> str:
    return "`" + expression.replace("|", "\\|") + "`"
