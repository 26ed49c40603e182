"""Whatever the query, the rows and the changes: after a refresh a stream table equals its query, as a multiset."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from hypothesis.strategies import DrawFn

from tests.property.changes import Step, initial_rows, scripts
from tests.property.laboratory import Laboratory
from tests.property.queries import Query, queries
from tests.property.schemas import Relation, Table, schemas


@dataclass(frozen=True, slots=True)
class Example:
    """Tables and rows, stream tables, and what happens to them."""

    tables: tuple[Table, ...]
    rows: list[str]
    queries: list[Query]
    steps: list[Step]


@st.composite
def examples(draw: DrawFn, depth: int, stream_tables: int, rounds: int) -> Example:
    tables = draw(schemas())
    relations = [table.relation for table in tables]
    chosen: list[Query] = []
    for n in range(stream_tables):
        query = draw(queries(tuple(relations), depth))
        chosen.append(query)
        relations = [Relation(f"st{n}", query.columns), *relations]
    read = frozenset[str]().union(*(query.reads for query in chosen))
    changed = tuple(table for table in tables if table.name in read) or tables
    return Example(tables, draw(initial_rows(changed)), chosen, draw(scripts(changed, stream_tables, rounds=rounds)))


def hold(laboratory: Laboratory, example: Example) -> None:
    async def run() -> None:
        await laboratory.reset(example.tables, example.rows)
        for n, query in enumerate(example.queries):
            if not await laboratory.valid(query):
                assume(False)
            await laboratory.create(f"st{n}", query)
        await laboratory.play(example.steps)

    laboratory.do(run())


@settings(max_examples=28)
@given(examples(depth=2, stream_tables=1, rounds=3))
def test_stream_table_equals_its_query(laboratory: Laboratory, example: Example) -> None:
    hold(laboratory, example)


@settings(max_examples=9)
@given(examples(depth=1, stream_tables=3, rounds=3))
def test_stream_tables_over_stream_tables_equal_their_queries(laboratory: Laboratory, example: Example) -> None:
    hold(laboratory, example)


@pytest.mark.long
@pytest.mark.timeout(7200)
@settings(max_examples=1500)
@given(examples(depth=3, stream_tables=1, rounds=5))
def test_stream_table_equals_its_query_at_length(laboratory: Laboratory, example: Example) -> None:
    hold(laboratory, example)


@pytest.mark.long
@pytest.mark.timeout(7200)
@settings(max_examples=500)
@given(examples(depth=2, stream_tables=4, rounds=6))
def test_stream_tables_over_stream_tables_at_length(laboratory: Laboratory, example: Example) -> None:
    hold(laboratory, example)
