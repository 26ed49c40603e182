"""The public functions: arguments are checked, requests are written, seen, finished, and private."""

from __future__ import annotations

import re
from typing import Any

import psycopg
import pytest

from engine.requests.requests import KINDS
from tests.catalog.conftest import Connect, Connection, Engine, sqlstate

CREATE = "SELECT pgtrickle.create_stream_table({})"


@pytest.fixture
def relayed(connect: Connect) -> Connection:
    """A connection such as the relay makes: with the setting that says so."""
    return connect(options="-c headwater.relay=on", autocommit=False)


def pending(connection: Connection) -> list[tuple[Any, ...]]:
    return connection.execute(
        "SELECT kind, arguments::jsonb, search_path, requested_by FROM pgtrickle._pending_requests()"
    ).fetchall()


WRONG_ARGUMENTS = [
    ("NULL, 'SELECT 1'", "22004", "name of the stream table must not be null"),
    ("' ', 'SELECT 1'", "22023", "name of the stream table must not be empty"),
    ("'a b', 'SELECT 1'", "42602", 'invalid name syntax: "a b"'),
    ("'a.b.c', 'SELECT 1'", "42601", "improper qualified name (too many dotted names): a.b.c"),
    ("repeat('x', 64), 'SELECT 1'", "42622", f'name "{"x" * 64}" is too long'),
    ("'x', NULL", "22004", "query of the stream table must not be null"),
    ("'x', ' ; '", "22023", "query of the stream table must not be empty"),
    ("'x', 'SELECT 1', '5 parsecs'", "22023", 'invalid schedule "5 parsecs"'),
    ("'x', 'SELECT 1', '60'", "22023", 'invalid schedule "60"'),
    ("'x', 'SELECT 1', '0s'", "22023", 'schedule "0s" is shorter than the minimum of 1 s'),
    ("'x', 'SELECT 1', ''", "22023", 'invalid schedule ""'),
    ("'x', 'SELECT 1', refresh_mode => 'sometimes'", "22023", 'invalid refresh mode "sometimes"'),
    ("'x', 'SELECT 1', cdc_mode => 'telepathy'", "22023", 'invalid cdc mode "telepathy"'),
    ("'x', 'SELECT 1', diamond_consistency => 'x'", "22023", 'invalid diamond consistency "x"'),
    ("'x', 'SELECT 1', diamond_schedule_policy => 'x'", "22023", 'invalid diamond schedule policy "x"'),
    ("'x', 'SELECT 1', engine => 'abacus'", "22023", 'invalid engine "abacus"'),
]  # fmt: skip


def test_wrong_arguments(relayed: Connection) -> None:
    found = []
    for arguments, _, _ in WRONG_ARGUMENTS:
        with pytest.raises(psycopg.Error) as failure, relayed.transaction():
            relayed.execute(CREATE.format(arguments))
        found.append((arguments, failure.value.sqlstate, failure.value.diag.message_primary))
    assert found == WRONG_ARGUMENTS


WRONG_CALLS = {
    "alter_stream_table('x', query => ';')": "22023",
    "alter_stream_table('x', status => 'asleep')": "22023",
    "alter_stream_table('x', schedule => 'never')": "22023",
    "alter_stream_table(NULL)": "22004",
    "drop_stream_table(NULL)": "22004",
    "refresh_stream_table('')": "22023",
    "resume_stream_table('a..b')": "42602",
    "create_or_replace_stream_table('x', ' ')": "22023",
    "create_or_replace_stream_table('x', NULL)": "22004",
    "get_lag('nothing')": "42P01",
    "get_staleness('nothing')": "42P01",
}


def test_wrong_calls(relayed: Connection) -> None:
    assert {call: sqlstate(relayed, f"SELECT pgtrickle.{call}") for call in WRONG_CALLS} == WRONG_CALLS


DURATIONS: list[tuple[str | None, int | None]] = [
    ("1s", 1), ("90s", 90), ("5m", 300), ("2h", 7200), ("1d", 86400), ("1w", 604800), ("1h30m", 5400), ("2m30s", 150),
    (" 1m ", 60), ("calculated", None), ("* * * * *", None), ("1", None), ("1y", None), ("-1s", None),
    ("99999999999999999999w", None), (None, None),
]  # fmt: skip


