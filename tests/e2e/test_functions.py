"""Functions and operators of users in a defining query: their volatility, and that they may change."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest

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
