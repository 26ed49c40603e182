"""Random stream tables computed on one Spark target; a process of its own, since a process has one Spark.

    python -m tests.property.on_spark TARGET MODE SOCKET_DIR USER DATABASE EXAMPLES   (the password on standard input)

MODE is FULL or DIFFERENTIAL.

The database is to be empty. A query whose first rows Spark leaves to PostgreSQL is no example. Prints how many
refreshes Spark computed, how many it left to PostgreSQL, and why.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from hypothesis.strategies import DrawFn

from catalog.values import Action
from engine.mirror.mirror import Mirror
from engine.refresh.spark_refresh import DatabaseOnSpark
from engine.session.pool import DatabasePool
from engine.spark.executor import SparkExecutor
from engine.spark.sessions import SparkSessions
from tests.property.changes import changes, initial_rows
from tests.property.laboratory import Laboratory
from tests.property.queries import Query, queries
from tests.property.schemas import CLASSIC, Table

FIRST = "SELECT executor, executor_reason FROM pgtrickle.pgt_refresh_history ORDER BY refresh_id LIMIT 1"


@dataclass(frozen=True, slots=True)
class Login:
    """Where PostgreSQL is; what `Laboratory` needs of an `EmbeddedPostgres`."""

    socket_dir: str
    user: str
    password: str
    port: int = 5432


@dataclass(frozen=True, slots=True)
class Example:
    tables: tuple[Table, ...]
    rows: list[str]
    query: Query
    cycles: list[list[str]]


@st.composite
def examples(draw: DrawFn) -> Example:
    tables = tuple(draw(st.lists(st.sampled_from(CLASSIC), min_size=1, max_size=3, unique=True)))
    query = draw(queries(tuple(table.relation for table in tables), 2))
    cycle = st.lists(changes(tables), min_size=1, max_size=3)
    return Example(tables, draw(initial_rows(tables)), query, draw(st.lists(cycle, min_size=1, max_size=2)))


def main() -> None:
    """Run the examples; an assertion ends the process."""
    target, mode, socket_dir, user, database, count = sys.argv[1:]
    login = Login(socket_dir, user, sys.stdin.readline().strip())
    laboratory = Laboratory(login, database)  # type: ignore[arg-type]
    executors: Counter[str] = Counter()
    reasons: Counter[str] = Counter()
    with tempfile.TemporaryDirectory() as directory:
        sessions = SparkSessions(target, Path(directory) / "spark")
        pool = DatabasePool(
            database, lambda _: {"host": login.socket_dir, "user": login.user, "password": login.password}
        )
        laboratory.spark = DatabaseOnSpark(SparkExecutor(sessions, Mirror(Path(directory) / "mirror")), pool)
        laboratory.do(laboratory.use_spark())

        few = int(count) < 100  # of the default suite, which tries the same ones each time
        every_check = list(HealthCheck)

        @settings(
            max_examples=int(count), deadline=None, database=None, suppress_health_check=every_check, derandomize=few
        )
        @given(examples())
        def holds(example: Example) -> None:
            async def run() -> None:
                await laboratory.reset(example.tables, example.rows)
                if not await laboratory.valid(example.query):
                    assume(False)
                table = await laboratory.create("st0", example.query, mode)
                executor, reason = await laboratory.connections[0].fetchrow(FIRST)
                if executor != "spark":
                    reasons[reason.rpartition("results: ")[2]] += 1
                    assume(False)
                for statements in example.cycles:
                    for statement in statements:
                        await laboratory.run(1, statement)
                    outcome = await laboratory.refresh(0, table)
                    if outcome is not None and outcome.action is not Action.NO_DATA:
                        kind = "" if outcome.action is not Action.DIFFERENTIAL else "_delta"
                        executors[outcome.executor + kind] += 1
                        if outcome.executor != "spark":
                            reasons[outcome.executor_reason.rpartition("results: ")[2]] += 1
                    await laboratory.check(0, table)

            laboratory.do(run())

        try:
            holds()
        finally:
            laboratory.do(asyncio.wait_for(sessions.stop(), 60))
            laboratory.do(pool.close())
    laboratory.close()
    for reason, number in reasons.most_common():
        print(f"{number:6} {reason}")
    print(" ".join(f"{name}={number}" for name, number in sorted(executors.items())))


if __name__ == "__main__":
    main()
