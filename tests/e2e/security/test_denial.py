"""What a plain user does to his own things, or asks for, does not stop the engine for everybody else."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import psycopg
import pytest

from tests.e2e.conftest import drop_role

Connection = psycopg.Connection[Any]


@pytest.fixture
def alive(live_db: Any, eventually: Callable[..., Any]) -> Callable[[], None]:
    """Fails unless the scheduler soon refreshes a stream table of somebody else."""
    live_db.run("CREATE TABLE others (id int)")
    live_db.create("canary", "SELECT count(*) AS n FROM others", schedule="1s")

    def check() -> None:
        live_db.run("INSERT INTO others VALUES (1)")
        n = live_db.value("SELECT count(*) FROM others")
        eventually(lambda: live_db.value("SELECT n FROM canary") == n, what="a refresh of somebody else's table")

    check()
    return check


@pytest.fixture
def alice(live_db: Any) -> Any:
    name = f"alice_{live_db.name}"
    live_db.run(f"CREATE ROLE {name} LOGIN PASSWORD 'secret'; GRANT CREATE, USAGE ON SCHEMA public TO {name}")
    connection = live_db.connect(user=name, password="secret")
    connection.execute("CREATE TABLE mine (id int PRIMARY KEY); INSERT INTO mine VALUES (1)")
    yield connection
    drop_role(live_db.connection, name)


MALFORMED: list[tuple[str, Any]] = [
    ("drop", {}),
    ("create", {"name": {"a": 1}}),
    ("create", {"name": "x", "query": 5}),
    ("refresh", {"name": 5}),
    ("drop", [1]),
    ("alter", "text"),
    ("alter", {"name": "x", "status": ["x"]}),
    ("create", {"name": "x\x01\"';\n", "query": "SELECT 1"}),
]


def test_malformed_requests(
    live_db: Any, alice: Connection, alive: Callable[[], None], eventually: Callable[..., Any]
) -> None:
    """Anybody may insert a row into the request table."""
    insert = "INSERT INTO pgtrickle.pgt_requests (kind, arguments, search_path) VALUES (%s, %s, 'public')"
    with live_db.bypass(user=alice.info.user, password="secret") as past:
        for kind, arguments in MALFORMED:
            past.execute(insert, [kind, json.dumps(arguments)])
    alive()
    failed = "SELECT count(*) FROM pgtrickle.pgt_requests WHERE error IS NOT NULL"
    eventually(lambda: live_db.value(failed) == len(MALFORMED), what="each to have failed")
    for kind, arguments in MALFORMED:
        with pytest.raises(psycopg.Error):
            alice.execute(insert, [kind, json.dumps(arguments)])
    assert alice.execute("SELECT 1").fetchone() == (1,)


DAMAGE: list[dict[str, Any]] = [
    {"explain": {}},
    {"canonical_query": "SELECT ((("},
    {"canonical_query": None},
    {"schedule": "999999999999w"},
    {"frontier": {"snapshot": "junk"}},
    {"frontier": {"snapshot": "1:1:", "xid": "junk"}},
]


def test_damage_to_ones_own_stream_tables(alice: Connection, alive: Callable[[], None]) -> None:
    for n, state in enumerate(DAMAGE):
        alice.execute(f"SELECT pgtrickle.create_stream_table('st{n}', 'SELECT id FROM mine', schedule => '1s')")
        try:
            alice.execute("SELECT pgtrickle._set_state(pgtrickle._resolve(%s), %s)", [f"st{n}", json.dumps(state)])
        except psycopg.errors.InvalidTextRepresentation:
            assert "frontier" in state
    alice.execute("INSERT INTO mine VALUES (2)")
    alive()
    alive()


def test_wish_to_drop_a_database(live_db: Any, alice: Connection, alive: Callable[[], None]) -> None:
    """The engine stays in a database that somebody wants to drop who may not."""
    with pytest.raises(psycopg.errors.InsufficientPrivilege):
        alice.execute(f"DROP DATABASE {live_db.name}")
    alive()
