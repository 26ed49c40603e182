"""Subscriptions as the hub evaluates them: rows, timestamps, envelopes, bounds and formats."""

from __future__ import annotations

import asyncio
from contextlib import suppress

import pytest

from catalog.session import SqlError
from engine.subscribe import AsOf, CopyOutput, RowOutput
from tests.engine.subscribe.subscription_laboratory import PATIENCE, Subscriptions


def test_snapshot_then_changes(subscriptions: Subscriptions) -> None:
    lab = subscriptions

    async def run() -> None:
        await lab.run("CREATE TABLE t (a int PRIMARY KEY, b text)", "INSERT INTO t VALUES (1, 'one'), (2, NULL)")
        s = await lab.subscribe("TABLE t")
        assert s.names == ("mz_timestamp", "mz_diff", "a", "b")
        assert sorted(await s.until(2), key=str) == [("1", "1", "one"), ("1", "2", None)]
        await lab.run("INSERT INTO t VALUES (3, 'three')")
        assert (await s.until(3))[2:] == [("1", "3", "three")]
        await lab.run("UPDATE t SET b = 'two' WHERE a = 2", "DELETE FROM t WHERE a = 1")
        assert sorted((await s.until(6))[3:], key=str) == [("-1", "1", "one"), ("-1", "2", None), ("1", "2", "two")]
        stamps = [int(row[0] or 0) for row in s.rows]
        assert stamps == sorted(stamps) and len({*stamps}) >= 3
        await s.feed.close()

    lab.do(run())


def test_constant_query_ends_after_its_snapshot(subscriptions: Subscriptions) -> None:
    lab = subscriptions

    async def run() -> None:
        s = await lab.subscribe("SELECT 1 AS one")
        assert await s.at_end() == [("1", "1")]
        await s.feed.close()

    lab.do(run())


def test_without_snapshot_only_what_comes_later(subscriptions: Subscriptions) -> None:
    lab = subscriptions

    async def run() -> None:
        await lab.run("CREATE TABLE later (a int)", "INSERT INTO later VALUES (1), (1)")
        s = await lab.subscribe("TABLE later", snapshot=False)
        await lab.run("DELETE FROM later")
        assert await s.until(1) == [("-2", "1")]
        await s.feed.close()

    lab.do(run())


def test_one_transaction_carries_one_timestamp_in_all_subscriptions(subscriptions: Subscriptions) -> None:
    lab = subscriptions

    async def run() -> None:
        await lab.run("CREATE TABLE x (a int)", "CREATE TABLE y (a int)")
        both = [await lab.subscribe("TABLE x"), await lab.subscribe("TABLE y")]
        join = await lab.subscribe("SELECT x.a, y.a AS b FROM x JOIN y USING (a)")
        for n in range(5):
            await lab.run(f"BEGIN; INSERT INTO x VALUES ({n}); INSERT INTO y VALUES ({n}); COMMIT")
        for s in (*both, join):
            await s.until(5)
        stamps = [{row[2]: row[0] for row in s.rows} for s in (*both, join)]
        assert stamps[0] == stamps[1] == stamps[2]
        for s in (*both, join):
            await s.feed.close()

    lab.do(run())


def test_consolidated_within_a_timestamp(subscriptions: Subscriptions) -> None:
    lab = subscriptions

    async def run() -> None:
        await lab.run("CREATE TABLE net (a int)", "INSERT INTO net VALUES (1), (1), (2)")
        s = await lab.subscribe("TABLE net")
        assert sorted(await s.until(2)) == [("1", "2"), ("2", "1")]
        await lab.run(
            "BEGIN; INSERT INTO net VALUES (3); DELETE FROM net WHERE a = 3; INSERT INTO net VALUES (4), (4); COMMIT"
        )
        assert (await s.until(3))[2:] == [("2", "4")]
        await s.feed.close()

    lab.do(run())


