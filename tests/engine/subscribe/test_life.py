"""What happens to subscriptions: definitions, TRUNCATE and DROP of what they read, their end, other servers."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from structlog.testing import capture_logs

from engine.session.pool import PooledSession
from engine.subscribe import AsOf
from engine.subscribe.evaluation import Evaluation
from tests.engine.subscribe.subscription_laboratory import PATIENCE, Row, Subscriptions, ended

LOSE_CONNECTION = "SELECT count(pg_terminate_backend(pid)) FROM pgtrickle.pgt_leases WHERE name LIKE 'subscriptions %'"
"""Ends the connection by which a hub moves subscriptions on."""


@pytest.mark.parametrize(
    "change",
    [
        "BEGIN; ALTER TABLE seen RENAME a TO c; ALTER TABLE seen RENAME b TO a; ALTER TABLE seen RENAME c TO b; COMMIT",
        "BEGIN; ALTER TABLE seen DROP b CASCADE; ALTER TABLE seen ADD b int DEFAULT 7; COMMIT",
        "ALTER TABLE seen ALTER a TYPE int USING a * 10",
        "BEGIN; SAVEPOINT s; ALTER TABLE seen ALTER a TYPE int USING a * 10; COMMIT",
        "BEGIN; ALTER TABLE seen RENAME TO kept; CREATE TABLE seen (LIKE kept); COMMIT",
        "ALTER TYPE pair ADD ATTRIBUTE z int",
        "ALTER VIEW seen_by SET (security_invoker)",
        "ALTER VIEW seen_by OWNER TO pg_monitor",
    ],
)
@pytest.mark.one_in(2)
def test_what_is_read_has_become_another_thing(subscriptions: Subscriptions, change: str) -> None:
    """Its names and types may be the same, but not what was captured of it."""
    lab = subscriptions

    async def run() -> None:
        await lab.run(
            "DROP TABLE IF EXISTS seen, kept CASCADE; DROP TYPE IF EXISTS pair CASCADE",
            "CREATE TYPE pair AS (x int, y int); CREATE TABLE seen (a int, b int, p pair)",
            "INSERT INTO seen VALUES (1, 2, (3, 4))",
        )
        if "VIEW" in change:
            await lab.run("CREATE VIEW seen_by AS SELECT a, p FROM seen")
        s = await lab.subscribe("TABLE seen_by" if "VIEW" in change else "TABLE seen")
        await s.until(1)
        then = int(s.rows[0][0] or 0)
        await lab.run(change)
        await lab.run("INSERT INTO seen (a) VALUES (5)")
        error = await ended(s)
        assert error.sqlstate == "55000"
        assert [row[0] for row in s.rows] == [str(then)]

    lab.do(run())


def test_truncate_is_deletions(subscriptions: Subscriptions) -> None:
    lab = subscriptions

    async def run() -> None:
        await lab.run("CREATE TABLE emptied (a int, g int GENERATED ALWAYS AS (a * 2) STORED)")
        await lab.run("INSERT INTO emptied VALUES (1), (2), (2)")
        s, total = await lab.subscribe("TABLE emptied"), await lab.subscribe("SELECT sum(a) AS s FROM emptied")
        assert sorted(await s.until(2)) == [("1", "1", "2"), ("2", "2", "4")]
        assert await total.until(1) == [("1", "5")]
        await lab.run("BEGIN; INSERT INTO emptied VALUES (3); TRUNCATE emptied; INSERT INTO emptied VALUES (4); COMMIT")
        assert sorted((await s.until(5))[2:]) == [("-1", "1", "2"), ("-2", "2", "4"), ("1", "4", "8")]
        assert sorted((await total.until(3))[1:]) == [("-1", "5"), ("1", "4")]
        await s.feed.close()
        await total.feed.close()

    lab.do(run())


def test_partitioned_tables(subscriptions: Subscriptions) -> None:
    lab = subscriptions

    async def run() -> None:
        await lab.run(
            "CREATE TABLE parted (a int, b text) PARTITION BY RANGE (a)",
            "CREATE TABLE parted_1 PARTITION OF parted FOR VALUES FROM (0) TO (10)",
            "CREATE TABLE parted_2 (b text, a int)",
            "ALTER TABLE parted ATTACH PARTITION parted_2 FOR VALUES FROM (10) TO (20)",
        )
        s = await lab.subscribe("TABLE parted")
        await lab.run("INSERT INTO parted VALUES (1, 'x'), (11, 'y')", "INSERT INTO parted_2 VALUES ('z', 12)")
        assert sorted(await s.until(3)) == [("1", "1", "x"), ("1", "11", "y"), ("1", "12", "z")]
        await lab.run("UPDATE parted SET a = 13 WHERE a = 1")
        assert sorted((await s.until(5))[3:]) == [("-1", "1", "x"), ("1", "13", "x")]
        await lab.run("TRUNCATE parted_2")
        assert sorted((await s.until(8))[5:]) == [("-1", "11", "y"), ("-1", "12", "z"), ("-1", "13", "x")]
        await lab.run("INSERT INTO parted VALUES (2, 'p'), (14, 'q')")
        await s.until(10)
        await lab.run("TRUNCATE parted")
        assert sorted((await s.until(12))[10:]) == [("-1", "14", "q"), ("-1", "2", "p")]
        await lab.run("CREATE TABLE parted_3 PARTITION OF parted FOR VALUES FROM (20) TO (30)")
        error = await ended(s)
        assert error.sqlstate == "55000" and "partitions" in error.message

    lab.do(run())


@pytest.mark.parametrize(
    ("statement", "sqlstate"),
    [
        ("ALTER TABLE {t} DROP COLUMN b", "55000"),
        ("ALTER TABLE {t} ALTER COLUMN b TYPE bigint", "55000"),
        ("ALTER TABLE {t} RENAME COLUMN b TO c", "55000"),
        ("DROP TABLE {t}", "55000"),
        ("ALTER TABLE {t} DISABLE TRIGGER ALL", "55000"),
    ],
)
@pytest.mark.one_in(2)
def test_change_of_what_is_read_ends_the_subscription(
    subscriptions: Subscriptions, statement: str, sqlstate: str
) -> None:
    lab = subscriptions

    async def run() -> None:
        await lab.run(
            "DROP TABLE IF EXISTS altered", "CREATE TABLE altered (a int, b int)", "INSERT INTO altered VALUES (1, 2)"
        )
        s = await lab.subscribe("TABLE altered")
        await s.until(1)
        await lab.run(statement.format(t="altered"))
        error = await ended(s)
        assert error.sqlstate == sqlstate and error.hint == "Subscribe again."
        assert len(s.rows) == 1

    lab.do(run())


def test_columns_that_are_not_read_do_not_matter(subscriptions: Subscriptions) -> None:
    lab = subscriptions

    async def run() -> None:
        await lab.run("CREATE TABLE wide (a int, b int)", "INSERT INTO wide VALUES (1, 2)")
        s = await lab.subscribe("SELECT a FROM wide")
        await lab.run("ALTER TABLE wide DROP COLUMN b, ADD COLUMN c text", "INSERT INTO wide VALUES (2)")
        assert await s.until(2) == [("1", "1"), ("1", "2")]
        await s.feed.close()

    lab.do(run())


def test_changed_view_or_function_ends_the_subscription(subscriptions: Subscriptions) -> None:
    lab = subscriptions

    async def run() -> None:
        await lab.run("CREATE TABLE under (a int)", "CREATE VIEW over AS SELECT a FROM under")
        await lab.run("CREATE FUNCTION twice(int) RETURNS int IMMUTABLE LANGUAGE sql AS 'SELECT $1 * 2'")
        s, f = await lab.subscribe("TABLE over"), await lab.subscribe("SELECT twice(a) AS t FROM under")
        await lab.run("CREATE OR REPLACE VIEW over AS SELECT a + 1 AS a FROM under")
        assert (await ended(s)).sqlstate == "55000"
        await lab.run("CREATE OR REPLACE FUNCTION twice(int) RETURNS int IMMUTABLE LANGUAGE sql AS 'SELECT $1 * 3'")
        assert (await ended(f)).sqlstate == "55000"

    lab.do(run())


def test_capture_begins_with_the_first_subscription_and_ends_with_the_last(subscriptions: Subscriptions) -> None:
    lab = subscriptions

    async def run() -> None:
        await lab.run("CREATE TABLE caught (a int)")
        triggers = "SELECT count(*) FROM pg_trigger WHERE tgrelid = 'caught'::regclass"
        assert await lab.value(triggers) == 0
        first, second = await lab.subscribe("TABLE caught"), await lab.subscribe("SELECT a + 1 AS b FROM caught")
        assert await lab.value(triggers) == 5
        await first.feed.close()
        await lab.run("INSERT INTO caught VALUES (1)")
        assert await second.until(1) == [("1", "2")]
        await second.feed.close()
        await lab.becomes(triggers, 0)
        await lab.becomes("SELECT count(*) FROM pgtrickle.pgt_captures k WHERE k.source_relid = 'caught'::regclass", 0)

    lab.do(run())


def test_changes_are_removed_when_they_have_been_read_and_not_before(subscriptions: Subscriptions) -> None:
    lab = subscriptions

    async def run() -> None:
        async def emptied(oid: int) -> None:
            deadline = asyncio.get_running_loop().time() + PATIENCE
            while await lab.value(f"SELECT count(*) FROM pgtrickle_changes.changes_{oid}"):
                assert asyncio.get_running_loop().time() < deadline
                await lab.value("SELECT pgtrickle._cleanup_buffers()")
                await asyncio.sleep(0.05)

        await lab.run("DROP TABLE IF EXISTS kept CASCADE; CREATE TABLE kept (a int)")
        s = await lab.subscribe("TABLE kept")
        oid = await lab.value("SELECT 'kept'::regclass::oid::bigint")
        other = await lab.connect()
        await other.execute("BEGIN; INSERT INTO kept VALUES (1)")
        await lab.run("INSERT INTO kept VALUES (2)")
        assert await s.until(1) == [("1", "2")]
        await emptied(oid)
        await other.execute("COMMIT")
        await lab.value("SELECT pgtrickle._cleanup_buffers()")
        assert (await s.until(2))[1:] == [("1", "1")]
        await emptied(oid)
        await other.close()
        await s.feed.close()

    lab.do(run())


def test_two_servers_share_one_timeline_and_a_dead_one_is_cleaned_up(subscriptions: Subscriptions) -> None:
    lab = subscriptions

    async def run() -> None:
        await lab.run("CREATE TABLE twice_read (a int)")
        hub = lab.another_hub()
        here, there = await lab.subscribe("TABLE twice_read"), await lab.subscribe("TABLE twice_read", hub=hub)
        for n in range(4):
            await lab.run(f"INSERT INTO twice_read VALUES ({n})")
            hub.committed()
            await here.until(n + 1)
            await there.until(n + 1)
        assert here.folded() == there.folded()
        servers = "SELECT count(*) FROM pgtrickle.pgt_subscription_servers WHERE server > 0"
        assert await lab.value(servers) == 2
        await hub.close()
        assert (await ended(there)).sqlstate == "57P01"
        await lab.becomes(
            "SELECT pgtrickle._remove_lost_subscriptions() < 0 OR count(*) = 1 FROM pgtrickle.pgt_subscription_servers"
            " WHERE server > 0",
            True,
        )
        await lab.run("INSERT INTO twice_read VALUES (9)")
        assert (await here.until(5))[4:] == [("1", "9")]
        await here.feed.close()

    lab.do(run())


def test_lost_connection_is_made_again_and_nothing_is_missed(subscriptions: Subscriptions) -> None:
    lab = subscriptions

    async def run() -> None:
        await lab.run("CREATE TABLE cut (a int)")
        s = await lab.subscribe("TABLE cut")
        await lab.run("INSERT INTO cut VALUES (1)")
        await s.until(1)
        await lab.value(LOSE_CONNECTION)
        await lab.run("INSERT INTO cut VALUES (2)")
        assert await s.until(2) == [("1", "1"), ("1", "2")]
        await s.feed.close()

    lab.do(run())


def test_who_comes_while_the_connection_is_lost_waits_for_another(subscriptions: Subscriptions) -> None:
    lab = subscriptions

    async def run() -> None:
        await lab.run("CREATE TABLE cut_early (a int)", "INSERT INTO cut_early VALUES (1)")
        hub = lab.another_hub()
        first = await lab.subscribe("TABLE cut_early", hub=hub)
        await first.until(1)
        await lab.value(LOSE_CONNECTION)
        second = await lab.subscribe("SELECT a + 1 AS b FROM cut_early", hub=hub)
        assert await second.until(1) == [("1", "2")]
        await lab.run("INSERT INTO cut_early VALUES (2)")
        hub.committed()
        assert await first.until(2) == [("1", "1"), ("1", "2")]
        await hub.close()

    lab.do(run())


def test_snapshot_of_the_past_whose_connection_is_lost_is_begun_again(
    subscriptions: Subscriptions, monkeypatch: pytest.MonkeyPatch
) -> None:
    lab = subscriptions
    holds, to_be_lost = Evaluation.holds, True

    async def lose_and_hold(evaluation: Evaluation, session: PooledSession) -> bool:
        nonlocal to_be_lost
        if to_be_lost:
            to_be_lost = False
            session._connection.terminate()
        return await holds(evaluation, session)

    async def run() -> None:
        await lab.run("CREATE TABLE cut_past (a int)", "INSERT INTO cut_past VALUES (1)")
        monkeypatch.setattr(Evaluation, "holds", lose_and_hold)
        async with asyncio.timeout(PATIENCE):
            s = await lab.subscribe("TABLE cut_past", as_of=AsOf("now()", at_least=True))
        assert await s.until(1) == [("1", "1")]
        assert not to_be_lost
        await s.feed.close()

    lab.do(run())


def test_what_a_crash_has_made_postgresql_forget_is_noticed_without_subscriptions(subscriptions: Subscriptions) -> None:
    lab = subscriptions

    async def run() -> None:
        await lab.run("CREATE TABLE forgotten (a int)", "INSERT INTO forgotten VALUES (1)")
        hub = lab.another_hub()
        before = await lab.subscribe("TABLE forgotten", hub=hub)
        await before.until(1)
        await before.feed.close()
        await lab.becomes("SELECT count(*) FROM pgtrickle.pgt_subscriptions", 0)
        await lab.run("DELETE FROM pgtrickle.pgt_subscription_servers WHERE server > 0")  # they are unlogged
        after = await lab.subscribe("TABLE forgotten", hub=hub)
        assert await after.until(1) == [("1", "1")]
        await hub.close()

    lab.do(run())


def test_connection_lost_at_the_end_of_a_tick_takes_nothing_back(
    subscriptions: Subscriptions, monkeypatch: pytest.MonkeyPatch
) -> None:
    lab = subscriptions
    given, to_be_lost = Evaluation.changes, True

    async def give_and_lose(evaluation: Evaluation, session: Any, *args: Any, **named: Any) -> bool:
        nonlocal to_be_lost
        found = await given(evaluation, session, *args, **named)
        if found and to_be_lost:
            to_be_lost = False
            other = await lab.connect()
            await other.execute(LOSE_CONNECTION)
            await other.close()
        return found

    async def run() -> None:
        await lab.run("CREATE TABLE cut_late (a int)")
        s = await lab.subscribe("TABLE cut_late", progress=True)

        async def changes(count: int) -> list[Row]:
            while len(found := [row[2:] for row in s.rows if row[1] == "f"]) < count:
                await s.take()
            return found

        monkeypatch.setattr(Evaluation, "changes", give_and_lose)
        await lab.run("INSERT INTO cut_late VALUES (1)")
        await changes(1)
        await lab.run("INSERT INTO cut_late VALUES (2)")
        assert await changes(2) == [("1", "1"), ("1", "2")]
        assert not to_be_lost
        times = [int(row[0] or 0) for row in s.rows]
        assert times == sorted(times)
        await s.feed.close()

    lab.do(run())


def test_client_that_does_not_read_is_dropped_and_others_go_on(
    subscriptions: Subscriptions, monkeypatch: pytest.MonkeyPatch
) -> None:
    lab = subscriptions
    monkeypatch.setattr("engine.subscribe.feed.MOST_BYTES", 200_000)
    monkeypatch.setattr("engine.subscribe.evaluation.SLOW_SECONDS", 0.2)

    async def run(logs: list[Any]) -> None:
        await lab.run("CREATE TABLE much (a int, b text)")
        lazy, keen = await lab.subscribe("TABLE much"), await lab.subscribe("SELECT a FROM much")
        for n in range(8):
            await lab.run(f"INSERT INTO much SELECT {n}, repeat('x', 1000) FROM generate_series(1, 100) AS g")
            await lab.run(
                f"INSERT INTO much SELECT 1000 * {n} + g, repeat('x', 1000) FROM generate_series(1, 100) AS g"
            )
            await keen.until(101 * (n + 1))
        assert (await ended(lazy)).sqlstate == "53400"
        await keen.feed.close()
        (told,) = [line for line in logs if line["event"] == "subscriber reads too slowly and is ended"]
        assert "much" in told["query"] and told["role"] and told["waiting_bytes"] > 200_000

    with capture_logs() as logs:
        lab.do(run(logs))


def test_snapshot_larger_than_what_may_wait_is_read_to_its_end(
    subscriptions: Subscriptions, monkeypatch: pytest.MonkeyPatch
) -> None:
    lab = subscriptions
    monkeypatch.setattr("engine.subscribe.feed.MOST_BYTES", 100_000)

    async def run() -> None:
        await lab.run("CREATE TABLE large (a int PRIMARY KEY, b text)")
        await lab.run("INSERT INTO large SELECT g, repeat('y', 100) FROM generate_series(1, 20000) AS g")
        s = await lab.subscribe("TABLE large")
        await lab.run("DELETE FROM large WHERE a <= 1000")
        await s.until(21000)
        assert len(s.folded()) == 19000
        assert {row[0] for row in s.rows[:20000]} == {s.rows[0][0]}
        await s.feed.close()

    lab.do(run())


def test_stream_tables_and_their_sources_together(subscriptions: Subscriptions) -> None:
    lab = subscriptions

    async def run() -> None:
        await lab.run("CREATE TABLE src (g int, v int)", "INSERT INTO src VALUES (1, 1), (1, 2), (2, 5)")
        from catalog.values import Initiator
        from engine.refresh.executor_choice import NoSpark
        from engine.requests import requests
        from engine.requests.requests import Request

        async with lab.pool.session() as own:
            async with own.transaction("read_committed"):
                arguments = {"name": "sums", "query": "SELECT g, sum(v) AS s FROM src GROUP BY g", "schedule": "1h"}
                request = Request(0, "create", arguments, "public", "postgres")
                created = await requests.carry_out(own, request, NoSpark("not here"), in_two_steps=True)
            assert created is not None
            async with own.transaction():
                await requests.refresh_now(own, created, Initiator.INITIAL, NoSpark("not here"))
        s, source = await lab.subscribe("TABLE sums"), await lab.subscribe("TABLE src")
        assert s.names == ("mz_timestamp", "mz_diff", "g", "s")
        assert sorted(await s.until(2)) == [("1", "1", "3"), ("1", "2", "5")]
        await lab.run("INSERT INTO src VALUES (2, 1)")
        await source.until(4)
        await lab.value("SELECT pgtrickle._cleanup_buffers()")
        async with lab.pool.session() as own, own.transaction():
            outcome = await requests.refresh_now(own, created, Initiator.MANUAL, NoSpark("not here"))
        assert (outcome.action, outcome.updated) == ("DIFFERENTIAL", 1)
        lab.hub.committed()
        assert sorted((await s.until(4))[2:]) == [("-1", "2", "5"), ("1", "2", "6")]
        await s.feed.close()
        await source.feed.close()

    lab.do(run())


def test_cleanup_waits_for_no_lock_and_does_the_others(subscriptions: Subscriptions) -> None:
    lab = subscriptions

    async def run() -> None:
        for name in ("held", "free"):
            await lab.run(f"CREATE TABLE {name} (a int)")
            s = await lab.subscribe(f"TABLE {name}")
            await lab.run(f"INSERT INTO {name} VALUES (1)")
            await s.until(1)
        ending, other = await lab.connect(), await lab.connect()
        await other.execute("SET statement_timeout = '60s'")
        held, free = [await lab.value(f"SELECT '{name}'::regclass::oid::bigint") for name in ("held", "free")]

        async def cleaned(relid: int) -> None:
            """Clean up until nothing is left of a table's changes: first it must be known how far all have read."""
            async with asyncio.timeout(PATIENCE):
                while await lab.value(f"SELECT EXISTS (SELECT FROM pgtrickle_changes.changes_{relid})"):
                    await other.fetchval("SELECT pgtrickle._cleanup_buffers()")
                    await asyncio.sleep(0.05)

        transaction = ending.transaction()
        await transaction.start()
        await ending.execute(f"SELECT pgtrickle._drop_capture({held})")
        await cleaned(free)
        await transaction.rollback()
        await cleaned(held)
        await ending.close()
        await other.close()

    lab.do(run())


def test_what_was_evaluated_for_those_who_have_gone_takes_back_nobody_who_came_later(
    subscriptions: Subscriptions,
) -> None:
    lab = subscriptions

    async def run() -> None:
        await lab.run("CREATE TABLE later (a int)", "INSERT INTO later VALUES (1)")
        s = await lab.subscribe("TABLE later")
        await s.until(1)
        (evaluation,) = (e for e in lab.hub._ticker.evaluations.values() if s.feed in e.feeds)
        at = evaluation.timestamp, evaluation.frontier
        evaluation.has_moved(at[0] - 1, "1:1:")
        assert (evaluation.timestamp, evaluation.frontier) == at
        await s.feed.close()

    lab.do(run())
