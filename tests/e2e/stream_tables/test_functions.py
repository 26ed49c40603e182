"""Functions and operators of users in a defining query: their volatility, and that they may change."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest

from tests.e2e.conftest import Database

TABLES = """
CREATE EXTENSION citext;
CREATE TABLE t (id int PRIMARY KEY, v int, name citext);
INSERT INTO t SELECT n, n % 3, 'N' || n % 4 FROM generate_series(1, 10) n;
CREATE SCHEMA app;
CREATE FUNCTION app.twice(v int) RETURNS int IMMUTABLE LANGUAGE sql AS 'SELECT 2 * v';
CREATE FUNCTION app.noise(a int, b int) RETURNS int VOLATILE LANGUAGE sql AS 'SELECT a + b + random()::int';
CREATE OPERATOR app.|+| (LEFTARG = int, RIGHTARG = int, FUNCTION = app.noise);
CREATE AGGREGATE app.noisy_sum (int) (SFUNC = app.noise, STYPE = int, INITCOND = '0');
CREATE AGGREGATE app.plain_sum (int) (SFUNC = int4pl, STYPE = int, INITCOND = '0');
"""


@pytest.fixture
def db(emptied_db: Database) -> Database:
    """Nothing is refreshed but by hand."""
    return emptied_db


@pytest.fixture(autouse=True)
def tables(db: Any) -> None:
    db.run(TABLES)


@pytest.mark.parametrize(
    "expression",
    ["app.noise(v, 1)", "v OPERATOR(app.|+|) 1", "app.noisy_sum(v)", "count(*) FILTER (WHERE random() > 2)"],
)
def test_volatile_function_is_found_wherever_it_hides(db: Any, expression: str) -> None:
    query = f"SELECT {expression} AS x FROM t GROUP BY v"
    with pytest.raises(psycopg.errors.FeatureNotSupported, match="volatile function"):
        db.create("st", query, refresh_mode="DIFFERENTIAL")
    db.create("st", query)
    assert db.state("st")["refresh_mode"] == "FULL"
    assert "volatile function" in db.state("st")["fallback_reason"]


def test_cast_through_text_is_as_stable_as_the_input_function(db: Any) -> None:
    said: list[str] = []
    db.connection.add_notice_handler(lambda diagnostic: said.append(diagnostic.message_primary or ""))
    for type_ in ("timestamptz", "date", "inet"):
        db.create(f"by_{type_}", f"SELECT id, v::text::{type_} AS x FROM t WHERE id < 0")
    assert [text.rpartition(" ")[2] for text in said if "stable function" in text] == ["timestamptz_in", "date_in"]


def test_changed_function_has_everything_computed_again(db: Any) -> None:
    db.create("doubled", "SELECT id, app.twice(v) AS w FROM t", refresh_mode="DIFFERENTIAL")
    db.create("sums", "SELECT name, app.plain_sum(v) AS s FROM t GROUP BY name")
    db.create("plain", "SELECT id, v FROM t")
    before = len(db.history("plain"))
    db.run("CREATE OR REPLACE FUNCTION app.twice(v int) RETURNS int IMMUTABLE LANGUAGE sql AS 'SELECT 20 * v'")
    db.assert_refreshed("doubled", "plain")
    assert db.value("SELECT max(w) FROM doubled") == 40
    db.run("DROP AGGREGATE app.plain_sum(int)")
    db.run("CREATE AGGREGATE app.plain_sum (int) (SFUNC = int4mi, STYPE = int, INITCOND = '0')")
    db.assert_refreshed("sums")
    assert db.value("SELECT min(s) FROM sums") < 0
    db.run("UPDATE t SET v = v + 1")
    db.assert_refreshed("doubled", "sums", "plain")
    assert [db.last(name)[0] for name in ("doubled", "sums", "plain")] == ["DIFFERENTIAL"] * 3
    assert all(row["action"] != "REINITIALIZE" for row in db.history("plain")[before:])


def test_function_that_is_gone_is_named(db: Any) -> None:
    db.create("doubled", "SELECT id, app.twice(v) AS w FROM t")
    db.run("DROP FUNCTION app.twice(int)")
    with pytest.raises(psycopg.errors.UndefinedFunction, match="twice"):
        db.refresh("doubled")


@pytest.mark.parametrize(
    "query",
    [
        "SELECT id, name IS DISTINCT FROM 'n1' AS x FROM t",
        "SELECT id, NULLIF(name, 'n1') AS x FROM t",
        "SELECT id, CASE name WHEN 'n1' THEN 1 END AS x FROM t",
        "SELECT a.id, b.id AS other FROM t a JOIN t b USING (name)",
    ],
)
def test_operator_that_canonical_text_does_not_name_is_refused(db: Any, query: str) -> None:
    with pytest.raises(psycopg.errors.FeatureNotSupported, match="operator of an extension"):
        db.create("st", query)


def test_operators_that_canonical_text_names(db: Any) -> None:
    db.create("same", "SELECT a.id, b.id AS other FROM t a JOIN t b ON a.name = b.name AND b.name IN ('n1', 'n2')")
    db.create("groups", "SELECT name, count(*) AS n FROM t GROUP BY name")
    db.run("UPDATE t SET name = lower(name::text) WHERE id % 2 = 0")
    db.assert_refreshed("same", "groups")


@pytest.mark.parametrize(
    ("query", "rows"),
    [
        ("SELECT - '1.00'::numeric AS a, - '1'::int AS b FROM told ORDER BY 1, 2", [(-1, -1)] * 3),
        ("SELECT - '7'::bigint AS a, count(*) AS b FROM told GROUP BY - '7'::bigint", [(-7, 3)]),
    ],
)
def test_negated_constant_to_sort_or_group_by(db: Any, query: str, rows: list[tuple[int, int]]) -> None:
    """PostgreSQL's canonical text is `(- 1)` there, which it reads as a position in the select list."""
    db.run("CREATE TABLE told (id int PRIMARY KEY); INSERT INTO told VALUES (1), (2)")
    db.create("st", query, refresh_mode="DIFFERENTIAL")
    db.run("INSERT INTO told VALUES (3)")
    db.refresh("st")
    assert db.rows("SELECT a, b FROM st") == rows


