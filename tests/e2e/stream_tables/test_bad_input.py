"""What is wrong is refused with PostgreSQL's own SQLSTATE, by name, and leaves nothing behind."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pytest

SETUP = """
CREATE TABLE t (id int PRIMARY KEY, k int, v text); INSERT INTO t VALUES (1, 1, 'a'), (2, 1, 'b');
CREATE FUNCTION roll() RETURNS int VOLATILE LANGUAGE sql AS 'SELECT 4';
CREATE FUNCTION roll(int, int) RETURNS boolean VOLATILE LANGUAGE sql AS 'SELECT $1 = $2';
CREATE OPERATOR === (LEFTARG = int, RIGHTARG = int, FUNCTION = roll);
CREATE MATERIALIZED VIEW matview AS SELECT id FROM t;
CREATE SEQUENCE seq; CREATE TABLE bare (); INSERT INTO bare DEFAULT VALUES;
"""


@pytest.fixture(scope="module")
def made(shared_db: Any) -> Any:
    shared_db.run(SETUP)
    return shared_db


@pytest.fixture
def db(made: Any) -> Iterator[Any]:
    """One database for all: what is refused leaves nothing behind, and what is not is dropped again."""
    yield made
    made.close()
    made.connection = made.connect()
    made.run("TRUNCATE t; INSERT INTO t VALUES (1, 1, 'a'), (2, 1, 'b')")
    made.run("SELECT pgtrickle.drop_stream_table(quote_ident(pgt_name)) FROM pgtrickle.pgt_stream_tables")


@pytest.fixture(params=["autocommit", "transaction", "differential"])
def create(request: pytest.FixtureRequest, db: Any) -> Callable[..., None]:
    """Create a stream table in autocommit, in a transaction block, and in DIFFERENTIAL mode."""

    def make(name: str, query: str, **arguments: Any) -> None:
        if request.param == "transaction":
            with db.connection.transaction():
                db.create(name, query, **arguments)
        elif request.param == "differential":
            db.create(name, query, **{"refresh_mode": "DIFFERENTIAL", **arguments})
        else:
            db.create(name, query, **arguments)

    return make


@pytest.mark.parametrize(
    ("query", "sqlstate", "named"),
    [
        ("SELEC id FROM t", "42601", "SELEC"),
        ("SELECT id FROM t WHERE", "42601", ""),
        ("SELECT id FROM t; DROP TABLE t", "42601", ""),
        ("SELECT id FROM t) AS x; DROP TABLE t; --", "42601", ""),
        ("INSERT INTO t VALUES (3) RETURNING id", "0A000", "must be SELECT"),
        ("WITH gone AS (DELETE FROM t RETURNING id) SELECT id FROM gone", "0A000", ""),
        ("SELECT id FROM missing", "42P01", "missing"),
        ("SELECT missing FROM t", "42703", "missing"),
        ("SELECT missing(id) FROM t", "42883", "missing"),
        ("SELECT id FROM missing.t", "42P01", "missing"),
        ("SELECT id, count(*) FROM t", "42803", "id"),
        ("SELECT id, id FROM t", "42701", "id"),
        ("SELECT $1::int AS p FROM t", "42P02", "$1"),
        ("SELECT id FROM t LIMIT 5", "0A000", "LIMIT"),
        ("SELECT id FROM t OFFSET 5", "0A000", "OFFSET"),
        ("SELECT id FROM t FETCH FIRST 5 ROWS ONLY", "0A000", ""),
        ("SELECT x.id FROM (SELECT id FROM t LIMIT 1) AS x", "0A000", "LIMIT"),
        ("SELECT id FROM t FOR UPDATE", "0A000", "FOR UPDATE"),
        ("SELECT id FROM t FOR SHARE", "0A000", "FOR SHARE"),
        ("SELECT id FROM t TABLESAMPLE SYSTEM (10)", "0A000", "TABLESAMPLE"),
        ("SELECT id FROM t TABLESAMPLE BERNOULLI (50) REPEATABLE (1)", "0A000", "TABLESAMPLE"),
        ("SELECT id AS __pgt_row_id FROM t", "42939", "__pgt_row_id"),
        ("SELECT FROM t", "42P16", ""),
        ("SELECT id, ctid FROM t INTO x", "42601", ""),
    ],
)
@pytest.mark.one_in(2)
def test_wrong_query(db: Any, create: Callable[..., None], query: str, sqlstate: str, named: str) -> None:
    before = db.traces()
    with pytest.raises(psycopg.Error) as caught:
        create("wrong", query)
    assert caught.value.sqlstate == sqlstate, caught.value
    assert named.lower() in str(caught.value).lower()
    assert db.traces() == before


@pytest.mark.parametrize(
    ("query", "named"),
    [
        ("SELECT id, random() AS r FROM t", "random"),
        ("SELECT id, clock_timestamp() AS c FROM t", "clock_timestamp"),
        ("SELECT id, gen_random_uuid() AS u FROM t", "gen_random_uuid"),
        ("SELECT id, roll() AS r FROM t", "roll"),
        ("SELECT id FROM t WHERE id === 1", "roll"),
        ("SELECT id, nextval('seq') AS n FROM t", "nextval"),
        ("SELECT id FROM matview", "matview"),
        ("SELECT id FROM ONLY t", "only"),
        ("SELECT count(*) AS n FROM bare", "without columns"),
        ("SELECT t.id FROM t, bare", "without columns"),
    ],
)
@pytest.mark.one_in(2)
def test_differential_refuses_what_auto_computes_in_full(db: Any, query: str, named: str) -> None:
    before = db.traces()
    with pytest.raises(psycopg.errors.FeatureNotSupported) as caught:
        db.create("wrong", query, refresh_mode="DIFFERENTIAL")
    assert named in str(caught.value).lower()
    assert db.traces() == before

    notices: list[str] = []
    db.connection.add_notice_handler(lambda diagnostic: notices.append((diagnostic.message_primary or "").lower()))
    db.create("right", query)
    assert [named in notice for notice in notices] == [True], notices
    assert db.state("right")["refresh_mode"] == "FULL"
    db.run("INSERT INTO t VALUES (7, 2, 'c')")
    db.refresh("right")


def test_full_mode_accepts_volatile_functions_without_a_word(db: Any) -> None:
    notices: list[Any] = []
    db.connection.add_notice_handler(notices.append)
    db.create("rolled", "SELECT id, random() AS r FROM t", refresh_mode="FULL")
    assert db.value("SELECT count(*) FROM rolled") == 2
    assert notices == []


def test_stable_function_warns_in_differential_mode(db: Any) -> None:
    notices: list[str] = []
    db.connection.add_notice_handler(lambda d: notices.append(f"{d.severity}: {d.message_primary}"))
    db.create("stamped", "SELECT id, now() AS at FROM t", refresh_mode="DIFFERENTIAL")
    assert len(notices) == 1 and notices[0].startswith("WARNING") and "now" in notices[0]


@pytest.mark.parametrize("name", ["t", "matview", "seq", "public.t"])
def test_name_that_exists(db: Any, create: Callable[..., None], name: str) -> None:
    before = db.traces()
    with pytest.raises(psycopg.errors.DuplicateTable, match=name.removeprefix("public.")):
        create(name, "SELECT id FROM t")
    assert db.traces() == before


def test_stream_table_that_exists(db: Any, create: Callable[..., None]) -> None:
    create("copy", "SELECT id FROM t")
    before = db.traces()
    with pytest.raises(psycopg.errors.DuplicateTable, match="copy"):
        create("copy", "SELECT k FROM t")
    assert db.traces() == before
    db.assert_refreshed("copy")


@pytest.mark.parametrize(
    ("name", "sqlstate"),
    [
        ("", "22023"),
        ("a.b.c", "42601"),
        ("nowhere.st", "3F000"),
        ('"unclosed', "42602"),
        ("x" * 64, "42622"),
        (None, "22004"),
    ],
)
def test_impossible_name(db: Any, name: str | None, sqlstate: str) -> None:
    before = db.traces()
    with pytest.raises(psycopg.Error) as caught:
        db.create(name, "SELECT id FROM t")
    assert caught.value.sqlstate == sqlstate, caught.value
    assert db.traces() == before


@pytest.mark.parametrize(
    "schedule", ["", "soon", "5", "5x", "-5s", "0s", "1.5m", "s5", "1h 30", "99999999999999999999s", "60 * * * *"]
)
@pytest.mark.one_in(3)
def test_schedule_that_is_none(db: Any, schedule: str) -> None:
    before = db.traces()
    with pytest.raises((psycopg.errors.InvalidParameterValue, psycopg.errors.FeatureNotSupported)) as caught:
        db.create("wrong", "SELECT id FROM t", schedule=schedule)
    assert caught.value.diag.message_hint
    assert db.traces() == before
    db.create("right", "SELECT id FROM t")
    with pytest.raises((psycopg.errors.InvalidParameterValue, psycopg.errors.FeatureNotSupported)):
        db.run("SELECT pgtrickle.alter_stream_table('right', schedule => %s)", schedule)
    assert db.state("right")["schedule"] == "calculated"


@pytest.mark.parametrize(
    ("argument", "value", "sqlstate"),
    [
        ("refresh_mode", "SOMETIMES", "22023"),
        ("diamond_consistency", "quantum", "22023"),
        ("diamond_schedule_policy", "never", "22023"),
        ("cdc_mode", "telepathy", "22023"),
        ("engine", "steam", "22023"),
    ],
)
def test_unknown_value_of_an_option(db: Any, argument: str, value: str, sqlstate: str) -> None:
    before = db.traces()
    with pytest.raises(psycopg.Error) as caught:
        db.create("wrong", "SELECT id FROM t", **{argument: value})
    assert caught.value.sqlstate == sqlstate
    assert value.lower() in str(caught.value).lower()
    assert caught.value.diag.context is None
    assert db.traces() == before


@pytest.mark.parametrize(
    ("statement", "sqlstate"),
    [
        ("SELECT pgtrickle.gate_source('nothing')", "42P01"),
        ("SELECT pgtrickle.ungate_source(NULL)", "22004"),
        ("SELECT pgtrickle.advance_watermark('t', 'infinity')", "22023"),
        ("SELECT pgtrickle.create_watermark_group('g', ARRAY['t'])", "22023"),
        ("SELECT pgtrickle.drop_watermark_group('nothing')", "42704"),
        ("SELECT pgtrickle.create_refresh_group('g', NULL)", "22004"),
        ("SELECT pgtrickle.create_refresh_group('g', ARRAY['nothing', 't'])", "42P01"),
        ("SELECT pgtrickle.drop_refresh_group('nothing')", "42704"),
        ("SELECT pgtrickle.get_staleness('nothing')", "42P01"),
        ("SELECT * FROM pgtrickle.explain_st('nothing')", "42P01"),
    ],
)
def test_errors_of_functions_tell_nothing_of_what_they_are_made_of(db: Any, statement: str, sqlstate: str) -> None:
    for prepare in (False, True):
        with pytest.raises(psycopg.Error) as caught:
            db.connection.execute(statement, prepare=prepare)
        assert (caught.value.sqlstate, caught.value.diag.context) == (sqlstate, None)
    with pytest.raises(psycopg.Error) as caught:
        db.run("DO $$ BEGIN PERFORM pgtrickle.gate_source('nothing'); END $$")
    assert "inline_code_block" in (caught.value.diag.context or "")
    assert db.value("SELECT 1") == 1


def test_error_within_functions_of_the_users_own_tells_where(db: Any) -> None:
    with pytest.raises(psycopg.Error) as caught:
        db.run("DO $$ BEGIN PERFORM pgtrickle.create_stream_table('', 'SELECT 1'); END $$")
    assert "inline_code_block" in (caught.value.diag.context or "")


def test_alter_with_an_unknown_status_or_mode(db: Any) -> None:
    db.create("copy", "SELECT id FROM t")
    for arguments in ("status => 'BROKEN'", "refresh_mode => 'SOMETIMES'"):
        with pytest.raises(psycopg.errors.InvalidParameterValue):
            db.run(f"SELECT pgtrickle.alter_stream_table('copy', {arguments})")


@pytest.mark.parametrize(
    "statement",
    [
        "INSERT INTO copy (__pgt_row_id, id) VALUES (0, 0)",
        "UPDATE copy SET id = 5",
        "DELETE FROM copy",
        "TRUNCATE copy",
        "MERGE INTO copy USING t ON false WHEN NOT MATCHED THEN INSERT (__pgt_row_id, id) VALUES (1, 1)",
        "COPY copy (__pgt_row_id, id) FROM STDIN",
    ],
)
def test_dml_on_a_stream_table(db: Any, statement: str) -> None:
    db.create("copy", "SELECT id FROM t")
    with pytest.raises(psycopg.errors.WrongObjectType, match="copy"):
        if statement.startswith("COPY"):
            with db.connection.cursor() as cursor, cursor.copy(statement) as copy:
                copy.write_row((1, 1))
        else:
            db.run(statement)
    db.assert_current("copy")


@pytest.mark.parametrize(
    "alteration",
    [
        "ADD COLUMN more int",
        "DROP COLUMN k CASCADE",
        "RENAME COLUMN k TO key",
        "ALTER COLUMN k TYPE text",
        "DROP COLUMN k, ADD COLUMN k int",
        "ADD FOREIGN KEY (id) REFERENCES t",
        "ADD CHECK (id > 0)",
        "ADD CHECK (id > 0) NOT VALID",
        "ADD UNIQUE (id)",
        "ADD EXCLUDE (id WITH =)",
        "ALTER COLUMN k SET NOT NULL",
        "INHERIT parent",
        "SET UNLOGGED",
        "DROP COLUMN __pgt_row_id",
    ],
)
@pytest.mark.one_in(2)
def test_alteration_of_a_stream_tables_columns(db: Any, alteration: str) -> None:
    db.create("copy", "SELECT id, k, v FROM t")
    db.run("CREATE TABLE IF NOT EXISTS parent (id int, k int)")
    with pytest.raises(psycopg.errors.WrongObjectType, match='stream table "copy"') as refused:
        db.run(f"ALTER TABLE copy {alteration}")
    assert refused.value.diag.message_hint is not None or "__pgt" in alteration
    # What a refresh does not mind is the owner's business.
    db.run("ALTER TABLE copy ALTER COLUMN v SET STATISTICS 10, SET (fillfactor = 70); INSERT INTO t VALUES (8, 8, 'h')")
    db.assert_refreshed("copy")


@pytest.mark.parametrize(
    "statement",
    [
        "CREATE UNIQUE INDEX ON copy (id)",
        "CREATE TABLE child () INHERITS (copy)",
        "ALTER TABLE orphan INHERIT copy",
        "ALTER TABLE parts ATTACH PARTITION copy FOR VALUES IN (1)",
    ],
)
def test_what_a_refresh_could_fail_at(db: Any, statement: str) -> None:
    db.create("copy", "SELECT id, k FROM t")
    db.run("DROP TABLE IF EXISTS orphan, parts; CREATE TABLE orphan (LIKE copy)")
    db.run("CREATE TABLE parts (LIKE copy) PARTITION BY LIST (id)")
    with pytest.raises(psycopg.Error, match="copy"):
        db.run(statement)
    db.run("CREATE INDEX ON copy (id); INSERT INTO t VALUES (8, 8, 'h')")
    db.assert_refreshed("copy")


def test_reference_to_a_stream_table(db: Any) -> None:
    db.create("copy", "SELECT id, k FROM t")
    db.run("CREATE TABLE child (id bigint)")
    for statement in (
        "ALTER TABLE child ADD FOREIGN KEY (id) REFERENCES copy",
        "CREATE TABLE another (id bigint REFERENCES copy)",
        "CREATE TABLE another (id bigint REFERENCES copy) PARTITION BY HASH (id)",
        "CREATE SCHEMA apart CREATE TABLE another (id bigint REFERENCES public.copy)",
    ):
        with pytest.raises(psycopg.errors.WrongObjectType, match='cannot reference stream table "copy"'):
            db.run(statement)
    db.run("CREATE TABLE another (id int REFERENCES t); DROP TABLE another, child; DELETE FROM t")
    db.assert_refreshed("copy")


@pytest.mark.parametrize("setting", ["spark_min_rows", "differential_max_change_ratio", "spark_timeout"])
def test_setting_that_is_none_is_named(db: Any, setting: str) -> None:
    with pytest.raises(psycopg.errors.InvalidParameterValue, match=f'"pg_trickle.{setting}"'):
        db.run(f"SET pg_trickle.{setting} = 'x'")


def test_cycle_through_a_view(db: Any) -> None:
    db.run("CREATE VIEW door AS SELECT id FROM t")
    db.create("first", "SELECT id FROM door")
    db.create("second", "SELECT id FROM first")
    db.run("CREATE OR REPLACE VIEW door AS SELECT id FROM second")
    with pytest.raises(psycopg.Error) as caught:
        db.refresh("first")
    assert caught.value.sqlstate in ("42P17",), caught.value
    assert db.value("SELECT 1") == 1


def test_stream_table_over_itself(db: Any) -> None:
    before = db.traces()
    with pytest.raises(psycopg.errors.UndefinedTable, match="selfish"):
        db.create("selfish", "SELECT id FROM selfish")
    assert db.traces() == before


def test_population_that_fails_leaves_nothing(db: Any, create: Callable[..., None]) -> None:
    before = db.traces()
    db.run("INSERT INTO t VALUES (0, 0, 'zero')")
    with pytest.raises(psycopg.errors.DivisionByZero):
        create("inverse", "SELECT id, 10 / k AS q FROM t")
    assert db.traces() == before


def test_refresh_that_fails_keeps_the_last_good_rows(db: Any) -> None:
    db.create("inverse", "SELECT id, 10 / k AS q FROM t")
    db.run("INSERT INTO t VALUES (3, 0, 'zero')")
    with pytest.raises(psycopg.errors.DivisionByZero):
        db.refresh("inverse")
    assert db.value("SELECT count(*) FROM inverse") == 2
    db.run("UPDATE t SET k = 5 WHERE k = 0")
    db.assert_refreshed("inverse")


POPULATING = "SELECT state = 'active' AND query ~ '_run|_apply' FROM pg_stat_activity WHERE pid = %s"


def test_cancelled_creation_leaves_nothing(db: Any, eventually: Callable[..., Any]) -> None:
    before = db.traces()
    db.run("INSERT INTO t SELECT n, n, 'x' FROM generate_series(10, 5000) n")
    connection = db.connect()
    pid = connection.info.backend_pid
    connection.pgconn.send_query(
        b"SELECT pgtrickle.create_stream_table('slow', 'SELECT a.id, count(*) AS n FROM t a JOIN t b ON a.id + b.id > 0"
        b" JOIN t c ON a.k + c.k <> b.k GROUP BY a.id')"
    )
    eventually(
        lambda: db.value("SELECT state = 'active' AND query ~ '_run|_apply' FROM pg_stat_activity WHERE pid = %s", pid)
    )
    connection.cancel_safe()
    results = []
    while (result := connection.pgconn.get_result()) is not None:
        results.append(result.error_field(psycopg.pq.DiagnosticField.SQLSTATE))
    assert results == [b"57014"]
    assert connection.execute("SELECT 1").fetchone() == (1,)
    eventually(lambda: db.traces() == before, what="nothing left")


def test_client_that_dies_during_creation_leaves_nothing(db: Any, eventually: Callable[..., Any]) -> None:
    before = db.traces()
    db.run("INSERT INTO t SELECT n, n, 'x' FROM generate_series(10, 5000) n")
    connection = db.connect()
    pid = connection.info.backend_pid
    connection.pgconn.send_query(
        b"SELECT pgtrickle.create_stream_table('slow', 'SELECT a.id, count(*) AS n FROM t a JOIN t b ON a.id + b.id > 0"
        b" JOIN t c ON a.k + c.k <> b.k GROUP BY a.id')"
    )
    eventually(
        lambda: db.value("SELECT state = 'active' AND query ~ '_run|_apply' FROM pg_stat_activity WHERE pid = %s", pid)
    )
    connection.close()
    eventually(lambda: not db.rows("SELECT FROM pg_stat_activity WHERE pid = %s", pid), what="the backend's end")
    eventually(lambda: db.traces() == before, what="nothing left")


@pytest.mark.parametrize(
    ("query", "sqlstate", "message", "place"),
    [
        ("SELECT id FRM t x", "42601", 'syntax error at or near "t"', 15),
        ("SELECT 'ä',\n  nope FROM t", "42703", 'column "nope" does not exist', 15),
        ("SELECT id, k +", "42601", "syntax error at end of input", 15),
        ("SELECT 1; SELECT 2", "42601", 'syntax error at or near ";"', 9),
        ("DELETE FROM t", "0A000", "the defining query is DELETE, and must be SELECT", None),
        ("-- all\n(UPDATE t SET k = 1)", "0A000", "the defining query is UPDATE, and must be SELECT", None),
        (
            "WITH d AS (DELETE FROM t RETURNING id) SELECT id FROM d",
            "0A000",
            "the defining query must not change data",
            None,
        ),
        ("WITH d AS (SELECT 1) DELETE FROM t", "0A000", "the defining query must not change data", None),
        ("SELECT id INTO other FROM t", "42601", "the defining query must not have INTO", None),
        ("SELECT xmin, id FROM t", "42701", 'system column "xmin" cannot be a column of a stream table', None),
    ],
)
def test_query_that_is_wrong_gets_one_clear_error(
    db: Any, create: Callable[..., None], query: str, sqlstate: str, message: str, place: int | None
) -> None:
    before = db.traces()
    with pytest.raises(psycopg.Error) as caught:
        create("wrong", query)
    told = caught.value.diag
    assert (told.sqlstate, told.message_primary) == (sqlstate, message)
    if place is None:
        assert told.message_hint and told.internal_position is None
    else:
        assert (told.internal_position, told.internal_query, told.statement_position) == (str(place), query, None)
    assert db.traces() == before
