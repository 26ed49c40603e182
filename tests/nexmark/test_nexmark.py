"""Nexmark: Q0 to Q9 as stream tables in DIFFERENTIAL mode are exact after every cycle of events and corrections."""

from __future__ import annotations

import pytest

from tests.nexmark.auctions import QUERIES, SCHEMA, Auctions
from tests.workload import Course, FreshDatabase, Workload


def run(fresh_database: FreshDatabase, events: int, cycles: int) -> dict[str, Course]:
    """In each cycle a tenth as many events as there were at first, then corrections; a refresh after each."""
    database = fresh_database()
    connection = database.connection
    connection.execute(SCHEMA)
    auctions = Auctions(seed=7)
    auctions.events(connection, events)
    connection.execute("ANALYZE")
    workload = Workload(database, QUERIES)
    for cycle in range(cycles):
        auctions.events(connection, events // 10)
        workload.refresh(f"events of cycle {cycle}")
        with connection.transaction():
            for statement in auctions.second_thoughts():
                connection.execute(statement)
        workload.refresh(f"corrections of cycle {cycle}")
    return workload.courses


@pytest.fixture(scope="module")
def small(fresh_database: FreshDatabase) -> dict[str, Course]:
    return run(fresh_database, 3000, cycles=3)


@pytest.mark.parametrize("name", QUERIES)
def test_query_is_exact_after_every_change(small: dict[str, Course], name: str) -> None:
    small[name].hold()


@pytest.mark.long
@pytest.mark.timeout(7200)
def test_queries_are_exact_after_every_change_of_ten_cycles(fresh_database: FreshDatabase) -> None:
    courses = run(fresh_database, 100_000, cycles=10)
    assert {name: course.differences for name, course in courses.items() if course.differences} == {}
    for course in courses.values():
        course.hold()
