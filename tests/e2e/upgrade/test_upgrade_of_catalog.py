"""A database that a server of an earlier revision has worked on, served by this one.

``earlier.sql`` is its dump (see `make_earlier`), ``earlier_data.sql`` what had been done in it.
"""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from catalog.systems import SYSTEMS
from server.postgres.cluster import binaries
from tests.catalog.conftest import install_into
from tests.e2e.conftest import Database, Headwater
from tests.e2e.upgrade.structure import structure

NAME = "e2e_earlier"
DUMP = Path(__file__).parent / "earlier.sql"
TABLES = (
    "shop.totals",
    "shop.large",
    "shop.buyers",
    "shop.pages",
    "shop.later",
    "shop.exact",
    "alice.counts",
)


@pytest.fixture(scope="module")
def earlier(server: Headwater) -> Iterator[Database]:
    """The restored database, upgraded by the first connection; nothing is refreshed in it but by hand."""
    administrator = server.administrator(direct=True)
    if administrator.info.server_version < 170000:
        pytest.skip("a dump of PostgreSQL 18 has the right MAINTAIN in it")
    administrator.execute(f"CREATE DATABASE {NAME} TEMPLATE template0 STRATEGY file_copy")
    administrator.execute(f"ALTER DATABASE {NAME} SET pg_trickle.enabled = off")
    administrator.execute("CREATE ROLE upgrade_alice")
    database: Database | None = None
    try:
        psql = [binaries() / "psql", "-qX", "-v", "ON_ERROR_STOP=1", "-1", "-f", DUMP, server.direct_dsn(NAME)]
        subprocess.run(psql, check=True, capture_output=True)
        database = Database(server, NAME)
        yield database
    finally:
        if database is not None:
            database.close()
        server.administrator().execute(f"DROP DATABASE {NAME} WITH (FORCE)")
        administrator.execute("DROP ROLE upgrade_alice")


def test_catalog_is_made_as_a_new_one_is(earlier: Database, shared_db: Database) -> None:
    """Whatever the order in which migrations came to a database, and when it is done again."""
    upgraded, new = structure(earlier.bypass()), structure(shared_db.bypass())
    assert {kind for kind, _, _ in new} >= {"relation", "column", "constraint", "function", "trigger", "policy", "type"}
    assert (sorted(new - upgraded), sorted(upgraded - new)) == ([], [])
    dsn = earlier.server.direct_dsn(NAME)
    for system in SYSTEMS:
        assert not install_into(dsn, system=system).changed
        earlier.run(f"COMMENT ON SCHEMA {system.schema} IS 'Headwater {system.title}, earlier'")
        assert install_into(dsn, system=system).changed
    assert structure(earlier.bypass()) == upgraded


def test_stream_tables_take_in_what_waited_and_what_comes(earlier: Database) -> None:
    db = earlier
    state = "SELECT pgt_name, status, is_populated, schedule FROM pgtrickle.pgt_stream_tables ORDER BY 1"
    assert db.rows(state) == [
        ("buyers", "ACTIVE", True, "1s"),
        ("counts", "ACTIVE", True, "1s"),
        ("exact", "SUSPENDED", True, "1s"),
        ("large", "ACTIVE", True, "1s"),
        ("later", "INITIALIZING", False, "1h"),
        ("pages", "ACTIVE", True, "5m"),
        ("totals", "ACTIVE", True, "1s"),
    ]
    assert (
        db.value("SELECT relowner::regrole::text FROM pg_class WHERE oid = 'alice.counts'::regclass") == "upgrade_alice"
    )
    assert db.value("SELECT count(*) FROM shop.buyers WHERE note = 'waits'") == 0
    db.run("SELECT pgtrickle.resume_stream_table('shop.exact')")
    db.assert_refreshed(*TABLES)
    assert db.value("SELECT count(*) FROM shop.buyers WHERE note = 'waits'") == 1
    for number in (1, 2):
        db.run("INSERT INTO shop.orders VALUES (%s, 4, 500, 'new'), (%s, 1, 5, NULL)", 500 + number, 600 + number)
        db.run("DELETE FROM shop.orders WHERE id = %s", 100 + number)
        db.run("UPDATE shop.customers SET region = 'r%s' WHERE id = 2", number)
        db.run("INSERT INTO shop.clicks VALUES ('p0', 0), ('p0', 0); DELETE FROM shop.clicks WHERE page = 'p1'")
        db.run("DELETE FROM shop.prices WHERE id = %s", number)
        db.run("DELETE FROM alice.notes WHERE id = %s", number)
        db.assert_refreshed(*TABLES)
        assert {table: db.last(table)[0] for table in TABLES} == {
            table: "FULL" if table == "shop.later" else "DIFFERENTIAL" for table in TABLES
        }
    assert db.rows("SELECT region, total FROM shop.shown EXCEPT SELECT region, total FROM shop.totals") == []
    dropped = db.state("shop.large")["pgt_id"]
    db.run("SELECT pgtrickle.drop_stream_table('shop.large')")
    assert db.value("SELECT count(*) FROM pgtrickle.pgt_refresh_history WHERE pgt_id = %s", dropped) == 0
    tracked = (
        "SELECT count(*) FILTER (WHERE %s = ANY (tracked_by_pgt_ids)), count(*) FROM pgtrickle.pgt_change_tracking"
    )
    left, tables = db.rows(tracked, dropped)[0]
    assert left == 0 and tables > 4
    db.create("shop.large", "SELECT region FROM shop.totals WHERE total > 100")
    db.assert_refreshed("shop.large")