def test_durations(relayed: Connection) -> None:
    parsed = "SELECT pgtrickle.parse_duration_seconds(%s)"
    assert [(text, relayed.execute(parsed, [text]).fetchone()) for text, _ in DURATIONS] == [
        (text, (seconds,)) for text, seconds in DURATIONS
    ]


def test_request_carries_arguments_defaults_and_search_path(relayed: Connection) -> None:
    relayed.execute("SET search_path = 'Some where', public")
    relayed.execute(CREATE.format("name => 'x', query => 'SELECT 1', refresh_mode => 'full', engine => 'Spark'"))
    relayed.execute("SELECT pgtrickle.drop_stream_table('y')")
    created, dropped = pending(relayed)
    assert created[0] == "create"
    assert created[1] == {
        "name": "x", "query": "SELECT 1", "schedule": "calculated", "refresh_mode": "FULL", "initialize": True,
        "append_only": False, "engine": "spark", "if_not_exists": False, "or_replace": False,
    }  # fmt: skip
    assert created[2] == '"Some where", public'
    assert dropped[:2] == ("drop", {"name": "y"})


def test_info_tells_the_relay_whatever_the_client_wants_to_hear(relayed: Connection) -> None:
    heard: list[tuple[str | None, str | None]] = []
    relayed.add_notice_handler(lambda diagnostic: heard.append((diagnostic.severity_nonlocalized, diagnostic.sqlstate)))
    relayed.execute("SET client_min_messages = error")
    relayed.execute("SELECT pgtrickle.refresh_stream_table('x')")
    assert heard == [("INFO", "HW001")]


def test_commit_with_a_request_left_is_stopped(relayed: Connection) -> None:
    relayed.execute("SELECT pgtrickle.refresh_stream_table('x')")
    with pytest.raises(psycopg.Error) as failure:
        relayed.commit()
    assert failure.value.sqlstate == "HW002"
    assert pending(relayed) == []


def test_finished_request_lets_commit_pass(relayed: Connection) -> None:
    relayed.execute("SELECT pgtrickle.refresh_stream_table('x')")
    relayed.execute("SELECT pgtrickle._finish_request(request_id) FROM pgtrickle._pending_requests()")
    relayed.commit()
    assert relayed.execute("SELECT count(*) FROM pgtrickle.pgt_requests").fetchone() == (0,)


def test_rolled_back_savepoint_takes_its_request_along(relayed: Connection) -> None:
    relayed.execute("SELECT pgtrickle.refresh_stream_table('x')")
    with relayed.transaction(force_rollback=True):
        relayed.execute("SELECT pgtrickle.refresh_stream_table('y')")
        assert len(pending(relayed)) == 2
    assert [arguments["name"] for _, arguments, *_ in pending(relayed)] == ["x"]


def test_requests_of_bypassing_connections_are_claimed_once_in_order(connect: Connect, engine: Engine) -> None:
    alice = connect("catalog_alice")
    heard: list[str | None] = []
    alice.add_notice_handler(lambda diagnostic: heard.append(diagnostic.message_primary))
    for name in ("x", "y"):
        alice.execute("SELECT pgtrickle.refresh_stream_table(%s)", [name])
    assert heard[0] is not None and "carried out by the Headwater server after commit" in heard[0]
    other = connect(autocommit=False)
    claim = (
        "SELECT request_id, arguments::jsonb->>'name', requested_by"
        " FROM pgtrickle._claim_out_of_band_request('catalog_alice'::regrole)"
    )
    with engine.connection.transaction():
        (first,) = engine.connection.execute(claim).fetchall()
        assert first[1:] == ("x", "catalog_alice")
        (second,) = other.execute(claim).fetchall()
        assert second[1] == "y"
        engine.value("SELECT pgtrickle._finish_request(%s)", first[0])
    other.rollback()
    engine.value("SELECT pgtrickle._fail_request(%s, '42P01', 'stream table \"y\" does not exist')", second[0])
    assert engine.connection.execute(claim).fetchall() == []
    errors = "SELECT requested_by, error_state, error FROM pgtrickle.pgt_request_errors"
    assert alice.execute(errors).fetchall() == [("catalog_alice", "42P01", 'stream table "y" does not exist')]
    assert connect("catalog_bob").execute(errors).fetchall() == []


