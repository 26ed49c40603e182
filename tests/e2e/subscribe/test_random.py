"""Random queries through the wire: what a client folds becomes what the query gives; no row goes that was not there.

Whoever asks for the past then is told the same, each at its time where the query allows that, and otherwise the sum.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from typing import Any

import psycopg
import pytest
from hypothesis import given, reject, settings
from psycopg import sql

from tests.e2e.conftest import Database, Headwater, _database
from tests.e2e.subscribe.following import Folded
from tests.property.changes import Step
from tests.property.following import DATA_ERRORS, NOT_FOLLOWED, _plain
from tests.property.laboratory import EXPECTED, LOCK_TIMEOUT, NOT_MAINTAINED, SESSIONS
from tests.property.test_random_subscriptions import Example, examples

PATIENCE = 90.0

Update = tuple[int, int | None, tuple[Any, ...]]
"""Its timestamp, what has become of a row (None: nothing, the time is closed), and the row."""

HELD = "SELECT bool_and(held_from IS NOT NULL) FROM pgtrickle.history_status()"


@pytest.fixture(scope="module")
def arena(server: Headwater) -> Iterator[Database]:
    """One database for all examples."""
    yield from _database(server)


def texts(cursor: psycopg.Cursor[Any]) -> list[tuple[str | None, ...]]:
    """The rows of a result, as PostgreSQL writes them."""
    result = cursor.pgresult
    assert result is not None
    return [
        tuple(None if (v := result.get_value(row, n)) is None else v.decode() for n in range(result.nfields))
        for row in range(result.ntuples)
    ]


def play(sessions: Sequence[psycopg.Connection[Any]], steps: Sequence[Step]) -> None:
    """Run a script; what interleaved transactions run into has no effect."""
    for step in steps:
        session = sessions[step.session]
        if step.statement.startswith("TRUNCATE") and session.info.transaction_status:
            continue  # its lock would keep everybody else out
        try:
            session.execute(step.statement.encode())
        except psycopg.Error as error:
            if error.sqlstate not in EXPECTED:
                raise
    for session in sessions:
        if session.info.transaction_status:
            session.execute("COMMIT")


def fetch(client: psycopg.Connection[Any], folded: Folded, told: list[Update], example: Example) -> None:
    for timestamp, progressed, diff, *values in texts(client.execute("FETCH ALL c WITH (timeout = '100ms')")):
        row = _plain(tuple(values), exact=example.query.exact)
        folded.take((int(timestamp or 0), progressed == "t", int(diff or 0), *row))
        told.append((int(timestamp or 0), None if progressed == "t" else int(diff or 0), row))


def check_past(database: Database, example: Example, told: list[Update], closed: int) -> None:
    """What a client was told up to a closed timestamp is what history tells of it."""
    begun = told[0][0]
    asked = f"SUBSCRIBE ({example.query.text}) WITH (SNAPSHOT = false) AS OF {begun} UP TO {closed}"
    found = [
        (int(timestamp or 0), int(diff or 0), _plain(tuple(values), exact=example.query.exact))
        for timestamp, diff, *values in texts(database.connection.execute(asked.encode()))
    ]
    since = [(at, diff, row) for at, diff, row in told if diff is not None and begun < at < closed]
    if any(step.statement.startswith("TRUNCATE") for step in example.steps):
        # While a source is locked others go on; who reads it is told at the next timestamp after that.
        times = sorted({at for at, _, _ in since})
        found = [(next((time for time in times if time >= at), closed), diff, row) for at, diff, row in found]
    assert summed(found) == summed(since)


def summed(updates: Iterable[tuple[int, int, tuple[Any, ...]]]) -> dict[tuple[Any, ...], int]:
    sums: Counter[tuple[Any, ...]] = Counter()
    for at, diff, row in updates:
        sums[at, row] += diff
    return {update: diff for update, diff in sums.items() if diff}


def hold(database: Database, example: Example) -> None:
    tables = database.rows(
        "SELECT relname FROM pg_class WHERE relnamespace = 'public'::regnamespace AND relkind IN ('r', 'p')"
    )
    for (name,) in tables:
        database.connection.execute(sql.SQL("DROP TABLE IF EXISTS {} CASCADE").format(sql.Identifier(name)))
    query = example.query.text.encode()
    with ExitStack() as stack:
        options = f"-c lock_timeout={LOCK_TIMEOUT} -c statement_timeout=5s"
        dsn = database.server.dsn(database.name, options=options)
        sessions = [stack.enter_context(psycopg.connect(dsn, autocommit=True)) for _ in range(SESSIONS)]
        client = stack.enter_context(psycopg.connect(database.server.dsn(database.name)))
        for statement in (*(table.ddl for table in example.tables), *example.rows):
            database.connection.execute(statement.encode())
        for table in example.tables:
            database.run("SELECT pgtrickle.retain_history(%s, '1 hour')", table.name)
        deadline = time.monotonic() + PATIENCE
        while not database.value(HELD):
            assert time.monotonic() < deadline
            time.sleep(0.05)
        try:
            sessions[0].execute(query)
        except psycopg.Error:
            reject()
        folded, told = Folded(), list[Update]()
        try:
            client.execute(b"DECLARE c CURSOR FOR SUBSCRIBE (" + query + b") WITH (PROGRESS)")
            play(sessions, example.steps)
            found = texts(database.connection.execute(query))
            truth = Counter(_plain(row, exact=example.query.exact) for row in found)
            deadline = time.monotonic() + PATIENCE
            while (not folded.closed or folded.rows != truth) and time.monotonic() < deadline:
                fetch(client, folded, told, example)
            assert folded.rows == truth
            check_past(database, example, told, folded.closed)
        except psycopg.Error as error:
            refused = error.sqlstate == "0A000" and (error.diag.message_primary or "").startswith(
                (*NOT_MAINTAINED, NOT_FOLLOWED)
            )
            if refused or (error.sqlstate or "").startswith(DATA_ERRORS):
                reject()
            raise


@settings(max_examples=5)
@given(examples(depth=2, rounds=3))
def test_updates_sum_up_to_the_query(arena: Database, example: Example) -> None:
    hold(arena, example)


@pytest.mark.long
@pytest.mark.timeout(7200)
@settings(max_examples=300)
@given(examples(depth=3, rounds=5))
def test_updates_sum_up_to_the_query_at_length(arena: Database, example: Example) -> None:
    hold(arena, example)
