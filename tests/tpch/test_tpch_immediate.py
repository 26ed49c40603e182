"""TPC-H in IMMEDIATE mode: each of the 22 queries is exact after every statement, in the transaction that makes it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import chain

import pytest
from psycopg import Rollback

from tests.tpch.database import QUERIES, create, load, new_sales, old_sales, updates
from tests.workload import Course, FreshDatabase, Workload

SPARSE = {"q17", "q19", "q20"}
"""So few rows pass their conditions that some changes find none of them."""


def statements(orders: int, share: float, cycle: int) -> Iterator[str]:
    """RF1, RF2 and the random updates, which name a third of all columns in turn."""
    return chain(new_sales(orders, cycle), old_sales(orders, 100 + cycle), updates(share, cycle))


def run(
    fresh_database: FreshDatabase,
    scale: float,
    cycles: int,
    orders: int,
    share: float,
    undone: bool,
    queries: Mapping[str, str] = QUERIES,
) -> dict[str, Course]:
    """Hold each stream table against its query after every statement, before the COMMIT.

    Where they are ``undone``, a cycle is rolled back at first, to a savepoint, and looked at then as well.
    """
    database = fresh_database()
    connection = database.connection
    create(connection)
    load(connection, scale)
    workload = Workload(database, queries, "IMMEDIATE")
    for cycle in range(cycles):
        with connection.transaction():
            for again in ("at first", "again")[not undone :]:
                with connection.transaction():
                    for number, statement in enumerate(statements(orders, share, cycle)):
                        connection.execute(statement)
                        workload.compare(f"statement {number} of cycle {cycle}, {again}: {statement}")
                    if again == "at first":
                        raise Rollback
                workload.compare(f"cycle {cycle}, {again}")
            for name, course in workload.courses.items():
                course.executors["triggers"] += workload.written(name)
        workload.compare(f"commit of cycle {cycle}")
    for name, course in workload.courses.items():
        course.actions = {str(database.state(name)["refresh_mode"])}
        course.rows = max(course.rows, database.value(f"SELECT count(*) FROM {name}"))
    return workload.courses


def hold(courses: Mapping[str, Course]) -> None:
    """All were maintained by triggers from the first statement to the last, never differed, and had rows."""
    assert {name: course.refused for name, course in courses.items() if course.refused} == {}
    assert {name: course.differences[:5] for name, course in courses.items() if course.differences} == {}
    assert {name for name, course in courses.items() if not course.rows} == set()
    assert {name for name, course in courses.items() if not course.executors["triggers"]} <= SPARSE
    assert {name: course.actions for name, course in courses.items() if course.actions != {"IMMEDIATE"}} == {}


FEW = ("q01", "q03", "q09", "q11", "q13", "q16", "q22")
"""Sums, first rows, a join of six tables, HAVING over a subquery, an outer join, different values, an anti-join."""


def test_queries_are_exact_after_every_statement(fresh_database: FreshDatabase) -> None:
    few = {name: QUERIES[name] for name in FEW}
    hold(run(fresh_database, 0.01, cycles=1, orders=15, share=0.01, undone=False, queries=few))


@pytest.mark.long
@pytest.mark.timeout(7200)
@pytest.mark.parametrize(("scale", "cycles", "orders", "share"), [(0.01, 10, 40, 0.1), (0.01, 3, 15, 0.01)])
def test_queries_are_exact_after_every_statement_of_many_cycles(
    fresh_database: FreshDatabase, scale: float, cycles: int, orders: int, share: float
) -> None:
    hold(run(fresh_database, scale, cycles, orders, share, undone=True))
