"""PostgreSQL is killed while sessions write: movements, cache and totals have the same transactions afterwards."""

from __future__ import annotations

import json
import os
import random
import signal
import threading
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from catalog.systems import REGISTERS
from server.postgres.cluster import EmbeddedPostgres
from tests.catalog.conftest import install_into
from tests.clusters import started_cluster

WRITERS = 4


@pytest.fixture
def own_cluster(tmp_path: Path) -> Iterator[EmbeddedPostgres]:
    """A PostgreSQL of this test's own, which waits for the disk as any."""
    with started_cluster(tmp_path / "data", {"autovacuum": "off"}) as postgres:
        yield postgres


@pytest.mark.long
@pytest.mark.parametrize("high_write", [False, True])
def test_killed_while_sessions_write(own_cluster: EmbeddedPostgres, high_write: bool) -> None:
    install_into(own_cluster.dsn(), system=REGISTERS)
    with psycopg.connect(own_cluster.dsn(), autocommit=True) as connection:
        connection.execute(
            'SELECT accum.register_create(\'r\', \'{"item": "int"}\', \'{"n": "int"}\', high_write := %s)', [high_write]
        )
    acknowledged = [0] * WRITERS
    for round_number in range(5):
        writing = threading.Barrier(WRITERS + 1)

        def write(number: int, picks: random.Random, writing: threading.Barrier = writing) -> None:
            with psycopg.connect(own_cluster.dsn(), autocommit=True) as session:
                writing.wait(60)
                try:
                    while True:
                        lines = [{"period": "2026-04-18", "item": picks.randrange(5), "n": 1} for _ in range(3)]
                        for line in lines:
                            line["recorder"] = f"{number}"
                        session.execute("SELECT accum.register_post('r', %s::jsonb)", [json.dumps(lines)])
                        acknowledged[number] += 3
                        if picks.random() < 0.1:
                            session.execute("SELECT accum.register_unpost('r', %s)", [f"{number}"])
                            acknowledged[number] = 0
                except psycopg.OperationalError:
                    return

        threads = [
            threading.Thread(target=write, args=(number, random.Random(10 * round_number + number)))
            for number in range(WRITERS)
        ]
        for thread in threads:
            thread.start()
        writing.wait(60)
        with psycopg.connect(own_cluster.dsn(), autocommit=True) as watcher:
            written = 0
            while written < 100:
                row = watcher.execute("SELECT count(*) FROM accum.r_movements_audit").fetchone()
                more = watcher.execute("SELECT count(*) FROM accum.r_movements").fetchone()
                assert row is not None and more is not None
                written = row[0] + more[0]
        pid = own_cluster.pid
        assert pid is not None
        os.kill(pid, signal.SIGQUIT)  # an immediate shutdown: every backend stops where it is
        for thread in threads:
            thread.join(60)
        own_cluster.start()
        with psycopg.connect(own_cluster.dsn(), autocommit=True) as connection:
            assert connection.execute("SELECT * FROM accum.register_verify('r') WHERE status <> 'OK'").fetchall() == []
            for number in range(WRITERS):
                # The last statement may have been committed without an answer.
                row = connection.execute(
                    "SELECT count(*) FROM accum.r_movements WHERE recorder = %s", [f"{number}"]
                ).fetchone()
                assert row is not None and row[0] in (acknowledged[number], acknowledged[number] + 3, 0)
                acknowledged[number] = row[0]
            total = connection.execute(
                "SELECT (accum.r_balance()->>'n')::int, sum(n)::int FROM accum.r_totals_year"
            ).fetchone()
            assert total == (sum(acknowledged), sum(acknowledged))


def test_a_prepared_transaction_holds_up_the_repair_and_no_read(own_cluster: EmbeddedPostgres) -> None:
    """It is older than the crash, and its movements come after it."""
    install_into(own_cluster.dsn(), system=REGISTERS)
    post = (
        "SELECT accum.register_post('r', jsonb_build_object('recorder', 'd', 'period', now(), 'item', 1, 'n', %s::int))"
    )
    with psycopg.connect(own_cluster.dsn(), autocommit=True) as connection:
        connection.execute(
            'SELECT accum.register_create(\'r\', \'{"item": "int"}\', \'{"n": "int"}\', high_write := true)'
        )
        connection.execute(post, [1])
        connection.execute("BEGIN")
        connection.execute(post, [10])
        connection.execute("PREPARE TRANSACTION 'late'")
    pid = own_cluster.pid
    assert pid is not None
    os.kill(pid, signal.SIGQUIT)
    own_cluster.start()
    with psycopg.connect(own_cluster.dsn(), autocommit=True) as connection:

        def repair() -> object:
            with connection.transaction():
                connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
                return connection.execute("SELECT accum_internal._maintain_deltas('r', 0, 10)").fetchone()

        def balances() -> object:
            return connection.execute(
                "SELECT (accum.r_balance() ->> 'n')::int, (SELECT sum(n) FROM accum.r_totals_year)"
            ).fetchone()

        assert balances() == (1, 1)
        with pytest.raises(psycopg.errors.LockNotAvailable, match="while a prepared transaction uses it"):
            repair()
        connection.execute(post, [100])
        assert balances() == (101, 101)
        connection.execute("COMMIT PREPARED 'late'")
        assert balances() == (111, 111)
        assert repair() == ({"merged": 0, "rest": False},)
        assert balances() == (111, 111)
        assert connection.execute("SELECT * FROM accum.register_verify('r') WHERE status <> 'OK'").fetchall() == []
