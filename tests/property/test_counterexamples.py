"""What random queries and changes have found wrong, each by a name."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from catalog.session import SqlError
from catalog.values import RefreshMode
from tests.property.changes import Step
from tests.property.laboratory import Laboratory
from tests.property.queries import Query
from tests.property.schemas import CLASSIC
from tests.property.test_random_queries import Example, hold


def check(laboratory: Laboratory, rows: Sequence[str], query: str, *changes: str, kinds: str = "int") -> None:
    """One stream table (columns c0, c1, ... of the given kinds) holds after each change."""
    columns = tuple((f"c{n}", kind) for n, kind in enumerate(kinds.split()))
    steps = [step for change in changes for step in (Step(1, change), Step(0, "", 0))]
    hold(laboratory, Example(CLASSIC, list(rows), [Query(query, columns)], steps))


def test_copies_of_different_contents_have_different_row_ids(laboratory: Laboratory) -> None:
    check(
        laboratory,
        ["INSERT INTO a (id) VALUES (0), (1), (2)"],
        "SELECT r1.id AS c0 FROM a AS r1 UNION ALL SELECT r3.c0 FROM (SELECT r2.id AS c0 FROM a AS r2) AS r3",
        "INSERT INTO a (id) VALUES (3), (4)",
        "DELETE FROM a WHERE id < 3",
    )


def test_probe_about_an_expression_over_a_join_with_an_aggregate(laboratory: Laboratory) -> None:
    check(
        laboratory,
        ["INSERT INTO a (id, n) VALUES (1, 1.5), (2, NULL)"],
        "SELECT CASE WHEN (r3.n = r3.n) THEN r3.n ELSE r3.n END AS c0"
        " FROM (SELECT count(*) FILTER (WHERE (r1.n = r1.n)) AS c0 FROM a AS r1 GROUP BY r1.id HAVING max(1) = 1) AS r2"
        " JOIN a AS r3 ON r2.c0 = r3.id UNION ALL SELECT r4.n AS c0 FROM a AS r4",
        "UPDATE a SET n = 2.5",
        kinds="numeric",
    )


def test_join_that_says_the_same_equality_twice(laboratory: Laboratory) -> None:
    check(
        laboratory,
        ["INSERT INTO c VALUES (0, 0, 'x'), (0, 1, 'x'), (1, 1, NULL)"],
        "SELECT r4.c0 AS c0 FROM (SELECT k AS c0 FROM c) AS r4"
        " JOIN (SELECT k AS c0, s AS c1 FROM c GROUP BY k, s HAVING count(*) > 1) AS r9 ON r4.c0 = r9.c0"
        " JOIN (SELECT k AS c0 FROM c UNION ALL SELECT k AS c0 FROM c) AS r14 ON r4.c0 = r14.c0 AND r4.c0 = r9.c0",
        "INSERT INTO c VALUES (0, 0, 'x')",
        "INSERT INTO c VALUES (1, 0, NULL)",
        "DELETE FROM c WHERE k = 0",
    )


def test_join_of_an_aggregate_by_its_key_and_its_value(laboratory: Laboratory) -> None:
    check(
        laboratory,
        ["INSERT INTO c (k) VALUES (1), (1), (2)", "INSERT INTO a (id, k, v) VALUES (1, 2, 1)"],
        "SELECT r1.id AS c0, r2.n AS c1"
        " FROM a AS r1 JOIN (SELECT k, max(k) AS m, count(*) AS n FROM c GROUP BY k) AS r2"
        " ON r2.k = r1.k AND r2.m = r1.v",
        "INSERT INTO a (id, k, v) VALUES (2, 1, 1), (3, 1, 2), (4, 1, 4)",
        "UPDATE a SET v = v + 1",
        "UPDATE a SET v = id",
        kinds="int int",
    )


def test_join_of_two_columns_of_an_aggregate_with_one(laboratory: Laboratory) -> None:
    check(
        laboratory,
        ["INSERT INTO c (k, v) VALUES (1, 1), (1, 2), (2, 2), (NULL, NULL)"],
        "SELECT r1.id AS c0, r2.n AS c1 FROM a AS r1"
        " JOIN (SELECT k, v, count(*) AS n FROM c GROUP BY k, v) AS r2 ON r2.k = r1.k AND r2.v = r1.k",
        "INSERT INTO a (id, k) VALUES (1, 1), (2, 2), (3, NULL)",
        "UPDATE c SET v = k",
        kinds="int int",
    )


def test_grouping_sets_over_a_full_join_below_a_query_that_reads_none_of_it(laboratory: Laboratory) -> None:
    check(
        laboratory,
        ["INSERT INTO f (id, xs) VALUES (1, '{1,2}'), (2, NULL)"],
        "SELECT 1 AS c0 FROM (SELECT 1 AS c0 FROM f AS r1 FULL JOIN f AS r2 ON TRUE"
        " GROUP BY ROLLUP (r1.xs, r2.xs[1:2])) AS r3",
        "INSERT INTO f (id, xs) VALUES (3, '{}')",
        "DELETE FROM f",
    )


def test_ties_of_distinct_rows_in_the_order_of_a_constant(laboratory: Laboratory) -> None:
    check(
        laboratory,
        ["INSERT INTO a (id) VALUES (1)"],
        "SELECT DISTINCT 3 AS c0, id AS c1 FROM a ORDER BY 1 FETCH FIRST 2 ROWS WITH TIES",
        "INSERT INTO a (id) VALUES (2), (3), (4)",
        "DELETE FROM a WHERE id < 4",
        kinds="int int",
    )


def test_not_in_the_first_rows_of_groups(laboratory: Laboratory) -> None:
    check(
        laboratory,
        ["INSERT INTO a (id, k) VALUES (1, 2), (5, 2)"],
        "SELECT r1.id AS c0 FROM a AS r1"
        " WHERE r1.id NOT IN (SELECT DISTINCT ON (r2.k) r2.id FROM a AS r2 ORDER BY r2.k, r2.id)",
        "INSERT INTO a (id, k) VALUES (0, 2)",
        "DELETE FROM a WHERE id < 5",
    )


def test_aggregate_over_a_recursion_that_starts_from_an_anti_join(laboratory: Laboratory) -> None:
    check(
        laboratory,
        [
            "INSERT INTO a (id, k) VALUES (1, 0), (6, 0)",
            "INSERT INTO f (id, k, xs) VALUES (9, NULL, NULL), (6, 0, '{}')",
        ],
        "WITH RECURSIVE w (c0, c1, c2) AS (SELECT k, k, 0 FROM f"
        " WHERE xs NOT IN (SELECT r1.xs FROM f AS r1 JOIN a AS r2 ON r1.id = r2.id)"
        " UNION ALL SELECT w.c1, w.c0, w.c2 + 1 FROM w WHERE w.c2 < 1) SELECT count(*) AS c0 FROM w GROUP BY c0",
        "DELETE FROM a WHERE id = 6",
        "INSERT INTO a (id, k) VALUES (6, 0)",
        "DELETE FROM f WHERE id = 9",
    )


def test_aggregate_of_everything_in_a_subquery(laboratory: Laboratory) -> None:
    check(
        laboratory,
        ["INSERT INTO c (k, v) VALUES (1, 0), (2, NULL)"],
        "SELECT (1, count(*)) IN (SELECT k, v FROM c) AS c0, bool_or(true) IN (SELECT k > 0 FROM c) AS c1 FROM f",
        "INSERT INTO f (id) VALUES (1), (2)",
        "UPDATE c SET v = 2",
        "DELETE FROM c",
        kinds="bool bool",
    )


def test_first_distinct_rows_in_the_order_of_a_subquery(laboratory: Laboratory) -> None:
    check(
        laboratory,
        ["INSERT INTO a (id, k) VALUES (1, 1), (2, 2), (4, 9), (5, 8)"],
        "SELECT DISTINCT r1.k AS c0, r1.k IN (SELECT r2.id FROM a AS r2) AS c1 FROM a AS r1 ORDER BY 2 DESC, 1 LIMIT 3",
        "INSERT INTO a (id, k) VALUES (3, 3), (9, 2)",
        "DELETE FROM a WHERE id = 1",
        kinds="int loose",
    )


def test_set_operation_of_which_one_branch_says_collate(laboratory: Laboratory) -> None:
    for branch in (
        'r2.s COLLATE "C"',
        "least(to_char('2026-02-01'::date, 'YYYY-MM'), CASE WHEN (r2.s IS NULL) THEN r2.s ELSE r2.s END COLLATE \"C\")",
        'max(least(r2.s, r2.s COLLATE "C")) OVER (PARTITION BY r2.n ORDER BY r2.id)',
        "concat_ws('-', least(r2.s, r2.s COLLATE \"C\")::varchar, r2.id)",
    ):
        check(
            laboratory,
            ["INSERT INTO a (id, n, s) VALUES (0, 'NaN', 'x'), (5, 1.0, ''), (7, 1.00, 'Y'), (2, NULL, NULL)"],
            "(SELECT DISTINCT r1.n AS c0, r1.s AS c1 FROM a AS r1)"
            f" INTERSECT ALL (SELECT r2.n AS c0, {branch} AS c1 FROM a AS r2)",
            "INSERT INTO a (id, n, s) VALUES (1, 2.5, 'x'), (3, 1.0, 'x')",
            "DELETE FROM a WHERE id IN (0, 5)",
            kinds="loose text",
        )


def test_lateral_subquery_that_gives_out_an_outer_column_under_its_own_name(laboratory: Laboratory) -> None:
    check(
        laboratory,
        ["INSERT INTO a (id, k) VALUES (1, 1), (2, 1), (3, NULL)", "INSERT INTO c (k) VALUES (1), (2), (2)"],
        "SELECT r2.id AS c0, r3.k AS c1 FROM a AS r1 JOIN LATERAL (SELECT r1.id FROM c WHERE c.k = r1.id) AS r2 ON true"
        " LEFT JOIN LATERAL (SELECT DISTINCT r1.k FROM c WHERE c.k <= r1.k) AS r3 ON true",
        "INSERT INTO a (id, k) VALUES (4, 4), (5, 1)",
        "INSERT INTO c (k) VALUES (3), (4)",
        "UPDATE a SET k = 3",
        "DELETE FROM c WHERE k > 1",
        kinds="int int",
    )


def test_window_call_with_filter_in_a_lateral_subquery_is_no_aggregate(laboratory: Laboratory) -> None:
    check(
        laboratory,
        ["INSERT INTO a (id, k) VALUES (1, 1), (2, 2)", "INSERT INTO c (k, s) VALUES (1, 'x'), (2, NULL)"],
        "SELECT r1.k AS c0, r8.c0 AS c1 FROM c AS r1 LEFT JOIN LATERAL (SELECT count(*) FILTER (WHERE r3.k = r3.k)"
        " OVER () AS c0 FROM a AS r3 WHERE (SELECT r1.s AS c0 FROM a AS r5 GROUP BY r5.k ORDER BY 1 LIMIT 1) IS NULL)"
        " AS r8 ON true",
        "INSERT INTO a (id, k) VALUES (3, 1), (4, NULL)",
        "UPDATE c SET s = NULL",
        "DELETE FROM a WHERE k = 1",
        kinds="int int",
    )


@pytest.mark.parametrize("mode", RefreshMode)
@pytest.mark.parametrize(
    "columns", ["{key} AS c0, {key} AS c1", "{key} AS c0, id AS c1", "GROUPING({key}) AS c0, id AS c1"]
)
@pytest.mark.one_in(3)
def test_grouping_sets_by_a_constant(laboratory: Laboratory, columns: str, mode: RefreshMode) -> None:
    key = "length('x'::text)"
    text = f"SELECT {columns.format(key=key)} FROM a GROUP BY ROLLUP (({key}), (id))"
    query = Query(text, (("c0", "int"), ("c1", "int")))
    refused = not columns.startswith("GROUPING") and mode in (RefreshMode.DIFFERENTIAL, RefreshMode.IMMEDIATE)
    changes = ["INSERT INTO a (id) VALUES (3)", "DELETE FROM a WHERE id < 3", "DELETE FROM a"]

    async def run() -> None:
        await laboratory.reset(CLASSIC, ["INSERT INTO a (id) VALUES (1), (2)"])
        if refused:
            with pytest.raises(SqlError, match="a constant in grouping sets that is used elsewhere") as error:
                await laboratory.create("st0", query, mode, refusable=False)
            assert error.value.sqlstate == "0A000" and error.value.hint
            return
        table = await laboratory.create("st0", query, mode)
        for change in changes:
            if mode is RefreshMode.IMMEDIATE:
                await laboratory.change([Step(1, change)])
            else:
                assert await laboratory.run(1, change)
                assert await laboratory.refresh(0, table) is not None

    laboratory.do(run())
