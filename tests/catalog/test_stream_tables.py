"""Whether the list of stream tables would tell anything new is known without reading it."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from catalog.session import SqlSession
from catalog.stream_tables import StreamTable, stream_tables, version_of_stream_tables
from tests.catalog.conftest import Engine

CHANGES = [
    "UPDATE pgtrickle.pgt_stream_tables SET needs_reinit = true WHERE pgt_name = 'st'",
    "UPDATE pgtrickle.pgt_stream_tables SET schedule = '5s' WHERE pgt_name = 'st'",
    "UPDATE pgtrickle.pgt_dependencies SET cdc_mode = NULL",
    "INSERT INTO pgtrickle.pgt_refresh_groups (group_name, member_oids, member_ids)"
    " SELECT 'g', array_agg(pgt_relid), array_agg(pgt_id) FROM pgtrickle.pgt_definitions",
    "DROP TABLE other",
    "SET pg_trickle.default_schedule_seconds = 7",
    "SET TimeZone = 'Asia/Tokyo'",
]


@pytest.fixture
def tables(engine: Engine) -> Engine:
    engine.connection.execute("CREATE TABLE t (id int PRIMARY KEY)")
    for name in ("st", "other"):
        engine.refresh(engine.create(name, t=["id"]))
    return engine


def session(engine: Engine) -> SqlSession:
    async def fetch(query: str) -> list[tuple[Any, ...]]:
        return engine.connection.execute(query.encode()).fetchall()

    return cast(SqlSession, SimpleNamespace(fetch=fetch))


def version(engine: Engine) -> str | None:
    return asyncio.run(version_of_stream_tables(session(engine)))


def known(engine: Engine) -> list[StreamTable]:
    """What is listed, times apart."""
    listed = asyncio.run(stream_tables(session(engine)))
    return [replace(each, age_seconds=0.0, staleness=None, clock=0.0) for each in listed]


@pytest.mark.parametrize("change", CHANGES)
def test_each_change_makes_another_version(tables: Engine, change: str) -> None:
    before, listed = version(tables), known(tables)
    assert version(tables) == before is not None
    tables.connection.execute(change.encode())
    assert version(tables) not in (None, before)
    assert known(tables) != listed


def test_what_holds_back_may_let_go_at_any_time(tables: Engine) -> None:
    tables.connection.execute(
        "INSERT INTO pgtrickle.pgt_source_gates (source_relid, gated, gated_at, gated_by)"
        " VALUES ('t'::regclass, true, now(), 'gate_source')"
    )
    assert version(tables) is None
