"""Many who subscribe at once: one analysis and one snapshot serve them all, and none is as if it had come later."""

from __future__ import annotations

import asyncio

import pytest

from catalog.session import SqlError
from engine.session.pool import PooledSession
from engine.subscribe import Batch, RowOutput, Subscribe, feed, initial_snapshot
from engine.subscribe.coalescing import Coalescing
from engine.subscribe.initial_snapshot import SHARED, InitialSnapshot
from tests.engine.subscribe.subscription_laboratory import PATIENCE, Subscriber, Subscriptions, decoded


def test_result_is_of_work_that_began_after_it_was_asked_for() -> None:
    async def run() -> None:
        shared: Coalescing[str, int] = Coalescing()
        state, rounds, begun, going = 0, 0, asyncio.Event(), asyncio.Event()

        async def work() -> int:
            nonlocal rounds
            rounds += 1
            begun.set()
            found = state
            await going.wait()
            return found

        async def ask() -> int:
            return await shared.result("q", work)

        first = asyncio.create_task(ask())
        await begun.wait()
        state = 1
        later = [asyncio.create_task(ask()) for _ in range(100)]
        await asyncio.sleep(0)
        going.set()
        assert await first == 0
        assert await asyncio.gather(*later) == [1] * 100
        assert rounds == 2
        state = 2
        assert await ask() == 2

    asyncio.run(run())


def test_work_is_given_up_when_nobody_waits_and_goes_on_while_somebody_does() -> None:
    async def run() -> None:
        shared: Coalescing[str, int] = Coalescing()
        begun, given_up, going = asyncio.Event(), asyncio.Event(), asyncio.Event()

        async def work() -> int:
            begun.set()
            try:
                await going.wait()
            except asyncio.CancelledError:
                given_up.set()
                raise
            return 1

        async def three() -> list[asyncio.Task[int]]:
            asking = [asyncio.create_task(shared.result("q", work)) for _ in range(3)]
            await begun.wait()
            return asking

        asking = await three()
        for one in asking[:2]:
            one.cancel()
        await asyncio.wait(asking[:2])
        assert not given_up.is_set()
        asking[2].cancel()
        await given_up.wait()
        begun.clear()
        asking = await three()
        going.set()
        assert await asyncio.gather(*asking) == [1, 1, 1]

    asyncio.run(run())


def test_failure_is_told_to_all_and_not_kept() -> None:
    async def run() -> None:
        shared: Coalescing[str, int] = Coalescing()
        answers = [ValueError("wrong"), 7]

        async def work() -> int:
            answer = answers.pop(0)
            if isinstance(answer, ValueError):
                raise answer
            return answer

        found = await asyncio.gather(*(shared.result("q", work) for _ in range(3)), return_exceptions=True)
        assert [str(error) for error in found] == ["wrong"] * 3
        assert await shared.result("q", work) == 7

    asyncio.run(run())


def test_work_for_one_key_does_not_wait_for_another() -> None:
    async def run() -> None:
        shared: Coalescing[str, str] = Coalescing()

        async def never() -> str:
            await asyncio.Event().wait()
            return ""

        async def now() -> str:
            return "b"

        stuck = asyncio.create_task(shared.result("a", never))
        assert await shared.result("b", now) == "b"
        stuck.cancel()
        with pytest.raises(asyncio.CancelledError):
            await stuck

    asyncio.run(run())


def test_clients_who_come_together_are_served_by_one_session(
    subscriptions: Subscriptions, monkeypatch: pytest.MonkeyPatch
) -> None:
    lab = subscriptions
    acquired = 0
    acquire = InitialSnapshot.acquire

    async def counted(start: InitialSnapshot) -> PooledSession:
        nonlocal acquired
        acquired += 1
        return await acquire(start)

    monkeypatch.setattr(InitialSnapshot, "acquire", counted)

    async def run() -> None:
        await lab.run("CREATE TABLE crowded (a int)", "INSERT INTO crowded VALUES (1), (2)")
        clients = [await lab.connect() for _ in range(20)]
        asked = [Subscribe("TABLE crowded", snapshot=n % 2 == 0, settings={"search_path": "public"}) for n in range(20)]
        sessions = [PooledSession(client) for client in clients]
        prepared = await asyncio.gather(*(lab.hub.prepare(s, a) for s, a in zip(sessions, asked, strict=True)))
        feeds = await asyncio.gather(
            *(lab.hub.open(s, p, RowOutput()) for s, p in zip(sessions, prepared, strict=True))
        )
        assert 1 <= acquired < 20
        await lab.run("INSERT INTO crowded VALUES (3)")
        subscribers = [Subscriber(feed, tuple(c.name for c in prepared[0].columns)) for feed in feeds]
        for n, s in enumerate(subscribers):
            there = [("1", "1"), ("1", "2")] if n % 2 == 0 else []
            assert sorted(await s.until(len(there) + 1)) == [*there, ("1", "3")]
            await s.feed.close()
        for client in clients:
            await client.close()

    lab.do(run())


