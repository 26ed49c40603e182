"""TPC-H on Spark: the 22 queries as stream tables whose full and differential refreshes must be computed there."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.e2e.conftest import Database, Headwater
from tests.tpch.database import QUERIES
from tests.tpch.test_tpch import run
from tests.workload import Course, FreshDatabase, databases


def on(target: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[FreshDatabase]:
    """Databases in which a refresh that Spark cannot compute is an error."""
    data = tmp_path_factory.mktemp("tpch-on-spark") / "data"
    return databases(Headwater(data, "--spark", target), refresh_engine="spark")


FEW = ("q03", "q06", "q13", "q22")
"""First rows, sums, an outer join, and a subquery with an anti-join."""


def hold(courses: dict[str, Course]) -> None:
    """All queries were maintained from changes, on Spark, and never differed."""
    assert {name: course.differences for name, course in courses.items() if course.differences} == {}
    for course in courses.values():
        course.hold()
        assert set(course.executors) <= {"spark", "nothing to do"}
    assert sum(course.executors["spark"] for course in courses.values()) >= len(courses)


@pytest.mark.long
def test_queries_are_exact_after_every_change_on_sail(tmp_path_factory: pytest.TempPathFactory) -> None:
    for fresh_database in on("sail", tmp_path_factory):
        made: list[Database] = []

        def fresh(made: list[Database] = made, fresh_database: FreshDatabase = fresh_database) -> Database:
            made.append(fresh_database())
            return made[-1]

        hold(run(fresh, 0.01, cycles=1, apart=0, queries={name: QUERIES[name] for name in FEW}))
        shown = dict(made[0].rows("SELECT property, value FROM pgtrickle.explain_st('q06')"))
        assert shown["Last Executor"].startswith("spark (")
        assert " FROM source_" in shown["Spark SQL"]
        assert " FROM delta_" in shown["Spark Delta SQL"]


@pytest.mark.long
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("target", ["sail", "local[2]"])
def test_queries_are_exact_after_every_change_of_ten_cycles_on_spark(
    tmp_path_factory: pytest.TempPathFactory, target: str
) -> None:
    for fresh_database in on(target, tmp_path_factory):
        hold(run(fresh_database, 0.01, cycles=10, apart=0))
