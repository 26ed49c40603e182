"""What one role asks of the engine does not keep others waiting, however much it is and however long it takes."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pytest

from tests.e2e.conftest import drop_role

Connection = psycopg.Connection[Any]
Eventually = Callable[..., Any]

NAP = """
CREATE FUNCTION nap(v int) RETURNS int IMMUTABLE LANGUAGE plpgsql AS $$
BEGIN
    WHILE v > 1 LOOP
        BEGIN PERFORM pg_catalog.pg_sleep(600); EXCEPTION WHEN query_canceled THEN NULL; END;
    END LOOP;
    RETURN v;
END $$;
CREATE TABLE bait (id int PRIMARY KEY, v int); INSERT INTO bait VALUES (1, 1);
"""
"""It sleeps where it is given more than 1, and refuses to be woken."""

SLEEPERS = (
    "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event = 'PgSleep'"
    " AND application_name LIKE 'headwater engine%'"
)

WAKE = SLEEPERS.replace("count(*)", "pg_terminate_backend(pid)")

REFRESH_OF_NOTHING = (
    "INSERT INTO pgtrickle.pgt_requests (kind, arguments, search_path)"
    """ SELECT 'refresh', '{"name": "nothing"}', 'public' FROM generate_series(1, %s)"""
)


@pytest.fixture
def mallory(live_db: Any) -> Iterator[Connection]:
    name = f"mallory_{live_db.name}"
    live_db.run(f"CREATE ROLE {name} LOGIN PASSWORD 'secret'; GRANT CREATE, USAGE ON SCHEMA public TO {name}")
    connection = live_db.connect(user=name, password="secret")
    connection.execute(NAP)
    yield connection
    connection.close()
    live_db.run(f"ALTER DATABASE {live_db.name} SET pg_trickle.enabled = off")
    live_db.run("DELETE FROM pgtrickle.pgt_requests")
    live_db.run(WAKE)
    drop_role(live_db.connection, name)


@pytest.fixture
def past(live_db: Any, mallory: Connection) -> Connection:
    """A connection of hers that bypasses the server."""
    connection: Connection = live_db.bypass(user=mallory.info.user, password="secret")
    return connection


@pytest.fixture
def follows(live_db: Any, eventually: Eventually) -> Callable[[], float]:
    """Fails unless a stream table of somebody else, with a schedule of a second, follows soon; how soon."""
    live_db.run("CREATE TABLE others (id int)")
    live_db.create("canary", "SELECT count(*) AS n FROM others", schedule="1s")

    def check() -> float:
        live_db.run("INSERT INTO others VALUES (1)")
        began = time.monotonic()
        n = live_db.value("SELECT count(*) FROM others")
        eventually(lambda: live_db.value("SELECT n FROM canary") == n, 60, "a refresh of somebody else's table")
        return time.monotonic() - began

    return check


def make_slow(mallory: Connection, tables: int, schedule: str = "1s") -> None:
    """Have so many stream tables due whose refreshes never end."""
    for n in range(tables):
        query = "SELECT id, nap(v) AS v FROM bait"
        mallory.execute(f"SELECT pgtrickle.create_stream_table('slow{n}', '{query}', '{schedule}')")
    mallory.execute("INSERT INTO bait VALUES (2, 600)")


@pytest.mark.parametrize("tables", [5, pytest.param(1, marks=pytest.mark.long)])
def test_slow_refreshes_of_one_role_leave_room_for_others(
    live_db: Any, mallory: Connection, follows: Callable[[], float], eventually: Eventually, tables: int
) -> None:
    make_slow(mallory, tables)
    slow = min(tables, 3)
    eventually(lambda: live_db.value(SLEEPERS) == slow, what="slow refreshes")
    follows()
    follows()
    assert live_db.value(SLEEPERS) == slow


@pytest.mark.parametrize("lock", ["LOCK TABLE bait", "DROP TABLE bait"])
def test_a_source_that_its_owner_keeps_locked_stops_nobody_who_does_not_read_it(
    live_db: Any, mallory: Connection, follows: Callable[[], float], eventually: Eventually, lock: str
) -> None:
    """All workers would wait for it."""
    for n in range(5):
        live_db.create(f"reader{n}", "SELECT id, v FROM bait", schedule="1s")
    mallory.execute(f"BEGIN; INSERT INTO bait VALUES (2, 1); COMMIT; BEGIN; {lock}")
    follows()
    follows()
    mallory.execute("ROLLBACK")
    eventually(lambda: live_db.value("SELECT count(*) FROM reader4") == 2, what="the readers' refreshes")


@pytest.mark.long
def test_lag_beside_ten_slow_tables(
    live_db: Any, mallory: Connection, follows: Callable[[], float], eventually: Eventually
) -> None:
    alone = sorted(follows() for _ in range(15))
    make_slow(mallory, 10)
    eventually(lambda: live_db.value(SLEEPERS) == 3, what="slow refreshes")
    beside = sorted(follows() for _ in range(15))
    assert beside[7] < 3 * alone[7] + 1


@pytest.mark.long
def test_setting_says_how_many_are_refreshed_at_once(live_db: Any, mallory: Connection, eventually: Eventually) -> None:
    live_db.run(f"ALTER DATABASE {live_db.name} SET pg_trickle.max_concurrent_refreshes = 6")
    make_slow(mallory, 6)
    eventually(lambda: live_db.value(SLEEPERS) == 5, what="five slow refreshes")


def test_refresh_that_takes_too_long_is_ended_and_told(
    live_db: Any, mallory: Connection, eventually: Eventually
) -> None:
    live_db.run(f"ALTER DATABASE {live_db.name} SET pg_trickle.max_consecutive_errors = 1")
    live_db.run(f"ALTER DATABASE {live_db.name} SET pg_trickle.refresh_timeout = 0.5")
    make_slow(mallory, 1)
    eventually(lambda: live_db.state("slow0")["status"] == "SUSPENDED", what="suspension")
    (*_, last) = live_db.history("slow0")
    assert (last["status"], last["initiated_by"]) == ("FAILED", "SCHEDULER")
    assert last["error_message"] == "57014: it takes longer than 0.5 s, the limit of pg_trickle.refresh_timeout"
    eventually(lambda: live_db.value(SLEEPERS) == 0, what="the end of its statement")


def test_slow_request_past_the_server_is_ended_and_holds_up_nobody(
    live_db: Any, mallory: Connection, past: Connection, follows: Callable[[], float], eventually: Eventually
) -> None:
    make_slow(mallory, 1, schedule="1h")
    past.execute("SELECT pgtrickle.refresh_stream_table('slow0')")
    eventually(lambda: live_db.value(SLEEPERS) == 1, what="the request")
    follows()
    assert live_db.value(SLEEPERS) == 1
    live_db.run(f"ALTER DATABASE {live_db.name} SET pg_trickle.refresh_timeout = 0.5")  # for what begins from now on
    live_db.run(WAKE)  # it is tried again
    told = "it takes longer than 0.5 s, the limit of pg_trickle.refresh_timeout"
    errors = "SELECT kind, error_state, error FROM pgtrickle.pgt_request_errors"
    eventually(lambda: past.execute(errors).fetchall() == [("refresh", "57014", told)], what="the error")
    assert live_db.value(SLEEPERS) == 0


@pytest.mark.long
def test_slow_creation_past_the_server_holds_up_nobody(
    live_db: Any, past: Connection, follows: Callable[[], float], eventually: Eventually
) -> None:
    past.execute("SELECT pgtrickle.create_stream_table('never', 'SELECT nap(600) AS v')")
    eventually(lambda: live_db.value(SLEEPERS) == 1, what="the request")
    follows()
    assert live_db.value(SLEEPERS) == 1


def test_many_requests_of_one_role_do_not_delay_anothers(
    live_db: Any, past: Connection, follows: Callable[[], float], eventually: Eventually
) -> None:
    with pytest.raises(psycopg.errors.ConfigurationLimitExceeded, match="more than 1000 requests of role"):
        past.execute(REFRESH_OF_NOTHING, [1001])
    assert past.execute("SELECT count(*) FROM pgtrickle.pgt_requests").fetchone() == (0,)
    past.execute(REFRESH_OF_NOTHING, [1000])
    with live_db.bypass() as direct:
        direct.execute("SELECT pgtrickle.create_stream_table('mine', 'SELECT count(*) AS n FROM others')")
    eventually(lambda: live_db.value("SELECT to_regclass('mine')") is not None, what="the other role's request")
    assert live_db.value("SELECT count(*) FROM pgtrickle.pgt_requests WHERE error IS NULL") > 100
    follows()


def test_request_that_says_the_connection_is_lost_has_failed(
    live_db: Any, mallory: Connection, past: Connection, follows: Callable[[], float], eventually: Eventually
) -> None:
    mallory.execute(
        "CREATE FUNCTION lose(v int) RETURNS int IMMUTABLE LANGUAGE plpgsql AS $$ BEGIN"
        " IF v > 1 THEN RAISE EXCEPTION 'no connection' USING ERRCODE = '08006'; END IF; RETURN v; END $$"
    )
    mallory.execute("SELECT pgtrickle.create_stream_table('lost', 'SELECT id, lose(v) AS v FROM bait', '1h')")
    mallory.execute("INSERT INTO bait VALUES (2, 2)")
    past.execute("SELECT pgtrickle.refresh_stream_table('lost')")
    errors = "SELECT kind, error_state, error FROM pgtrickle.pgt_request_errors"
    eventually(lambda: past.execute(errors).fetchall() == [("refresh", "08006", "no connection")], what="the error")
    follows()
