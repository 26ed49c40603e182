"""DDL on sources and storage tables: partitions, columns, policies, drops. Nothing is lost, and writers never fail."""

from __future__ import annotations

from collections import Counter

import psycopg
import pytest

from tests.catalog.conftest import Connect, Engine, sqlstate


@pytest.fixture
def table(engine: Engine) -> Engine:
    """Table t, captured and refreshed once; stream table st has id 1."""
    engine.connection.execute("CREATE TABLE t (id int PRIMARY KEY, a text, b int); INSERT INTO t VALUES (1, 'a', 1)")
    engine.refresh(engine.create("st", t=["id", "a"]))
    return engine


@pytest.fixture
def partitioned(engine: Engine) -> Engine:
    """Table p by list of kind, x and y, where y has a partition y1 of its own; columns in another order below."""
    engine.connection.execute(
        "CREATE TABLE p (kind text, id int, v text) PARTITION BY LIST (kind); "
        "CREATE TABLE p_x PARTITION OF p FOR VALUES IN ('x'); "
        "CREATE TABLE p_y (v text, gone int, id int, kind text) PARTITION BY RANGE (id); "
        "ALTER TABLE p_y DROP COLUMN gone; ALTER TABLE p ATTACH PARTITION p_y FOR VALUES IN ('y'); "
        "CREATE TABLE p_y1 PARTITION OF p_y FOR VALUES FROM (0) TO (100); "
        "INSERT INTO p VALUES ('x', 1, 'one'), ('y', 2, 'two')"
    )
    engine.refresh(engine.create("st", p=["kind", "id", "v"]))
    return engine


def broken(engine: Engine) -> list[str]:
    return list(engine.begin(1)["broken"])


def needs_reinit(engine: Engine) -> bool:
    return bool(engine.value("SELECT needs_reinit FROM pgtrickle.pgt_stream_tables WHERE pgt_id = 1"))


# Partitions and children


def test_every_level_of_a_partitioned_table_is_captured_once(partitioned: Engine) -> None:
    for table, key in (("p", 11), ("p_y", 12), ("p_y1", 13)):
        partitioned.connection.execute(f"INSERT INTO {table} (kind, id, v) VALUES ('y', {key}, 'new')")
    partitioned.connection.execute("UPDATE p_x SET v = 'ONE'; DELETE FROM p WHERE id = 2")
    assert partitioned.net("p", "kind", "id", "v") == Counter(
        {("y", 11, "new"): 1, ("y", 12, "new"): 1, ("y", 13, "new"): 1, ("x", 1, "one"): -1, ("x", 1, "ONE"): 1,
         ("y", 2, "two"): -1}
    )  # fmt: skip


def test_row_that_moves_to_another_partition(partitioned: Engine) -> None:
    partitioned.connection.execute("UPDATE p SET kind = 'y' WHERE id = 1")
    assert partitioned.net("p", "kind", "id", "v") == Counter({("x", 1, "one"): -1, ("y", 1, "one"): 1})


def test_truncate_of_one_partition(partitioned: Engine) -> None:
    partitioned.connection.execute("TRUNCATE p_y1")
    (source,) = partitioned.begin(1)["sources"]
    assert source["truncated"] is True


def test_attached_partition_is_noticed_and_captured_after_repair(partitioned: Engine) -> None:
    partitioned.connection.execute(
        "CREATE TABLE p_z (kind text, id int, v text); INSERT INTO p_z VALUES ('z', 3, 'three'); "
        "ALTER TABLE p ATTACH PARTITION p_z FOR VALUES IN ('z')"
    )
    assert broken(partitioned) == ["partitions of public.p were added or removed"]
    assert needs_reinit(partitioned)
    assert partitioned.track(1, "p", ["kind", "id", "v"])["installed"] is True
    partitioned.refresh(1, action="REINITIALIZE")
    assert broken(partitioned) == [] and not needs_reinit(partitioned)
    partitioned.connection.execute("INSERT INTO p_z VALUES ('z', 4, 'four')")
    assert partitioned.pending(1) == {"p": 1}


def test_created_partition_is_noticed(partitioned: Engine) -> None:
    partitioned.connection.execute("CREATE TABLE p_y2 PARTITION OF p_y FOR VALUES FROM (100) TO (200)")
    assert broken(partitioned) == ["partitions of public.p were added or removed"]


def test_detached_partition_is_noticed_and_let_go(partitioned: Engine) -> None:
    partitioned.connection.execute("ALTER TABLE p DETACH PARTITION p_x")
    assert broken(partitioned) == ["partitions of public.p were added or removed"]
    partitioned.track(1, "p", ["kind", "id", "v"])
    assert partitioned.triggers("p_x") == 0
    assert partitioned.triggers("p_y1") == 4


