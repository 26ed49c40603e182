"""What a function of one role does in the session of its subscription concerns nobody else's."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pytest

from tests.e2e.conftest import Database

Role = Callable[..., psycopg.Connection[Any]]
Eventually = Callable[..., Any]


@pytest.fixture
def live_db(emptied_live_db: Database) -> Database:
    return emptied_live_db


class Reader:
    """Reads COPY (SUBSCRIBE …) in a thread: the rows without their timestamps, and the error it ends with."""

    def __init__(self, connection: psycopg.Connection[Any], query: str, options: str = ""):
        self.connection = connection
        self.rows: list[list[str]] = []
        self.error: psycopg.Error | None = None
        self._statement = f"COPY (SUBSCRIBE ({query}){options}) TO STDOUT"
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        try:
            with self.connection.cursor().copy(self._statement.encode()) as copy:
                for line in copy:
                    self.rows += [row.split("\t")[1:] for row in bytes(line).decode().splitlines()]
        except psycopg.Error as error:
            self.error = error

    def close(self) -> None:
        self.connection.close()
        self._thread.join(30)


@pytest.fixture
def reader() -> Iterator[Callable[..., Reader]]:
    opened: list[Reader] = []

    def read(*arguments: Any) -> Reader:
        opened.append(Reader(*arguments))
        return opened[-1]

    yield read
    for each in opened:
        each.close()


def function(connection: psycopg.Connection[Any], body: str) -> None:
    """A function of the connection's role that claims to compute something."""
    connection.execute(
        "CREATE FUNCTION public.innocent(n int) RETURNS int LANGUAGE plpgsql IMMUTABLE AS $f$"
        f" BEGIN IF n > 1 THEN {body} END IF; RETURN n; END $f$"
    )


ATTACKS = {
    "locks": "PERFORM pg_advisory_unlock_all();",
    "lasting lock": "PERFORM pg_advisory_lock(4711);",
    "encoding": "PERFORM set_config('client_encoding', 'LATIN1', false);",
    "settings": "PERFORM set_config('statement_timeout', '1', false), set_config('search_path', 'public', false);",
    "role": "PERFORM set_config('lock_timeout', '1', false), set_config('row_security', 'on', false);",
    "statement": "EXECUTE 'PREPARE __asyncpg_stmt_1__ AS SELECT 1';",
    "writes": "EXECUTE 'CREATE TEMP TABLE pg_class (oid int)';",
    "end of the session": "PERFORM pg_terminate_backend(pg_backend_pid());",
    "contention": "RAISE SQLSTATE '40001';",
    "lost": "RAISE SQLSTATE '08006';",
}


@pytest.mark.parametrize("body", ATTACKS.values(), ids=ATTACKS.keys())
@pytest.mark.one_in(2)
def test_others_are_told_everything(
    db: Database, role: Role, reader: Callable[..., Reader], eventually: Eventually, body: str
) -> None:
    mallory, victim = role("mallory"), role("victim")
    db.run("CREATE TABLE news (n int, t text); GRANT SELECT ON news TO PUBLIC")
    function(mallory, body)
    mine = reader(mallory, "SELECT public.innocent(n) AS n FROM public.news")
    theirs = reader(victim, "SELECT n, t FROM public.news")
    eventually(lambda: db.value("SELECT count(*) FROM pgtrickle.pgt_subscriptions") == 2)
    expected = []
    for n in range(1, 8):
        db.run("INSERT INTO news VALUES (%s, 'déjà')", n)
        expected.append(["1", str(n), "déjà"])
        eventually(lambda: theirs.rows == expected or theirs.error, what="everything")
        if n == 1:  # what the attacker's own session is late with comes at a later timestamp, together with the attack
            eventually(lambda: mine.rows == [["1", "1"]], what="the first row of the attacker")
        assert (theirs.error, theirs.rows) == (None, expected)
    # No lock, prepared statement or setting is left, and the server is still known.
    assert db.value("SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND objid = 4711") in (0, 1)
    assert db.value(
        "SELECT count(pgtrickle._lease_holder('subscriptions ' || server))"
        " FROM pgtrickle.pgt_subscription_servers WHERE server > 0"
    )


