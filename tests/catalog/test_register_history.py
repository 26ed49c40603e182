"""Balances and turnovers of the past: exact to the microsecond, and read from the coarsest totals that fit."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import psycopg
import pytest
from psycopg import errors

from tests.catalog.conftest import Connection

# Five years, a movement every three hours over ten cells.
HISTORY = """
INSERT INTO accum.{name}_movements (recorder, period, shop, item, n)
SELECT 'doc:' || i, '2021-01-01 00:00:00+00'::timestamptz + i * interval '3 hours', i % 2, i % 10, i % 17 - 5
FROM generate_series(0, 14607) AS i
"""
CELL = {"shop": 1, "item": 3}


@pytest.fixture(scope="module")
def history(register_database: str) -> Iterator[Connection]:
    """A connection with `by_day` and `by_month`, the same movements in registers of different totals."""
    with psycopg.connect(register_database, autocommit=True, options="-c timezone=UTC") as connection:
        for name, period in (("by_day", "day"), ("by_month", "month")):
            connection.execute(
                'SELECT accum.register_create(%s, \'{"shop": "int", "item": "int"}\', \'{"n": "bigint"}\', '
                "totals_period := %s, partition_by := 'year')",
                [name, period],
            )
            connection.execute(HISTORY.format(name=name).encode())
        connection.execute("ANALYZE")
        yield connection


def value(connection: Connection, statement: str, *args: Any) -> Any:
    """The one value of a statement."""
    row = connection.execute(statement, args).fetchone()
    assert row is not None
    return row[0]


def rows_read(connection: Connection, statement: str, *args: Any) -> Counter[str]:
    """How many rows of each table the queries inside a function have read; what is not planned for is absent."""
    plans: list[dict[str, Any]] = []

    def note(diagnostic: errors.Diagnostic) -> None:
        text = str(diagnostic.message_primary)
        if "plan:" in text:
            plans.append(json.loads(text[text.index("{") :])["Plan"])

    connection.add_notice_handler(note)
    try:
        with connection.transaction():
            connection.execute(
                "LOAD 'auto_explain'; SET LOCAL auto_explain.log_min_duration = 0; "
                "SET LOCAL auto_explain.log_analyze = on; SET LOCAL auto_explain.log_nested_statements = on; "
                "SET LOCAL auto_explain.log_format = json; "
                "SET LOCAL client_min_messages = log; SET LOCAL enable_seqscan = off"  # the tables are small here
            )
            connection.execute(statement, args)
    finally:
        connection.remove_notice_handler(note)
    read: Counter[str] = Counter()
    while plans:
        plan = plans.pop()
        plans.extend(plan.get("Plans", []))
        if "Relation Name" in plan:
            scanned = (
                plan["Actual Rows"]
                + plan.get("Rows Removed by Filter", 0)
                + plan.get("Rows Removed by Index Recheck", 0)
            )
            read[plan["Relation Name"]] += round(scanned * plan["Actual Loops"])
    return read


def movements_before(connection: Connection, moment: str, condition: str = "shop = 1 AND item = 3") -> dict[str, int]:
    query = "SELECT coalesce(sum(n), 0)::bigint FROM accum.by_day_movements WHERE period <= %s::timestamptz AND "
    return {"n": value(connection, query + condition, moment)}


def test_balance_of_a_cell_reads_years_and_what_is_nearest_of_months_days_and_movements(history: Connection) -> None:
    read = rows_read(history, "SELECT accum.by_day_balance(%s::jsonb, '2024-05-17 13:00')", json.dumps(CELL))
    years = read.pop("by_day_totals_year")
    months = read.pop("by_day_totals_month")
    days = read.pop("by_day_totals_day")
    assert (years, months) == (3, 5) and 0 < days <= 14
    assert sum(read.values()) <= 8, "no more movements than there are on the day"
    moment = "2024-05-17 13:00"
    found = value(history, "SELECT accum.by_day_balance(%s::jsonb, %s::timestamptz)", json.dumps(CELL), moment)
    assert found == movements_before(history, moment)


def test_whole_months_are_read_from_the_totals_alone(history: Connection) -> None:
    turnover = "SELECT * FROM accum.by_day_turnover('2024-04-01', '2024-06-30', %s::jsonb)"
    assert rows_read(history, turnover, json.dumps(CELL)) == {"by_day_totals_month": 3}
    year = "SELECT * FROM accum.by_day_turnover('2022-01-01', '2023-12-31', %s::jsonb)"
    assert rows_read(history, year, json.dumps(CELL)) == {"by_day_totals_year": 2}
    assert rows_read(history, "SELECT * FROM accum.by_day_balance(at_date := '2023-12-31')") == {
        "by_day_totals_year": 30
    }


def test_a_present_balance_is_one_row_of_the_cache(history: Connection) -> None:
    assert rows_read(history, "SELECT accum.by_day_balance(%s::jsonb)", json.dumps(CELL)) == {"by_day_balance_cache": 1}


def test_some_dimensions_read_their_cells_only(history: Connection) -> None:
    read = rows_read(history, "SELECT accum.by_day_balance('{\"item\": 3}', '2024-05-31')")
    assert set(read) == {"by_day_totals_year", "by_day_totals_month"}
    assert read["by_day_totals_month"] <= 5 and read["by_day_totals_year"] <= 2 * 5
    found = value(history, "SELECT accum.by_day_balance('{\"item\": 3}', '2024-05-31')")
    assert found == movements_before(history, "2024-05-31 23:59:59.999999", "item = 3")


def test_a_past_balance_over_all_cells_reads_no_other_months_and_days(history: Connection) -> None:
    read = rows_read(history, "SELECT accum.by_day_balance(at_date := '2024-05-16')")
    assert read["by_day_totals_month"] == 5 * 10 and 0 < read["by_day_totals_day"] <= 15 * 10
    found = value(history, "SELECT accum.by_day_balance(at_date := '2024-05-16')")
    assert found == movements_before(history, "2024-05-16 23:59:59.999999", "true")


def test_without_totals_of_days_movements_of_the_last_month_are_read(history: Connection) -> None:
    read = rows_read(history, "SELECT accum.by_month_balance(%s::jsonb, '2024-05-17 13:00')", json.dumps(CELL))
    assert (read.pop("by_month_totals_year"), read.pop("by_month_totals_month")) == (3, 5)
    assert 0 < sum(read.values()) <= 17 * 8
    found = value(history, "SELECT accum.by_month_balance(%s::jsonb, '2024-05-17 13:00')", json.dumps(CELL))
    assert found == movements_before(history, "2024-05-17 13:00")


@pytest.mark.parametrize("zone", ["UTC", "America/St_Johns"])
def test_series_of_balances_ends_each_period_where_the_zone_does(history: Connection, zone: str) -> None:
    with history.transaction(force_rollback=True):
        history.execute(f"SET LOCAL timezone = '{zone}'")
        series = history.execute(
            "SELECT period_start, balance "
            "FROM accum.by_day_balance_at_each('year', '2022-06-01', '2024-02-01', %s::jsonb)",
            [json.dumps(CELL)],
        ).fetchall()
        assert [(start.year, start.month, start.day) for start, _ in series] == [(y, 1, 1) for y in (2022, 2023, 2024)]
        for start, balance in series:
            assert balance == movements_before(history, f"{start.year}-12-31 23:59:59.999999")
            assert balance == value(
                history, "SELECT accum.by_day_balance(%s::jsonb, %s::date)", json.dumps(CELL), f"{start.year}-12-31"
            )


def test_a_series_in_utc_reads_totals_of_its_periods(history: Connection) -> None:
    series = "SELECT * FROM accum.by_day_balance_at_each('month', '2024-01-01', '2024-12-31', %s::jsonb)"
    assert rows_read(history, series, json.dumps(CELL)) == {"by_day_totals_month": 12, "by_day_totals_year": 3}


@pytest.mark.parametrize("zone", ["UTC", "Europe/London", "Asia/Kathmandu", "America/St_Johns"])
@pytest.mark.parametrize(
    ("period", "since", "until"), [("day", "2024-03-29", "2024-04-02"), ("month", "2024-01-20", "2024-12-03")]
)
def test_a_series_is_the_sum_of_movements_in_every_zone(
    history: Connection, zone: str, period: str, since: str, until: str
) -> None:
    """London is in UTC for a part of both ranges, and its summer begins in them."""
    with history.transaction(force_rollback=True):
        history.execute(f"SET LOCAL timezone = '{zone}'")
        expected = history.execute(
            """SELECT s::date, jsonb_build_object('n', coalesce(sum(m.n) FILTER (WHERE m.period >= s), 0)::bigint),
                      jsonb_build_object('n', coalesce(sum(m.n), 0)::bigint)
               FROM generate_series(date_trunc(%(period)s, %(since)s::timestamptz), %(until)s::timestamptz,
                                    ('1 ' || %(period)s)::interval) AS s
               LEFT JOIN accum.by_day_movements AS m
                      ON m.shop = 1 AND m.item = 3 AND m.period < s + ('1 ' || %(period)s)::interval
               GROUP BY s ORDER BY s""",
            {"period": period, "since": since, "until": until},
        ).fetchall()
        for register in ("by_day", "by_month"):
            statement = f"SELECT * FROM accum.{register}_balance_at_each(%s, %s, %s, %s::jsonb)"
            assert history.execute(statement, [period, since, until, json.dumps(CELL)]).fetchall() == expected


@pytest.mark.parametrize(
    ("since", "until", "segments"),
    [
        (None, None, [("year", None, None)]),
        ("2024-01-01", "2025-01-01", [("year", "2024-01-01", "2025-01-01")]),
        (
            "2023-11-29 18:30",
            "2025-02-02 00:00:00.000001",
            [
                ("movements", "2023-11-29 18:30:00", "2023-11-30"),
                ("day", "2023-11-30", "2023-12-01"),
                ("month", "2023-12-01", "2024-01-01"),
                ("year", "2024-01-01", "2025-01-01"),
                ("month", "2025-01-01", "2025-02-01"),
                ("day", "2025-02-01", "2025-02-02"),
                ("movements", "2025-02-02", "2025-02-02 00:00:00.000001"),
            ],
        ),
        ("2024-03-05 10:00", "2024-03-05 11:00", [("movements", "2024-03-05 10:00:00", "2024-03-05 11:00:00")]),
        ("2024-03-05", "2024-03-05", []),
        ("2024-03-05", "2024-03-01", []),
    ],
)
def test_ranges_are_cut_as_coarsely_as_possible(
    history: Connection, since: str | None, until: str | None, segments: list[tuple[str, str | None, str | None]]
) -> None:
    found = history.execute(
        "SELECT grain, nullif(first, '-infinity')::text, nullif(behind, 'infinity')::text"
        " FROM accum_internal._segments('day', %s::timestamptz, %s::timestamptz) ORDER BY first",
        [since, until],
    ).fetchall()
    midnight = " 00:00:00"
    assert [(g, a and a.removesuffix(midnight), b and b.removesuffix(midnight)) for g, a, b in found] == segments


@pytest.mark.parametrize(
    ("until", "segments"),
    [
        ("2024-01-01", [("year", "", "2024-01-01")]),
        ("2024-07-01", [("year", "", "2024-01-01"), ("month", "2024-01-01", "2024-07-01")]),
        ("2023-08-01", [("year", "", "2024-01-01"), ("month-", "2023-08-01", "2024-01-01")]),
        (
            "2023-11-20 06:00",
            [
                ("year", "", "2024-01-01"),
                ("month-", "2023-12-01", "2024-01-01"),
                ("day-", "2023-11-20", "2023-12-01"),
                ("movements", "2023-11-20", "2023-11-20 06:00:00"),
            ],
        ),
        (
            "2024-02-10 18:00",
            [
                ("year", "", "2024-01-01"),
                ("month", "2024-01-01", "2024-02-01"),
                ("day", "2024-02-01", "2024-02-11"),
                ("movements-", "2024-02-10 18:00:00", "2024-02-11"),
            ],
        ),
        ("2023-12-31 23:00", [("year", "", "2024-01-01"), ("movements-", "2023-12-31 23:00:00", "2024-01-01")]),
        ("infinity", [("year", "", "infinity")]),
        ("-infinity", []),
    ],
)
def test_all_time_before_a_moment_is_cut_at_the_nearest_periods(
    history: Connection, until: str, segments: list[tuple[str, str, str]]
) -> None:
    found = history.execute(
        "SELECT grain || sign, nullif(first, '-infinity')::text, behind::text"
        " FROM accum_internal._segments_before('day', %s::timestamptz)",
        [until],
    ).fetchall()
    midnight = " 00:00:00"
    assert [(g, (a or "").removesuffix(midnight), b.removesuffix(midnight)) for g, a, b in found] == segments


def test_every_moment_of_some_years_has_its_balance(history: Connection) -> None:
    """At the beginning, in the middle and at the end of periods, of one cell and of all."""
    steps = "generate_series('2022-11-01 00:00:07'::timestamptz, '2024-03-02', interval '1877 minutes') AS moment"
    for register in ("by_day", "by_month"):
        for dimensions, condition in (("{}", "true"), ('{"shop": 1}', "shop = 1")):
            wrong = history.execute(
                f"""SELECT moment FROM {steps},
                       LATERAL (SELECT coalesce(sum(n), 0) AS n FROM accum.by_day_movements
                                WHERE period <= moment AND {condition}) AS m
                     WHERE accum.{register}_balance(%s::jsonb, moment) <> jsonb_build_object('n', m.n)""".encode(),
                [dimensions],
            ).fetchall()
            assert wrong == []


def test_what_is_not_exact_is_not_taken_away_again(register_database: str) -> None:
    """1e30 that was added and taken away again would have taken the 1 along; and 1 is not 1.000."""
    resources = '{"f": "double precision", "d": "numeric", "i": "integer", "s": "numeric(9,3)"}'
    with psycopg.connect(register_database, autocommit=True, options="-c timezone=UTC") as connection:
        connection.execute("SELECT accum.register_create('odd', '{\"x\": \"int\"}', %s::jsonb)", [resources])
        movement = "INSERT INTO accum.odd_movements (recorder, period, f, d, i, s) VALUES ('r', %s, %s, %s, %s, %s)"
        connection.execute(movement, ["2024-11-01", 1, "1", 5, "1.5"])
        connection.execute(movement, ["2024-12-30", 1e30, "0.123", -(2**31), "-7"])
        before = value(connection, "SELECT accum.odd_balance(at_date := '2024-12-20')::text")
        assert json.loads(before, parse_float=str) == {"f": 1, "d": 1, "i": 5, "s": "1.500"}
        resources = '{"i": "integer", "b": "bigint"}'
        connection.execute("SELECT accum.register_create('whole', '{\"x\": \"int\"}', %s)", [resources])
        movement = "INSERT INTO accum.whole_movements (recorder, period, i, b) VALUES ('r', %s, %s, %s)"
        connection.execute(movement, ["2024-12-30", -(2**31), -(2**63)])
        assert value(connection, "SELECT accum.whole_balance(at_date := '2024-12-20')") == {"i": 0, "b": 0}
        for name in ("odd", "whole"):
            connection.execute("SELECT accum.register_drop(%s, force := true)", [name])


def test_a_date_is_the_whole_day_and_a_moment_is_itself(history: Connection) -> None:
    day = datetime(2024, 5, 17, tzinfo=UTC)
    everything = "SELECT (t->>'n')::bigint FROM accum.by_day_turnover(%s, %s) AS t"
    whole = value(history, everything, day, day)
    inside = "SELECT sum(n)::bigint FROM accum.by_day_movements WHERE period::date = '2024-05-17'"
    assert whole == value(history, inside)
    exact = value(history, everything, day.replace(hour=3), day.replace(hour=6))
    both = "SELECT sum(n)::bigint FROM accum.by_day_movements WHERE period IN ('2024-05-17 03:00', '2024-05-17 06:00')"
    assert exact == value(history, both)
    short = value(
        history, everything, day.replace(hour=3), day.replace(hour=5, minute=59, second=59, microsecond=999999)
    )
    assert short == value(history, "SELECT n FROM accum.by_day_movements WHERE period = '2024-05-17 03:00'")
