"""DDL on what an IMMEDIATE stream table reads: it is never silently wrong, fails no writer, and goes on by itself."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from typing import Any

import psycopg
import pytest

from server.postgres.cluster import binaries
from tests.e2e.conftest import Database, drop_role

QUERIES = {
    "sums": "SELECT v % 3 AS g, count(*) AS n, sum(v) AS s FROM t GROUP BY v % 3",
    "rows": "SELECT id, v FROM t WHERE id > 1",
    "joined": "SELECT t.id, t.v, u.name FROM t JOIN u ON u.g = t.v % 4",
    "over": "SELECT count(*) AS n FROM sums",
}


@pytest.fixture
def live_db(emptied_live_db: Database) -> Database:
    return emptied_live_db


def tables(db: Database) -> None:
    db.run(
        "CREATE SCHEMA s; CREATE TABLE t (id int PRIMARY KEY, v int, unread int, spare text);"
        "CREATE TABLE u (g int PRIMARY KEY, name text);"
        "INSERT INTO t SELECT i, i * 7 % 11 FROM generate_series(1, 40) i;"
        "INSERT INTO u SELECT i, 'u' || i FROM generate_series(0, 3) i"
    )
    for name, query in QUERIES.items():
        db.create(name, query, refresh_mode="IMMEDIATE")


@pytest.fixture
def tu(db: Database) -> Database:
    """Nothing is refreshed but by hand."""
    tables(db)
    return db


@pytest.fixture
def live(live_db: Database) -> Database:
    """With its scheduler at work."""
    tables(live_db)
    return live_db


def modes(db: Database) -> dict[str, str]:
    return dict(db.rows("SELECT pgt_name, refresh_mode FROM pgtrickle.pgt_stream_tables"))


def assert_never_wrong(db: Database) -> None:
    """Which say that they are IMMEDIATE, and need not be computed anew, are equal to their queries."""
    for (name,) in db.rows(
        "SELECT format('%I.%I', pgt_schema, pgt_name) FROM pgtrickle.pgt_stream_tables"
        " WHERE refresh_mode = 'IMMEDIATE' AND NOT needs_reinit AND status = 'ACTIVE' ORDER BY pgt_id"
    ):
        db.assert_current(name)


FOLLOWED = {
    "column renamed": ("ALTER TABLE t RENAME v TO w", "INSERT INTO t (id, w) VALUES (1000, 5)"),
    "column renamed back": (
        "ALTER TABLE t RENAME v TO w; ALTER TABLE t RENAME w TO v",
        "INSERT INTO t VALUES (1000, 5)",
    ),
    "table renamed": ("ALTER TABLE t RENAME TO t2", "INSERT INTO t2 VALUES (1000, 5)"),
    "names exchanged": (
        "BEGIN; ALTER TABLE t RENAME TO t_; CREATE TABLE t (id int PRIMARY KEY, v int); COMMIT",
        "INSERT INTO t_ VALUES (1000, 5); INSERT INTO t VALUES (2000, 3)",
    ),
    "table moved": ("ALTER TABLE t SET SCHEMA s", "INSERT INTO s.t VALUES (1000, 5)"),
    "schema renamed": (
        "ALTER TABLE u SET SCHEMA s; ALTER SCHEMA s RENAME TO s2",
        "INSERT INTO s2.u VALUES (9, 'x'); UPDATE s2.u SET name = name || '!'",
    ),
    "column added": ("ALTER TABLE t ADD COLUMN extra int DEFAULT 5", "INSERT INTO t VALUES (1000, 5)"),
    "unread column dropped": ("ALTER TABLE t DROP COLUMN unread", "INSERT INTO t VALUES (1000, 5)"),
    "unread column retyped": ("ALTER TABLE t ALTER unread TYPE text", "INSERT INTO t VALUES (1000, 5)"),
    "row-level security": (
        "ALTER TABLE t ENABLE ROW LEVEL SECURITY; CREATE POLICY p ON t USING (true)",
        "INSERT INTO t VALUES (1000, 5)",
    ),
    "triggers disabled": ("ALTER TABLE t DISABLE TRIGGER USER", "INSERT INTO t VALUES (1000, 5)"),
    "triggers disabled for a while": (
        "ALTER TABLE t DISABLE TRIGGER USER; INSERT INTO t VALUES (999, 5); ALTER TABLE t ENABLE TRIGGER USER",
        "INSERT INTO t VALUES (1000, 5)",
    ),
    "a trigger replaced": (
        "ALTER TABLE t ENABLE REPLICA TRIGGER pg_trickle_immediate_{first}_insert",
        "INSERT INTO t VALUES (1000, 5)",
    ),
    "a trigger dropped": (
        "DROP TRIGGER pg_trickle_immediate_{first}_insert ON t",
        "INSERT INTO t VALUES (1000, 5)",
    ),
    "functions dropped": (
        "DROP FUNCTION pgtrickle_roles.immediate_1_1 CASCADE",
        "INSERT INTO t VALUES (1000, 5)",
    ),
    "truncated": ("TRUNCATE t", "INSERT INTO t VALUES (1000, 5)"),
    "rewritten": ("VACUUM FULL t", "INSERT INTO t VALUES (1000, 5)"),
    "stream table renamed": ("ALTER TABLE sums RENAME TO totals", "INSERT INTO t VALUES (1000, 5)"),
    "stream table moved": ("ALTER TABLE sums SET SCHEMA s", "INSERT INTO t VALUES (1000, 5)"),
    "stream table given away": (
        "DO $$ BEGIN CREATE ROLE somebody; EXCEPTION WHEN duplicate_object THEN NULL; END $$;"
        "GRANT SELECT, TRIGGER ON t TO somebody; ALTER TABLE sums OWNER TO somebody",
        "INSERT INTO t VALUES (1000, 5)",
    ),
    "source given away": (
        "DO $$ BEGIN CREATE ROLE somebody; EXCEPTION WHEN duplicate_object THEN NULL; END $$;"
        "ALTER TABLE t OWNER TO somebody",
        "INSERT INTO t VALUES (1000, 5)",
    ),
    "with a child": (
        "CREATE TABLE c () INHERITS (t); INSERT INTO c VALUES (1, 5)",
        "INSERT INTO c VALUES (1000, 5); UPDATE c SET v = v + 1",
    ),
    "with a child that was there": (
        "CREATE TABLE c (LIKE t); INSERT INTO c VALUES (1, 5); ALTER TABLE c INHERIT t",
        "INSERT INTO c VALUES (1000, 5); UPDATE c SET v = v + 1",
    ),
    "primary key dropped": ("ALTER TABLE t DROP CONSTRAINT t_pkey", "INSERT INTO t SELECT * FROM t WHERE id < 5"),
}


@pytest.mark.parametrize("what", FOLLOWED)
@pytest.mark.one_in(6)
def test_it_becomes_immediate_again(live: Database, eventually: Callable[..., Any], what: str) -> None:
    ddl, writes = FOLLOWED[what]
    first = live.value("SELECT min(pgt_id) FROM pgtrickle.pgt_stream_tables")
    ddl = ddl.replace("{first}", f"{first:012}")
    writer = live.connect()
    for statement in ddl.split(";") if "$$" not in ddl else [ddl]:
        live.run(statement)
        if "BEGIN" not in ddl:
            assert_never_wrong(live)
    for statement in writes.split(";"):
        writer.execute(statement)
        assert_never_wrong(live)
    eventually(lambda: set(modes(live).values()) == {"IMMEDIATE"}, what=str(modes(live)))
    names = [n for (n,) in live.rows("SELECT format('%I.%I', pgt_schema, pgt_name) FROM pgtrickle.pgt_stream_tables")]
    live.assert_current(*names)
    for statement in writes.replace("1000", "3000").replace("2000", "4000").replace("(9,", "(10,").split(";"):
        writer.execute(statement)
        live.assert_current(*names)


def test_columns_that_are_read_are_dropped_or_retyped(live: Database, eventually: Callable[..., Any]) -> None:
    """PostgreSQL refuses it, as for a view, as long as triggers depend on them."""
    alterations = ("ALTER TABLE t ALTER v TYPE bigint USING v * 1000", "ALTER TABLE t DROP COLUMN v")
    for statement in alterations:
        with pytest.raises(psycopg.Error, match=r"pg_trickle_immediate_.*_hold"):
            live.run(statement)
    live.run("INSERT INTO t VALUES (999, 5)")
    live.assert_current(*QUERIES)
    for name in ("sums", "rows", "joined"):
        live.run("SELECT pgtrickle.alter_stream_table(%s, refresh_mode => 'DIFFERENTIAL')", name)
    eventually(
        lambda: not live.rows("SELECT FROM pg_trigger WHERE tgname ~ 'immediate.*_hold$' AND tgrelid = 't'::regclass")
    )
    live.run(alterations[0])
    live.run("INSERT INTO t VALUES (1000, 5)")
    for name in ("sums", "rows", "joined"):
        live.run("SELECT pgtrickle.alter_stream_table(%s, refresh_mode => 'IMMEDIATE')", name)
    live.assert_current(*QUERIES)
    live.run("INSERT INTO t VALUES (1001, 5)")
    live.assert_current(*QUERIES)
    live.run("ALTER TABLE t DROP COLUMN v CASCADE")  # and the triggers with it
    assert "IMMEDIATE" not in {modes(live)[name] for name in ("sums", "rows", "joined")}
    live.run("INSERT INTO t VALUES (2000, 5)")
    eventually(lambda: live.state("rows")["status"] in ("ERROR", "SUSPENDED"))
    assert 'column "v"' in live.history("rows")[-1]["error_message"]
    live.run("ALTER TABLE t ADD COLUMN v bigint DEFAULT 7")
    for name in ("sums", "rows", "joined"):
        live.run("SELECT pgtrickle.alter_stream_table(%s, status => 'ACTIVE')", name)
    eventually(lambda: set(modes(live).values()) == {"IMMEDIATE"}, what=str(modes(live)))
    live.assert_current(*QUERIES)


@pytest.mark.long
def test_types_and_schemas_of_types_that_are_renamed(live: Database, eventually: Callable[..., Any]) -> None:
    live.run("CREATE TYPE s.mood AS ENUM ('sad', 'glad'); CREATE DOMAIN positive AS int CHECK (VALUE > 0)")
    live.run("CREATE TABLE m (id int PRIMARY KEY, mood s.mood); INSERT INTO m VALUES (1, 'sad')")
    queries = {
        "moods": "SELECT mood, count(*) AS n FROM m WHERE mood >= 'sad'::s.mood GROUP BY mood",
        "ids": "SELECT id::positive AS id, CASE WHEN id > 5 THEN 'glad'::s.mood END AS mood FROM m",
    }
    for name, query in queries.items():
        live.create(name, query, refresh_mode="IMMEDIATE")
    for number, statement in enumerate(
        (
            "ALTER TYPE s.mood RENAME TO humour",
            "ALTER DOMAIN positive RENAME TO natural_",
            "ALTER SCHEMA s RENAME TO s3",
        ),
        2,
    ):
        live.run(statement)
        live.run("INSERT INTO m VALUES (%s, 'glad')", number)
        # The query names the type as it was, so a refresh cannot compute it any more: writers do not fail for it.
        eventually(lambda: live.state("moods")["refresh_mode"] != "IMMEDIATE" or not live.difference("moods"))
        assert number > 2 or "IMMEDIATE" not in {modes(live)["moods"], modes(live)["ids"]}
    live.run("INSERT INTO m VALUES (100, 'sad'); DELETE FROM m WHERE id = 1; UPDATE m SET mood = 'sad'")
    live.assert_current("sums", "rows", "joined")


ALTERED_TYPES = {
    # By the DDL: a query, and whether it means the same afterwards.
    "ALTER TYPE mood RENAME VALUE 'glad' TO 'happy'": ("SELECT mood::text AS t, count(*) AS n FROM m GROUP BY 1", True),
    "ALTER TYPE mood ADD VALUE 'new' BEFORE 'sad'": ("SELECT max(mood) AS most FROM m WHERE mood > 'sad'", True),
    "ALTER TYPE grade RENAME VALUE 'a' TO 'c'": ("SELECT id, CASE WHEN id > 1 THEN 'a'::grade END AS g FROM m", False),
    "ALTER TYPE grade RENAME TO mark": ("SELECT id, 'a'::grade::text AS g FROM m", False),
    "ALTER TYPE pair RENAME ATTRIBUTE x TO z": ("SELECT id, (p).x AS x FROM m", False),
    "ALTER TYPE pair RENAME ATTRIBUTE y TO w": ("SELECT id, to_jsonb(p) AS p FROM m", True),
    "ALTER TYPE pair ADD ATTRIBUTE w int CASCADE": ("SELECT id, ROW(id, 'z')::pair AS p FROM m", False),
    "ALTER TYPE \"a\"\"b\" RENAME VALUE 'a' TO 'c'": ('SELECT id, \'a\'::"a""b" AS g FROM m', False),
}


@pytest.mark.parametrize("ddl", ALTERED_TYPES)
@pytest.mark.one_in(6)
def test_types_that_are_altered(live: Database, eventually: Callable[..., Any], ddl: str) -> None:
    """Writers go on, whatever has become of the query; it is equal again where it means anything."""
    query, goes_on = ALTERED_TYPES[ddl]
    live.run(
        "CREATE TYPE mood AS ENUM ('sad', 'glad'); CREATE TYPE grade AS ENUM ('a', 'b');"
        'CREATE TYPE pair AS (x int, y text); CREATE TYPE "a""b" AS ENUM (\'a\');'
        "CREATE TABLE m (id int PRIMARY KEY, mood mood, p pair);"
        "INSERT INTO m VALUES (1, 'sad', (1, 'x')), (2, 'glad', (2, 'y'))"
    )
    live.create("st", query, refresh_mode="IMMEDIATE")
    writer = live.bypass()
    live.run(ddl)
    assert modes(live)["st"] != "IMMEDIATE"
    live.run("CREATE TABLE m2 AS SELECT * FROM m")
    for statement in (
        "INSERT INTO m SELECT id + 10, mood, p FROM m2",
        "UPDATE m SET mood = (SELECT max(mood) FROM m2), p = p WHERE id < 10",
        "DELETE FROM m WHERE id = 1",
    ):
        writer.execute(statement)
    if goes_on:
        eventually(lambda: modes(live)["st"] == "IMMEDIATE")
        live.assert_current("st")
    else:
        eventually(lambda: live.state("st")["status"] in ("ERROR", "SUSPENDED"))
    writer.execute("INSERT INTO m SELECT id + 20, mood, p FROM m2")
    assert_never_wrong(live)
    live.assert_current(*QUERIES)


def test_whole_rows_that_get_a_column(live: Database, eventually: Callable[..., Any]) -> None:
    live.run("CREATE TABLE w (id int PRIMARY KEY, a int); INSERT INTO w VALUES (1, 1)")
    live.create("wholes", "SELECT id, w.*::text AS whole FROM w", refresh_mode="IMMEDIATE")
    live.run("ALTER TABLE w ADD COLUMN b int DEFAULT 5")
    live.run("INSERT INTO w VALUES (2, 2, 2)")
    assert_never_wrong(live)
    eventually(lambda: not live.difference("wholes") and modes(live)["wholes"] == "IMMEDIATE")
    live.run("UPDATE w SET b = b + 1")
    live.assert_current("wholes")


def test_what_its_owner_may_no_longer_write(live: Database, eventually: Callable[..., Any], role: Any) -> None:
    """Row-level security that is forced on the stream table, and rights to it that its owner gives away."""
    alice = role("alice")
    alice.execute("CREATE TABLE mine (id int PRIMARY KEY, v int); INSERT INTO mine VALUES (1, 1)")
    alice.execute("SELECT pgtrickle.create_stream_table('s', 'SELECT id, v FROM mine', refresh_mode => 'IMMEDIATE')")
    alice.execute("ALTER TABLE s ENABLE ROW LEVEL SECURITY; ALTER TABLE s FORCE ROW LEVEL SECURITY")
    alice.execute("INSERT INTO mine VALUES (2, 2)")
    alice.execute("ALTER TABLE s NO FORCE ROW LEVEL SECURITY; ALTER TABLE s DISABLE ROW LEVEL SECURITY")
    alice.execute("SELECT pgtrickle.alter_stream_table('s', status => 'ACTIVE')")
    assert modes(live)["s"] == "IMMEDIATE"
    alice.execute("REVOKE INSERT ON s FROM CURRENT_USER")
    assert modes(live)["s"] != "IMMEDIATE"
    alice.execute("INSERT INTO mine VALUES (3, 3)")


OBSTACLES = {
    "unlogged": (
        ("ALTER TABLE t SET UNLOGGED",),
        "unlogged",
        ("ALTER TABLE t SET LOGGED",),
    ),
    "partition of another": (
        (
            "CREATE TABLE p (id int NOT NULL, v int, unread int, spare text) PARTITION BY LIST (id)",
            "ALTER TABLE p ATTACH PARTITION t DEFAULT",
        ),
        "is a partition or child of",
        ("ALTER TABLE p DETACH PARTITION t",),
    ),
    "child of another": (
        ("CREATE TABLE p (id int NOT NULL)", "ALTER TABLE t INHERIT p"),
        "is a partition or child of",
        ("ALTER TABLE t NO INHERIT p",),
    ),
}


@pytest.mark.parametrize("what", OBSTACLES)
@pytest.mark.one_in(2)
def test_an_obstacle_is_told_and_its_end_noticed(live: Database, eventually: Callable[..., Any], what: str) -> None:
    ddl, reason, undo = OBSTACLES[what]
    for statement in ddl:
        live.run(statement)
    for name in ("sums", "rows", "joined"):
        assert live.state(name)["refresh_mode"] != "IMMEDIATE"
    live.run("INSERT INTO t VALUES (1000, 5)")

    def told() -> bool:
        states = [live.state(name) for name in ("sums", "rows", "joined")]
        return all(state["fallback_reason"] and not state["needs_reinit"] for state in states)

    eventually(told, what=str([live.state(n)["fallback_reason"] for n in QUERIES]))
    for name in ("sums", "rows", "joined"):
        state = live.state(name)
        assert reason in state["fallback_reason"], state["fallback_reason"]
        assert (state["status"], state["requested_mode"]) == ("ACTIVE", "IMMEDIATE")
        eventually(lambda name=name: live.difference(name) == [])
    if what != "unlogged":
        live.run("INSERT INTO p (id) VALUES (2000)" if "partition" in what else "UPDATE p SET id = 5000 WHERE id = 40")
        for name in ("sums", "rows"):
            eventually(lambda name=name: live.difference(name) == [])
    for statement in undo:
        live.run(statement)
    eventually(lambda: set(modes(live).values()) == {"IMMEDIATE"}, what=str(modes(live)))
    live.run("INSERT INTO t VALUES (3000, 5)")
    live.assert_current(*QUERIES)


def test_rights_that_are_taken_away(live: Database, eventually: Callable[..., Any]) -> None:
    """Writers do not fail for what the owner may no longer read."""
    live.run("DROP ROLE IF EXISTS reader_of_immediate")
    live.run("CREATE ROLE reader_of_immediate")
    try:
        live.run(
            "GRANT SELECT, TRIGGER ON t, u TO reader_of_immediate; GRANT CREATE ON SCHEMA public TO reader_of_immediate"
        )
        live.run("SET ROLE reader_of_immediate")
        live.create("theirs", "SELECT t.id, u.name FROM t JOIN u ON u.g = t.id", refresh_mode="IMMEDIATE")
        live.run("RESET ROLE")
        assert modes(live)["theirs"] == "IMMEDIATE"
        live.run("REVOKE SELECT ON u FROM reader_of_immediate")
        assert modes(live)["theirs"] != "IMMEDIATE"
        live.run("INSERT INTO t VALUES (1000, 5)")
        live.run("GRANT SELECT ON u TO reader_of_immediate")
        live.run("SELECT pgtrickle.alter_stream_table('theirs', status => 'ACTIVE')")
        eventually(lambda: modes(live)["theirs"] == "IMMEDIATE")
        live.run("REVOKE TRIGGER ON t FROM reader_of_immediate")
        live.run("INSERT INTO t VALUES (2, 5) ON CONFLICT DO NOTHING; INSERT INTO u VALUES (1000, 'x')")
        eventually(lambda: "TRIGGER" in (live.state("theirs")["fallback_reason"] or ""))
        eventually(lambda: live.difference("theirs") == [])
    finally:
        live.run("RESET ROLE")
        drop_role(live.connection, "reader_of_immediate")


def test_functions_that_change_or_go(live: Database, eventually: Callable[..., Any]) -> None:
    live.run("CREATE FUNCTION f(int) RETURNS int IMMUTABLE LANGUAGE sql AS 'SELECT $1 + 1'")
    live.create("called", "SELECT id, f(v) AS v FROM t", refresh_mode="IMMEDIATE")
    live.run("CREATE OR REPLACE FUNCTION f(int) RETURNS int IMMUTABLE LANGUAGE sql AS 'SELECT $1 + 100'")
    assert modes(live)["called"] != "IMMEDIATE"
    live.run("DELETE FROM t WHERE id = 3")
    eventually(lambda: modes(live)["called"] == "IMMEDIATE")
    live.assert_current("called")
    live.run("DROP FUNCTION f(int)")
    live.run("DELETE FROM t WHERE id = 4")
    live.run("INSERT INTO t VALUES (1000, 5)")
    live.assert_current("sums", "rows", "joined")
    eventually(lambda: "f(" in (live.history("called")[-1]["error_message"] or ""))


def test_sources_that_are_dropped(tu: Database) -> None:
    tu.run("DROP TABLE u")
    state = tu.state("joined")
    assert (state["status"], state["fallback_reason"]) == ("ERROR", "source public.u was dropped")
    tu.run("INSERT INTO t VALUES (1000, 5)")
    tu.assert_current("sums", "rows", "over")
    tu.run("DROP TABLE t CASCADE; CREATE TABLE t (id int PRIMARY KEY, v int); INSERT INTO t VALUES (1, 1)")
    for name in ("sums", "rows", "joined"):
        assert tu.state(name)["status"] == "ERROR"


def test_rolled_back_ddl_leaves_it_immediate(tu: Database) -> None:
    with tu.connection.transaction(force_rollback=True):
        tu.run("ALTER TABLE t RENAME TO t2")
        tu.run("ALTER TABLE t2 DISABLE TRIGGER USER")
        tu.run("INSERT INTO t2 VALUES (1000, 5)")
        assert "IMMEDIATE" not in {modes(tu)["sums"], modes(tu)["rows"], modes(tu)["joined"]}
    assert set(modes(tu).values()) == {"IMMEDIATE"}
    tu.run("INSERT INTO t VALUES (1000, 5)")
    tu.assert_current(*QUERIES)


def test_ddl_without_event_triggers(live: Database, eventually: Callable[..., Any]) -> None:
    """What they did not see the scheduler finds out."""
    if live.value("SELECT current_setting('server_version_num')::int") < 170000:
        pytest.skip("there is no setting event_triggers")
    quiet = live.bypass()
    quiet.execute("SET event_triggers = off")
    quiet.execute("SET lock_timeout = '60s'")
    quiet.execute("ALTER TABLE t DISABLE TRIGGER USER")
    quiet.execute("INSERT INTO t VALUES (1000, 5)")
    eventually(lambda: not {"sums", "rows"} & {n for n in QUERIES if live.difference(n)}, what="equal")
    quiet.execute("ALTER TABLE t RENAME TO t2")
    eventually(lambda: set(modes(live).values()) == {"IMMEDIATE"} and "t2" in live.state("sums")["defining_query"])
    quiet.execute("INSERT INTO t2 VALUES (1001, 5)")
    live.assert_current(*QUERIES)


def test_another_query_of_what_it_reads(live: Database, eventually: Callable[..., Any]) -> None:
    """`over` reads `sums`, which gets other rows without a statement on it."""
    live.run("SELECT pgtrickle.alter_stream_table('sums', query => %s)", QUERIES["sums"].replace("3", "7"))
    eventually(lambda: set(modes(live).values()) == {"IMMEDIATE"}, what=str(modes(live)))
    live.assert_current(*QUERIES)
    live.run("SELECT pgtrickle.refresh_stream_table('sums')")
    live.run("INSERT INTO t VALUES (1000, 6)")
    live.assert_current(*QUERIES)


def pg(db: Database, program: str, *arguments: str) -> None:
    result = subprocess.run([binaries() / program, *arguments], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr


@pytest.mark.long
def test_dumped_and_restored(live: Database, tmp_path: Any, eventually: Callable[..., Any]) -> None:
    name = f"{live.name}_restored"
    dump = str(tmp_path / "dump")
    pg(live, "pg_dump", "-Fc", "-f", dump, live.server.direct_dsn(live.name))
    live.run(f"CREATE DATABASE {name}")
    copied: Database | None = None
    try:
        pg(live, "pg_restore", "--exit-on-error", "-d", live.server.direct_dsn(name), dump)
        with psycopg.connect(live.server.direct_dsn(name), autocommit=True) as writer:
            writer.execute("INSERT INTO t VALUES (1000, 5)")
            writer.execute("DELETE FROM t WHERE id = 7")
            writer.execute("UPDATE u SET name = name || '!'")
        copied = Database(live.server, name)
        eventually(lambda: set(modes(copied).values()) == {"IMMEDIATE"}, what=str(modes(copied)))
        copied.assert_current(*QUERIES)
        copied.run("INSERT INTO t VALUES (1001, 5)")
        copied.run("UPDATE u SET name = name || '?'")
        copied.assert_current(*QUERIES)
    finally:
        if copied is not None:
            copied.close()
        live.run(f"DROP DATABASE {name} WITH (FORCE)")


def test_database_copied_as_a_template(fresh_db: Database, eventually: Callable[..., Any]) -> None:
    live = fresh_db
    tables(live)
    name = f"{live.name}_copy"
    live.close()
    administrator = live.server.administrator()
    administrator.execute(f"CREATE DATABASE {name} TEMPLATE {live.name}")
    copied = Database(live.server, name)
    live.connection = live.connect()
    try:
        copied.run("INSERT INTO t VALUES (1000, 5)")
        eventually(lambda: set(modes(copied).values()) == {"IMMEDIATE"}, what=str(modes(copied)))
        copied.assert_current(*QUERIES)
        copied.run("INSERT INTO t VALUES (1001, 5)")
        copied.assert_current(*QUERIES)
        live.run("INSERT INTO t VALUES (1002, 5)")
        live.assert_current(*QUERIES)
    finally:
        copied.close()
        live.run(f"DROP DATABASE {name} WITH (FORCE)")
