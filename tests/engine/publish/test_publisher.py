"""Which publications are written when."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from catalog.session import SqlSession
from engine.publish import publisher
from engine.publish.publications import Publication
from engine.publish.publisher import Publisher
from engine.session.pool import DatabasePool

NEW = Publication(
    1,
    1,
    1,
    "public",
    "totals",
    "delta",
    "/lake/totals",
    "g",
    0,
    -1,
    frontier=None,
    obstacle=None,
    is_overdue=False,
    has_failed=False,
)


class Writing(Publisher):
    """Has each attempt wait until it is let go, and tells of the record that it began with."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.begun: list[Publication] = []
        self.let_go = asyncio.Event()

    async def _write(self, publication: Publication) -> None:
        self.begun.append(publication)
        await self.let_go.wait()


async def test_what_was_read_while_an_attempt_ended_begins_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """It says that nothing is published: all rows would be published once more."""
    writing = Writing(cast(DatabasePool, SimpleNamespace(database="d")))
    stored = NEW

    async def read(session: SqlSession) -> list[Publication]:
        found = stored
        if writing.begun:  # the attempt ends while the answer is on its way
            writing.let_go.set()
            await asyncio.gather(*writing._running.values())
            await asyncio.sleep(0)
            assert not writing._running
        return [found]

    monkeypatch.setattr(publisher, "publications", read)
    session = cast(Any, None)
    assert not await writing._look(session)
    await asyncio.sleep(0)
    assert not await writing._look(session)
    await asyncio.sleep(0)
    assert writing.begun == [NEW]
    stored = replace(NEW, followed=7, version=0, frontier="1:1:")
    assert not await writing._look(session)
    await asyncio.sleep(0)
    assert writing.begun == [NEW, stored]