def test_of_failed_requests_the_last_hundred_of_a_role_stay_for_a_week(connect: Connect, engine: Engine) -> None:
    bob, alice = connect("catalog_bob"), connect("catalog_alice")
    make = (
        "INSERT INTO pgtrickle.pgt_requests (kind, arguments, search_path)"
        " SELECT 'refresh', '{}', '' FROM generate_series(1, %s)"
    )
    bob.execute(make, [1])
    alice.execute(make, [105])
    fail = "SELECT pgtrickle._fail_request(request_id, '42P01', 'gone') FROM pgtrickle.pgt_requests ORDER BY request_id"
    engine.connection.execute(fail)
    errors = "SELECT count(*), max(request_id) - min(request_id) FROM pgtrickle.pgt_request_errors"
    assert alice.execute(errors).fetchone() == (100, 99)
    assert bob.execute(errors).fetchone() == (1, 0)
    engine.connection.execute(
        "UPDATE pgtrickle.pgt_requests SET requested_at = now() - interval '8 days'"
        " WHERE request_id < (SELECT max(request_id) FROM pgtrickle.pgt_requests)"
    )
    alice.execute(make, [1])
    engine.connection.execute("SELECT pgtrickle._prune_history()")
    assert alice.execute(errors).fetchone() == (1, 0)
    assert alice.execute("SELECT count(*) FROM pgtrickle.pgt_requests WHERE error IS NULL").fetchone() == (1,)


def test_requests_are_private(connect: Connect) -> None:
    alice, bob = connect("catalog_alice"), connect("catalog_bob")
    alice.execute("SELECT pgtrickle.refresh_stream_table('x')")
    assert bob.execute("SELECT count(*) FROM pgtrickle.pgt_requests").fetchone() == (0,)
    assert sqlstate(bob, "DELETE FROM pgtrickle.pgt_requests") == "42501"
    assert bob.execute("SELECT pgtrickle._finish_request(1)").rowcount == 1
    assert alice.execute("SELECT count(*) FROM pgtrickle.pgt_requests").fetchone() == (1,)
    forged = (
        "INSERT INTO pgtrickle.pgt_requests (kind, arguments, search_path, requested_by) "
        "VALUES ('drop', '{}', '', %s::regrole)"
    )
    assert sqlstate(bob, forged, "catalog_alice") == "42501"
    assert sqlstate(bob, "UPDATE pgtrickle.pgt_requests SET kind = 'drop'") == "42501"
    assert sqlstate(bob, "SELECT * FROM pgtrickle._claim_out_of_band_request('catalog_bob'::regrole)") == "42501"
    assert sqlstate(bob, "SELECT pgtrickle._fail_request(1, '', '')") == "42501"


def test_request_of_a_definer_function_is_refused(connect: Connect, relayed: Connection) -> None:
    connect("catalog_alice").execute(
        "CREATE FUNCTION refresh_mine() RETURNS void LANGUAGE sql SECURITY DEFINER "
        "AS $$ SELECT pgtrickle.refresh_stream_table('x') $$"
    )
    assert sqlstate(relayed, "SELECT refresh_mine()") == "42501"
    assert pending(relayed) == []
    relayed.execute("SET LOCAL ROLE catalog_alice")
    relayed.execute("SELECT refresh_mine()")
    assert pending(relayed)[0][3] == "catalog_alice"


def test_settings_of_the_database_are_seen_by_older_sessions(engine: Engine, database: str) -> None:
    setting = "SELECT pgtrickle._setting('pg_trickle.min_schedule_seconds', '1')"
    assert engine.value(setting) == "1"
    engine.connection.execute(f'ALTER DATABASE "{database}" SET pg_trickle.min_schedule_seconds = 60')
    assert engine.value(setting) == "60"
    assert sqlstate(engine.connection, CREATE.format("'x', 'SELECT 1', '30s'")) == "22023"
    engine.connection.execute("SET pg_trickle.min_schedule_seconds = 5")
    assert engine.value(setting) == "5"


def test_engine_knows_the_kinds_that_the_catalog_allows(engine: Engine) -> None:
    definition = engine.value(
        "SELECT pg_get_constraintdef(oid) FROM pg_constraint"
        " WHERE conrelid = 'pgtrickle.pgt_requests'::regclass AND conname = 'pgt_requests_kind_check'"
    )
    assert set(re.findall("'([a-z]+)'", definition)) == set(KINDS)