def test_migrate_writes_capture_anew_where_it_is_not_as_it_should_be(
    earlier: Database, role: Callable[..., psycopg.Connection[Any]]
) -> None:
    db = earlier
    migrate = "SELECT * FROM pgtrickle.migrate()"
    # Their first refreshes capture the tables of this database, whose OIDs are others than those of the dumped one.
    if db.state("shop.exact")["status"] == "SUSPENDED":
        db.run("SELECT pgtrickle.resume_stream_table('shop.exact')")
    db.assert_refreshed(*TABLES)
    current = db.rows(migrate)
    assert len(current) >= 6 and {action for _, _, action in current} == {"current"}
    ((source,),) = db.rows("SELECT 'shop.clicks'::regclass::oid::bigint")
    db.bypass().execute(
        f"CREATE OR REPLACE FUNCTION pgtrickle_changes.pg_trickle_cdc_ins_{source}() RETURNS trigger"
        " LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END'".encode()
    )
    db.run("INSERT INTO shop.clicks VALUES ('lost', 0)")
    assert set(db.rows(migrate)) - set(current) == {("shop.pages", "shop.clicks", "rewritten")}
    assert db.rows(migrate) == current
    db.assert_refreshed("shop.pages")
    assert db.last("shop.pages")[0] == "REINITIALIZE"
    db.run("INSERT INTO shop.clicks VALUES ('kept', 0)")
    db.assert_differential("shop.pages")
    with pytest.raises(psycopg.errors.InsufficientPrivilege, match="permission denied for function migrate"):
        role("alice").execute(migrate)


def test_queues_deliver_what_was_pending(earlier: Database, eventually: Callable[..., Any]) -> None:
    """Of seven events one consumer has acknowledged six; the other has returned one, and acknowledged none."""

    def received(consumer: str) -> list[tuple[Any, ...]]:
        query = "SELECT msg_id, payload::jsonb, retry_count, batch_id FROM pgque.receive('mail', %s, 100) ORDER BY 1"
        return earlier.rows(query, consumer)

    open_batch = received("sender")
    assert [row[:3] for row in open_batch] == [(n, {"n": n}, None) for n in range(1, 7)]
    earlier.run("SELECT pgque.ack(%s)", open_batch[0][3])
    events = eventually(lambda: received("archive"))
    assert [row[:2] for row in events] == [(7, {"n": 7})]
    taken: list[tuple[Any, ...]] = []
    while len(taken) < 2:
        batch = eventually(lambda: received("sender"))
        taken += [row[:3] for row in batch]
        earlier.run("SELECT pgque.ack(%s)", batch[0][3])
    assert sorted(taken) == [(1, {"n": 1}, 1), (7, {"n": 7}, None)]
    assert earlier.value("SELECT pgque.send('mail', 'new', '{}'::jsonb)") > 7


def test_balances_of_registers_hold(earlier: Database) -> None:
    db = earlier
    assert db.rows("SELECT accum.stock_balance(), accum.stock_balance(at_date := '2026-04-19')") == [
        ({"quantity": 103.5}, {"quantity": 107.5})
    ]
    assert db.rows("SELECT quantity, audit_operation FROM accum.stock_movements_audit") == [(-3, "repost")]
    movement = '{"recorder": "sale:2", "period": "2026-05-01", "warehouse": 2, "product": "b", "quantity": -1}'
    db.run("SELECT accum.register_post('stock', %s::jsonb)", movement)
    assert db.value("SELECT accum.register_unpost('stock', 'sale:1')") == 1
    assert db.value("SELECT accum.stock_balance()") == {"quantity": 106.5}
    assert db.rows("SELECT DISTINCT status FROM accum.register_verify('stock')") == [("OK",)]