def test_transaction_that_was_open_at_the_start_comes_when_it_commits(subscriptions: Subscriptions) -> None:
    lab = subscriptions

    async def run() -> None:
        await lab.run("CREATE TABLE open (a int)")
        first = await lab.subscribe("TABLE open")
        other = await lab.connect()
        await other.execute("BEGIN; INSERT INTO open VALUES (1)")
        await lab.run("INSERT INTO open VALUES (2)")
        second = await lab.subscribe("TABLE open")
        assert await second.until(1) == [("1", "2")]
        await lab.run("INSERT INTO open VALUES (3)")
        assert (await second.until(2))[1:] == [("1", "3")]
        await other.execute("COMMIT")
        assert (await second.until(3))[2:] == [("1", "1")]
        assert sorted(await first.until(3)) == [("1", "1"), ("1", "2"), ("1", "3")]
        await other.close()
        await first.feed.close()
        await second.feed.close()

    lab.do(run())


@pytest.mark.parametrize("before", [False, True])
def test_envelopes(subscriptions: Subscriptions, before: bool) -> None:
    lab = subscriptions

    async def run() -> None:
        table = f"envelope_{before}".lower()
        # No primary key: a key can have several rows.
        await lab.run(f"CREATE TABLE {table} (v int, k int)", f"INSERT INTO {table} VALUES (2, 1), (4, 2)")
        s = await lab.subscribe(f"TABLE {table}", keys=("k",), before=before)
        values = ("before_v", "after_v") if before else ("v",)
        assert s.names == ("mz_timestamp", "mz_state", "k", *values)

        async def next_(count: int, *statements: str) -> list[tuple[str | None, ...]]:
            before_ = len(s.rows)
            await lab.run(*statements)
            return sorted((await s.until(before_ + count))[before_:], key=str)

        def row(state: str, k: str, old: str | None, new: str | None) -> tuple[str | None, ...]:
            if before:
                return (state, k, old, new)
            return ("upsert" if state == "insert" else state, k, new)

        assert sorted(await s.until(2)) == [row("insert", "1", None, "2"), row("insert", "2", None, "4")]
        assert await next_(1, f"INSERT INTO {table} VALUES (6, 3)") == [row("insert", "3", None, "6")]
        assert await next_(1, f"UPDATE {table} SET v = 10 WHERE k = 1") == [row("upsert", "1", "2", "10")]
        # The second live value comes from another timestamp than the first.
        assert await next_(1, f"INSERT INTO {table} VALUES (11, 1)") == [row("key_violation", "1", None, None)]
        assert await next_(1, f"DELETE FROM {table} WHERE v = 10") == [row("upsert", "1", None, "11")]
        assert await next_(3, f"DELETE FROM {table}") == [
            row("delete", "1", "11", None),
            row("delete", "2", "4", None),
            row("delete", "3", "6", None),
        ]
        assert await next_(1, f"INSERT INTO {table} VALUES (1, 9), (1, 9)") == [row("key_violation", "9", None, None)]
        assert await next_(1, f"DELETE FROM {table}") == [row("delete", "9", None, None)]
        assert await next_(1, f"INSERT INTO {table} VALUES (1, NULL)") == [row("insert", None, None, "1")]  # type: ignore[arg-type]
        assert await next_(1, f"UPDATE {table} SET v = 2") == [row("upsert", None, "1", "2")]  # type: ignore[arg-type]
        await s.feed.close()

    lab.do(run())


def test_envelope_over_a_primary_key(subscriptions: Subscriptions) -> None:
    lab = subscriptions

    async def run() -> None:
        await lab.run("CREATE TABLE keyed (v text, k int PRIMARY KEY)", "INSERT INTO keyed VALUES ('a', 1)")
        s = await lab.subscribe("TABLE keyed", keys=("k",), before=True, progress=True)
        assert s.names == ("mz_timestamp", "mz_progressed", "mz_state", "k", "before_v", "after_v")
        await lab.run(
            "BEGIN; UPDATE keyed SET v = 'b'; UPDATE keyed SET v = 'c'; INSERT INTO keyed VALUES ('z', 2); COMMIT"
        )
        while sum(row[1] == "f" for row in s.rows) < 3:
            await s.take()
        updates = [row[2:] for row in s.rows if row[1] == "f"]
        assert updates[0] == ("insert", "1", None, "a")
        assert sorted(updates[1:], key=str) == [("insert", "2", None, "z"), ("upsert", "1", "a", "c")]
        assert s.rows[0][1:] == ("t", None, None, None, None)
        await s.feed.close()

    lab.do(run())


