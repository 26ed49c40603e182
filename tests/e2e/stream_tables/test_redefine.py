"""Another query for a stream table: its table stays, with what depends on it, and nothing is ever wrong in it."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable
from typing import Any

import psycopg
import pytest
from psycopg import sql

from tests.e2e.conftest import Database

SOURCE = """
CREATE TABLE orders (id int PRIMARY KEY, region text, amount numeric(10, 2), note text COLLATE "C");
INSERT INTO orders VALUES (1, 'north', 10, 'a'), (2, 'north', 5.50, 'b'), (3, 'south', 7, NULL), (4, NULL, NULL, 'd');
CREATE TABLE regions (region text PRIMARY KEY, name text);
INSERT INTO regions VALUES ('north', 'N'), ('south', 'S')
"""
TOTALS = "SELECT region, sum(amount) AS total FROM orders GROUP BY region"
QUERIES = {
    "totals": TOTALS,
    "one less": "SELECT region FROM orders GROUP BY region",
    "one more": "SELECT region, sum(amount) AS total, count(*) AS n FROM orders GROUP BY region",
    "filtered": "SELECT region, sum(amount) AS total FROM orders WHERE id > 1 GROUP BY region",
    "rows": "SELECT region, amount AS total FROM orders",
    "other type": "SELECT region, count(*) AS total FROM orders GROUP BY region",
    "other place": "SELECT sum(amount) AS total, region FROM orders GROUP BY region",
    "collated": "SELECT id, note AS region FROM orders",
    "joined": "SELECT o.id, r.name, o.amount AS total FROM orders AS o LEFT JOIN regions AS r USING (region)",
    "distinct": "SELECT DISTINCT region, note FROM orders",
    "window": "SELECT id, region, row_number() OVER (PARTITION BY region ORDER BY id) AS total FROM orders",
    "top": "SELECT id, region FROM orders ORDER BY id LIMIT 2",
    "recursive": "WITH RECURSIVE r AS (SELECT id FROM orders UNION SELECT id - 1 FROM r WHERE id > 0) SELECT id FROM r",
    "volatile": "SELECT id, region FROM orders WHERE random() >= 0",
    "union": "SELECT region FROM orders UNION ALL SELECT name FROM regions",
}
CHANGES = (
    "INSERT INTO orders VALUES (5, 'east', 100, 'x'), (6, 'south', 1, 'x')",
    "UPDATE orders SET amount = amount + 1, region = 'south' WHERE id = 2; UPDATE regions SET name = 'South'",
    "DELETE FROM orders WHERE id IN (1, 5); INSERT INTO orders VALUES (1, 'north', 3, 'y')",
)


@pytest.fixture
def db(emptied_db: Database) -> Database:
    """Nothing is refreshed but by hand."""
    return emptied_db


@pytest.fixture(autouse=True)
def source(db: Database) -> None:
    db.run(SOURCE)


def redefine(db: Database, name: str, query: str, **arguments: Any) -> list[str]:
    """`alter_stream_table` with another query; returns what the client is told."""
    told: list[str] = []
    with db.connect() as client:
        client.add_notice_handler(lambda notice: told.append(f"{notice.severity} {notice.message_primary}"))
        named = "".join(f", {key} => %s" for key in arguments)
        client.execute(
            f"SELECT pgtrickle.alter_stream_table(%s, query => %s{named})",  # type: ignore[arg-type]
            [name, query, *arguments.values()],
        )
    return told


def columns(db: Database, name: str) -> list[tuple[str, str, str | None]]:
    """The user's columns, in order: name, type, collation where it is not the type's."""
    return db.rows(
        "SELECT a.attname, format_type(a.atttypid, a.atttypmod),"
        " (SELECT collname FROM pg_collation c WHERE c.oid = a.attcollation AND c.oid <> t.typcollation)"
        " FROM pg_attribute a JOIN pg_type t ON t.oid = a.atttypid"
        " WHERE attrelid = %s::regclass AND attnum > 0 AND NOT attisdropped AND attname NOT LIKE '\\_\\_pgt%%'"
        " ORDER BY attnum",
        name,
    )


def view_columns(db: Database, query: str) -> list[tuple[str, str, str | None]]:
    db.run(f"CREATE VIEW as_view AS {query}")
    found = columns(db, "as_view")
    db.run("DROP VIEW as_view")
    return found


@pytest.mark.parametrize(
    "start", ["totals", *(pytest.param(name, marks=pytest.mark.long) for name in ("rows", "joined", "volatile"))]
)
def test_every_query_becomes_every_other(db: Database, start: str) -> None:
    """Columns are those of a view, rows those of the query, also after changes; the table stays the same."""
    db.create("st", QUERIES[start])
    oid, pgt_id = db.value("SELECT 'st'::regclass::oid::int"), db.state("st")["pgt_id"]
    for number, name in enumerate([*QUERIES, start]):
        redefine(db, "st", QUERIES[name])
        assert columns(db, "st") == view_columns(db, QUERIES[name]), name
        db.assert_current("st")
        db.run(CHANGES[number % len(CHANGES)])
        db.run("DELETE FROM orders WHERE id IN (5, 6)")
        db.refresh("st")
        db.assert_current("st")
        assert (db.value("SELECT 'st'::regclass::oid::int"), db.state("st")["pgt_id"]) == (oid, pgt_id)


def test_state_follows_the_query(db: Database) -> None:
    db.create("st", QUERIES["top"])
    assert db.state("st")["topk_limit"] == 2
    redefine(db, "st", QUERIES["volatile"])
    state = db.state("st")
    assert (state["topk_limit"], state["refresh_mode"]) == (None, "FULL")
    assert "random" in state["functions_used"] and state["original_query"] == QUERIES["volatile"]
    assert "volatile function" in state["fallback_reason"]
    redefine(db, "st", QUERIES["joined"])
    state = db.state("st")
    assert (state["refresh_mode"], state["fallback_reason"], state["status"]) == ("DIFFERENTIAL", None, "ACTIVE")
    sources = {name for (name,) in db.rows("SELECT source_table FROM pgtrickle.list_sources('st')")}
    assert {name.split(".")[-1] for name in sources} == {"orders", "regions"}
    redefine(db, "st", TOTALS, refresh_mode="FULL", schedule="7s")
    state = db.state("st")
    assert (state["refresh_mode"], state["requested_mode"], state["schedule"]) == ("FULL", "FULL", "7s")


def test_what_depends_on_the_table_stays(db: Database) -> None:
    db.create("st", TOTALS)
    db.run("CREATE ROLE redefine_reader")
    try:
        db.run(
            "GRANT SELECT ON st TO redefine_reader; CREATE VIEW large AS SELECT region, total FROM st WHERE total > 8"
        )
        db.run("CREATE INDEX st_by_region ON st (region); CREATE PUBLICATION redefined FOR TABLE st")
        db.run("ALTER TABLE st ENABLE ROW LEVEL SECURITY; CREATE POLICY all_rows ON st USING (true)")
        redefine(db, "st", QUERIES["one more"])
        assert db.value("SELECT has_table_privilege('redefine_reader', 'st', 'SELECT')")
        assert db.rows("SELECT region, total::text FROM large") == [("north", "15.50")]
        assert db.value("SELECT count(*) FROM pg_publication_tables WHERE pubname = 'redefined'") == 1
        assert db.value("SELECT count(*) FROM pg_policies WHERE tablename = 'st'") == 1
        assert db.value("SELECT count(*) FROM pg_indexes WHERE indexname = 'st_by_region'") == 1
        # What would go and is read stays, and so does all else.
        with pytest.raises(psycopg.errors.DependentObjectsStillExist, match="large"):
            redefine(db, "st", QUERIES["one less"])
        db.assert_current("st")
        assert [name for name, _, _ in columns(db, "st")] == ["region", "total", "n"]
    finally:
        db.run("DROP TABLE IF EXISTS st CASCADE; DROP ROLE redefine_reader")


def test_columns_that_another_stream_table_reads_stay(db: Database) -> None:
    db.create("st", QUERIES["one more"])
    db.create("above", "SELECT region, total + 1 AS more FROM st")
    with pytest.raises(psycopg.errors.DependentObjectsStillExist) as failure:
        redefine(db, "st", QUERIES["one less"])
    assert failure.value.diag.message_detail == 'stream table public.above reads column "total"'
    redefine(db, "st", TOTALS)  # nobody reads n
    db.refresh("above")
    db.assert_current("above")
    redefine(db, "st", QUERIES["filtered"])
    db.refresh("above")
    db.assert_current("above")
    with pytest.raises(psycopg.Error) as cycle:
        redefine(db, "st", "SELECT region, more AS total FROM above")
    assert cycle.value.sqlstate == "42P17"


def test_another_type_or_place_is_told(db: Database) -> None:
    db.create("st", TOTALS)
    db.run("CREATE INDEX by_total ON st (total); CREATE VIEW regions_of_st AS SELECT region FROM st")
    told = redefine(db, "st", QUERIES["other type"])
    assert told == ['WARNING columns of stream table "st" have another type now: "total"']
    assert db.value("SELECT count(*) FROM pg_indexes WHERE indexname = 'by_total'") == 1
    with pytest.raises(psycopg.errors.DependentObjectsStillExist, match=r"view public\.regions_of_st"):
        redefine(db, "st", QUERIES["other place"])
    with pytest.raises(psycopg.errors.FeatureNotSupported, match="used by a view"):
        redefine(db, "st", "SELECT count(*) AS region, sum(amount) AS total FROM orders GROUP BY orders.region")
    db.run("DROP VIEW regions_of_st")
    told = redefine(db, "st", QUERIES["other place"])
    assert 'WARNING columns of stream table "st" have another place now: "region"' in told
    db.assert_current("st")


def test_a_wrong_query_changes_nothing(db: Database) -> None:
    db.create("st", TOTALS, schedule="3s")
    before = db.state("st")
    for query, sqlstate in (
        ("SELECT nothing FROM orders", "42703"),
        ("SELECT 1/0 AS total", "22012"),
        ("DELETE FROM orders", "0A000"),
    ):
        with pytest.raises(psycopg.Error) as failure:
            redefine(db, "st", query, schedule="9s")
        assert failure.value.sqlstate == sqlstate
    after = db.state("st")
    assert {key: after[key] for key in ("defining_query", "schedule", "refresh_mode", "status")} == {
        key: before[key] for key in ("defining_query", "schedule", "refresh_mode", "status")
    }
    db.run(CHANGES[0])
    db.refresh("st")
    db.assert_current("st")


def test_a_rollback_takes_it_back(db: Database) -> None:
    db.create("st", TOTALS)
    client = db.connect(autocommit=False)
    client.execute("SELECT pgtrickle.alter_stream_table('st', query => %s)", [QUERIES["joined"]])
    assert client.execute("SELECT count(*) FROM st").fetchone() == (4,)
    client.rollback()
    assert [name for name, _, _ in columns(db, "st")] == ["region", "total"]
    db.run(CHANGES[0])
    db.refresh("st")
    db.assert_current("st")
    client.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
    with pytest.raises(psycopg.Error) as failure:
        client.execute("SELECT pgtrickle.alter_stream_table('st', query => %s)", [QUERIES["joined"]])
    assert failure.value.sqlstate == "25001"


@pytest.mark.parametrize("isolation", ["repeatable read", "serializable"])
def test_under_a_default_isolation_above_read_committed(db: Database, isolation: str) -> None:
    db.create("st", TOTALS)
    db.run("CREATE TABLE prices (id int PRIMARY KEY, price int); INSERT INTO prices VALUES (1, 10), (2, 20)")
    database = sql.Identifier(str(db.value("SELECT current_database()")))
    with db.connect() as administrator:
        administrator.execute(
            sql.SQL("ALTER DATABASE {} SET default_transaction_isolation = {}").format(database, isolation)
        )
    client = db.connect()
    assert client.execute("SHOW default_transaction_isolation").fetchone() == (isolation,)
    for query in (QUERIES["joined"], "SELECT id, price FROM prices", TOTALS, QUERIES["one more"]):
        client.execute("SELECT pgtrickle.alter_stream_table('st', query => %s)", [query])
        db.assert_current("st")
        client.execute("SELECT pgtrickle.create_or_replace_stream_table('st', %s)", [f"{query} ORDER BY 1 LIMIT 3"])
        db.assert_current("st")
    with pytest.raises(psycopg.errors.DivisionByZero):
        client.execute("SELECT pgtrickle.alter_stream_table('st', query => 'SELECT id / 0 AS id FROM prices')")
    client.execute("SELECT pgtrickle.create_or_replace_stream_table('created', 'SELECT id FROM prices')")
    assert client.execute("SHOW transaction_isolation").fetchone() == (isolation,)
    db.run("INSERT INTO prices VALUES (3, 30)")
    for name in ("st", "created"):
        db.refresh(name)
        db.assert_current(name)


def test_suspended_stream_table_gets_another_query_and_stays_suspended(db: Database) -> None:
    db.create("st", TOTALS)
    db.run("SELECT pgtrickle.alter_stream_table('st', status => 'SUSPENDED')")
    redefine(db, "st", QUERIES["filtered"])
    assert db.state("st")["status"] == "SUSPENDED"
    db.assert_current("st")
    redefine(db, "st", QUERIES["joined"], status="ACTIVE")
    assert db.state("st")["status"] == "ACTIVE"


def test_only_the_owner_may(db: Database, eventually: Callable[..., Any]) -> None:
    db.create("st", TOTALS)
    db.run("CREATE ROLE redefine_stranger; GRANT SELECT ON orders TO redefine_stranger")
    try:
        stranger = db.connect()
        stranger.execute("SET ROLE redefine_stranger")
        for call in ("alter_stream_table('st', query => %s)", "create_or_replace_stream_table('st', %s)"):
            with pytest.raises(psycopg.errors.InsufficientPrivilege, match="must be owner"):
                stranger.execute(f"SELECT pgtrickle.{call}", [QUERIES["filtered"]])  # type: ignore[arg-type]
        stranger.close()
        # Nor past the server, where the engine carries it out later.
        past = db.bypass()
        past.execute("SET ROLE redefine_stranger")
        past.execute("SELECT pgtrickle.create_or_replace_stream_table('st', %s)", [QUERIES["filtered"]])
        past.close()
        unheeded = "SELECT count(*) FROM pgtrickle.pgt_requests WHERE error_state IS NULL"
        eventually(lambda: db.value(unheeded) == 0, what="the engine has refused it")
        assert db.rows("SELECT DISTINCT error_state FROM pgtrickle.pgt_requests") in ([("42501",)], [])
        assert "id > 1" not in db.state("st")["defining_query"]
    finally:
        db.run("DELETE FROM pgtrickle.pgt_requests; DROP OWNED BY redefine_stranger; DROP ROLE redefine_stranger")


class TestCreateOrReplace:
    """The table of actions of the reference."""

    @staticmethod
    def deploy(db: Database, query: str, **arguments: Any) -> list[str]:
        told: list[str] = []
        with db.connect() as client:
            client.execute("SET client_min_messages = info")
            client.add_notice_handler(lambda notice: told.append(f"{notice.severity} {notice.message_primary}"))
            named = "".join(f", {key} => %s" for key in arguments)
            client.execute(
                f"SELECT pgtrickle.create_or_replace_stream_table('st', %s{named})",  # type: ignore[arg-type]
                [query, *arguments.values()],
            )
        return told

    def test_it_is_created_kept_altered_and_replaced(self, db: Database) -> None:
        self.deploy(db, TOTALS, schedule="2m", refresh_mode="DIFFERENTIAL")
        db.assert_current("st")
        created, refreshes = db.state("st"), len(db.history("st"))
        cosmetic = "select  Region, SUM((amount)) AS total from public.orders group by region;"
        assert self.deploy(db, cosmetic, schedule="2m", refresh_mode="differential") == [
            'INFO stream table "st" is unchanged'
        ]
        assert len(db.history("st")) == refreshes
        self.deploy(db, TOTALS, schedule="3m", refresh_mode="DIFFERENTIAL")
        assert (db.state("st")["schedule"], len(db.history("st"))) == ("3m", refreshes)
        self.deploy(db, QUERIES["one more"], schedule="3m", refresh_mode="FULL", initialize=False)
        state = db.state("st")
        assert (state["pgt_id"], state["pgt_relid"]) == (created["pgt_id"], created["pgt_relid"])
        assert (state["requested_mode"], state["is_populated"]) == ("FULL", True)
        db.assert_current("st")
        self.deploy(db, QUERIES["one more"])
        state = db.state("st")
        assert (state["schedule"], state["requested_mode"], state["refresh_mode"]) == (
            "calculated",
            "AUTO",
            "DIFFERENTIAL",
        )

    def test_initialize_counts_where_it_is_created(self, db: Database) -> None:
        self.deploy(db, TOTALS, initialize=False)
        assert not db.state("st")["is_populated"]
        self.deploy(db, QUERIES["filtered"], initialize=False)
        assert db.state("st")["is_populated"]
        db.assert_current("st")

    def test_the_query_in_the_names_of_now_is_the_same(self, db: Database) -> None:
        self.deploy(db, TOTALS)
        db.run("CREATE SCHEMA app; ALTER TABLE orders SET SCHEMA app; ALTER SCHEMA app RENAME TO shop")
        db.assert_refreshed("st")
        assert self.deploy(db, TOTALS.replace("orders", "shop.orders")) == ['INFO stream table "st" is unchanged']

    def test_a_table_of_that_name_is_not_replaced(self, db: Database) -> None:
        db.run("CREATE TABLE st (id int)")
        with pytest.raises(psycopg.errors.DuplicateTable):
            self.deploy(db, TOTALS)

    def test_another_path_means_another_table(self, db: Database) -> None:
        self.deploy(db, TOTALS)
        db.run("CREATE SCHEMA other; CREATE TABLE other.orders AS SELECT * FROM public.orders WHERE id = 1")
        with db.connect() as client:
            client.execute("SET search_path = other, public")
            client.execute("SELECT pgtrickle.create_or_replace_stream_table('public.st', %s)", [TOTALS])
        assert db.value("SELECT count(*) FROM st") == 1
        db.assert_current("st")


def test_readers_and_writers_beside(db: Database) -> None:
    """Readers see one query's rows or the other's; no change of a writer is lost."""
    db.create("st", TOTALS, schedule="1s")
    stop = threading.Event()
    failures: list[BaseException] = []

    def beside(work: Callable[[psycopg.Connection[Any], int], None]) -> threading.Thread:
        def loop() -> None:
            try:
                with psycopg.connect(db.server.dsn(db.name), autocommit=True) as client:
                    for number in itertools.count():
                        if stop.is_set():
                            return
                        work(client, number)
            except BaseException as error:
                failures.append(error)

        thread = threading.Thread(target=loop)
        thread.start()
        return thread

    def write(client: psycopg.Connection[Any], number: int) -> None:
        client.execute("INSERT INTO orders VALUES (%s, %s, 1, 'w')", [100 + number, f"r{number % 5}"])
        client.execute("UPDATE orders SET amount = amount + 1 WHERE id = %s", [100 + number // 2])

    def read(client: psycopg.Connection[Any], number: int) -> None:
        (count,) = client.execute("SELECT count(*) FROM st").fetchone() or (0,)
        assert count > 0

    threads = [beside(write), beside(read)]
    try:
        for number in (1, 3, 4, 8):
            redefine(db, "st", list(QUERIES.values())[number])
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    assert not failures
    db.refresh("st")
    db.assert_current("st")
