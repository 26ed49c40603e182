"""Sources that are defined otherwise between two refreshes: a stream table shows what a view over its query shows."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest

from tests.e2e.conftest import Database

TABLES = """
CREATE TABLE t (id int PRIMARY KEY, a int, b int, c text);
CREATE TABLE u (id int PRIMARY KEY, a int, b int, c text);
CREATE VIEW w AS SELECT id, a AS x, b AS y FROM t WHERE a IS NOT NULL;
INSERT INTO t SELECT n, n % 3, n, 't' || n FROM generate_series(1, 9) AS n;
INSERT INTO u SELECT n, n % 2, -n, 'u' || n FROM generate_series(5, 12) AS n;
"""

QUERIES = {
    "plain": "SELECT id, a, c FROM t",
    "star": "SELECT * FROM t",
    "copies": "SELECT a, b FROM t UNION ALL SELECT a, b FROM u",
    "joined": "SELECT t.a, u.b, x.a AS other FROM t JOIN u USING (id) LEFT JOIN t x ON x.b = u.a",
    "grouped": "SELECT a, count(*), sum(b) AS total FROM t GROUP BY a HAVING sum(b) > 0",
    "by_key": "SELECT id, a, b FROM t GROUP BY id",
    "nested": "SELECT q.a, (SELECT max(u.b) FROM u WHERE u.a = q.a) AS m FROM (SELECT a, b FROM t WHERE b > 2) q",
    "windows": "SELECT a, b, row_number() OVER (PARTITION BY a ORDER BY b) FROM t",
    "common": "WITH t AS (SELECT a AS b, b AS a FROM t) SELECT t.a, t.b FROM t WHERE t.a > 1",
    "of_view": "SELECT x, y FROM w",
    "natural_join": "SELECT * FROM t NATURAL JOIN (SELECT id, b AS d FROM u) AS q",
    "renamed_in_it": "SELECT p.q, p.s FROM t AS p (o, q, r, s)",
    "whole": "SELECT id, a FROM t WHERE (t.*)::text <> ''",
}

CHANGES = {
    "column renamed": "ALTER TABLE t RENAME a TO z",
    "two columns renamed into each other": (
        "ALTER TABLE t RENAME a TO z; ALTER TABLE t RENAME b TO a; ALTER TABLE t RENAME z TO b"
    ),
    "column renamed and another added in its name": "ALTER TABLE t RENAME a TO z; ALTER TABLE t ADD a int DEFAULT 77",
    "columns added": "ALTER TABLE t ADD d int DEFAULT 5; ALTER TABLE u ADD e text",
    "column dropped that nothing reads": "ALTER TABLE u ADD e text; ALTER TABLE u DROP e; ALTER TABLE u RENAME b TO bb",
    "table renamed": "ALTER TABLE t RENAME TO t2",
    "table moved": 'CREATE SCHEMA app; ALTER TABLE t SET SCHEMA app; ALTER TABLE app.t RENAME a TO "Of A"',
    "tables renamed into each other": (
        "ALTER TABLE t RENAME TO z; ALTER TABLE u RENAME TO t; ALTER TABLE z RENAME TO u"
    ),
    "table renamed and another made in its name": (
        "ALTER TABLE t RENAME TO old_t; CREATE TABLE t (id int PRIMARY KEY, a int, b int, c text);"
        "INSERT INTO t VALUES (100, 100, 100, 'new')"
    ),
    "schema renamed": "CREATE SCHEMA app; ALTER TABLE t SET SCHEMA app; ALTER SCHEMA app RENAME TO apps",
    "view renamed": "ALTER VIEW w RENAME TO w2",
    "columns of a view renamed into each other": (
        "ALTER VIEW w RENAME x TO z; ALTER VIEW w RENAME y TO x; ALTER VIEW w RENAME z TO y"
    ),
    "view replaced": "CREATE OR REPLACE VIEW w AS SELECT id, a AS x, b AS y, c FROM t WHERE b > 4",
    "key gone": "ALTER TABLE u DROP CONSTRAINT u_pkey",
    "key of other columns": "ALTER TABLE u DROP CONSTRAINT u_pkey; ALTER TABLE u ADD PRIMARY KEY (id, b)",
    "default and constraints": "ALTER TABLE t ALTER a SET DEFAULT 9, ALTER b SET NOT NULL, ADD CHECK (id < 10000)",
}


@pytest.fixture
def db(emptied_db: Database) -> Database:
    """Nothing is refreshed but by hand."""
    return emptied_db


@pytest.mark.one_in(8)
@pytest.mark.parametrize(
    ("change", "mode"),
    [
        pytest.param(
            change,
            mode,
            id=f"{name.replace(' ', '_')}-{mode}",
            marks=[pytest.mark.long] if mode == "FULL" and number % 4 else [],
        )
        for number, (name, change) in enumerate(CHANGES.items())
        for mode in ("AUTO", "FULL")
    ],
)
def test_a_stream_table_follows_its_sources_as_a_view_does(db: Any, change: str, mode: str) -> None:
    db.run(TABLES)
    queries = QUERIES if mode == "AUTO" else {name: QUERIES[name] for name in ("joined", "nested", "of_view")}
    for name, query in queries.items():
        db.run(f"CREATE VIEW view_{name} AS {query}")
        db.create(name, query, refresh_mode=mode)

    def follow(*, differential: bool = False) -> None:
        for name in queries:
            db.refresh(name)
            shown = db.rows(f"SELECT v::text FROM view_{name} AS v ORDER BY 1")
            columns = ", ".join(f'"{c}"' for (c,) in db.rows(COLUMNS, f"view_{name}"))
            assert db.rows(f"SELECT ROW({columns})::text FROM {name} ORDER BY 1") == shown, name
            assert [c for (c,) in db.rows(COLUMNS, name)] == [c for (c,) in db.rows(COLUMNS, f"view_{name}")], name
            if differential:
                assert db.last(name)[0] in ("DIFFERENTIAL", "NO_DATA"), (name, db.history(name)[-1])

    first = db.value("SELECT 't'::regclass::oid")
    db.run("INSERT INTO t VALUES (40, 1, 40, 'before')")
    db.run(change)
    source = db.value("SELECT %s::oid::regclass::text", first)
    follow()
    db.run(
        f"INSERT INTO {source} SELECT (jsonb_populate_record(r, '{{\"id\": 50}}')).* FROM {source} AS r WHERE id = 5;"
        f"DELETE FROM {source} WHERE id = 3"
    )
    follow(differential=mode == "AUTO")


COLUMNS = """
SELECT attname FROM pg_attribute
WHERE attrelid = %s::regclass AND attnum > 0 AND NOT attisdropped AND attname NOT LIKE '\\_\\_pgt\\_%%' ORDER BY attnum
"""


REFUSED = {
    "dropped": (
        "ALTER TABLE t DROP a",
        psycopg.errors.UndefinedColumn,
        'column "a" of "public.t", which stream table "copy" reads, was dropped',
        "ALTER TABLE t ADD a int",
    ),
    "dropped under another name": (
        "ALTER TABLE t RENAME a TO z; ALTER TABLE t DROP z",
        psycopg.errors.UndefinedColumn,
        'column "a" of "public.t", which stream table "copy" reads, was dropped',
        "ALTER TABLE t ADD a int",
    ),
}


@pytest.mark.parametrize("mode", ["AUTO", "FULL"])
@pytest.mark.parametrize(("change", "error", "message", "remedy"), REFUSED.values(), ids=list(REFUSED))
def test_a_query_that_means_nothing_any_more_is_named_with_its_remedy(
    db: Any, change: str, error: type[psycopg.Error], message: str, remedy: str, mode: str
) -> None:
    db.run(TABLES + "DROP VIEW w")
    db.create("copy", "SELECT id, a FROM t", refresh_mode=mode)
    db.run(change)
    with pytest.raises(error, match=message) as refused:
        db.refresh("copy")
    assert refused.value.diag.message_hint is not None
    db.run(remedy)
    db.run("UPDATE t SET a = 5 WHERE id = 1")
    db.assert_refreshed("copy")


def test_a_query_that_needs_a_key_that_is_gone_is_computed_in_full(db: Any) -> None:
    db.run(TABLES)
    db.create("copy", "SELECT id, a, count(*) FROM u GROUP BY id", refresh_mode="AUTO")
    db.create("insisting", "SELECT id, a, count(*) FROM u GROUP BY id", refresh_mode="DIFFERENTIAL")
    db.run("ALTER TABLE u DROP CONSTRAINT u_pkey; ALTER TABLE u ADD UNIQUE (id)")
    for table in ("copy", "insisting"):
        with pytest.raises(
            psycopg.errors.GroupingError
        ):  # as of a view, which PostgreSQL would not have left without it
            db.refresh(table)
    db.run("ALTER TABLE u ADD PRIMARY KEY (id)")
    db.assert_refreshed("copy", "insisting")


def test_a_view_that_can_only_be_computed_in_full_now(db: Any) -> None:
    db.run(TABLES)
    db.create("copy", "SELECT x FROM w")
    db.create("insisting", "SELECT x FROM w", refresh_mode="DIFFERENTIAL")
    db.run("CREATE OR REPLACE VIEW w AS SELECT id, a AS x, b AS y FROM t WHERE random() >= 0")
    db.assert_refreshed("copy")
    assert db.state("copy")["refresh_mode"] == "FULL"
    with pytest.raises(psycopg.errors.FeatureNotSupported, match='volatile function "random"'):
        db.refresh("insisting")
    db.run("CREATE OR REPLACE VIEW w AS SELECT id, a AS x, b AS y FROM t; UPDATE t SET a = 8 WHERE id = 2")
    db.assert_refreshed("copy", "insisting")


@pytest.mark.parametrize("mode", ["AUTO", "DIFFERENTIAL", "FULL"])
def test_a_star_is_said_to_stand_for_the_columns_of_now(db: Any, mode: str) -> None:
    notices: list[tuple[str | None, str | None]] = []
    db.connection.add_notice_handler(lambda told: notices.append((told.message_primary, told.message_hint)))
    db.run(TABLES)
    db.create("counted", "SELECT count(*), sum(a * b) FROM (SELECT * FROM t) AS q", refresh_mode=mode)
    assert notices == []
    db.create("star", "SELECT t.*, 1 AS one FROM t", refresh_mode=mode)
    assert notices == [
        (
            "* in the defining query stands for the columns that its sources have now",
            "As in a view, columns that are added to them later do not appear.",
        )
    ]
    db.run("ALTER TABLE t ADD d int DEFAULT 5; INSERT INTO t VALUES (60)")
    db.assert_refreshed("star")
    assert [name for (name,) in db.rows(COLUMNS, "star")] == ["id", "a", "b", "c", "one"]


RETYPED = {
    "wider": "ALTER TABLE t ALTER a TYPE bigint",
    "text": "ALTER TABLE t ALTER a TYPE text USING 'a' || a",
    "not rewritten": "ALTER TABLE t ALTER c TYPE text",
    "collation": 'ALTER TABLE t ALTER c TYPE text COLLATE "C"',
}


@pytest.mark.parametrize("mode", ["AUTO", "FULL"])
@pytest.mark.parametrize("change", RETYPED.values(), ids=list(RETYPED))
@pytest.mark.one_in(3)
def test_a_column_of_another_type_is_followed(db: Any, change: str, mode: str) -> None:
    db.run(TABLES + "DROP VIEW w; ALTER TABLE t ALTER c TYPE varchar(3)")
    for name, query in {
        "plain": QUERIES["plain"],
        "grouped": "SELECT a, max(c) AS c, count(*) AS n FROM t GROUP BY a",
    }.items():
        db.create(name, query, refresh_mode=mode)
    db.create("above", "SELECT id, a, c FROM plain", refresh_mode=mode)
    kept = db.value("SELECT 'plain'::regclass::oid")
    db.run(change)
    db.run("UPDATE t SET c = CASE WHEN pg_typeof(c) = 'text'::regtype THEN 'a longer text' END WHERE id = 1")
    names = ("plain", "grouped", "above")
    db.assert_refreshed(*names)
    for name in names:
        wanted = dict(
            db.rows("SELECT attname, format_type(atttypid, atttypmod) FROM pg_attribute WHERE attrelid = 't'::regclass")
        )
        found = dict(
            db.rows(
                "SELECT attname, format_type(atttypid, atttypmod) FROM pg_attribute WHERE attrelid = %s::regclass", name
            )
        )
        assert (found["a"], found["c"]) == (wanted["a"], "text" if name == "grouped" else wanted["c"]), name
    assert db.value("SELECT 'plain'::regclass::oid") == kept
    db.run("UPDATE t SET c = 'x' WHERE id = 2; DELETE FROM t WHERE id = 3")
    db.assert_refreshed(*names)
    if mode == "AUTO":
        assert db.last("above")[0] == "DIFFERENTIAL"


def test_a_view_over_the_stream_table_keeps_its_type(db: Any) -> None:
    db.run(TABLES + "DROP VIEW w")
    db.create("copy", "SELECT id, a FROM t")
    db.run("CREATE VIEW over AS SELECT a FROM copy; ALTER TABLE t ALTER a TYPE bigint")
    with pytest.raises(psycopg.errors.FeatureNotSupported, match="used by a view"):
        db.refresh("copy")
    db.run("DROP VIEW over")
    db.assert_refreshed("copy")


def test_row_level_security_that_is_forced_is_noticed(db: Any) -> None:
    db.run(TABLES + "DROP VIEW w; ALTER TABLE t FORCE ROW LEVEL SECURITY")
    db.create("copy", "SELECT id, a FROM t")
    for ddl in ("ENABLE", "NO FORCE", "FORCE", "DISABLE"):
        db.run(f"ALTER TABLE t {ddl} ROW LEVEL SECURITY")
        assert db.state("copy")["needs_reinit"], ddl
        db.assert_refreshed("copy")


BLOCKED = [
    "ALTER TABLE t DROP a", "ALTER TABLE t RENAME a TO z", "ALTER TABLE t ALTER a TYPE bigint", "DROP TABLE t",
    "DROP TABLE copy", "ALTER VIEW w RENAME x TO z",
]  # fmt: skip


@pytest.mark.parametrize("ddl", BLOCKED)
@pytest.mark.one_in(2)
def test_ddl_on_sources_can_be_blocked(db: Any, ddl: str) -> None:
    db.run(TABLES + ("" if " w " in ddl else "DROP VIEW w"))
    db.create("copy", "SELECT id, a FROM t")
    db.create("above", "SELECT a FROM copy")
    if " w " in ddl:
        db.create("of_view", "SELECT x FROM w")
    db.run("SET pg_trickle.block_source_ddl = on")
    with pytest.raises(psycopg.errors.DependentObjectsStillExist, match="because a stream table reads it") as refused:
        db.run(ddl)
    assert "block_source_ddl" in str(refused.value.diag.message_hint)
    db.run("ALTER TABLE t ADD d int; ALTER TABLE t ALTER b SET DEFAULT 4; INSERT INTO t (id, a) VALUES (70, 1)")
    db.assert_refreshed("copy", "above")
    db.run(
        "SELECT pgtrickle.alter_stream_table('copy', query => 'SELECT id, a, b FROM t')"
    )  # the server's own ALTER TABLE
    db.run("SET pg_trickle.block_source_ddl = off")
    db.run(ddl)


def test_what_reads_a_table_that_is_dropped_is_told(db: Any) -> None:
    db.run(TABLES + "DROP VIEW w")
    db.create("copy", "SELECT t.id, u.a FROM t JOIN u USING (id)")
    notices: list[str] = []
    db.connection.add_notice_handler(lambda told: notices.append(f"{told.severity} {told.message_primary}"))
    db.run("DROP TABLE t")
    assert notices == ['NOTICE stream table "public.copy" reads public.t, which was dropped']
    assert db.rows("SELECT source_table FROM pgtrickle.list_sources('copy')") == [
        ("public.t (dropped)",),
        ("public.u",),
    ]
    assert set(db.rows("SELECT source_table, present FROM pgtrickle.trigger_inventory()")) == {
        ("public.t (dropped)", False),
        ("public.u", True),
    }
    db.run("CREATE TABLE away (id int)")
    db.create("below", "SELECT id FROM away")
    db.create("above", "SELECT id FROM below")
    notices.clear()
    db.run("SELECT pgtrickle.drop_stream_table('below')")
    assert notices == ['NOTICE stream table "public.above" reads public.below, which was dropped']