def test_order_within_a_timestamp(subscriptions: Subscriptions) -> None:
    lab = subscriptions

    async def run() -> None:
        await lab.run('CREATE TABLE sorted (c0 int, "Odd ""name" text)')
        s = await lab.subscribe("TABLE sorted", order_by='c0 % 2, lower("Odd ""name") DESC NULLS LAST, mz_diff')
        await lab.run("INSERT INTO sorted VALUES (1, 'a'), (2, 'B'), (2, NULL), (3, 'b'), (4, 'c')")
        assert await s.until(5) == [
            ("1", "4", "c"),
            ("1", "2", "B"),
            ("1", "2", None),
            ("1", "3", "b"),
            ("1", "1", "a"),
        ]
        await s.feed.close()
        with pytest.raises(SqlError, match="does not exist"):
            await lab.subscribe("TABLE sorted", order_by="nowhere")

    lab.do(run())


def test_progress_tells_the_truth(subscriptions: Subscriptions) -> None:
    lab = subscriptions

    async def run() -> None:
        await lab.run("CREATE TABLE progress (a int)", "INSERT INTO progress VALUES (0)")
        s = await lab.subscribe("TABLE progress", progress=True)
        assert s.names == ("mz_timestamp", "mz_progressed", "mz_diff", "a")
        for n in range(1, 6):
            await lab.run(f"INSERT INTO progress VALUES ({n})")
            while (s.rows and s.rows[-1][1] == "f") or not any(row[3] == str(n) for row in s.rows):
                await s.take()
        assert s.rows[0][1:] == ("t", None, None)
        closed = 0
        for stamp, progressed, *_ in s.rows:
            assert int(stamp or 0) >= closed
            closed = int(stamp or 0) if progressed == "t" else closed
        # While nothing happens, too.
        count = len(s.rows)
        assert all(row[0] == "t" for row in (await s.until(count + 2))[count:])
        await s.feed.close()

    lab.do(run())


def test_up_to_is_exclusive_and_as_of_inclusive(subscriptions: Subscriptions) -> None:
    lab = subscriptions

    async def clock() -> int:
        return int(await lab.value("SELECT extract(epoch FROM clock_timestamp()) * 1000"))

    async def run() -> None:
        await lab.run("CREATE TABLE bounds (a int)", "INSERT INTO bounds VALUES (1)")
        now = await clock()
        with pytest.raises(SqlError) as earlier:
            await lab.subscribe("TABLE bounds", up_to="1")
        assert earlier.value.sqlstate == "22023"
        with pytest.raises(SqlError) as below:
            await lab.subscribe("TABLE bounds", as_of=AsOf(str(now + 5000)), up_to=str(now + 4000))
        assert below.value.sqlstate == "22023"
        empty = await lab.subscribe("TABLE bounds", as_of=AsOf(str(now + 100)), up_to=str(now + 100))
        assert await empty.at_end() == []
        for wait in (1500, 10_000, 60_000):  # what is asked for must come before the beginning
            now = await clock()
            with suppress(SqlError):
                s = await lab.subscribe("TABLE bounds", as_of=AsOf(str(now + wait)), up_to=str(now + 2 * wait))
                if await clock() < now + wait:
                    break
                await s.feed.close()
        await s.until(1)
        assert s.rows == [(str(now + wait), "1", "1")]
        await lab.run("INSERT INTO bounds VALUES (2)")
        assert await s.at_end() == [("1", "1"), ("1", "2")]
        with pytest.raises(SqlError) as old:
            await lab.subscribe("TABLE bounds", as_of=AsOf("now() - interval '1 day'"))
        assert old.value.sqlstate == "22023"
        again = await lab.subscribe("TABLE bounds", as_of=AsOf("'2020-01-01 00:00+00'", at_least=True))
        assert sorted(await again.until(2)) == [("1", "1"), ("1", "2")]
        for each in (empty, s, again):
            await each.feed.close()

    lab.do(run())