def test_dropped_partition_is_noticed(partitioned: Engine) -> None:
    partitioned.connection.execute("DROP TABLE p_x")
    assert broken(partitioned) == ["partitions of public.p were added or removed"]


def test_source_that_becomes_a_partition_is_noticed(table: Engine) -> None:
    table.connection.execute(
        "CREATE TABLE whole (id int, a text, b int) PARTITION BY LIST (b); ALTER TABLE whole ATTACH PARTITION t DEFAULT"
    )
    assert broken(table) == ["public.t became a partition or child of another table"]
    assert sqlstate(table.connection, "SELECT pgtrickle._track_source(1, 't'::regclass, '{id}')") == "0A000"


def test_inheritance_children_are_captured_once(table: Engine) -> None:
    table.connection.execute("CREATE TABLE kid (extra int) INHERITS (t)")
    table.track(1, "t", ["id", "a"])
    table.refresh(1)
    before = table.net("t", "id", "a")
    table.connection.execute("INSERT INTO kid VALUES (5, 'kid', 0, 0); UPDATE t SET a = a || '!'; DELETE FROM kid")
    change = Counter({(1, "a"): -1, (1, "a!"): 1})
    assert table.net("t", "id", "a") == before + change or table.net("t", "id", "a") == change


# Triggers


@pytest.mark.parametrize(
    "ddl",
    [
        "ALTER TABLE t DISABLE TRIGGER USER",
        "ALTER TABLE t DISABLE TRIGGER ALL; INSERT INTO t VALUES (2); ALTER TABLE t ENABLE TRIGGER ALL",
        "DROP TRIGGER {insert} ON t",
        "DROP FUNCTION pgtrickle_changes.{insert}() CASCADE",
    ],
)
def test_gap_in_the_capture_is_noticed_and_repaired(table: Engine, ddl: str) -> None:
    second = table.create("second", t=["id"])
    table.refresh(second)
    table.connection.execute(ddl.format(insert=f"pg_trickle_cdc_ins_{table.oid('t')}"))
    assert broken(table) == ["capture triggers of public.t were dropped or disabled"]
    assert table.track(1, "t", ["id", "a"])["installed"] is True
    table.refresh(1, action="REINITIALIZE")
    assert broken(table) == []
    # Whoever else reads the source has the gap, too.
    assert table.begin(second)["broken"] == ["capture of public.t was interrupted"]
    table.connection.execute("INSERT INTO t VALUES (3, 'c', 3)")
    assert table.pending(1) == {"t": 1}


# Columns


@pytest.mark.parametrize(
    "ddl",
    [
        "ALTER TABLE t DROP COLUMN a",
        "ALTER TABLE t RENAME COLUMN a TO aa",
        "ALTER TABLE t ALTER a TYPE varchar(10)",
        "ALTER TABLE t ALTER a TYPE int USING length(a)",
    ],
)
def test_changed_column_breaks_the_frontier_but_no_writer(table: Engine, ddl: str) -> None:
    table.connection.execute(ddl)
    table.connection.execute("INSERT INTO t (id, b) VALUES (2, 2); UPDATE t SET b = 3; DELETE FROM t WHERE id = 2")
    assert broken(table) == ["definition of public.t has changed"]
    assert needs_reinit(table)
    assert table.net("t", "id") == Counter()
    remaining = ["id"] if "DROP" in ddl or "RENAME" in ddl else ["id", "a"]
    table.track(1, "t", remaining)
    table.refresh(1, action="REINITIALIZE")
    assert broken(table) == []
    table.connection.execute("INSERT INTO t (id) VALUES (7)")
    assert table.net("t", *remaining)[tuple([7, None][: len(remaining)])] == 1


def test_rewrite_with_the_same_type_is_noticed(table: Engine) -> None:
    table.connection.execute("ALTER TABLE t ALTER id TYPE int USING id + 1")
    assert needs_reinit(table)


@pytest.mark.parametrize(
    "ddl",
    [
        "ALTER TABLE t ADD COLUMN c int DEFAULT 5",
        "ALTER TABLE t DROP COLUMN b",
        "ALTER TABLE t ALTER b TYPE text",
        "ALTER TABLE t ALTER a SET NOT NULL",
        "GRANT SELECT (a) ON t TO catalog_bob",
        "CREATE INDEX ON t (a)",
        "VACUUM FULL t",
        "ANALYZE t",
    ],
)
def test_ddl_that_does_not_matter_is_let_pass(table: Engine, ddl: str) -> None:
    table.connection.execute(ddl)
    assert broken(table) == []
    if "TYPE text" not in ddl:
        assert not needs_reinit(table)


