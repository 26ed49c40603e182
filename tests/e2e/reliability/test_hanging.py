"""A server that hangs does not hold up another one in front of the same PostgreSQL."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psycopg
import pytest

from tests.e2e.conftest import Database, Headwater

Eventually = Callable[..., Any]


@pytest.mark.long  # twice a quarter of a minute until it is certain
def test_stopped_server_is_replaced_and_does_no_harm_when_it_goes_on(
    own_server: Headwater, own_db: Database, tmp_path: Path, eventually: Eventually
) -> None:
    login = psycopg.conninfo.conninfo_to_dict(own_server.direct_dsn())
    url = f"postgresql://{login['user']}:{login['password']}@/postgres?host={login['host']}&port={login['port']}"
    own_db.run("CREATE TABLE t (id int PRIMARY KEY); SELECT pgque.create_queue('q'), pgque.subscribe('q', 'c')")
    own_db.create("counted", "SELECT count(*) AS n FROM t", schedule="1s")
    (tmp_path / "second").mkdir()
    second = Headwater(tmp_path / "second" / "data", "--postgres", url).start()
    try:
        with psycopg.connect(own_server.direct_dsn(), autocommit=True) as past:

            def goes_on(number: int) -> None:
                past.execute("INSERT INTO t VALUES (%s)", [number])
                past.execute("SELECT pgque.send('q', %s::text)", [str(number)])
                eventually(lambda: past.execute("SELECT n FROM counted").fetchall() == [(number,)])
                received = "SELECT payload FROM pgque.receive('q', 'c')"
                eventually(lambda: past.execute(received.encode()).fetchall() == [(str(number),)])
                batch = past.execute("SELECT current_batch FROM pgque.get_consumer_info('q', 'c')").fetchone()
                assert batch is not None
                past.execute("SELECT pgque.ack(%s)", [batch[0]])

            for number, hanging in enumerate((own_server, second, own_server), 1):
                assert hanging.process is not None
                os.kill(hanging.process.pid, signal.SIGSTOP)
                try:
                    goes_on(2 * number - 1)
                finally:
                    os.kill(hanging.process.pid, signal.SIGCONT)
                goes_on(2 * number)
        own_db.assert_current("counted")
    finally:
        second.stop()


MERGED = "SELECT page, n FROM accum.{}_balance_cache_stored"
SLEEPING = """
SELECT pid FROM pg_stat_activity WHERE application_name LIKE 'pg_accumulator maintenance 1%' AND wait_event = 'PgSleep'
"""


@pytest.mark.long
def test_workers_of_a_stopped_server_keep_no_register_locked(
    own_server: Headwater, own_db: Database, tmp_path: Path, eventually: Eventually
) -> None:
    """The second worker, which has no lease of its own, is stopped in the middle of a merge."""
    login = psycopg.conninfo.conninfo_to_dict(own_server.direct_dsn())
    url = f"postgresql://{login['user']}:{login['password']}@/postgres?host={login['host']}&port={login['port']}"
    own_db.run("ALTER DATABASE postgres SET pg_accumulator.background_workers = 2")
    own_db.run("ALTER DATABASE postgres SET pg_accumulator.delta_merge_delay = 0")
    own_db.run(
        "CREATE FUNCTION be_slow() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN"
        " IF current_setting('application_name') LIKE 'pg_accumulator maintenance 1%' THEN PERFORM pg_sleep(4); END IF;"
        " RETURN NEW; END $$"
    )
    for name in ("a", "b"):
        create = """SELECT accum.register_create(%s, '{"page": "text"}', '{"n": "int"}', high_write := true)"""
        own_db.run(create, name)
        own_db.run(
            f"CREATE TRIGGER be_slow AFTER INSERT OR UPDATE ON accum.{name}_balance_cache_stored"
            " FOR EACH ROW EXECUTE FUNCTION be_slow()"
        )
    with psycopg.connect(own_server.direct_dsn(), autocommit=True) as past:

        def post() -> None:
            with past.transaction():
                for name in ("a", "b"):
                    posted = """{"recorder": "r", "period": "2026-04-18", "page": "p", "n": 1}"""
                    past.execute("SELECT accum.register_post(%s, %s)", [name, posted])

        post()
        ((worker,),) = eventually(lambda: past.execute(SLEEPING.encode()).fetchall())
        (tmp_path / "second").mkdir()
        assert own_server.process is not None
        os.kill(own_server.process.pid, signal.SIGSTOP)
        try:
            second = Headwater(tmp_path / "second" / "data", "--postgres", url).start()
            try:
                left = "SELECT 1 FROM pg_stat_activity WHERE pid = %s AND state LIKE 'idle in transaction%%'"
                eventually(lambda: past.execute(left, [worker]).fetchall(), what="a worker that keeps its locks")
                post()
                for name in ("a", "b"):
                    eventually(lambda name=name: past.execute(MERGED.format(name).encode()).fetchall() == [("p", 2)])
            finally:
                second.stop()
        finally:
            os.kill(own_server.process.pid, signal.SIGCONT)