def test_slow_function_holds_up_nobody_else(
    db: Database, role: Role, reader: Callable[..., Reader], eventually: Eventually
) -> None:
    db.run(f"ALTER DATABASE {db.name} SET pg_trickle.subscription_timeout = 8")
    mallory, victim = role("mallory"), role("victim")
    db.run("CREATE TABLE news (n int); GRANT SELECT ON news TO PUBLIC")
    # It does not let itself be cancelled either.
    function(mallory, "LOOP BEGIN PERFORM pg_sleep(60); EXCEPTION WHEN query_canceled THEN NULL; END; END LOOP;")
    mine = reader(mallory, "SELECT public.innocent(n) AS n FROM public.news")
    theirs = reader(victim, "SELECT n FROM public.news")
    eventually(lambda: db.value("SELECT count(*) FROM pgtrickle.pgt_subscriptions") == 2)
    db.run("INSERT INTO news VALUES (1)")
    eventually(lambda: mine.rows and theirs.rows)
    slowest = 0.0
    for n in range(2, 12):
        began = time.monotonic()
        db.run("INSERT INTO news VALUES (%s)", n)
        eventually(lambda: theirs.rows[-1] == ["1", str(n)], what="the row")  # noqa: B023
        slowest = max(slowest, time.monotonic() - began)
    assert slowest < 6  # the sleep, if it were waited for, ends after 8 s
    eventually(lambda: mine.error is not None, what="the limit")
    assert mine.error is not None and mine.error.sqlstate == "57014"
    assert "longer than 8 s" in str(mine.error)
    assert theirs.error is None
    sleeping = "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'PgSleep' AND datname = current_database()"
    eventually(lambda: db.value(sleeping) == 0, what="the end of the function")


def test_slow_beginnings_hold_up_nobody_else(
    db: Database, role: Role, reader: Callable[..., Reader], eventually: Eventually
) -> None:
    role("mallory")
    victim = role("victim")
    db.run("CREATE TABLE news (n int); INSERT INTO news VALUES (2); GRANT SELECT ON news TO PUBLIC")
    ((name,),) = db.rows("SELECT rolname FROM pg_roles WHERE rolname LIKE 'mallory%%' ORDER BY oid DESC LIMIT 1")
    db.run("GRANT CREATE ON SCHEMA public TO PUBLIC")
    connections = [db.connect(user=name, password="secret") for _ in range(16)]
    function(connections[0], "PERFORM pg_sleep(600);")
    for n, connection in enumerate(connections):
        reader(connection, f"SELECT public.innocent(n) AS n, {n} AS mine FROM public.news")
    sleeping = "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'PgSleep' AND datname = current_database()"
    eventually(lambda: db.value(sleeping) >= 4, what="many that sleep")
    theirs = reader(victim, "SELECT n FROM public.news")
    eventually(lambda: theirs.rows == [["1", "2"]], what="the beginning")
    db.run("INSERT INTO news VALUES (3)")
    eventually(lambda: theirs.rows == [["1", "2"], ["1", "3"]], what="a change")


@pytest.mark.parametrize("begins", [True, False], ids=["its beginning", "a change"])
def test_nothing_is_evaluated_for_who_has_gone(db: Database, eventually: Eventually, begins: bool) -> None:
    """Nor are its locks held, on which others wait."""
    db.run("CREATE TABLE t (n int PRIMARY KEY)")
    db.run(
        "CREATE FUNCTION endless(n int) RETURNS int LANGUAGE plpgsql IMMUTABLE"
        " AS 'BEGIN IF n > 1 THEN PERFORM pg_sleep(600); END IF; RETURN n; END'"
    )
    if begins:
        db.run("INSERT INTO t VALUES (2)")
    sleeps = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event = 'PgSleep'"
    leaving = db.connect(autocommit=False)
    leaving.execute("DECLARE c CURSOR FOR SUBSCRIBE (SELECT endless(n) AS n FROM t) WITH (PROGRESS)")
    leaving.execute("FETCH 1 c")
    if not begins:
        db.run("INSERT INTO t VALUES (2)")
    eventually(lambda: db.value(sleeps) == 1)
    leaving.close()
    with db.connect() as other:
        other.execute("SET lock_timeout = '30s'")
        other.execute("DROP TABLE t")
