"""IMMEDIATE mode is exact whatever the order in which the statements of two and three transactions come."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product

import psycopg
import pytest

from tests.e2e.conftest import Database
from tests.e2e.immediate.interleavings import COMMIT, DEADLOCK, RC, RR, SERIALIZATION, Outcome, S, Stage, orders

TABLES = """
CREATE TABLE t (id int PRIMARY KEY, g int, v int);
CREATE TABLE u (id int PRIMARY KEY, g int, w int);
CREATE TABLE k (g int, v int);
"""
RESET = """
DELETE FROM t; DELETE FROM u; DELETE FROM k;
INSERT INTO t VALUES (1, 1, 10), (2, 1, 20), (3, 2, 30), (4, 3, 40);
INSERT INTO u VALUES (1, 1, 100), (2, 2, 200), (3, 5, 500);
INSERT INTO k VALUES (1, 7), (1, 7), (1, 7), (2, 8);
"""


@dataclass(frozen=True)
class Scenario:
    """Stream tables, in the order in which they are made, and what two sessions, or more, do to their sources."""

    tables: dict[str, str]
    sessions: tuple[tuple[str, ...], ...]
    errors: frozenset[str] = frozenset()
    """SQLSTATEs that PostgreSQL gives without the stream tables."""

    def steps(self, statements: int) -> list[tuple[str, ...]]:
        """So many statements of each session, and a commit."""
        return [(*session[:statements], COMMIT) for session in self.sessions]


INNER = "SELECT t.id AS tid, u.id AS uid, t.v, u.w FROM t JOIN u ON t.g = u.g"
LEFT = "SELECT t.id AS tid, u.id AS uid, t.v, u.w FROM t LEFT JOIN u ON t.g = u.g"
SUMS = "SELECT g, count(*) AS n, sum(v) AS total FROM t GROUP BY g"

SCENARIOS = {
    "inner join": Scenario(
        {"st": INNER},
        (
            ("INSERT INTO t VALUES (10, 2, 1)", "UPDATE t SET g = 5 WHERE id = 1", "DELETE FROM t WHERE id = 3"),
            ("INSERT INTO u VALUES (10, 2, 2)", "UPDATE u SET g = 1 WHERE id = 3", "DELETE FROM u WHERE id = 2"),
            ("INSERT INTO t VALUES (11, 2, 3)", "UPDATE u SET w = w + 1 WHERE id = 1"),
        ),
    ),
    "left join": Scenario(
        {"st": LEFT},
        (
            ("UPDATE t SET g = 5 WHERE id = 1", "INSERT INTO t VALUES (10, 2, 1)"),
            ("DELETE FROM u WHERE id = 3", "UPDATE u SET g = 3 WHERE id = 2"),
            ("INSERT INTO u VALUES (10, 3, 2)", "DELETE FROM t WHERE id = 4"),
        ),
    ),
    "join of duplicates": Scenario(
        {"st": "SELECT k.v, u.w FROM k JOIN u ON k.g = u.g"},
        (
            ("INSERT INTO k VALUES (2, 8)", "DELETE FROM k WHERE g = 1"),
            ("INSERT INTO u VALUES (10, 2, 200)", "UPDATE u SET g = 2 WHERE id = 1"),
            ("UPDATE k SET g = 2 WHERE g = 1", "DELETE FROM u WHERE id = 2"),
        ),
    ),
    "aggregate over a join": Scenario(
        {"st": "SELECT u.g, count(*) AS n, sum(t.v) AS s, min(u.w) AS least FROM t JOIN u ON t.g = u.g GROUP BY u.g"},
        (
            ("INSERT INTO t VALUES (10, 2, 1)", "DELETE FROM t WHERE id = 1"),
            ("INSERT INTO u VALUES (10, 2, 2)", "UPDATE u SET w = 1 WHERE id = 1"),
            ("UPDATE t SET v = v + 1 WHERE id = 3", "DELETE FROM u WHERE id = 2"),
        ),
    ),
    "one group": Scenario(
        {"st": SUMS},
        (
            ("INSERT INTO t VALUES (10, 1, 1)", "DELETE FROM t WHERE id = 2"),
            ("UPDATE t SET v = v + 1 WHERE id = 1", "INSERT INTO t VALUES (11, 1, 2)"),
            ("UPDATE t SET g = 1 WHERE id = 3", "INSERT INTO t VALUES (12, 1, 4)"),
        ),
    ),
    "groups that come and go": Scenario(
        {"st": SUMS},
        (
            ("INSERT INTO t VALUES (10, 9, 1)", "DELETE FROM t WHERE id = 4"),
            ("INSERT INTO t VALUES (11, 9, 2)", "UPDATE t SET g = 3 WHERE id = 3"),
            ("INSERT INTO t VALUES (12, 3, 2)", "DELETE FROM t WHERE g = 9"),
        ),
    ),
    "rows that change groups": Scenario(
        {"st": SUMS},
        (
            ("UPDATE t SET g = 2 WHERE id = 1", "UPDATE t SET g = 1 WHERE id = 3"),
            ("UPDATE t SET g = 1 WHERE id = 3", "UPDATE t SET g = 2 WHERE id = 1"),
            ("UPDATE t SET g = 3 - g WHERE g < 3", "UPDATE t SET g = 2 WHERE id = 4"),
        ),
    ),
    "one row": Scenario(
        {"st": "SELECT id, g + v AS x FROM t WHERE v > 10"},
        (
            ("UPDATE t SET v = v + 1 WHERE id = 1", "UPDATE t SET v = 5 WHERE id = 2"),
            ("UPDATE t SET v = v + 1 WHERE id = 1", "DELETE FROM t WHERE id = 2"),
            ("DELETE FROM t WHERE id = 1", "INSERT INTO t VALUES (2, 1, 99) ON CONFLICT (id) DO UPDATE SET v = 99"),
        ),
    ),
    "one key": Scenario(
        {"st": "SELECT id, v FROM t WHERE v > 10"},
        (
            ("UPDATE t SET id = 20 WHERE id = 2", "INSERT INTO t VALUES (3, 1, 77) ON CONFLICT DO NOTHING"),
            ("INSERT INTO t VALUES (2, 1, 88) ON CONFLICT (id) DO UPDATE SET v = 99", "DELETE FROM t WHERE id = 3"),
            ("DELETE FROM t WHERE id = 2", "INSERT INTO t VALUES (20, 2, 20)"),
        ),
        frozenset({"23505"}),
    ),
    "extrema that go": Scenario(
        {"st": "SELECT g, min(v) AS least, max(v) AS most FROM t GROUP BY g"},
        (
            ("DELETE FROM t WHERE id = 1", "UPDATE t SET v = 25 WHERE id = 2"),
            ("INSERT INTO t VALUES (10, 1, 5)", "UPDATE t SET v = 50 WHERE id = 10"),
            ("UPDATE t SET g = 1 WHERE id = 4", "DELETE FROM t WHERE id = 4"),
        ),
    ),
    "different values": Scenario(
        {"st": "SELECT g, count(DISTINCT v) AS n FROM t GROUP BY g"},
        (
            ("INSERT INTO t VALUES (10, 1, 10)", "DELETE FROM t WHERE id = 1"),
            ("UPDATE t SET v = 10 WHERE id = 2", "INSERT INTO t VALUES (11, 1, 20)"),
            ("DELETE FROM t WHERE v = 10", "UPDATE t SET g = 1, v = 20 WHERE id = 3"),
        ),
    ),
    "window": Scenario(
        {"st": "SELECT id, g, v, row_number() OVER (PARTITION BY g ORDER BY v, id) AS place FROM t"},
        (
            ("INSERT INTO t VALUES (10, 1, 15)", "UPDATE t SET g = 2 WHERE id = 2"),
            ("DELETE FROM t WHERE id = 1", "INSERT INTO t VALUES (11, 2, 5)"),
            ("UPDATE t SET v = 1 WHERE id = 2", "UPDATE t SET g = 1 WHERE id = 3"),
        ),
    ),
    "duplicates": Scenario(
        {"st": "SELECT g, v FROM k WHERE v > 0"},
        (
            ("INSERT INTO k VALUES (1, 7)", "DELETE FROM k WHERE ctid = (SELECT min(ctid) FROM k WHERE g = 1)"),
            ("UPDATE k SET v = 7, g = 1 WHERE g = 2", "INSERT INTO k VALUES (3, 3), (3, 3)"),
            ("DELETE FROM k WHERE g = 1", "INSERT INTO k VALUES (1, 7)"),
        ),
    ),
    "distinct": Scenario(
        {"st": "SELECT DISTINCT g FROM t"},
        (
            ("INSERT INTO t VALUES (10, 2, 1)", "UPDATE t SET g = 1 WHERE id = 4"),
            ("DELETE FROM t WHERE id = 3", "INSERT INTO t VALUES (11, 3, 1)"),
            ("INSERT INTO t VALUES (12, 9, 1)", "DELETE FROM t WHERE g = 2"),
        ),
    ),
    "chain": Scenario(
        {
            "sums": SUMS,
            "st": "SELECT u.id, s.n, s.total, u.w FROM sums s JOIN u ON s.g = u.g",
            "top": "SELECT count(*) AS n, sum(total) AS total FROM st",
        },
        (
            ("INSERT INTO t VALUES (10, 2, 1)", "UPDATE t SET g = 5 WHERE id = 1"),
            ("INSERT INTO u VALUES (10, 2, 2)", "UPDATE u SET g = 1 WHERE id = 3"),
            ("DELETE FROM t WHERE g = 2", "UPDATE u SET w = 0 WHERE id = 1"),
        ),
    ),
    "self-join": Scenario(
        {"st": "SELECT a.id AS aid, b.id AS bid, a.v + b.v AS s FROM t a JOIN t b ON a.g = b.g"},
        (
            ("INSERT INTO t VALUES (10, 1, 1)", "UPDATE t SET g = 2 WHERE id = 2"),
            ("UPDATE t SET g = 1 WHERE id = 3", "DELETE FROM t WHERE id = 1"),
            ("INSERT INTO t VALUES (11, 2, 1), (12, 1, 1)", "UPDATE t SET v = 0 WHERE g = 1"),
        ),
    ),
    "all rows": Scenario(
        {"st": "SELECT count(*) AS n, sum(v) AS total, max(v) AS most FROM t"},
        (
            ("INSERT INTO t VALUES (10, 1, 99)", "DELETE FROM t WHERE id = 4"),
            ("DELETE FROM t WHERE id = 1", "INSERT INTO t VALUES (11, 1, 1)"),
            ("UPDATE t SET v = 0 WHERE id = 4", "DELETE FROM t WHERE id > 2"),
        ),
    ),
    "anti-join": Scenario(
        {"st": "SELECT id, v FROM t WHERE NOT EXISTS (SELECT FROM u WHERE u.g = t.g)"},
        (
            ("INSERT INTO t VALUES (10, 5, 1)", "UPDATE t SET g = 3 WHERE id = 1"),
            ("DELETE FROM u WHERE id = 3", "INSERT INTO u VALUES (10, 3, 1)"),
            ("UPDATE u SET g = 2 WHERE id = 1", "DELETE FROM t WHERE id = 2"),
        ),
    ),
    "groups by a condition": Scenario(
        {"st": "SELECT g, sum(v) AS total FROM t GROUP BY g HAVING count(*) > 1"},
        (
            ("INSERT INTO t VALUES (10, 2, 1)", "DELETE FROM t WHERE id = 1"),
            ("UPDATE t SET g = 2 WHERE id = 4", "INSERT INTO t VALUES (11, 3, 1)"),
            ("DELETE FROM t WHERE g = 2", "INSERT INTO t VALUES (12, 3, 1)"),
        ),
    ),
    "first rows": Scenario(
        {"st": "SELECT id, v FROM t ORDER BY v DESC, id LIMIT 2"},
        (
            ("INSERT INTO t VALUES (10, 1, 35)", "DELETE FROM t WHERE id = 4"),
            ("UPDATE t SET v = 100 WHERE id = 1", "INSERT INTO t VALUES (11, 1, 36)"),
            ("DELETE FROM t WHERE id = 3", "UPDATE t SET v = 0 WHERE id = 4"),
        ),
    ),
    "several stream tables": Scenario(
        {"st": INNER, "sums": SUMS, "rows": "SELECT id, w FROM u WHERE w > 100", "other": LEFT},
        (
            ("INSERT INTO t VALUES (10, 2, 1)", "UPDATE u SET w = w + 1 WHERE id = 1"),
            ("INSERT INTO u VALUES (10, 2, 2)", "UPDATE t SET v = v + 1 WHERE id = 3"),
            ("UPDATE t SET g = 2 WHERE id = 1", "DELETE FROM u WHERE id = 2"),
        ),
    ),
    "groups emptied": Scenario(
        {"st": SUMS, "top": "SELECT max(n) AS n FROM st"},
        (
            ("TRUNCATE t", "INSERT INTO t VALUES (10, 1, 50)"),
            ("INSERT INTO t VALUES (11, 9, 60)", "UPDATE t SET g = 9 WHERE id = 1"),
            ("DELETE FROM t WHERE g = 2", "TRUNCATE t"),
        ),
    ),
    "rows emptied": Scenario(
        {"st": "SELECT id, v FROM t WHERE v > 10"},
        (
            ("TRUNCATE t", "INSERT INTO t VALUES (10, 1, 50)"),
            ("INSERT INTO t VALUES (11, 9, 60)", "UPDATE t SET v = 9 WHERE id = 2"),
            ("DELETE FROM t WHERE g = 2", "TRUNCATE t"),
        ),
    ),
    "join emptied": Scenario(
        {"st": LEFT},
        (
            ("TRUNCATE t", "INSERT INTO t VALUES (10, 1, 50)"),
            ("INSERT INTO u VALUES (11, 9, 60)", "UPDATE t SET g = 9 WHERE id = 2"),
            ("INSERT INTO t VALUES (12, 9, 70)", "TRUNCATE u"),
        ),
    ),
    "several in one statement": Scenario(
        {"st": INNER, "other": "SELECT u.g, count(*) AS n FROM t JOIN u ON t.g = u.g GROUP BY u.g"},
        (
            (
                "WITH x AS (INSERT INTO t VALUES (10, 2, 1)) INSERT INTO u VALUES (10, 1, 1)",
                "DELETE FROM t WHERE id = 1",
            ),
            (
                "WITH x AS (UPDATE u SET g = 1 WHERE id = 3) UPDATE t SET g = 5 WHERE id = 2",
                "DELETE FROM u WHERE id = 2",
            ),
            ("WITH x AS (DELETE FROM u WHERE id = 1) INSERT INTO t VALUES (11, 5, 1)", "UPDATE t SET v = 0"),
        ),
    ),
}


COLUMNS = """
SELECT string_agg(quote_ident(attname), ', ' ORDER BY attnum) FROM pg_attribute
WHERE attrelid = %s::regclass AND attnum > 0 AND NOT attisdropped AND attname NOT LIKE '\\_\\_pgt\\_%%'
"""


class Theatre:
    """The stages of the scenarios in one database, each made when it is first played."""

    def __init__(self, db: Database):
        self.db = db
        self.made: set[str] = set()

    def make(self, name: str) -> tuple[str, dict[str, tuple[str, str]]]:
        """The connection string and the stream tables (query, columns) of a scenario."""
        schema = "of_" + name.replace(" ", "_").replace("-", "_")
        queries = SCENARIOS[name].tables
        if name not in self.made:
            self.db.run(f"CREATE SCHEMA {schema}; SET search_path = {schema}; {TABLES}")
            for table, query in queries.items():
                self.db.create(f"{schema}.{table}", query, refresh_mode="IMMEDIATE")
                assert self.db.state(f"{schema}.{table}")["refresh_mode"] == "IMMEDIATE"
            self._end_captures()
            self.made.add(name)
        tables = {table: (query, self.db.value(COLUMNS, f"{schema}.{table}")) for table, query in queries.items()}
        return self.db.server.direct_dsn(self.db.name, options=f"-c search_path={schema}"), tables

    def _end_captures(self) -> None:
        """Remove what captured the sources before, as the server does within a second.

        That locks both sources: a session that looks for deadlocks at once would be the victim of one with it.
        """
        deadline = time.monotonic() + 60
        while self.db.value("SELECT pgtrickle._unfollowed()"):
            assert time.monotonic() < deadline, "captures that nobody needs are still there"
            self.db.run("SELECT pgtrickle._end_captures()")

    def play(self, name: str, levels: Sequence[Sequence[str]], statements: int, every: int = 1) -> list[Outcome]:
        """Every order of so many statements of each session, or every nth, at each combination of levels."""
        dsn, tables = self.make(name)
        scenario = SCENARIOS[name]

        async def play() -> list[Outcome]:
            outcomes = []
            stage = await Stage(dsn, tables).open(len(levels[0]))
            try:
                for combination in levels:
                    steps = scenario.steps(statements)[: len(combination)]
                    for order in list(orders([len(session) for session in steps]))[::every]:
                        try:
                            outcome = await stage.play(RESET, combination, steps, order)
                            check_errors(outcome, scenario, combination)
                        except Exception as error:
                            error.add_note(f"{name}: {combination}, {steps}, in the order {order}")
                            raise
                        outcomes.append(outcome)
            finally:
                await stage.close()
            return outcomes

        return asyncio.run(play())


def check_errors(outcome: Outcome, scenario: Scenario, levels: Sequence[str]) -> None:
    """At READ COMMITTED nothing fails but what deadlocks, above it what cannot be serialized."""
    allowed = {DEADLOCK, *scenario.errors}
    if {*levels} != {RC}:
        allowed.add(SERIALIZATION)
    unexpected = [error for error in outcome.errors.values() if error.partition(":")[0] not in allowed]
    assert not unexpected, unexpected


@pytest.fixture(scope="module")
def theatre(shared_db: Database) -> Iterator[Theatre]:
    yield Theatre(shared_db)


@pytest.mark.parametrize("name", SCENARIOS)
@pytest.mark.one_in(3)
def test_two_sessions_of_one_statement(theatre: Theatre, name: str) -> None:
    theatre.play(name, [(RC, RC), (S, S), (RR, RC)], 1)


@pytest.mark.parametrize("name", SCENARIOS)
@pytest.mark.one_in(3)
def test_two_sessions_of_two_statements(theatre: Theatre, name: str) -> None:
    """A third of the orders, from one session after the other to both in turn."""
    theatre.play(name, [(RC, RC)], 2, every=3)


@pytest.mark.long
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("name", SCENARIOS)
def test_two_sessions_at_all_levels(theatre: Theatre, name: str) -> None:
    theatre.play(name, [*product((RC, RR, S), repeat=2)], 1)
    theatre.play(name, [*product((RC, RR, S), repeat=2)], 2)


@pytest.mark.long
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("name", SCENARIOS)
def test_three_sessions(theatre: Theatre, name: str) -> None:
    """All at one level, and at three different ones, so that each session is at each level."""
    theatre.play(name, [(RC, RC, RC), (RR, RR, RR), (S, S, S), (RC, RR, S), (RR, S, RC), (S, RC, RR)], 1)


def waits(outcomes: Sequence[Outcome]) -> set[int]:
    """The sessions that have waited for another one in any order."""
    return {number for outcome in outcomes for number in outcome.waited}


def test_writers_of_different_groups_do_not_wait_for_each_other(theatre: Theatre) -> None:
    SCENARIOS["groups apart"] = Scenario(
        {"st": SUMS, "top": "SELECT g, max(v) AS most FROM t GROUP BY g"},
        (
            ("INSERT INTO t VALUES (10, 1, 1)", "UPDATE t SET v = 7 WHERE g = 1"),
            ("DELETE FROM t WHERE id = 3", "INSERT INTO t VALUES (11, 2, 1)"),
        ),
    )
    outcomes = theatre.play("groups apart", [*product((RC, RR), repeat=2)], 2)
    assert len(outcomes) == 4 * 20
    assert waits(outcomes) == set()
    assert not any(outcome.errors for outcome in outcomes)


def test_groups_changed_in_opposite_orders_deadlock_and_one_of_the_two_goes_on(theatre: Theatre) -> None:
    SCENARIOS["groups crossed"] = Scenario(
        {"st": SUMS},
        (
            ("INSERT INTO t VALUES (10, 1, 1)", "INSERT INTO t VALUES (11, 2, 1)"),
            ("INSERT INTO t VALUES (20, 2, 1)", "INSERT INTO t VALUES (21, 1, 1)"),
        ),
    )
    errors = [outcome.errors for outcome in theatre.play("groups crossed", [(RC, RC)], 2)]
    assert {len(found) for found in errors} == {0, 1}
    assert all(error.startswith(DEADLOCK) for found in errors for error in found.values())


def test_groups_changed_by_one_statement_are_locked_in_one_order(theatre: Theatre) -> None:
    SCENARIOS["groups together"] = Scenario(
        {"st": SUMS, "top": "SELECT g, max(v) AS most FROM t GROUP BY g"},
        (
            (
                "INSERT INTO t VALUES (10, 1, 1), (11, 2, 1), (12, 3, 1)",
                "UPDATE t SET v = v + 1 WHERE id IN (10, 11, 12)",
            ),
            (
                "INSERT INTO t VALUES (20, 3, 1), (21, 2, 1), (22, 1, 1)",
                "UPDATE t SET v = v + 1 WHERE id IN (20, 21, 22)",
            ),
        ),
    )
    assert not any(outcome.errors for outcome in theatre.play("groups together", [(RC, RC)], 2))


@pytest.mark.parametrize("name", ["one row", "duplicates", "inner join", "one group"])
def test_writers_of_what_is_maintained_together_wait_for_each_other(theatre: Theatre, name: str) -> None:
    assert waits(theatre.play(name, [(RC, RC)], 1)) == {0, 1}


OLDER = {
    INNER: ("INSERT INTO t VALUES (10, 1, 50)", "UPDATE u SET g = 2 WHERE id = 1", "TRUNCATE t"),
    SUMS: (
        "INSERT INTO t VALUES (10, 1, 50)",
        "UPDATE t SET g = 2 WHERE id = 1",
        "DELETE FROM t WHERE id = 1",
        "TRUNCATE t",
    ),
    "SELECT id, v FROM t WHERE v > 10": (
        "INSERT INTO t VALUES (10, 1, 50)",
        "DELETE FROM t WHERE id = 2",
        "TRUNCATE t",
    ),
    "SELECT v FROM k": ("INSERT INTO k VALUES (1, 7)", "DELETE FROM k WHERE g = 1", "TRUNCATE k"),
    "SELECT count(*) AS n FROM t": ("INSERT INTO t VALUES (10, 1, 50)", "DELETE FROM t", "TRUNCATE t"),
}


@pytest.mark.parametrize("query", OLDER)
@pytest.mark.one_in(3)
def test_transaction_with_a_snapshot_older_than_the_stream_table_fails(db: Database, query: str) -> None:
    """It does not see what is stored: to change that would be to guess."""
    db.run(TABLES + RESET)
    for statement in OLDER[query]:
        with db.bypass(autocommit=False) as old:
            old.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
            old.execute("SELECT")
            db.create("st", query, refresh_mode="IMMEDIATE")
            with pytest.raises(psycopg.errors.SerializationFailure):
                old.execute(statement)
            old.rollback()
            old.execute(statement)
            old.rollback()
        db.assert_current("st")
        db.run("SELECT pgtrickle.drop_stream_table('st')")
