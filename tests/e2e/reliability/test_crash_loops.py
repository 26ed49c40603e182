"""What ends PostgreSQL's process whenever it is done: it is not tried for ever."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import psycopg
import pytest

from tests.e2e.conftest import Database

Eventually = Callable[..., Any]

DEADLY = """
CREATE FUNCTION die() RETURNS void LANGUAGE plpgsql AS $$ BEGIN
    EXECUTE format('COPY (SELECT 1) TO PROGRAM %L', 'kill -9 ' || pg_backend_pid());
END $$;
CREATE FUNCTION deadly(n int) RETURNS int IMMUTABLE LANGUAGE plpgsql AS $$ BEGIN
    IF n = 666 THEN
        PERFORM public.die();
    END IF;
    RETURN n;
END $$;
CREATE TABLE t (n int);
INSERT INTO t VALUES (1);
"""


def answer(db: Database, query: str) -> Any:
    """What a query gives over a connection of its own, or None where PostgreSQL recovers just now."""
    try:
        with psycopg.connect(db.server.dsn(db.name), autocommit=True) as connection:
            row = connection.execute(query.encode()).fetchone()
    except psycopg.OperationalError:
        return None
    return row[0] if row else None


@pytest.mark.long
def test_stream_table_whose_refresh_crashes_postgresql_is_suspended(own_db: Database, eventually: Eventually) -> None:
    db = own_db
    db.run(DEADLY)
    db.create("st", "SELECT deadly(n) AS n FROM t", schedule="1s")
    db.create("calm", "SELECT n FROM t", schedule="1s")
    db.run("INSERT INTO t VALUES (666)")
    status = "SELECT status FROM pgtrickle.pgt_stream_tables WHERE pgt_name = 'st'"
    eventually(lambda: answer(db, status) == "SUSPENDED", what="the stream table is suspended")
    db.close()
    db.connection = db.connect()
    failed = [row["error_message"] for row in db.history("st") if row["status"] == "FAILED"]
    assert failed == ["08006: the connection to PostgreSQL was lost in it"] * 3
    eventually(lambda: not db.difference("calm"), what="the other one goes on")
    db.run("DELETE FROM t WHERE n = 666")
    db.run("SELECT pgtrickle.resume_stream_table('st')")
    eventually(lambda: not db.difference("st"), what="the stream table goes on")


def test_request_that_crashes_postgresql_fails(own_db: Database, eventually: Eventually) -> None:
    db = own_db
    db.run(DEADLY)
    db.create("st", "SELECT deadly(n) AS n FROM t", schedule="1h")
    db.run("INSERT INTO t VALUES (666)")
    db.bypass().execute("SELECT pgtrickle.refresh_stream_table('st')")
    found = "SELECT error FROM pgtrickle.pgt_requests"
    error = eventually(lambda: answer(db, found), what="the request has failed")
    assert error == "the connection to PostgreSQL was lost in it"
    db.close()
    db.connection = db.connect()
    db.run("DELETE FROM t WHERE n = 666")
    db.bypass().execute("SELECT pgtrickle.refresh_stream_table('st')")
    eventually(
        lambda: db.last("st")[0] in ("DIFFERENTIAL", "NO_DATA") or not db.difference("st"), what="the next one is done"
    )
