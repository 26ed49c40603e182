"""A durable subscription: killed at random, resumed with AS OF, and nothing is missing or comes twice."""

from __future__ import annotations

import os
import random
import signal
import threading
from collections import Counter
from collections.abc import Callable
from typing import Any

import psycopg
import pytest

from tests.e2e.conftest import Database, Headwater
from tests.e2e.subscribe.following import Folded

Eventually = Callable[..., Any]

QUERY = "SELECT grp, count(*) AS n, sum(val) AS total FROM t GROUP BY grp"


def test_resuming_at_the_last_progress_timestamp(live_db: Database, eventually: Eventually) -> None:
    """Exactly there, and just before it: rows of that very timestamp are neither missed nor repeated."""
    live_db.run("CREATE TABLE t (id int PRIMARY KEY, grp int, val int)")
    live_db.run("ALTER TABLE t SET (RETAIN HISTORY FOR '1h')")
    eventually(lambda: live_db.value("SELECT held_from FROM pgtrickle.history_status()"))
    folded = Folded()
    resumed = "SUBSCRIBE (SELECT * FROM t) WITH (PROGRESS)"
    for number in range(1, 13):
        live_db.run(f"INSERT INTO t VALUES ({number}, 1, {number})")
        follow(live_db, resumed, folded, lambda n=number: (n, 1, n) in folded.rows)
        assert folded.rows == Counter((n, 1, n) for n in range(1, number + 1))
        at = folded.closed - number % 2
        resumed = f"SUBSCRIBE (SELECT * FROM t) WITH (PROGRESS, SNAPSHOT = false) AS OF {at}"


def follow(database: Database, subscribe: str, folded: Folded, done: Callable[[], bool]) -> None:
    """Read a subscription from a new connection until there is what is waited for; then the connection is lost."""
    with psycopg.connect(database.server.dsn(database.name)) as connection:
        connection.execute(f"DECLARE c CURSOR FOR {subscribe}")
        while not done():
            for row in connection.execute("FETCH 3 c"):
                folded.take(row)
                if done():
                    break
        connection.pgconn.finish()
    folded.forget_pending()


@pytest.mark.long
def test_killed_at_random(own_server: Headwater, eventually: Eventually) -> None:
    """Client, server and PostgreSQL are killed while transactions commit, past the server too."""
    chance = random.Random(7)
    database = Database(own_server, "postgres")
    database.run("CREATE TABLE t (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, grp int, val int)")
    database.run("ALTER TABLE t SET (RETAIN HISTORY FOR '1h')")
    eventually(lambda: database.value("SELECT held_from FROM pgtrickle.history_status()"))
    stop, up = threading.Event(), threading.Event()
    up.set()

    def change(seed: float, direct: bool) -> None:
        mine = random.Random(seed)
        while not stop.is_set():
            up.wait()
            try:
                dsn = own_server.direct_dsn() if direct else own_server.dsn()
                with psycopg.connect(dsn, autocommit=True) as connection:
                    while not stop.is_set():
                        connection.execute(
                            "INSERT INTO t (grp, val) SELECT %s, n FROM generate_series(1, %s) AS n",
                            [mine.randint(1, 5), mine.randint(1, 3)],
                        )
                        connection.execute("UPDATE t SET val = val + 1 WHERE id %% 17 = %s", [mine.randint(0, 16)])
                        connection.execute("DELETE FROM t WHERE id %% 23 = %s", [mine.randint(0, 22)])
                        stop.wait(0.02)
            except (psycopg.Error, OSError, IndexError):
                stop.wait(0.2)

    writers = [threading.Thread(target=change, args=(chance.random(), n == 0)) for n in range(2)]
    for writer in writers:
        writer.start()
    folded = Folded()
    try:
        for attempt in range(9):
            subscribe = f"SUBSCRIBE ({QUERY}) WITH (PROGRESS)"
            if folded.closed:
                subscribe = f"SUBSCRIBE ({QUERY}) WITH (PROGRESS, SNAPSHOT = false) AS OF {folded.closed}"
            wanted = chance.randint(1, 40)
            read = 0
            try:
                with psycopg.connect(own_server.dsn()) as connection:
                    connection.execute(f"DECLARE c CURSOR FOR {subscribe}")
                    while read < wanted:
                        for row in connection.execute("FETCH 5 c"):
                            folded.take(row)
                            read += 1
                    if attempt % 3 == 1:
                        up.clear()
                        own_server.kill()
                    elif attempt % 3 == 2:
                        lines = (own_server.data / "postgres" / "postmaster.pid").read_text().splitlines()
                        backend = connection.execute("SELECT pg_backend_pid()").fetchone()
                        assert backend is not None and lines
                        os.kill(backend[0], signal.SIGKILL)
                    connection.pgconn.finish()
            except psycopg.OperationalError:
                pass
            folded.forget_pending()
            if attempt % 3 == 1:
                own_server.start()
                up.set()
            eventually(lambda: answers(own_server), what="a connection")
    finally:
        stop.set()
        up.set()
        for writer in writers:
            writer.join()
    eventually(lambda: answers(own_server))
    with psycopg.connect(own_server.dsn(), autocommit=True) as connection:
        truth = Counter(connection.execute(QUERY).fetchall())
    with psycopg.connect(own_server.dsn()) as connection:
        at = folded.closed
        connection.execute(f"DECLARE c CURSOR FOR SUBSCRIBE ({QUERY}) WITH (PROGRESS, SNAPSHOT = false) AS OF {at}")
        while folded.rows != truth:
            for row in connection.execute("FETCH ALL c"):
                folded.take(row)
    assert folded.rows == truth


def answers(server: Headwater) -> bool:
    try:
        with psycopg.connect(server.dsn()) as connection:
            return connection.execute("SELECT 1").fetchone() == (1,)
    except psycopg.Error:
        return False
