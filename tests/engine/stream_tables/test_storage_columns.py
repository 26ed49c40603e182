"""What is done to the columns of a storage table, without a database."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from engine.stream_tables.storage_columns import ColumnChanges, Layout

LAYOUTS = st.lists(st.sampled_from("abcdef"), unique=True).flatmap(
    lambda names: st.tuples(*(st.sampled_from(["integer", "text"]) for _ in names)).map(
        lambda types: dict(zip(names, types, strict=True))
    )
)


def altered(present: Layout, changes: ColumnChanges) -> list[tuple[str, str]]:
    """The columns after ALTER TABLE: what is left, then what is added."""
    left = [(name, changes.retyped.get(name, present[name])) for name in present if name not in changes.dropped]
    return left + list(changes.added.items())


@given(present=LAYOUTS, wanted=LAYOUTS)
def test_columns_become_the_wanted_ones_in_their_order(present: Layout, wanted: Layout) -> None:
    changes = ColumnChanges.between(present, wanted)
    assert altered(present, changes) == list(wanted.items())
    assert set(changes.dropped) <= present.keys()
    assert set(changes.moved) == set(changes.dropped) & wanted.keys()


@given(layout=LAYOUTS)
def test_the_same_columns_need_nothing(layout: Layout) -> None:
    assert ColumnChanges.between(layout, dict(layout)).clauses == []


def test_what_can_stay_stays() -> None:
    present = {"region": "text", "total": "numeric", "n": "bigint"}
    more = ColumnChanges.between(present, present | {"most": "numeric"})
    assert more.clauses == ['ADD COLUMN "most" numeric']
    less = ColumnChanges.between(present, {"region": "text", "n": "bigint"})
    assert less.clauses == ['DROP COLUMN "total"']
    other = ColumnChanges.between(present, {"region": "text", "total": "bigint", "n": "bigint"})
    assert other.clauses == ['ALTER COLUMN "total" TYPE bigint USING NULL']
    between = ColumnChanges.between(present, {"region": "text", "new": "date", "total": "numeric"})
    assert (between.dropped, list(between.added), between.moved) == (("total", "n"), ["new", "total"], ("total",))
