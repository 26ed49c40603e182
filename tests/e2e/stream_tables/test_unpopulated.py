"""`initialize => false`: nothing is computed from the empty table before it has been populated."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import psycopg
import pytest


def test_what_reads_one_that_is_not_populated_is_not_either(live_db: Any, eventually: Callable[..., Any]) -> None:
    live_db.run("CREATE TABLE o (id int PRIMARY KEY); INSERT INTO o SELECT generate_series(1, 4)")
    live_db.run("SELECT pgtrickle.gate_source('o')")  # keeps the scheduler from populating it
    live_db.create("below", "SELECT id FROM o", initialize=False, schedule="1s")
    live_db.create("above", "SELECT count(*) AS n FROM below", schedule="1s")
    assert (live_db.state("above")["status"], live_db.state("above")["is_populated"]) == ("INITIALIZING", False)
    with pytest.raises(psycopg.errors.ObjectNotInPrerequisiteState, match="not populated") as refused:
        live_db.refresh("above")
    assert "refresh_stream_table('public.below')" in str(refused.value.diag.message_hint)
    live_db.refresh("below")
    live_db.refresh("above")
    assert live_db.rows("SELECT n FROM above") == [(4,)]
    assert live_db.state("above")["status"] == "ACTIVE"


def test_the_scheduler_populates_both_in_their_order(live_db: Any, eventually: Callable[..., Any]) -> None:
    live_db.run("CREATE TABLE o (id int PRIMARY KEY); INSERT INTO o SELECT generate_series(1, 4)")
    live_db.run("SELECT pgtrickle.gate_source('o')")
    live_db.create("below", "SELECT id FROM o", initialize=False, schedule="1s")
    live_db.create("above", "SELECT count(*) AS n FROM below", schedule="1s")
    live_db.run("SELECT pgtrickle.ungate_source('o')")
    eventually(lambda: live_db.rows("SELECT n FROM above") == [(4,)])
    assert not live_db.rows("SELECT FROM pgtrickle.pgt_refresh_history WHERE status = 'FAILED'")