@pytest.mark.parametrize(
    ("ddl", "name"), [("ALTER TABLE t RENAME TO u", "public.u"), ("ALTER TABLE t SET SCHEMA other", "other.t")]
)
def test_a_source_with_another_name_is_noticed(table: Engine, ddl: str, name: str) -> None:
    """The text of the query has to follow it; its changes are captured as before."""
    table.connection.execute("CREATE SCHEMA other")
    table.connection.execute(ddl)
    assert broken(table) == [f"public.t was renamed to {name}"]
    table.connection.execute(f"INSERT INTO {name} (id) VALUES (7)")
    assert table.net(name, "id") == Counter({(7,): 1})


# Row-level security and rights


def test_policies_mark_the_stream_table(table: Engine) -> None:
    for ddl in (
        "ALTER TABLE t ENABLE ROW LEVEL SECURITY",
        "CREATE POLICY p ON t USING (id > 0)",
        "ALTER POLICY p ON t USING (id > 1)",
        "DROP POLICY p ON t",
        "ALTER TABLE t DISABLE ROW LEVEL SECURITY",
    ):
        table.connection.execute(ddl)
        assert needs_reinit(table), ddl
        table.track(1, "t", ["id", "a"])
        table.refresh(1, action="REINITIALIZE")
        assert not needs_reinit(table)


def test_lost_right_and_row_level_security_deny_the_owner(engine: Engine, connect: Connect) -> None:
    engine.connection.execute("CREATE TABLE t (id int, a text); GRANT SELECT (id, a) ON t TO catalog_alice")
    alice = Engine(connect("catalog_alice"), ahead=engine.connection)
    pgt_id = alice.create("st", t=["id", "a"])
    assert alice.begin(pgt_id)["denied"] == []
    engine.connection.execute("REVOKE SELECT (a) ON t FROM catalog_alice")
    assert alice.begin(pgt_id)["denied"] == ["permission denied for column a of table public.t"]
    engine.connection.execute("GRANT SELECT ON t TO catalog_alice; ALTER TABLE t ENABLE ROW LEVEL SECURITY")
    assert alice.begin(pgt_id)["denied"] == ["row-level security of table public.t applies to role catalog_alice"]
    with pytest.raises(psycopg.errors.InsufficientPrivilege):
        alice.track(pgt_id, "t", ["id"])


# Dropped and changed relations


def test_dropped_source_stops_its_readers_and_its_capture(table: Engine) -> None:
    table.connection.execute("DROP TABLE t")
    assert table.connection.execute("SELECT status, fallback_reason FROM pgtrickle.pgt_stream_tables").fetchall() == [
        ("ERROR", "source public.t was dropped")
    ]
    assert table.value("SELECT count(*) FROM pgtrickle.pgt_captures") == 0
    assert (
        table.value(
            "SELECT count(*) FROM pg_class WHERE relnamespace = 'pgtrickle_changes'::regnamespace AND relkind = 'r'"
        )
        == 0
    )


def test_dropped_storage_table_takes_the_stream_table_along(table: Engine) -> None:
    table.connection.execute("DROP TABLE st")
    assert table.value("SELECT count(*) FROM pgtrickle.pgt_stream_tables") == 0
    table.value("SELECT pgtrickle._untrack_sources()")
    assert table.triggers("t") == 0


def test_dropped_schema_with_source_and_storage(engine: Engine) -> None:
    engine.connection.execute("CREATE SCHEMA s; SET search_path = s; CREATE TABLE t (id int)")
    engine.create("st", t=["id"])
    engine.connection.execute("DROP SCHEMA s CASCADE")
    assert engine.value("SELECT count(*) FROM pgtrickle.pgt_stream_tables") == 0
    assert engine.value("SELECT count(*) FROM pgtrickle.pgt_captures") == 0


def test_renamed_and_given_away_storage_table(table: Engine) -> None:
    table.connection.execute("CREATE SCHEMA attic; ALTER TABLE st RENAME TO sst; ALTER TABLE sst SET SCHEMA attic")
    table.connection.execute("GRANT SELECT ON t TO catalog_alice; ALTER TABLE attic.sst OWNER TO catalog_alice")
    context = table.begin(1)
    assert (context["storage"], context["owner"], context["needs_reinit"]) == ("attic.sst", "catalog_alice", True)


def test_dml_on_a_stream_table_is_refused(table: Engine) -> None:
    for dml in ("INSERT INTO st VALUES (1)", "UPDATE st SET value = ''", "DELETE FROM st", "TRUNCATE st",
                "MERGE INTO st USING t ON false WHEN NOT MATCHED THEN INSERT VALUES (1)"):  # fmt: skip
        assert sqlstate(table.connection, dml) == "42809", dml
    with (
        pytest.raises(psycopg.errors.WrongObjectType, match='cannot change stream table "st"'),
        table.connection.cursor().copy("COPY st FROM STDIN") as copy,
    ):
        copy.write_row((1, "x"))
