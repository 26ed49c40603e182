"""Which stream tables are refreshed in one transaction."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from catalog.graph import DependencyGraph
from catalog.stream_tables import StreamTable
from catalog.values import Status
from engine.scheduling.units import Unit, units
from tests.engine.scheduling.test_scheduler import BASE, stream_table

ALICE, BOB = 10, 11


def diamond(**of_meeting: Any) -> list[StreamTable]:
    """1 reads a table, 2 and 3 read 1, and 4 reads both; 5 reads 4."""
    return [
        stream_table(1, BASE),
        stream_table(2, 1),
        stream_table(3, 1),
        stream_table(4, 2, 3, **of_meeting),
        stream_table(5, 4),
    ]


def found(tables: list[StreamTable], *acting: tuple[int, int]) -> list[Unit]:
    return units(tables, DependencyGraph(tables), frozenset(acting))


def keys(tables: list[StreamTable], *acting: tuple[int, int]) -> list[str]:
    return [unit.key for unit in found(tables, *acting)]


def changed(tables: list[StreamTable], pgt_id: int, **values: Any) -> list[StreamTable]:
    return [replace(table, **values) if table.pgt_id == pgt_id else table for table in tables]


def test_nothing_declared() -> None:
    assert keys(diamond()) == ["s:1", "s:2", "s:3", "s:4", "s:5"]


def test_atomic_diamond() -> None:
    (first, unit, last) = found(diamond(atomic=True))
    assert (first.key, unit.key, last.key) == ("s:1", "a:2,3,4", "s:5")
    assert [table.pgt_id for table in unit.members][-1] == 4
    assert (unit.one_snapshot, unit.slowest, unit.blocked, unit.owner) == (True, False, None, ALICE)
    assert found(diamond(atomic=True, slowest=True))[1].slowest


def test_of_others_only_where_one_may_act_for_them_or_the_operator_says_so() -> None:
    foreign = changed(diamond(atomic=True), 2, owner=BOB)
    assert keys(foreign) == ["s:1", "s:2", "s:3", "s:4", "s:5"]
    assert keys(foreign, (BOB, ALICE)) == keys(foreign)
    assert keys(foreign, (ALICE, BOB)) == ["s:1", "a:2,3,4", "s:5"]
    assert keys(changed(foreign, 4, all_atomic=True)) == ["s:1", "a:2,3,4", "s:5"]
    told: list[str] = []
    units(foreign, DependencyGraph(foreign), refuse=told.append)
    assert told == ["public.st2 belongs to a role that the owner of the others is no member of"]


def test_what_only_spark_may_compute_is_refreshed_by_itself() -> None:
    tables = changed(diamond(atomic=True), 3, on_spark=True)
    told: list[str] = []
    assert [u.key for u in units(tables, DependencyGraph(tables), refuse=told.append)] == keys(diamond())
    assert told == ["public.st3 is computed on Spark, which does not read in their transaction"]


def test_suspended_and_unpopulated_members() -> None:
    tables = diamond(atomic=True)
    unit = found(changed(tables, 2, status=Status.SUSPENDED))[1]
    assert unit.key == "a:2,3,4"
    assert unit.blocked == "stream table public.st2, which is refreshed together with it, is suspended"
    # Where the paths meet nobody sees anything any more: the others go on.
    unit = found(changed(tables, 4, status=Status.SUSPENDED))[1]
    assert (unit.key, unit.blocked) == ("a:2,3", None)
    assert keys(changed(tables, 4, is_populated=False)) == ["s:1", "a:2,3", "s:4", "s:5"]
    assert "s:2" in keys(changed(tables, 2, is_populated=False))
    unit = found(changed(tables, 3, held_back="source public.t is gated"))[1]
    assert unit.blocked == "source public.t is gated"


def test_groups_and_what_stands_between_their_members() -> None:
    chain = [stream_table(1, BASE, group=7), stream_table(2, 1), stream_table(3, 2, group=7), stream_table(4, BASE)]
    (unit, single) = sorted(found(chain), key=lambda unit: unit.key)
    assert (unit.key, single.key) == ("a:1,2,3", "s:4")
    assert [table.pgt_id for table in unit.members] == [1, 2, 3]
    assert not unit.one_snapshot
    (strict,) = found([stream_table(number, group=7, one_snapshot=True) for number in (1, 2)])
    assert strict.one_snapshot
    # Of somebody else: it would have to wait for the group.
    foreign = changed(chain, 2, owner=BOB)
    assert sorted(keys(foreign)) == ["s:1", "s:2", "s:3", "s:4"]
    # Those that the group names were looked at when it was made.
    assert keys([stream_table(1, group=7), stream_table(2, group=7, owner=BOB)]) == ["a:1,2"]


def test_a_group_and_a_diamond_with_a_member_in_common() -> None:
    tables = [*changed(diamond(atomic=True), 2, group=7), stream_table(6, BASE, group=7)]
    assert sorted(keys(tables)) == ["a:2,3,4,6", "s:1", "s:5"]


@pytest.mark.parametrize(
    ("reads", "members"),
    [
        ([(1, BASE), (2, 1), (3, BASE, 2)], {1, 2, 3}),  # one of two paths leads straight to the table
        ([(1, BASE), (2, 998), (3, 1, 2)], set()),  # of two tables
        ([(1, BASE), (2, 1), (3, BASE), (4, 2, 3)], {1, 2, 3, 4}),  # paths of unequal lengths
        ([(1, BASE), (2, 1), (3, 1), (4, 1, 2, 3)], {2, 3, 4}),
    ],
)
def test_what_is_a_diamond(reads: list[tuple[int, ...]], members: set[int]) -> None:
    tables = [stream_table(pgt_id, *sources) for pgt_id, *sources in reads]
    assert DependencyGraph(tables).diamond(tables[-1].pgt_id) == members


def test_a_circle_is_one_unit_whatever_is_declared() -> None:
    """Also of several roles, and before it is populated: none of its members can be refreshed by itself."""
    tables = [*diamond(), replace(stream_table(6, 1, 7), circle=6), replace(stream_table(7, 6), circle=6, owner=BOB)]
    tables = changed(tables, 7, is_populated=False)
    assert keys(tables) == ["s:1", "s:2", "s:3", "a:6,7", "s:4", "s:5"]
    unit = found(tables)[3]
    assert (unit.one_snapshot, unit.slowest, unit.blocked) == (False, False, None)
    assert "is suspended" in (found(changed(tables, 6, status=Status.SUSPENDED))[3].blocked or "")
    grouped = changed(changed(changed(tables, 5, group=1), 6, group=1), 7, owner=ALICE)
    assert keys(grouped)[3] == "a:6,7"  # the group waits until all are populated
    assert keys(changed(grouped, 7, is_populated=True))[-1] == "a:5,6,7"
