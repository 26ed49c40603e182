"""Whatever the query and the changes: at every timestamp the updates so far sum up to the query in that snapshot."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.strategies import DrawFn

from engine.subscribe import hub
from server.postgres.cluster import EmbeddedPostgres
from tests.property.changes import Step, initial_rows, scripts
from tests.property.following import Following
from tests.property.laboratory import Laboratory
from tests.property.queries import Query, queries
from tests.property.schemas import Table, schemas


@dataclass(frozen=True, slots=True)
class Example:
    """Tables and rows, a query that is followed, and what happens to them."""

    tables: tuple[Table, ...]
    rows: list[str]
    query: Query
    key: str | None
    before: bool
    steps: list[Step]


@st.composite
def examples(draw: DrawFn, depth: int, rounds: int) -> Example:
    tables = draw(schemas())
    query = draw(queries(tuple(table.relation for table in tables), depth))
    changed = tuple(table for table in tables if table.name in query.reads) or tables
    integers = [name for name, kind in query.columns if kind == "int"]
    key = draw(st.sampled_from([None, *integers]))
    steps = [step for step in draw(scripts(changed, 1, rounds=rounds)) if step.refresh is None]
    return Example(tables, draw(initial_rows(changed)), query, key, draw(st.booleans()), steps)


@pytest.fixture(scope="module")
def following(cluster: EmbeddedPostgres, laboratory: Laboratory) -> Iterator[Following]:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(hub, "LINGER", 0.01)
        made = Following(laboratory, cluster)
        yield made
        laboratory.do(made.close())


def hold(following: Following, example: Example) -> None:
    async def run() -> None:
        async with asyncio.timeout(120):
            await following.laboratory.reset(example.tables, example.rows)
            await following.follow(example.query, example.steps, example.key, before=example.before)

    following.laboratory.do(run())


@settings(max_examples=10)
@given(examples(depth=2, rounds=3))
def test_updates_sum_up_to_the_query_at_every_timestamp(following: Following, example: Example) -> None:
    hold(following, example)


@pytest.mark.long
@pytest.mark.timeout(7200)
@settings(max_examples=1500)
@given(examples(depth=3, rounds=5))
def test_updates_sum_up_to_the_query_at_every_timestamp_at_length(following: Following, example: Example) -> None:
    hold(following, example)