def test_reason_of_a_probe_that_fails_is_said(db: Any) -> None:
    db.run("CREATE TABLE told (id int PRIMARY KEY, v text)")
    query = "SELECT count(*) AS n FROM (SELECT DISTINCT ROW(id, v) AS r FROM told) AS q"
    with pytest.raises(psycopg.errors.FeatureNotSupported, match="pseudo-type record"):
        db.create("st", query, refresh_mode="DIFFERENTIAL")
    db.create("st", query)
    said = dict(db.rows("SELECT property, value FROM pgtrickle.explain_st('st')"))
    assert "pseudo-type record" in said["Fallback Reason"]


MAKERS = """
CREATE FUNCTION app.base(v int) RETURNS int IMMUTABLE LANGUAGE sql AS 'SELECT 2 * v';
CREATE FUNCTION app.over_sql(v int) RETURNS int IMMUTABLE LANGUAGE sql AS 'SELECT app.base(v) + 1';
CREATE FUNCTION app.over_plpgsql(v int) RETURNS int IMMUTABLE LANGUAGE plpgsql
    AS 'BEGIN RETURN App.Over_SQL(v) + 1; END';
CREATE FUNCTION app.over_atomic(v int) RETURNS int IMMUTABLE LANGUAGE sql RETURN app.over_plpgsql(v) + 1;
CREATE FUNCTION app.pick(v int) RETURNS SETOF int IMMUTABLE LANGUAGE sql AS 'SELECT app.base(v)';
CREATE FUNCTION app.step(s int, v int) RETURNS int IMMUTABLE LANGUAGE sql AS 'SELECT s + app.base(v)';
CREATE AGGREGATE app.summed (int) (SFUNC = app.step, STYPE = int, INITCOND = '0');
CREATE FUNCTION app.combined(a int, b int) RETURNS int IMMUTABLE LANGUAGE sql AS 'SELECT a + app.base(b)';
CREATE OPERATOR app.+~ (LEFTARG = int, RIGHTARG = int, FUNCTION = app.combined);
CREATE FUNCTION app.by_operator(v int) RETURNS int IMMUTABLE LANGUAGE sql AS 'SELECT v OPERATOR(app.+~) 1';
CREATE TYPE app.pair AS (a int, b int);
CREATE FUNCTION app.first(p app.pair) RETURNS int IMMUTABLE LANGUAGE sql AS 'SELECT app.base(p.a)';
CREATE CAST (app.pair AS int) WITH FUNCTION app.first(app.pair);
CREATE FUNCTION app.small(v int) RETURNS boolean IMMUTABLE LANGUAGE sql AS 'SELECT app.base(v) < 1000';
CREATE DOMAIN app.small_int AS int CHECK (app.small(VALUE));
CREATE VIEW app.seen AS SELECT id, app.over_sql(v) AS w FROM t;
"""
CALLS = {
    "itself": "SELECT id, app.base(v) AS w FROM t",
    "in_a_function": "SELECT id, app.over_sql(v) AS w FROM t",
    "in_functions_of_other_languages": "SELECT id, app.over_atomic(v) AS w FROM t",
    "in_a_set_returning_function": "SELECT t.id, x.w FROM t, app.pick(t.v) AS x (w)",
    "in_the_step_of_an_aggregate": "SELECT name, app.summed(v) AS w FROM t GROUP BY name",
    "in_an_operator": "SELECT id, v OPERATOR(app.+~) 1 AS w FROM t",
    "in_an_operator_of_a_function": "SELECT id, app.by_operator(v) AS w FROM t",
    "in_a_cast": "SELECT id, ROW(v, v)::app.pair::int AS w FROM t",
    "in_a_view": "SELECT id, w FROM app.seen",
}