def test_values_are_written_as_the_client_has_it(subscriptions: Subscriptions) -> None:
    lab = subscriptions

    async def run() -> None:
        await lab.run(
            "CREATE TYPE mood AS ENUM ('sad', 'glad'); CREATE TYPE pair AS (x int, y text)",
            "CREATE DOMAIN d AS numeric(8, 2)",
            "CREATE TABLE kinds (a timestamptz, b interval, c bytea, d float8, e char(4), f mood, g pair, h int[], i d,"
            " j jsonb, k boolean, l date, m text, n varchar(5), o bit(3), p money, q text[], r int4range)",
        )
        values = (
            "'2024-02-03 04:05:06+00', '1 day 02:00', '\\x00ff', 0.1, 'ab', 'glad', (1, 'it''s'), '{1,NULL}', 1.5,"
            " '{\"a\": 1}', true, '2024-02-03', E'tab\\tü', 'xyz', B'101', 12.5::numeric::money, '{a b,\"c\"}', '[1,3)'"
        )
        settings = {
            "DateStyle": "SQL, DMY",
            "TimeZone": "Asia/Kolkata",
            "IntervalStyle": "iso_8601",
            "bytea_output": "escape",
            "extra_float_digits": "-10",
        }
        s = await lab.subscribe("TABLE kinds", **settings)
        await lab.run(f"INSERT INTO kinds VALUES ({values})")
        (found,) = await s.until(1)
        for name, value in settings.items():
            await lab.admin.execute(f"SET {name} = '{value}'")
        columns = ", ".join(f"format('%s', {c})" for c in "abcdfghijklmnopqr")
        expected = [*(await lab.admin.fetchrow(f"SELECT {columns} FROM kinds"))]
        expected.insert(4, "ab  ")
        await lab.admin.execute("RESET ALL")
        assert [*found[1:]] == expected
        await s.feed.close()

    lab.do(run())


def test_binary_formats_and_other_encodings(subscriptions: Subscriptions) -> None:
    lab = subscriptions

    async def run() -> None:
        await lab.run("CREATE TABLE bin (a int, b text, c numeric(6, 2))", "INSERT INTO bin VALUES (258, 'é', 1.50)")
        s = await lab.subscribe("TABLE bin", progress=True, output=RowOutput((1,)))
        batches = [await s.feed.next(PATIENCE) for _ in range(3)]
        bodies = [batch.messages for batch in batches if batch is not None]
        progress, row = bodies[0], bodies[1]
        assert progress[5:7] == b"\x00\x06" and progress.count(b"\xff\xff\xff\xff") == 4
        assert b"\x00\x00\x00\x04\x00\x00\x01\x02" in row and "é".encode() in row
        stamp = row[11 : 11 + int.from_bytes(row[7:11], "big")]
        assert stamp in progress
        await s.feed.close()
        mixed = await lab.subscribe("TABLE bin", output=RowOutput((0, 0, 1, 0, 0)), client_encoding="LATIN1")
        batch = await mixed.feed.next(PATIENCE)
        assert batch is not None and b"\x00\x00\x00\x04\x00\x00\x01\x02" in batch.messages
        assert b"\x00\x00\x00\x01\xe9" in batch.messages and b"1.50" in batch.messages
        await mixed.feed.close()

    lab.do(run())


def test_copy_formats(subscriptions: Subscriptions) -> None:
    lab = subscriptions

    async def run() -> None:
        await lab.run("CREATE TABLE copied (a int, b text)", "INSERT INTO copied VALUES (1, E'two\\nlines \"x\"')")

        async def first(output: CopyOutput, rows: int) -> bytes:
            s = await lab.subscribe("TABLE copied", output=output, order_by="a")
            found, count = b"", 0
            while count < rows:
                batch = await s.feed.next(PATIENCE)
                assert batch is not None
                found, count = found + batch.messages, count + batch.rows
            await s.feed.close()
            return found

        def payloads(data: bytes) -> list[bytes]:
            parts, position = [], 0
            while position < len(data):
                end = position + 1 + int.from_bytes(data[position + 1 : position + 5], "big")
                parts.append(data[position + 5 : end])
                position = end
            return parts

        (line,) = payloads(await first(CopyOutput(), 1))
        assert line.partition(b"\t")[2] == b'1\t1\ttwo\\nlines "x"\n'
        header, line = payloads(await first(CopyOutput("FORMAT csv, HEADER, DELIMITER ';'"), 1))
        assert header == b"mz_timestamp;mz_diff;a;b\n" and line.partition(b";")[2] == b'1;1;"two\nlines ""x"""\n'
        start, row = payloads(await first(CopyOutput("FORMAT binary", binary=True), 1))
        assert start[:6] == b"PGCOPY" and row[:2] == b"\x00\x04"
        with pytest.raises(SqlError):
            await lab.subscribe("TABLE copied", output=CopyOutput("FORMAT csv) TO PROGRAM 'x' --"))

    lab.do(run())


