"""Whatever the query, the rows and the changes: an IMMEDIATE stream table equals its query after each statement."""

from __future__ import annotations

import pytest
from hypothesis import assume, given, reject, settings

from catalog.session import SqlError
from tests.property.laboratory import Laboratory
from tests.property.test_random_queries import Example, examples

REFUSED = ("0A000", "54001")
"""What IMMEDIATE mode refuses that DIFFERENTIAL does not, and what takes too long to compile, for each source."""


def hold(laboratory: Laboratory, example: Example) -> None:
    async def run() -> None:
        await laboratory.reset(example.tables, example.rows)
        for n, query in enumerate(example.queries):
            if not await laboratory.valid(query):
                assume(False)
            try:
                await laboratory.create(f"st{n}", query, "IMMEDIATE")
            except SqlError as error:
                if error.sqlstate in REFUSED:
                    reject()
                raise
        await laboratory.change(example.steps)

    laboratory.do(run())


@settings(max_examples=20)
@given(examples(depth=2, stream_tables=1, rounds=3))
def test_immediate_stream_table_equals_its_query(laboratory: Laboratory, example: Example) -> None:
    hold(laboratory, example)


@settings(max_examples=8)
@given(examples(depth=1, stream_tables=3, rounds=3))
def test_immediate_stream_tables_over_stream_tables_equal_their_queries(
    laboratory: Laboratory, example: Example
) -> None:
    hold(laboratory, example)


@pytest.mark.long
@pytest.mark.timeout(7200)
@settings(max_examples=1500)
@given(examples(depth=3, stream_tables=2, rounds=5))
def test_immediate_stream_tables_equal_their_queries_at_length(laboratory: Laboratory, example: Example) -> None:
    hold(laboratory, example)
