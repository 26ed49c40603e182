"""A database with a history that goes elsewhere, where transaction ids, and OIDs, mean something else."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, closing

import psycopg
import pytest

from catalog.session import SqlError
from engine.subscribe import AsOf
from engine.subscribe.history import HistoryClock, note_now
from server.postgres.cluster import EmbeddedPostgres
from tests.clusters import new_database, started_cluster
from tests.engine.subscribe.subscription_laboratory import Subscriptions

CLOCK = "SELECT floor(extract(epoch FROM clock_timestamp()) * 1000) > {} + 1000"


async def noted(lab: Subscriptions) -> int:
    """A timestamp for what is committed now, after the history has been looked after."""
    async with lab.pool.session() as own:
        timestamp = await note_now(own)
        await HistoryClock(lab.pool)._advance(own)
    return timestamp


async def retain(lab: Subscriptions) -> None:
    async with lab.pool.session() as own, own.transaction("read_committed"):
        await own.fetch("SELECT pgtrickle._retain_history('public.t'::regclass, '1 hour')::text")
    await noted(lab)


async def rows_at(lab: Subscriptions, moment: int, *, at_least: bool = False) -> tuple[int, list[str | None]]:
    """When a subscription begins that asks for a time, and with which rows."""
    s = await lab.subscribe("TABLE t", as_of=AsOf(str(moment), at_least), progress=True)
    while sum(row[1] == "t" for row in s.rows) < 2:
        await s.take()
    await s.feed.close()
    begun = int(s.rows[0][0] or 0)
    return begun, sorted(row[3] or "" for row in s.rows if row[1] == "f" and int(row[0] or 0) == begun)


@pytest.fixture(params=["copied in its cluster", "restored in another cluster"])
def moved(
    request: pytest.FixtureRequest, cluster: EmbeddedPostgres, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Subscriptions, int]]:
    """A database made of one that had a history, and a time that this held."""
    with ExitStack() as stack:
        origin = stack.enter_context(new_database(cluster, "history"))
        dump = b""
        with closing(Subscriptions(cluster, origin)) as lab:
            held = lab.do(filled(lab))
            if "another" in request.param:  # while somebody subscribes
                feed = lab.do(lab.subscribe("TABLE t")).feed
                dump = subprocess.run(
                    [cluster.bin_dir / "pg_dump", cluster.dsn(origin)], check=True, capture_output=True
                ).stdout
                lab.do(feed.close())
        if dump:
            other = stack.enter_context(started_cluster(tmp_path_factory.mktemp("other") / "data"))
            with psycopg.connect(other.dsn(), autocommit=True) as admin:
                admin.execute("CREATE DATABASE history_moved")
            command = [other.psql, "-Xq", "-v", "ON_ERROR_STOP=1", other.dsn("history_moved")]
            subprocess.run(command, input=dump, check=True, stdout=subprocess.DEVNULL)
            lab = Subscriptions(other, "history_moved")
        else:
            lab = Subscriptions(cluster, stack.enter_context(new_database(cluster, "history", template=origin)))
        with closing(lab):
            yield lab, held


async def filled(lab: Subscriptions) -> int:
    await lab.run("CREATE TABLE t (a int)", "INSERT INTO t VALUES (1)")
    await retain(lab)
    held = await noted(lab)
    await lab.run("INSERT INTO t VALUES (2)")
    await noted(lab)
    await lab.becomes(CLOCK.format(held), True)  # later it would mean now
    assert await rows_at(lab, held) == (held, ["1"])
    return held


@pytest.mark.one_in(2)
def test_history_is_void_elsewhere_and_begins_anew(moved: tuple[Subscriptions, int]) -> None:
    lab, before = moved

    async def run() -> None:
        with pytest.raises(SqlError) as error:
            await rows_at(lab, before)
        assert error.value.sqlstate == "22023"
        assert await lab.value("SELECT count(*) FROM pgtrickle.history_status()") == 0
        begun, rows = await rows_at(lab, before, at_least=True)
        assert begun > before and rows == ["1", "2"]
        now = await noted(lab)
        assert now > begun
        assert await lab.value("SELECT count(*) FROM pgtrickle.pgt_history") == 0
        await retain(lab)
        held = await noted(lab)
        await lab.run("INSERT INTO t VALUES (3)")
        await noted(lab)
        await lab.becomes(CLOCK.format(held), True)
        assert await rows_at(lab, held) == (held, ["1", "2"])
        with pytest.raises(SqlError) as error:
            await rows_at(lab, before)
        assert error.value.sqlstate == "22023"

    lab.do(run())


@pytest.mark.one_in(2)
def test_history_that_is_asked_for_again_elsewhere_begins_anew(moved: tuple[Subscriptions, int]) -> None:
    lab, before = moved

    async def run() -> None:
        await retain(lab)  # before anybody has looked at what came with the database
        await noted(lab)
        with pytest.raises(SqlError) as error:
            await rows_at(lab, before)
        assert error.value.sqlstate == "22023"
        held = await noted(lab)
        await lab.run("DELETE FROM t")
        await noted(lab)
        await lab.becomes(CLOCK.format(held), True)
        assert await rows_at(lab, held) == (held, ["1", "2"])

    lab.do(run())
