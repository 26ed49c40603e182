"""Cron schedules: a stream table is refreshed when the time comes, and not before."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import psycopg
import pytest

from tests.e2e.conftest import Database

Eventually = Callable[..., Any]
EVERY_TWO_SECONDS = "*/2 * * * * *"


@pytest.fixture
def live_db(emptied_live_db: Database) -> Database:
    return emptied_live_db


@pytest.fixture(autouse=True)
def source(live_db: Database) -> None:
    live_db.run("CREATE TABLE t (id int PRIMARY KEY, v int); INSERT INTO t SELECT n, n FROM generate_series(1, 10) n")


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        ("*/5 * * * *", "*/5 * * * *"),
        ("0 */5 * * * *", "0 */5 * * * *"),
        (" 0  6 * * 1-5 ", "0 6 * * 1-5"),
        ("0 0 L * MON", "0 0 L * MON"),
        ("@Hourly", "@hourly"),
        *((alias, alias) for alias in ("@daily", "@weekly", "@monthly", "@yearly")),
    ],
)
@pytest.mark.one_in(2)
def test_what_cron_can_say(live_db: Database, given: str, kept: str) -> None:
    live_db.create("total", "SELECT sum(v) AS s FROM t", schedule=given)
    assert live_db.state("total")["schedule"] == kept
    assert live_db.rows("SELECT stale, schedule FROM pgtrickle.stream_tables_info WHERE pgt_name = 'total'") == [
        (None, kept)
    ]


@pytest.mark.parametrize(
    ("schedule", "detail"),
    [
        ("61 * * * *", "Bad minute."),
        ("* 24 * * *", "Bad hour."),
        ("* * 0 * *", "Bad day-of-month."),
        ("* * * JUX *", "Bad month."),
        ("* * * * 9", "Bad day-of-week."),
        ("0 0 30 2 *", "Bad day-of-month."),
        ("*/0 * * * *", "Bad minute."),
        ("@often", None),
        ("* * *", None),
        ("* * * * * * *", None),
        ("? * * * *", None),
    ],
)
@pytest.mark.one_in(3)
def test_nonsense_is_refused(live_db: Database, schedule: str, detail: str | None) -> None:
    live_db.create("kept", "SELECT sum(v) AS s FROM t", schedule="1h")
    for call in (
        "create_stream_table('total', 'SELECT sum(v) AS s FROM t', %s)",
        "alter_stream_table('kept', schedule => %s)",
    ):
        with pytest.raises(psycopg.Error) as failure:
            live_db.run(f"SELECT pgtrickle.{call}", schedule)
        assert (failure.value.sqlstate, failure.value.diag.message_primary) == (
            "22023",
            f'invalid schedule "{schedule}"',
        )
        assert failure.value.diag.message_detail == detail
        assert failure.value.diag.message_hint
    assert live_db.state("kept")["schedule"] == "1h"
    assert live_db.value("SELECT to_regclass('total')") is None


def test_it_is_refreshed_at_these_times_only(live_db: Database, eventually: Eventually) -> None:
    live_db.create("even", "SELECT count(*) AS n, max(v) AS v FROM t", schedule=EVERY_TWO_SECONDS)
    live_db.create("yearly", "SELECT count(*) AS n FROM t", schedule="@yearly")
    live_db.create("below", "SELECT n + 1 AS n FROM even", schedule="1s")
    for number in range(3):
        live_db.run("INSERT INTO t VALUES (%s, 100)", 100 + number)
        eventually(lambda number=number: live_db.value("SELECT n FROM below") == 12 + number)
    refreshes = live_db.rows(
        "SELECT extract(epoch FROM data_timestamp)::float8 FROM pgtrickle.pgt_refresh_history"
        " WHERE pgt_id = pgtrickle._resolve('even') AND initiated_by = 'SCHEDULER' AND action = 'DIFFERENTIAL'"
    )
    assert len(refreshes) == 3
    # It fires at even seconds. A refresh takes a moment to begin; where it began in an odd second it was held up.
    assert any(at % 2 < 1 for (at,) in refreshes)
    assert live_db.value("SELECT n FROM yearly") == 10
    assert (
        live_db.value("SELECT count(*) FROM pgtrickle.pgt_refresh_history WHERE pgt_id = pgtrickle._resolve('yearly')")
        == 1
    )


def test_upstream_of_cron_alone_keeps_the_default(live_db: Database, eventually: Eventually) -> None:
    live_db.create("upstream", "SELECT count(*) AS n FROM t")
    live_db.create("yearly", "SELECT n FROM upstream", schedule="@yearly")
    live_db.run("INSERT INTO t VALUES (100, 1)")
    eventually(lambda: live_db.value("SELECT n FROM upstream") == 11)
    assert live_db.value("SELECT n FROM yearly") == 10


def test_schedule_is_changed_between_cron_and_durations(live_db: Database, eventually: Eventually) -> None:
    live_db.create("total", "SELECT count(*) AS n FROM t", schedule="@yearly")
    live_db.run("INSERT INTO t VALUES (100, 1)")
    live_db.run("SELECT pgtrickle.alter_stream_table('total', schedule => %s)", EVERY_TWO_SECONDS)
    eventually(lambda: live_db.value("SELECT n FROM total") == 11)
    live_db.run("SELECT pgtrickle.alter_stream_table('total', schedule => '1s')")
    live_db.run("INSERT INTO t VALUES (101, 1)")
    eventually(lambda: live_db.value("SELECT n FROM total") == 12)
