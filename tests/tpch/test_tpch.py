"""TPC-H: the 22 queries as stream tables in DIFFERENTIAL mode are exact after every cycle of changes."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from tests.tpch.database import QUERIES, create, load, new_sales, old_sales, updates
from tests.workload import Course, FreshDatabase, Workload

UPDATED = 0.01
"""The share of each table's rows that the random updates of one cycle change in each of two columns."""


def run(
    fresh_database: FreshDatabase, scale: float, cycles: int, apart: int, queries: Mapping[str, str] = QUERIES
) -> dict[str, Course]:
    """Make the stream tables, let the sales go on, and hold each against its query after every cycle.

    In the first `apart` cycles there is a refresh after each of the three kinds of changes, afterwards one for all.
    """
    database = fresh_database()
    connection = database.connection
    create(connection)
    load(connection, scale)
    workload = Workload(database, queries)
    orders = max(3, round(1500 * scale))
    for cycle in range(cycles):
        for what, statements in (
            ("RF1", new_sales(orders, cycle)),
            ("RF2", old_sales(orders, 100 + cycle)),
            ("updates", updates(UPDATED, cycle)),
        ):
            with connection.transaction():
                for statement in statements:
                    connection.execute(statement)
            if what == "updates" or cycle < apart:
                workload.refresh(f"{what} of cycle {cycle}")
    return workload.courses


@pytest.fixture(scope="module")
def small(fresh_database: FreshDatabase) -> dict[str, Course]:
    return run(fresh_database, 0.01, cycles=5, apart=0)


@pytest.mark.parametrize("name", QUERIES)
def test_query_is_exact_after_every_change(small: dict[str, Course], name: str) -> None:
    small[name].hold()


@pytest.mark.long
@pytest.mark.timeout(7200)
@pytest.mark.parametrize(("scale", "apart"), [(0.01, 10), (0.1, 0)])
def test_queries_are_exact_after_every_change_of_ten_cycles(
    fresh_database: FreshDatabase, scale: float, apart: int
) -> None:
    courses = run(fresh_database, scale, cycles=10, apart=apart)
    assert {name: course.differences for name, course in courses.items() if course.differences} == {}
    for course in courses.values():
        course.hold()
