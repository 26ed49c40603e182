"""Rendering for Spark: what is accepted gives PostgreSQL's results, what might not is refused by name."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from psycopg import conninfo

from sql import Column, Source
from sql.canonical.written import read
from sql.compile.compiled import RemotePlan
from sql.operators.statement import Stage, StagedText
from sql.spark.protocol import Environment
from sql.spark.render import NotExpressible, render_spark
from sql.spark.stages import SparkStages, render_stages
from sql.spark.text.collations import BYTES, OTHER, Casing, Collations

EDGE_CASES = "tests.sql.spark.spark_edge_cases"

TABLE = Source(
    7,
    "public",
    "t",
    (
        Column("i", "integer"),
        Column("n", "numeric(10,2)"),
        Column("wide", "numeric(38,4)"),
        Column("free", "numeric"),
        Column("s", "text"),
        Column("ci", "text", equality_is_identity=False),
        Column("o", "text"),
        Column("f", "double precision"),
        Column("ts", "timestamp without time zone"),
        Column("tz", "timestamp with time zone"),
        Column("d", "date"),
        Column("j", "jsonb"),
        Column("c", "character(3)"),
        Column("b", "boolean"),
        Column("e", "public.mood", carrier="enum"),
        Column("e2", 'public."Mood"', carrier="enum"),
        Column("p", "public.pence", carrier="numeric(10,2)"),
    ),
)


ALL = (pytest.mark.long, pytest.mark.timeout(3600))


@pytest.mark.parametrize(
    ("target", "extent"),
    [
        ("sail", "quick"),
        pytest.param("local[2]", "quick", marks=pytest.mark.long),
        pytest.param("sail", "all", marks=ALL),
        pytest.param("local[2]", "all", marks=ALL),
    ],
)
def test_entries_of_the_equality_list_give_the_results_of_postgresql(
    target: str, extent: str, dsn: str, tmp_path: Path
) -> None:
    login = conninfo.conninfo_to_dict(dsn)
    options = {
        "host": login["host"],
        "port": int(login["port"]),
        "user": login["user"],
        "password": login["password"],
        "database": login["dbname"],
    }
    done = subprocess.run(
        [sys.executable, "-m", EDGE_CASES, target, tmp_path, extent],
        input=json.dumps(options),
        capture_output=True,
        text=True,
        cwd=Path(__file__).parents[3],
    )
    assert done.returncode == 0, done.stderr[-4000:]
    assert json.loads(done.stdout) == []


@pytest.mark.parametrize(
    ("query", "reason"),
    [
        ("SELECT avg(f) FROM public.t", "avg of double precision"),
        ("SELECT avg(i) + count(*) FROM public.t", "avg or division of aggregates together with others"),
        ("SELECT i FROM public.t GROUP BY i HAVING avg(i) > 1", "avg in this place"),
        ("SELECT max(CASE WHEN b THEN n ELSE 0::numeric END) FROM public.t", "display scale depends on the order"),
        ("SELECT DISTINCT CASE WHEN b THEN n ELSE 0::numeric END FROM public.t", "equal values can look different"),
        ("SELECT n / 2.0 AS x, count(*) FROM public.t GROUP BY n / 2.0", "equal values can look different"),
        ("SELECT EXISTS (SELECT 1 FROM public.t x) FROM public.t", "subquery in an expression"),
        ("SELECT i FROM public.t LIMIT i", "LIMIT or OFFSET of anything but a number"),
        ("SELECT i FROM public.t ORDER BY s LIMIT 3", "ORDER BY text under this collation"),
        ("SELECT i FROM public.t ORDER BY i FETCH FIRST 3 ROWS WITH TIES", "LIMIT"),
        ("SELECT tz + '1 day'::interval FROM public.t", "time zone"),
        ("SELECT i FROM public.t WHERE ts + '1900000000:00:00'::interval < ts", "very long interval"),
        ("SELECT date_part('milliseconds'::text, ts) FROM public.t", "date_part"),
        ("SELECT octet_length(c) FROM public.t", "octet_length of character"),
        ("SELECT CASE WHEN b THEN c ELSE 'no'::bpchar END FROM public.t", "character with different lengths"),
        ("SELECT sum(f) FROM public.t", "sum of double precision"),
        ("SELECT f, count(*) FROM public.t GROUP BY f", "grouping by f of type double precision"),
        ("SELECT DISTINCT f FROM public.t", "grouping by f of type double precision"),
        ("SELECT upper(s) FROM public.t", "upper under a collation"),
        ("SELECT s FROM public.t WHERE s < 'x'::text", "order of text under a collation other than C"),
        ("SELECT min(s) FROM public.t", "min of text under this collation"),
        ("SELECT i FROM public.t WHERE ci = 'x'::text", "comparison under a collation that is not deterministic"),
        ("SELECT ci, count(*) FROM public.t GROUP BY ci", "whose collation is not deterministic"),
        ("SELECT s FROM public.t WHERE s ~~* 'x%'::text", "ILIKE under a collation"),
        (r"SELECT s FROM public.t WHERE s ~~* 'a\_%'::text", "LIKE with a pattern"),
        (r"SELECT s FROM public.t WHERE s ~ '(a)\1'::text", "a part that is not known"),
        ("SELECT s FROM public.t WHERE s ~ s", "that is not a literal"),
        ("SELECT s FROM public.t WHERE s ~ '(?i)x'::text", "a pattern with a director"),
        ("SELECT regexp_replace(s, 'a*b+?'::text, ''::text) FROM public.t", "counts that want as much as possible"),
        ("SELECT SUBSTRING(s FROM '(a|b)c'::text) FROM public.t", "groups beside branches"),
        ("SELECT regexp_match(s, '(a*)*'::text) FROM public.t", "a count of what varies"),
        ("SELECT regexp_count(s, '(a|ab)+'::text) FROM public.t", "a count of what varies"),
        ("SELECT regexp_replace(s, s, ''::text) FROM public.t", "that is not a literal"),
        ("SELECT regexp_replace(s, 'a'::text, ''::text, 'x'::text) FROM public.t", "flags"),
        ("SELECT s FROM public.t WHERE s ~* 'x'::text", "~* under a collation"),
        ("SELECT s FROM public.t WHERE c ~ 'x'::text", "anything but text"),
        ("SELECT s FROM public.t WHERE ci ~ 'x'::text", "collation that is not deterministic"),
        ("SELECT ts::numeric FROM public.t", "cast from timestamp without time zone to numeric"),
        ("SELECT s::jsonb FROM public.t", "cast from text to jsonb"),
        ("SELECT j -> f FROM public.t", "-> or ->> with double precision"),
        ("SELECT j #> ARRAY[s] FROM public.t", "#> or #>> with anything but literals"),
        ("SELECT j #> '{a,NULL}'::text[] FROM public.t", "#> or #>> with '{a,NULL}'"),
        ("SELECT jsonb_typeof(s::json) FROM public.t", "cast from text to json"),
        ("SELECT i FROM public.t WHERE e > 'sad'::public.mood", "order of enum public.mood"),
        ("SELECT min(e) FROM public.t", "order of enum public.mood"),
        ("SELECT i FROM public.t ORDER BY e LIMIT 1", "order of enum public.mood"),
        ("SELECT i FROM public.t WHERE e::text = e2::text AND e::text < 'x'::text", "order of text under a collation"),
        ("SELECT s::public.mood FROM public.t", "type public.mood"),
        ("SELECT i::public.pence FROM public.t", "type public.pence"),
        ("SELECT '(1,2)'::public.pair FROM public.t", "type public.pair"),
        ("SELECT i FROM public.t ORDER BY i::text LIMIT 1", "ORDER BY text under this collation"),
        ("SELECT i FROM public.t FOR UPDATE", "FOR UPDATE"),
        ("SELECT i FROM ONLY public.t", "TABLE with only"),
        ("SELECT i FROM public.t TABLESAMPLE system (10)", "TABLESAMPLE"),
        ("SELECT row_number() OVER () FROM public.t", "window function that depends on an order"),
        ("SELECT sum(i) OVER (ORDER BY i RANGE BETWEEN 1 PRECEDING AND CURRENT ROW) FROM public.t", "window frame"),
        ("SELECT sum(count(*)) OVER () FROM public.t GROUP BY i", "window function over aggregates"),
        ("SELECT rank() OVER (ORDER BY f) FROM public.t", "ORDER BY double precision"),
        ("SELECT i FROM public.t WHERE i IN (SELECT 1)", "in with query"),
        ("SELECT (SELECT 1) FROM public.t", "subquery in an expression"),
        ("WITH RECURSIVE w AS (SELECT 1) SELECT * FROM w", "WITH RECURSIVE"),
        ("SELECT i FROM public.t GROUP BY GROUPING SETS ((i), ())", "grouping"),
        ("SELECT i FROM public.t GROUP BY ROLLUP (i)", "rollup"),
        ("SELECT x FROM public.t, LATERAL (SELECT u.i + t.i AS x FROM public.t u) l", "LATERAL"),
        ("SELECT x FROM generate_series(1, 3) x", "relation"),
        ("SELECT i FROM public.other", 'relation "other"'),
        ("SELECT EXTRACT(hour FROM tz) FROM public.t", "EXTRACT(hour FROM timestamp with time zone)"),
        ("SELECT EXTRACT(timezone FROM tz) FROM public.t", "EXTRACT(timezone FROM timestamp with time zone)"),
        ("SELECT tz AT TIME ZONE 'Europe/Berlin'::text FROM public.t", "AT TIME ZONE of timestamp with time zone, or"),
        (
            "SELECT date_trunc('day'::text, tz, 'CET'::text) FROM public.t",
            "date_trunc('day', timestamp with time zone)",
        ),
        ("SELECT tz::date FROM public.t", "cast from timestamp with time zone to date"),
        ("SELECT tz::text FROM public.t", "cast from timestamp with time zone to text"),
        (
            "SELECT date_trunc('month'::text, d::timestamptz) FROM public.t",
            "cast from date to timestamp with time zone",
        ),
        ("SELECT i FROM public.t WHERE tz > ts", "comparison of timestamp with time zone with timestamp without"),
        ("SELECT i FROM public.t WHERE j < j", "order of jsonb under a collation"),
        ("SELECT i FROM public.t WHERE j = '1e2'::jsonb", "literal of type jsonb"),
        ("SELECT i FROM public.t WHERE s @> s", "@> or <@ of text"),
        ("SELECT j, count(*) FROM public.t GROUP BY j", "grouping by j of type jsonb"),
        ("SELECT free + f FROM public.t", "numeral + double precision"),
        ("SELECT free, count(*) FROM public.t GROUP BY free", "grouping by"),
        ("SELECT max(free) FROM public.t", "max of numeral"),
        ("SELECT date_trunc('day'::text, tz) FROM public.t", "date_trunc('day', timestamp with time zone)"),
        ("SELECT i << i FROM public.t", "<< by anything but a literal below 32"),
        ("SELECT i >> 32 FROM public.t", ">> by anything but a literal below 32"),
        ("SELECT i::smallint << 3 FROM public.t", "<< of smallint"),
        ("SELECT bit_xor(DISTINCT i) FROM public.t", "bit_xor of DISTINCT values"),
        ("SELECT btrim(s, s) FROM public.t", "btrim with an argument that is not a literal"),
        ("SELECT concat_ws(s, c) FROM public.t", "concat_ws of anything but text, numbers and dates"),
        ("SELECT OVERLAY(s PLACING s FROM i) FROM public.t", "overlay of anything but text"),
        ("SELECT f::bigint FROM public.t", "cast from double precision to bigint"),
        ("SELECT f + n FROM public.t", "double precision + numeric"),
        ("SELECT n::real FROM public.t", "cast from numeric to real"),
        (
            "SELECT a.i FROM public.t a JOIN public.t b ON a.f * 2::double precision * b.f > 1::double precision",
            "in this place",
        ),
        ("SELECT i FROM public.t WHERE ts > '12024-01-01'::timestamp without time zone", "literal '12024-01-01'"),
        ("SELECT 'NaN'::numeric FROM public.t", "NaN"),
        ("SELECT count(DISTINCT f) FROM public.t", "DISTINCT over double precision"),
        ("SELECT array_agg(i) FROM public.t", "function array_agg"),
        ("SELECT string_agg(s, ','::text ORDER BY s) FROM public.t", "ORDER BY text under this collation"),
        ("SELECT string_agg(c, s ORDER BY c) FROM public.t", "separator that is not a literal"),
        ("SELECT array_agg(i ORDER BY n) FROM public.t", "array_agg in an order that may leave ties"),
        ("SELECT array_agg(f ORDER BY n, f) FROM public.t", "ORDER BY double precision"),
        ("SELECT count(DISTINCT n), array_agg(i ORDER BY i) FROM public.t", "beside count, sum or avg of DISTINCT"),
        ("SELECT array_agg(DISTINCT i ORDER BY n) FROM public.t", "of DISTINCT values in another order"),
        ("SELECT pg_catalog.string_agg(s, ','::text) FROM public.t", "function string_agg"),
        ("SELECT json_agg(i) FROM public.t", "function json_agg"),
        ("SELECT to_char(ts, 'YYYY TMMonth'::text) FROM public.t", "to_char: TMMonth in a format"),
        ("SELECT to_char(ts, 'DDTH24'::text) FROM public.t", "to_char: TH in a format"),
        ("SELECT age(ts) FROM public.t", "age of anything but two timestamps"),
        ("SELECT age(d::timestamp with time zone, tz) FROM public.t", "cast from date to timestamp with time zone"),
        ("SELECT to_date(s, 'YYYY-DDD'::text) FROM public.t", "to_date: YYYY-DDD as a format of a date"),
        ("SELECT to_timestamp(s, 'YYYY'::text) FROM public.t", "function to_timestamp"),
        ("SELECT EXTRACT(century FROM ts - ts) FROM public.t", "EXTRACT(century FROM interval)"),
        ("SELECT width_bucket(f, f, f, 3) FROM public.t", "width_bucket of anything but numerics"),
        ("SELECT to_char(n, '999D99'::text) FROM public.t", "to_char: 999D99 as a format of a number"),
        ("SELECT to_char(f, '999'::text) FROM public.t", "to_char of double precision"),
        ("SELECT to_char(ts, s) FROM public.t", "to_char with a format that is not a literal"),
        ("SELECT to_char(tz, 'YYYY'::text) FROM public.t", "to_char of timestamp with time zone"),
        ("SELECT to_char(d::timestamp with time zone, 'HH24'::text) FROM public.t", "of a date with a time"),
        ("SELECT mode() WITHIN GROUP (ORDER BY f) FROM public.t", "percentile_disc or mode of double precision"),
        ("SELECT now() FROM public.t", "timestamp"),
        ("SELECT pg_temp.f(i) FROM public.t", "pg_temp"),
        ("SELECT random() FROM public.t", "function random"),
        ('SELECT i COLLATE "de" FROM public.t', "collate"),
    ],
)
def test_what_might_differ_is_refused_and_named(query: str, reason: str) -> None:
    with pytest.raises(NotExpressible) as refusal:
        render_spark(query, [TABLE])
    assert reason in str(refusal.value)


def test_first_rows_are_asked_for_only_where_their_order_is_known_to_be_total() -> None:
    query = "SELECT i, d FROM public.t ORDER BY d LIMIT 3"
    assert "LIMIT 3" in render_spark(query, [TABLE]).sql
    for refused in (query, "SELECT row_number() OVER (ORDER BY d) AS n FROM public.t"):
        with pytest.raises(NotExpressible, match="ties"):
            render_spark(refused, [TABLE], total_orders=False)


def test_column_with_a_collation_of_its_own_is_not_ordered_in_a_database_of_bytes() -> None:
    query = "SELECT max(s) AS m FROM public.t"
    assert render_spark(query, [TABLE], environment=Environment(Collations(True))).columns == (Column("m", "text"),)
    with pytest.raises(NotExpressible):
        render_spark(query, [TABLE], environment=Environment(Collations(True, None, frozenset({(7, "s", OTHER)}))))


def test_case_of_letters_is_changed_as_by_the_collation_that_the_text_has() -> None:
    columns = frozenset({(7, "s", BYTES), (7, "ci", OTHER), (7, "o", OTHER)})
    known = Collations(False, Casing(("aé", "AÉ"), ("AÉ", "aé")), columns)

    def rendered(expression: str) -> str:
        return render_spark(f"SELECT {expression} FROM public.t", [TABLE], environment=Environment(known)).sql

    assert "translate(CAST(r0.`i` AS STRING), 'aé', 'AÉ')" in rendered("upper(i::text)")
    assert "'ABCDEFGHIJKLMNOPQRSTUVWXYZ', 'abcdefghijklmnopqrstuvwxyz'" in rendered("lower(s || i::text)")
    for refused in ("upper(ci)", "upper(s || ci)", "lower(COALESCE(i::text, ci))", "lower(NULLIF(i::text, o))"):
        with pytest.raises(NotExpressible, match="under a collation that does not change each character by itself"):
            rendered(refused)
    with pytest.raises(NotExpressible, match="collate"):
        rendered('upper(i::text COLLATE public."C")')


def test_output_of_another_type_than_expected_is_refused() -> None:
    query = "SELECT sum(i) AS s FROM public.t"
    assert render_spark(query, [TABLE], [Column("s", "bigint")]).columns == (Column("s", "bigint"),)
    with pytest.raises(NotExpressible, match="which is numeric but was read as bigint"):
        render_spark(query, [TABLE], [Column("s", "numeric")])


def test_quotient_is_computed_once_behind_what_no_condition_is_moved_past() -> None:
    once = "LATERAL VIEW explode(array("
    query = "SELECT n / wide AS x FROM public.t WHERE n / wide > 1::numeric AND n / wide < 2::numeric"
    assert render_spark(query, [TABLE]).sql.count(once) == 1
    query = "SELECT s.i FROM (SELECT i, avg(n) AS a FROM public.t GROUP BY i) s WHERE s.a > 2.5"
    assert render_spark(query, [TABLE]).sql.count(once) == 1
    query = "SELECT n / wide AS x, wide / n AS y FROM public.t"
    assert render_spark(query, [TABLE]).sql.count(once) == 2


def test_only_columns_in_use_are_read() -> None:
    spark = render_spark("SELECT count(*) AS n FROM public.t a JOIN public.t b ON a.i = b.i WHERE a.b", [TABLE])
    assert spark.reads == {7: ("i", "b")}
    assert render_spark("SELECT count(*) AS n FROM public.t", [TABLE]).reads == {7: ()}


def test_stage_has_the_types_that_postgresql_knows_its_columns_to_have() -> None:
    def stages(type_: str, column: str = "i") -> SparkStages:
        stage = Stage("rows", read(f"SELECT t.{column} FROM public.t"), (("x", type_),))
        return render_stages(RemotePlan((), (stage,), StagedText((), "SELECT 1")), [TABLE], ())

    assert [query.columns for query in stages("integer").stages] == [(Column("x", "integer"),)]
    assert [query.columns for query in stages("").stages] == [(Column("x", "integer"),)]
    with pytest.raises(NotExpressible, match='column "x", which is bigint but was read as integer'):
        stages("bigint")
    # Of a user's type it is what the source's columns of it are carried as.
    assert stages("public.pence", "p").stages[0].columns == (Column("x", "numeric"),)


def test_views_are_counted_wherever_their_rows_are_read() -> None:
    views = (("once", read("SELECT t.i FROM public.t")), ("twice", read("SELECT o.i FROM once o")))
    query = read("WITH w AS (SELECT a.i FROM twice a) SELECT b.i FROM w b JOIN w c ON b.i = c.i")
    plan = RemotePlan(views, (Stage("rows", query, (("i", ""),)),), StagedText((), "SELECT 1"))
    found = render_stages(plan, [TABLE], ())
    assert [(view.name, view.repeated) for view in found.views] == [("once", False), ("twice", True)]
