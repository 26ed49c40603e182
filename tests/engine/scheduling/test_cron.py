"""When a stream table with a cron schedule is due, by clocks that are made up."""

from __future__ import annotations

import math
from dataclasses import replace
from datetime import datetime
from zoneinfo import ZoneInfo

import pytest

from catalog.session import SqlError
from engine.scheduling.scheduler import _Pace
from engine.stream_tables.cron import check_schedule, next_time
from tests.catalog.test_graph import BASE, stream_table


def at(text: str, zone: str = "UTC") -> float:
    return datetime.fromisoformat(text).replace(tzinfo=ZoneInfo(zone)).timestamp()


@pytest.mark.parametrize(
    ("schedule", "zone", "after", "fires"),
    [
        ("@hourly", "UTC", "2026-01-01 10:00:00", "2026-01-01 11:00:00"),
        ("@hourly", "UTC", "2026-01-01 09:59:59", "2026-01-01 10:00:00"),
        ("@daily", "Europe/Berlin", "2026-03-28 12:00:00", "2026-03-29 00:00:00"),
        ("@weekly", "UTC", "2026-01-01 10:00:00", "2026-01-04 00:00:00"),
        ("@monthly", "UTC", "2026-01-01 10:00:00", "2026-02-01 00:00:00"),
        ("0 6 * * 1-5", "America/New_York", "2026-01-02 07:00:00", "2026-01-05 06:00:00"),
        ("*/15 * * * * *", "UTC", "2026-01-01 10:00:01", "2026-01-01 10:00:15"),
        # The hour that is skipped: what would have been in it comes when it is over.
        ("30 2 * * *", "Europe/Berlin", "2026-03-29 01:00:00", "2026-03-29 03:00:00"),
        ("0 0 29 2 *", "UTC", "2026-01-01 00:00:00", "2028-02-29 00:00:00"),
    ],
)
def test_next_time(schedule: str, zone: str, after: str, fires: str) -> None:
    assert next_time(schedule, zone, at(after, zone)) == at(fires, zone)


def test_what_is_no_cron_expression_is_left_alone() -> None:
    assert check_schedule("1h30m") == "1h30m"
    with pytest.raises(SqlError) as failure:
        check_schedule("0 0 31 4,6 *")
    assert failure.value.sqlstate == "22023"


def test_until_fire() -> None:
    table = replace(stream_table(1, BASE, cron="@hourly"), clock=at("2026-01-01 12:17:00"))
    pace = _Pace()
    assert pace.until_fire(table, at("2026-01-01 09:00:00")) == -8220.0
    assert pace.until_fire(table, table.clock) == 2580.0
    assert pace.until_fire(replace(table, cron="not cron"), table.clock) == math.inf
    assert pace.until_fire(replace(table, time_zone="Nowhere/Else"), table.clock) == math.inf
