"""When two texts are the same to PostgreSQL's parser without asking it."""

from __future__ import annotations

import pytest

from sql import same_wording


@pytest.mark.parametrize(
    ("canonical", "regenerated"),
    [
        ("SELECT a\n   FROM public.t", "select A from PUBLIC.T;"),
        (
            "SELECT ('1998-12-01'::date - '1 day'::interval)",
            "SELECT (CAST('1998-12-01' AS DATE) - CAST('1 day' AS INTERVAL))",
        ),
        ("SELECT (('x'::text)::date)::text AS d", "SELECT CAST((CAST((CAST('x' AS TEXT)) AS DATE)) AS TEXT) AS d"),
        ("SELECT (a)::numeric(10,2) AS n", "SELECT CAST((a) AS DECIMAL(10, 2)) AS n"),
        ("SELECT (a)::timestamp without time zone AS n", "SELECT CAST((a) AS TIMESTAMP) AS n"),
        ("SELECT f(x.y, 1)::character varying[] AS n", "SELECT CAST(f(x.y, 1) AS VARCHAR[]) AS n"),
        ("SELECT ((b)::text !~~ '%x%'::text)", "SELECT (CAST((b) AS TEXT) NOT LIKE CAST('%x%' AS TEXT))"),
        ("SELECT 1 FROM ( SELECT 2) q(n), public.t t_1", "SELECT 1 FROM (SELECT 2) AS q(n), public.t AS t_1"),
        ("SELECT 'it''s'::text AS \"as\"", "SELECT CAST('it''s' AS TEXT) AS \"as\""),
    ],
)
def test_ways_of_writing_one_thing(canonical: str, regenerated: str) -> None:
    assert same_wording(canonical, regenerated)


@pytest.mark.parametrize(
    ("canonical", "regenerated"),
    [
        ("SELECT 'A'::text AS a", "SELECT CAST('a' AS TEXT) AS a"),
        ('SELECT "A" AS a', "SELECT a AS a"),
        ("SELECT a + (b)::text AS c", "SELECT CAST(a + (b) AS TEXT) AS c"),
        ("SELECT - (1)::text AS c", "SELECT CAST(- (1) AS TEXT) AS c"),
        ("SELECT NOT (a)::text AS c", "SELECT CAST(NOT (a) AS TEXT) AS c"),
        ("SELECT (a) (b)::text AS c", "SELECT CAST((a) (b) AS TEXT) AS c"),
        ("SELECT '1'::interval AS day", "SELECT CAST('1' AS INTERVAL DAY)"),
        ("SELECT '1'::interval day", "SELECT CAST('1' AS INTERVAL) AS day"),
        ("SELECT x(a)::numeric", "SELECT x(a)::numeric, 1"),
        ("SELECT (a)::timestamp(3) without time zone AS n", "SELECT CAST((a) AS TIMESTAMP(3)) AS n"),
        ("SELECT 'a  b'::text AS c", "SELECT CAST('a b' AS TEXT) AS c"),
        ("SELECT a FROM t", "SELECT a FROM t -- "),
        (r"SELECT U&'d\0061t\+000061'", r"SELECT U&'d\0061t\+000061'"),
        ("SELECT a ~~ b", "SELECT a ILIKE b"),
    ],
)
def test_texts_that_may_mean_something_else(canonical: str, regenerated: str) -> None:
    assert not same_wording(canonical, regenerated)
