"""After any changes and a differential refresh every stream table equals its query, down to what values look like."""

from __future__ import annotations

import pytest
from hypothesis import given

from tests.sql.conftest import Workspace
from tests.sql.harness import StreamTable
from tests.sql.queries import LOOSE, QUERIES
from tests.sql.random_changes import BATCHES, BEFORE, examples, follow


@pytest.fixture(scope="module")
def streams(shared_workspace: Workspace) -> dict[str, StreamTable]:
    """A stream table for every query."""
    return {name: shared_workspace.stream(f"st {i}", query) for i, (name, query) in enumerate(QUERIES.items())}


@examples(15)
@given(before=BEFORE, batches=BATCHES)
def test_stream_tables_equal_their_queries(
    shared_workspace: Workspace, streams: dict[str, StreamTable], before: list[str], batches: list[list[str]]
) -> None:
    follow(shared_workspace, streams, before, batches, LOOSE)
    for name in streams.keys() - LOOSE:
        done = streams[name].full()
        assert (done["inserted"], done["updated"], done["deleted"]) == (0, 0, 0), name


def test_no_changes_change_nothing(shared_workspace: Workspace, streams: dict[str, StreamTable]) -> None:
    for stream in streams.values():
        stream.reset()
        before = stream.tuples()
        done = stream.refresh()
        assert (done["inserted"], done["updated"], done["deleted"]) == (0, 0, 0)
        assert stream.tuples() == before


def test_staged_rows_give_the_same_as_full(shared_workspace: Workspace, streams: dict[str, StreamTable]) -> None:
    shared_workspace.execute(
        "TRUNCATE item, tag",
        "INSERT INTO item SELECT i, nullif(i % 3, 0), i % 5, i, i / 4.0, 'l' || i % 2, i FROM generate_series(1, 20) i",
        "INSERT INTO tag SELECT i % 4, '{}', i % 3 FROM generate_series(1, 10) i",
    )
    for name, stream in streams.items():
        stream.staged()
        assert stream.difference(looks=name not in LOOSE) == [], name