@pytest.mark.parametrize("shared", [SHARED, 1000])
def test_slow_reader_of_a_snapshot_holds_up_nobody_who_came_with_it(
    subscriptions: Subscriptions, monkeypatch: pytest.MonkeyPatch, shared: int
) -> None:
    lab = subscriptions
    monkeypatch.setattr(initial_snapshot, "SHARED", shared)
    monkeypatch.setattr(feed, "MOST_BYTES", 50_000)
    monkeypatch.setattr(feed, "STALL_SECONDS", 60.0)

    async def run() -> None:
        await lab.run(
            "CREATE TABLE IF NOT EXISTS broad (a int)",
            "TRUNCATE broad",
            "INSERT INTO broad SELECT generate_series(1, 50000)",
        )
        asked = Subscribe("TABLE broad", settings={"search_path": "public"})
        client = PooledSession(lab.client)
        prepared = await lab.hub.prepare(client, asked)
        others = [await lab.connect() for _ in range(5)]
        feeds = await asyncio.gather(*(lab.hub.open(PooledSession(c), prepared, RowOutput()) for c in others))
        await lab.run("INSERT INTO broad VALUES (0)")
        slow, leaving, *quick = (Subscriber(each, ()) for each in feeds)
        await slow.take()
        await leaving.feed.close()
        for rows in await asyncio.gather(*(s.until(50001) for s in quick)):
            assert sorted(int(a or 0) for _, a in rows) == list(range(50001))
        rows = await slow.until(50001)
        assert len(rows) == 50001 and rows[-1] == ("1", "0")
        for s in (slow, *quick):
            await s.feed.close()
        for other in others:
            await other.close()

    lab.do(run())


def test_what_comes_while_a_reader_waits_is_passed_on_in_order_and_kept_when_it_is_not_taken(
    subscriptions: Subscriptions,
) -> None:
    lab = subscriptions

    async def run() -> None:
        await lab.run("CREATE TABLE passed_on (a int)", "INSERT INTO passed_on VALUES (0)")
        s = await lab.subscribe("TABLE passed_on")
        await s.until(1)
        passed, taking, offered = Subscriber(s.feed, s.names), True, asyncio.Event()

        def pass_on(batch: Batch) -> bool:
            offered.set()
            if taking:
                passed.rows += decoded(batch)
            return taking

        async def insert(n: int) -> None:
            offered.clear()
            await lab.run(f"INSERT INTO passed_on VALUES ({n})")
            async with asyncio.timeout(PATIENCE):
                await offered.wait()

        waiting = asyncio.create_task(s.feed.next(PATIENCE, pass_on))
        await asyncio.sleep(0)
        await insert(1)
        await insert(2)
        assert not waiting.done()
        taking = False
        await insert(3)
        batch = await waiting
        assert batch is not None
        passed.rows += decoded(batch)
        taking = True
        assert [row[1:] for row in passed.rows] == [("1", "1"), ("1", "2"), ("1", "3")]
        # Nobody waits: what comes is kept, and comes before anything that is passed on.
        await lab.run("INSERT INTO passed_on VALUES (4)")
        await passed.until(4)
        assert passed.rows[3][1:] == ("1", "4")
        # The end, and a failure, end the wait.
        waiting = asyncio.create_task(s.feed.next(PATIENCE, pass_on))
        await asyncio.sleep(0)
        await lab.run("DROP TABLE passed_on")
        with pytest.raises(SqlError):
            await waiting
        await s.feed.close()

    lab.do(run())


def test_capture_that_two_end_at_once(subscriptions: Subscriptions) -> None:
    lab = subscriptions

    async def run() -> None:
        await lab.run("CREATE TABLE twice (a int)")
        s = await lab.subscribe("TABLE twice")
        relid = await lab.value("SELECT 'twice'::regclass::oid::bigint")
        first, second = await lab.connect(), await lab.connect()
        async with first.transaction():
            await first.execute(f"SELECT pgtrickle._drop_capture({relid})")
            other = asyncio.create_task(second.execute(f"SELECT pgtrickle._drop_capture({relid})"))
            waits = f"SELECT wait_event_type FROM pg_stat_activity WHERE pid = {second.get_server_pid()}"
            await lab.becomes(waits, "Lock")
        await other
        assert await lab.value(f"SELECT to_regclass('pgtrickle_changes.changes_{relid}')") is None
        await s.feed.close()
        await first.close()
        await second.close()

    lab.do(run())