def test_changed_body_is_noticed_however_deep_it_is(db: Any) -> None:
    db.run(MAKERS)
    for name, query in CALLS.items():
        db.create(name, query, refresh_mode="DIFFERENTIAL")
    db.create("checked", "SELECT id, v::app.small_int AS w FROM t", refresh_mode="DIFFERENTIAL")
    db.create("untouched", "SELECT id, app.twice(v) AS w FROM t")
    for multiple in (3, 5):
        db.run(
            f"CREATE OR REPLACE FUNCTION app.base(v int) RETURNS int IMMUTABLE LANGUAGE sql AS 'SELECT {multiple} * v'"
        )
        for name in (*CALLS, "checked", "untouched"):
            db.assert_refreshed(name)
            assert db.last(name)[0] == ("NO_DATA" if name == "untouched" else "REINITIALIZE"), name
    db.run("UPDATE t SET v = v + 1")
    for name in (*CALLS, "checked", "untouched"):
        db.assert_refreshed(name)
        assert db.last(name)[0] == "DIFFERENTIAL", name


def test_check_of_a_domain_that_rows_do_not_pass_any_more_is_an_error(db: Any) -> None:
    db.run(MAKERS)
    db.create("checked", "SELECT id, v::app.small_int::text AS w FROM t", refresh_mode="DIFFERENTIAL")
    db.run("CREATE OR REPLACE FUNCTION app.small(v int) RETURNS boolean IMMUTABLE LANGUAGE sql AS 'SELECT v < 1'")
    db.connection.close()  # a session goes on with the function that it has planned a domain's CHECK with
    db.connection = db.connect()
    with pytest.raises(psycopg.errors.CheckViolation):
        db.refresh("checked")
    db.run("UPDATE t SET v = 0")
    db.assert_refreshed("checked")


def test_function_that_a_query_comes_to_mean_later(db: Any) -> None:
    """A better match for the arguments, and an operator and a cast made anew over another function."""
    db.run(MAKERS)
    db.run("CREATE FUNCTION app.any(v numeric) RETURNS int IMMUTABLE LANGUAGE sql AS 'SELECT 1'")
    db.create("called", "SELECT id, app.any(v) AS w FROM t")
    db.create("operated", "SELECT id, v OPERATOR(app.+~) 1 AS w FROM t")
    db.create("cast_by", "SELECT id, ROW(v, v)::app.pair::int AS w FROM t")
    db.run(
        "CREATE FUNCTION app.any(v int) RETURNS int IMMUTABLE LANGUAGE sql AS 'SELECT 2';"
        "DROP OPERATOR app.+~ (int, int);"
        "CREATE OPERATOR app.+~ (LEFTARG = int, RIGHTARG = int, FUNCTION = int4mul);"
        "DROP CAST (app.pair AS int);"
        "CREATE FUNCTION app.second(p app.pair) RETURNS int IMMUTABLE LANGUAGE sql AS 'SELECT -p.b';"
        "CREATE CAST (app.pair AS int) WITH FUNCTION app.second(app.pair)"
    )
    for name in ("called", "operated", "cast_by"):
        db.refresh(name)
        db.assert_current(name)
        assert db.last(name)[0] == "REINITIALIZE", name


def test_error_of_a_trigger_says_why_it_does_not_find_a_table(db: Database) -> None:
    db.run("CREATE TABLE src (id int PRIMARY KEY); CREATE TABLE log (id int)")
    db.create("st", "SELECT id FROM src")
    db.run(
        "CREATE FUNCTION note() RETURNS trigger LANGUAGE plpgsql AS"
        " $$ BEGIN INSERT INTO log VALUES (NEW.id); RETURN NULL; END $$"
    )
    db.run("CREATE TRIGGER note AFTER INSERT ON st FOR EACH ROW EXECUTE FUNCTION note()")
    db.run("INSERT INTO src VALUES (1)")
    with pytest.raises(psycopg.errors.UndefinedTable) as failed:
        db.refresh("st")
    assert failed.value.diag.message_primary == 'relation "log" does not exist'
    assert "or ALTER FUNCTION public.note() SET search_path." in str(failed.value.diag.message_hint)
    db.run("ALTER FUNCTION note() SET search_path = public")
    db.assert_refreshed("st")
    assert db.rows("SELECT id FROM log") == [(1,)]