def test_listeners_of_the_same_thing_share_one_evaluation(subscriptions: Subscriptions) -> None:
    lab = subscriptions

    async def run() -> None:
        await lab.run("CREATE TABLE shared (a int)", "INSERT INTO shared VALUES (1)")
        every = [await lab.subscribe("SELECT a FROM shared") for _ in range(5)]
        other = await lab.subscribe("SELECT a FROM shared", snapshot=False)
        assert (
            await lab.value(
                "SELECT count(DISTINCT subscription_id) FROM pgtrickle.pgt_subscription_sources u"
                " WHERE u.source_relid = 'shared'::regclass"
            )
            == 1
        )
        await lab.run("INSERT INTO shared VALUES (2)")
        for s in every:
            assert await s.until(2) == [("1", "1"), ("1", "2")]
        assert await other.until(1) == [("1", "2")]
        for s in (*every, other):
            await s.feed.close()

    lab.do(run())


def test_changes_that_nobody_tells_of_are_found(subscriptions: Subscriptions) -> None:
    lab = subscriptions

    async def run() -> None:
        await lab.run("CREATE TABLE quiet (a int)")
        s = await lab.subscribe("TABLE quiet")
        await lab.admin.execute("INSERT INTO quiet VALUES (1)")
        assert await s.until(1) == [("1", "1")]
        await s.feed.close()

    lab.do(run())


def test_next_does_not_wait_longer_than_it_is_told(subscriptions: Subscriptions) -> None:
    lab = subscriptions

    async def run() -> None:
        await lab.run("CREATE TABLE waiting (a int)")
        s = await lab.subscribe("TABLE waiting")
        for wait in (0, 0.01):
            with pytest.raises(TimeoutError):
                await s.feed.next(wait)
        taking = asyncio.create_task(s.feed.next())
        await asyncio.sleep(0)
        taking.cancel()
        await lab.run("INSERT INTO waiting VALUES (1)")
        assert await s.until(1) == [("1", "1")]
        await s.feed.close()

    lab.do(run())


def test_what_cannot_be_followed_is_refused_with_the_reason(subscriptions: Subscriptions) -> None:
    lab = subscriptions

    async def run() -> None:
        await lab.run("CREATE TABLE plain (a int)", "CREATE MATERIALIZED VIEW m AS TABLE plain")
        for query, reason in (
            ("SELECT a, random() FROM plain", "random"),
            ("SELECT a, now() FROM plain", "stable function"),
            ("TABLE m", "materialized view"),
            ("TABLE pg_class", "pg_class"),
            ("SELECT a FROM plain FOR UPDATE", "FOR UPDATE"),
        ):
            with pytest.raises(SqlError, match=reason) as refused:
                await lab.subscribe(query)
            assert refused.value.sqlstate == "0A000", query
        for query, code in (("TABLE nowhere", "42P01"), ("SELECT nothing FROM plain", "42703"), ("", "42601")):
            with pytest.raises(SqlError) as wrong:
                await lab.subscribe(query)
            assert wrong.value.sqlstate == code
        with pytest.raises(SqlError) as key:
            await lab.subscribe("TABLE plain", keys=("b",))
        assert key.value.sqlstate == "42703"

    lab.do(run())


def test_error_in_the_query_ends_the_subscription(subscriptions: Subscriptions) -> None:
    lab = subscriptions

    async def run() -> None:
        await lab.run("CREATE TABLE divided (a int)", "INSERT INTO divided VALUES (2)")
        good, bad = await lab.subscribe("TABLE divided"), await lab.subscribe("SELECT 10 / a AS q FROM divided")
        other = await lab.subscribe("SELECT a AS b FROM divided")
        assert await bad.until(1) == [("1", "5")]
        await lab.run("INSERT INTO divided VALUES (0)")
        with pytest.raises(SqlError) as failed:
            await bad.until(2)
        assert failed.value.sqlstate == "22012"
        for each in (good, other):
            assert await each.until(2) == [("1", "2"), ("1", "0")]
            await each.feed.close()
        await bad.feed.close()

    lab.do(run())
