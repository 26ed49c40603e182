"""Operating PgQue: checks, functions of administrators that maintenance calls, taking it out and putting it back."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from typing import Any

import psycopg
import pytest

from server.postgres.cluster import binaries
from tests.e2e.conftest import Database, Headwater

Eventually = Callable[..., Any]


def test_every_queue_has_a_check_of_its_ticker(queues: Database, eventually: Eventually) -> None:
    for name in ("healthy", "halted"):
        queues.run("SELECT pgque.create_queue(%s)", name)
    queues.run("SELECT pgque.pause_queue('halted')")
    cursor = queues.connection.execute("SELECT * FROM pgque.queue_health() LIMIT 0")
    assert [column.name for column in cursor.description or ()][:3] == ["queue_name", "check_name", "status"]
    health = "SELECT queue_name, status FROM pgque.queue_health() WHERE check_name = 'ticker_running' ORDER BY 1"
    eventually(lambda: queues.rows(health) == [("halted", "warning"), ("healthy", "ok")])
    assert queues.value("SELECT count(*) FROM pgque.queue_health()") == 6


def test_an_administrators_function_in_the_schema_is_called_with_its_rights(
    queues: Database, administrator: str
) -> None:
    operator = queues.connect(user=administrator, password="x")
    queues.run("CREATE TABLE maintained (queue text, who text); GRANT ALL ON maintained TO queue_operator")
    queues.run("SELECT pgque.create_queue('maintained')")
    operator.execute(
        "CREATE FUNCTION pgque.note_maintenance(queue text) RETURNS void LANGUAGE sql AS"
        " $$ INSERT INTO public.maintained VALUES (queue, current_user) $$"
    )
    operator.execute(
        "UPDATE pgque.queue SET queue_extra_maint = ARRAY['pgque.note_maintenance'] WHERE queue_name = 'maintained'"
    )
    assert queues.value("SELECT pgque.maint()") >= 1
    assert ("maintained", administrator) in queues.rows("SELECT * FROM maintained")
    assert {who for (who,) in queues.rows("SELECT who FROM maintained")} == {administrator}
    # Whoever attaches it lends it the rights; an ordinary administrator cannot lend those of somebody else.
    queues.run("UPDATE pgque.queue SET queue_extra_maint = NULL")
    for statement in (
        "CREATE FUNCTION pgque.send(queue text, x int) RETURNS int LANGUAGE sql AS 'SELECT 1'",
        "CREATE FUNCTION pgque._own(queue text) RETURNS int LANGUAGE sql AS 'SELECT 1'",
        "CREATE TABLE pgque.own (x int)",
    ):
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            operator.execute(statement.encode())


def test_a_superuser_attaches_a_function_and_it_has_its_rights(queues: Database) -> None:
    queues.run("SELECT pgque.create_queue('attached')")
    queues.run("CREATE TABLE attached (queue text, who text)")
    queues.run(
        "CREATE FUNCTION pgque.attached_maintenance(queue text) RETURNS int LANGUAGE sql AS"
        " $$ INSERT INTO public.attached VALUES (queue, current_user) RETURNING 1 $$"
    )
    queues.run(
        "UPDATE pgque.queue SET queue_extra_maint = ARRAY['pgque.attached_maintenance'] WHERE queue_name = 'attached'"
    )
    queues.run("SELECT pgque.maint()")
    assert {(queue, who) for queue, who in queues.rows("SELECT * FROM attached")} == {
        ("attached", queues.value("SELECT current_user"))
    }
    queues.run("UPDATE pgque.queue SET queue_extra_maint = NULL; DROP FUNCTION pgque.attached_maintenance(text)")


def psql(server: Headwater, database: str, command: str) -> tuple[str, str]:
    """What psql prints, and what it is told."""
    done = subprocess.run(
        [str(binaries() / "psql"), server.dsn(database), "-XAt", "-c", command],
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.strip(), done.stderr


@pytest.mark.long
def test_what_was_uninstalled_stays_away_until_it_is_asked_for(own_server: Headwater, eventually: Eventually) -> None:
    present = "SELECT to_regnamespace('pgque') IS NOT NULL"
    back = "CREATE EXTENSION pgque makes"
    assert psql(own_server, "postgres", "SELECT pgque.create_queue('gone')") == ("1", "")
    assert back in psql(own_server, "postgres", "SELECT pgque.uninstall()")[1]
    said, told = eventually(lambda: (answer := psql(own_server, "postgres", present))[1] and answer)
    assert (said, back in told) == ("f", True)
    own_server.stop()
    own_server.start()
    for _ in range(2):
        said, told = psql(own_server, "postgres", present)
        assert (said, back in told) == ("f", True)
    assert psql(own_server, "postgres", "CREATE EXTENSION pgque")[0] == "CREATE EXTENSION"
    for _ in range(2):
        assert psql(own_server, "postgres", present) == ("t", "")
    assert psql(own_server, "postgres", "SELECT count(*) FROM pgque.queue") == ("0", "")
    own_server.stop()
    own_server.start()
    assert psql(own_server, "postgres", present) == ("t", "")
