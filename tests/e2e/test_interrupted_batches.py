"""Each kind of call in each kind of batch, cut off by its client or cancelled: nothing hangs or is left open."""

from __future__ import annotations

import socket
import struct
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import product

import psycopg
import pytest

from server.protocol import messages as m
from tests.e2e.batches import AT_ONCE, BATCHES, CALLS, DEADLINE, SETUP, Case, Crew
from tests.e2e.conftest import Database
from tests.server.wire import errors_of

PARTS = (0.3, 0.6, 0.9, 1.0)
"""How much of a conversation is sent before the client goes."""
DELAYS = (0.0, 0.004, 0.02, 0.06)
"""Seconds from the conversation to the end of the connection, or the cancel."""
AFTER_CANCEL = (
    *("57014", "25P02", "25P01", "22012", "42601", "42P01", "42P07", "42703", "42710", "23505", "22P02", "0A000"),
    *("55000", "34000", "26000", "08P01", "3B001"),
)
"""What the conversation may say: that it was cancelled, and what it says without that."""


@pytest.fixture(scope="module")
def crews(shared_db: Database) -> Iterator[list[Crew]]:
    shared_db.run(SETUP.format())
    crews = [Crew(shared_db, number) for number in range(AT_ONCE)]
    yield crews
    for crew in crews:
        crew.close()


def _cut_off(crew: Crew, case: Case, number: int) -> str | None:
    """What is wrong after the client has gone in the middle, if anything is."""
    wire = crew.wire(crew.dsn)
    pid = wire.login.info.backend_pid
    sent = b"".join(case.messages(crew.number))
    reset = number % 2
    wire.send(sent[: max(1, int(len(sent) * PARTS[number % len(PARTS)]))])
    time.sleep(DELAYS[number // len(PARTS) % len(DELAYS)])
    if reset:
        wire.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    wire.login.pgconn.finish() if number % 3 == 0 else wire.socket.shutdown(socket.SHUT_RDWR)
    crew.close()
    with psycopg.connect(crew.direct, autocommit=True) as direct:
        deadline = time.monotonic() + DEADLINE
        while (left := _session(direct, pid)) is not None:
            if time.monotonic() > deadline:
                return f"its session is still there: {left}"
            time.sleep(0.005)
    crew.restore()
    return None


def _session(direct: psycopg.Connection[tuple[object, ...]], pid: int) -> object:
    return direct.execute("SELECT state, query FROM pg_stat_activity WHERE pid = %s", [pid]).fetchone()


def _cancelled(crew: Crew, case: Case, number: int) -> str | None:
    """What is wrong after a cancel request in the middle, if anything is."""
    wire = crew.wire(crew.dsn)
    wire.send(*case.messages(crew.number))
    time.sleep(DELAYS[number % len(DELAYS)])
    wire.login.cancel_safe()
    wire.send(m.message(m.COPY_FAIL, b"end\0"), m.SYNC_MESSAGE)
    for last in (b"rollback", b"reset all", b"unlisten *", b"deallocate all", b"select 'marker'"):
        wire.send(m.query(last))
    answers: list[tuple[str, bytes]] = []
    try:
        while not (answers and answers[-1][0] == "D" and answers[-1][1].endswith(b"marker")):
            answers.append(wire.receive())
        state = wire.until()[-1]
    except TimeoutError:
        crew.close()
        return "no answer"
    except (EOFError, ConnectionError):
        crew.close()
        return f"the session has ended: {errors_of(answers)}"
    crew.restore()
    if state != ("Z", b"I"):
        return f"a transaction is open: {state}"
    failures = [m.report_fields(body) for kind, body in answers if kind == "E"]
    wrong = [each for each in failures if each["C"].decode() not in AFTER_CANCEL and not _of_postgresql(each)]
    return f"{wrong}" if wrong else None


def _of_postgresql(failure: dict[str, bytes]) -> bool:
    """Whether an internal error is PostgreSQL's own, which does not know its state behind some batches."""
    return b"unexpected" in failure["M"] and failure.get("F", b"").endswith(b".c")


EACH = [Case(call, batch) for call, batch in product(CALLS, BATCHES)]
Interruption = Callable[[Crew, Case, int], str | None]


def _check_all(crews: list[Crew], db: Database, interruption: Interruption, cases: Sequence[tuple[int, Case]]) -> None:
    def work(crew: Crew) -> list[str]:
        mine = cases[crew.number :: AT_ONCE]
        found = [(number, case, interruption(crew, case, number)) for number, case in mine]
        return [f"{number} {case.call} / {case.batch}: {wrong}" for number, case, wrong in found if wrong is not None]

    with ThreadPoolExecutor(AT_ONCE) as threads:
        wrong = [line for lines in threads.map(work, crews) for line in lines]
    assert not wrong, "\n".join(wrong)
    activity = "SELECT pid, query FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
    with psycopg.connect(db.server.direct_dsn(db.name), autocommit=True) as direct:
        deadline = time.monotonic() + DEADLINE
        while left := direct.execute(activity + " AND state ~ 'in transaction'").fetchall():
            assert time.monotonic() < deadline, left
            time.sleep(0.05)
        assert direct.execute("SELECT count(*) FROM pgtrickle.pgt_requests").fetchone() == (0,)
        assert direct.execute("SELECT count(*) FROM pg_prepared_xacts").fetchone() == (0,)


@pytest.mark.parametrize("interruption", [_cut_off, _cancelled])
def test_some_calls_in_some_batches(crews: list[Crew], shared_db: Database, interruption: Interruption) -> None:
    cases = [(n, case) for n, case in enumerate(EACH) if n % 29 == n // len(BATCHES) % 29]
    _check_all(crews, shared_db, interruption, cases)


@pytest.mark.long
@pytest.mark.parametrize("interruption", [_cut_off, _cancelled])
def test_each_call_in_each_batch(crews: list[Crew], shared_db: Database, interruption: Interruption) -> None:
    _check_all(crews, shared_db, interruption, list(enumerate(EACH)))
