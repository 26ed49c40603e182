"""What a refresh has changed, out of the captured images of its rows."""

from __future__ import annotations

import math
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pytest

from engine.mirror.arrow_copy import infinities
from engine.publish.net import GONE, ROW_ID, infinite_column, net_changes, only_adds


def images(*rows: tuple[int, int, Any]) -> pa.Table:
    """Rows of (weight, row id, value)."""
    weights, ids, values = zip(*rows, strict=True)
    return pa.table({"__pgt_w": pa.array(weights, pa.int16()), "v": values, ROW_ID: pa.array(ids, pa.int64())})


def net(*rows: tuple[int, int, Any]) -> set[tuple[int, Any, bool]]:
    return {(row[ROW_ID], row["v"], row[GONE]) for row in net_changes(images(*rows)).to_pylist()}


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        pytest.param([(1, 7, "a")], {(7, "a", False)}, id="came"),
        pytest.param([(-1, 7, "a")], {(7, "a", True)}, id="went"),
        pytest.param([(-1, 7, "a"), (1, 7, "b")], {(7, "b", False)}, id="changed"),
        pytest.param([(1, 7, "b"), (-1, 7, "a"), (-1, 8, "c")], {(7, "b", False), (8, "c", True)}, id="in any order"),
        pytest.param([(-1, 7, "a"), (1, 7, "b"), (-1, 7, "b"), (1, 7, "c")], {(7, "c", False)}, id="changed twice"),
        pytest.param([(-1, 7, "a"), (1, 7, "b"), (-1, 7, "b"), (1, 7, "a")], set(), id="changed and back"),
        pytest.param([(1, 7, "b"), (-1, 7, "b"), (1, 7, "c"), (-1, 7, "c")], set(), id="came and went twice"),
        pytest.param([(-1, 7, "a"), (1, 7, "b"), (-1, 7, "b")], {(7, "a", True)}, id="changed and went"),
    ],
)
def test_each_row_has_one_net_change(rows: list[tuple[int, int, str]], expected: set[tuple[int, str, bool]]) -> None:
    assert net(*rows) == expected


def test_values_are_told_apart_by_what_they_are() -> None:
    nan = math.nan
    assert net((-1, 1, 1.0), (1, 1, nan), (-1, 1, nan), (1, 1, 2.0)) == {(1, 2.0, False)}
    assert net((-1, 1, 0.0), (1, 1, -0.0), (-1, 1, -0.0), (1, 1, 3.0)) == {(1, 3.0, False)}


def test_only_rows_that_come_are_appended() -> None:
    assert only_adds(images((1, 1, "a"), (1, 2, "a")))
    assert not only_adds(images((1, 1, "a"), (-1, 2, "a")))
    assert not only_adds(images((1, 1, "a"), (0, 2, None)))


@pytest.mark.parametrize("type_", [pa.date32(), pa.timestamp("us"), pa.timestamp("us", tz="UTC")])
def test_infinite_dates_are_found(type_: pa.DataType) -> None:
    finite = pa.array([datetime(2026, 1, 1, tzinfo=UTC if getattr(type_, "tz", None) else None), None]).cast(type_)
    assert infinite_column(pa.table({"at": finite})) is None
    for end in infinities(type_):
        assert infinite_column(pa.table({"n": pa.nulls(1), "at": pa.repeat(end, 1)})) == "at"
