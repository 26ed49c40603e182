"""What is written for PostgreSQL, and what for Spark."""

from __future__ import annotations

import pytest
from sqlglot import exp

from sql.base.columns import Field
from sql.canonical.null_safe_equal import NullSafeEqual
from sql.canonical.written import read
from sql.errors import NotExpressible
from sql.operators.statement import StagedStatement, Statement
from sql.operators.targets.postgresql import POSTGRESQL
from sql.operators.targets.restriction import Restriction
from sql.operators.targets.spark import SPARK


def test_keys_are_found_by_equality_and_null_keys_by_hash_in_postgresql() -> None:
    plain = POSTGRESQL.restricted("SELECT x FROM t", ['"x"'], Restriction('"keys"', (("x", Field("k", "integer")),)))
    assert plain == 'SELECT r."x" FROM (SELECT x FROM t) AS r JOIN "keys" AS k ON r."x" = k."k"'
    both = POSTGRESQL.restricted("SELECT x FROM t", ['"x"'], _of_column(), ["x"])
    assert both.startswith(f"{plain} UNION ALL ") and "hash_record_extended" in both


def test_keys_are_found_by_null_safe_equality_on_spark() -> None:
    found = SPARK.restricted("SELECT x FROM t", ['"x"'], _of_column(), ["x"], rare=True)
    assert found == 'SELECT r."x" FROM (SELECT x FROM t) AS r JOIN "keys" AS k ON r."x" IS NOT DISTINCT FROM k."k"'


def _of_column() -> Restriction:
    return Restriction('"keys"', (("x", Field("k", "integer", origin=(1, "x"))),))


def test_statement_of_postgresql_names_a_stage_only_where_it_must() -> None:
    statement = Statement()
    assert statement.staged("rows", "SELECT 1 AS x", {"x": "integer"}) == "SELECT 1 AS x"
    assert statement.stage("rows", "SELECT 1 AS x", {"x": "integer"}) == '"rows"'
    statement.violated("TRUE")
    assert statement.violations == ["TRUE"]
    assert statement.text("SELECT 2") == 'WITH "rows" AS MATERIALIZED (SELECT 1 AS x) SELECT 2'


def test_statement_that_spark_begins_goes_on_in_postgresql_after_the_first_stage() -> None:
    statement = StagedStatement()
    assert statement.target is SPARK
    statement.cte("view", "SELECT 1 AS x")
    statement.violated("TRUE")
    rows = statement.staged("rows", "SELECT x FROM view", {"x": "integer"})
    assert not statement.target.one_statement and statement.target.value("SELECT 1") == "(SELECT 1)"
    assert statement.views == [("view", read("SELECT 1 AS x"))] and statement.violations == []
    assert [(stage.name, stage.query) for stage in statement.stages] == [("rows", read("SELECT x FROM view"))]
    statement.cte("after", rows)
    text = statement.applied("SELECT * FROM after").over(["pg_temp.staging"])
    staged = '"rows" AS MATERIALIZED (SELECT s."x"::integer AS "x" FROM pg_temp.staging AS s)'
    assert text == f'WITH {staged}, "after" AS MATERIALIZED (SELECT * FROM "rows") SELECT * FROM after'


def test_stage_without_columns_has_one_in_its_staging_table() -> None:
    statement = StagedStatement()
    assert statement.staged("touched", "SELECT FROM changes", {}) == 'SELECT FROM "touched"'
    (stage,) = statement.stages
    assert stage.query == read("SELECT 1::bigint AS n FROM (SELECT FROM changes) AS k")
    assert stage.types == (("n", "bigint"),)


def test_what_cannot_be_read_is_not_handed_to_spark() -> None:
    with pytest.raises(NotExpressible, match="syntax that is not understood"):
        StagedStatement().cte("view", "SELECT FROM FROM")


def test_values_agree_by_their_hashes_in_postgresql_and_as_it_stands_on_spark() -> None:
    columns = [exp.column(exp.to_identifier(name, quoted=True)) for name in ("a", "b")]
    condition = exp.Or(
        this=NullSafeEqual(this=columns[0], expression=columns[1]), expression=columns[0].is_(exp.null())
    )
    assert SPARK.condition(condition) == '("a" IS NOT DISTINCT FROM "b") OR "a" IS NULL'
    assert "hash_record_extended" in POSTGRESQL.condition(condition)
    assert condition.find(NullSafeEqual) is not None


def test_rows_are_repeated_by_an_array_in_postgresql_and_by_a_call_on_spark() -> None:
    assert "array_fill" in POSTGRESQL.copies("n.w")
    assert SPARK.copies("n.w") == "LATERAL __pgt_copies(n.w)"
