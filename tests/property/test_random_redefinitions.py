"""Whatever queries a stream table gets one after the other: it equals each, then and after further changes."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

import pytest
from hypothesis import assume, event, given, settings
from hypothesis import strategies as st
from hypothesis.strategies import DrawFn

from catalog.session import SqlError, SqlSession
from engine.capture.ahead import capturing_in
from engine.requests import requests
from engine.requests.requests import Request
from engine.session.pool import PooledSession
from tests.property.changes import Step, initial_rows, scripts
from tests.property.laboratory import NOT_MAINTAINED, Laboratory, StreamTable
from tests.property.queries import Query
from tests.property.redefinitions import variants
from tests.property.schemas import Table, schemas

LAST = "SELECT action FROM pgtrickle.pgt_refresh_history ORDER BY refresh_id DESC LIMIT 1"


@dataclass(frozen=True, slots=True)
class Example:
    """Tables and rows, the queries of a stream table, and what happens while it has each."""

    tables: tuple[Table, ...]
    rows: list[str]
    queries: list[Query]
    steps: list[list[Step]]


@st.composite
def examples(draw: DrawFn, depth: int, many: int) -> Example:
    tables = draw(schemas())
    queries = draw(variants(tuple(table.relation for table in tables), depth, many))
    changed = tuple(table for table in tables if table.name in queries[0].reads) or tables
    steps = [draw(scripts(changed, 1, rounds=1)) for _ in queries]
    return Example(tables, draw(initial_rows(changed)), queries, steps)


async def alter(laboratory: Laboratory, table: StreamTable, query: Query) -> StreamTable:
    """Give a stream table another query, as the server does it beside those who read."""

    @asynccontextmanager
    async def own() -> AsyncIterator[SqlSession]:
        connection = await laboratory._connect()
        try:
            yield PooledSession(connection)
        finally:
            await connection.close()

    session = laboratory.session(0)
    arguments = {"name": f"public.{table.name}", "query": query.text}
    with capturing_in(own):
        async with session.transaction("read_committed"):
            request = Request(0, "alter", arguments, "public", "postgres")  # type: ignore[arg-type]
            await requests.carry_out(session, request, laboratory.spark, in_two_steps=False)
    event(str((await session.fetch(LAST))[0][0]))
    return StreamTable(table.pgt_id, table.name, query, tuple(column for column, _ in query.columns))


def hold(laboratory: Laboratory, example: Example) -> None:
    async def run() -> None:
        await laboratory.reset(example.tables, example.rows)
        for query in example.queries:
            if not await laboratory.valid(query):
                assume(False)
        table = await laboratory.create("st0", example.queries[0])
        for query, steps in zip(example.queries, example.steps, strict=True):
            changes = [step for step in steps if step.refresh is None]
            await laboratory.play(changes[:-1])
            await laboratory.run(1, changes[-1].statement)
            await laboratory.run(1, "COMMIT")
            if not await laboratory.valid(query):
                assume(False)
            try:
                table = await alter(laboratory, table, query)
            except SqlError as error:
                assume(not (error.sqlstate == "0A000" and error.message.startswith(NOT_MAINTAINED)))
                raise
            laboratory.stream_tables = [table]
            await laboratory.check(0, table)
            await laboratory.play(steps)

    laboratory.do(run())


@settings(max_examples=6)
@given(examples(depth=0, many=4))
def test_stream_table_equals_each_of_its_queries(laboratory: Laboratory, example: Example) -> None:
    hold(laboratory, example)


@pytest.mark.long
@pytest.mark.timeout(7200)
@settings(max_examples=600)
@given(examples(depth=1, many=6))
def test_stream_table_equals_each_of_its_queries_at_length(laboratory: Laboratory, example: Example) -> None:
    hold(laboratory, example)
