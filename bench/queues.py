"""What queues cost beside plain tables: sending, receiving, delivery, and the size of what is left.

    python bench/queues.py [--rounds 2] [--seconds 3] [--events 1000000] [--synchronous-commit off on]

Yardsticks do the same work: an INSERT into a table with a primary key, and a queue that workers empty with DELETE …
FOR UPDATE SKIP LOCKED. All take turns within each round, directly (Unix socket) and through the server (TCP), with one
producer and with four, payloads of 200 bytes. Sending is measured where commits wait for the disk (`synchronous_commit`
on, PostgreSQL's default) and where they don't, so that the disk does not hide what the functions cost; all else is
measured with it off. `--events 10000000` is the full measure of size; the default shows the same on a tenth of it.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import sys
import threading
import time
from pathlib import Path

import psycopg
from rich.console import Console
from rich.table import Table

sys.path.insert(0, str(Path(__file__).parent.parent))

from bench.rates import Way, Work, both_ways, postmaster_of, rate_of, side_by_side, transactions, with_commits
from bench.serving import served

PAYLOAD = "x" * 200
BATCH = 100_000

TABLES = """
CREATE TABLE plain (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, created_at timestamptz NOT NULL DEFAULT now(),
                    type text, data text);
CREATE TABLE jobs (LIKE plain INCLUDING ALL);
SELECT pgque.create_queue('bench');
"""

SENDING = [
    Work(
        "send",
        1,
        "SELECT pgque.send('bench', 'default', :payload::text)",
        "INSERT INTO plain (type, data) VALUES ('default', :payload::text)",
    ),
    Work(
        "send, INSERT RETURNING id",
        1,
        "SELECT pgque.send('bench', 'default', :payload::text)",
        "INSERT INTO plain (type, data) VALUES ('default', :payload::text) RETURNING id",
    ),
]
BATCHES = [
    Work(
        f"send_batch({n})",
        n,
        f"SELECT pgque.send_batch('bench', 'default', array_fill(:payload::text, ARRAY[{n}]))",
        "INSERT INTO plain (type, data)"
        f" SELECT 'default', data FROM unnest(array_fill(:payload::text, ARRAY[{n}])) AS data",
    )
    for n in (100, 1000)
]

TAKE_JOBS = """
DELETE FROM jobs WHERE id IN (SELECT id FROM jobs ORDER BY id LIMIT {} FOR UPDATE SKIP LOCKED)
RETURNING id, created_at, type, data
"""


def measure_receiving(ways: tuple[Way, ...], seconds: float, console: Console) -> None:
    """Receive a batch of 100 000 events as a client does: all rows in its memory."""
    direct = ways[0].connect()
    direct.execute("SELECT pgque.create_queue('received')")
    direct.execute("SELECT pgque.set_queue_config('received', 'ticker_paused', 'true')")
    direct.execute("SELECT pgque.set_queue_config('received', 'ticker_max_count', '100000')")  # all in one batch
    direct.execute("SELECT pgque.subscribe('received', 'bench')")
    for _ in range(BATCH // 1000):
        direct.execute("SELECT pgque.send_batch('received', array_fill(%s::text, ARRAY[1000]))", [PAYLOAD])
    direct.execute("SELECT pgque.set_queue_config('received', 'ticker_paused', 'false')")
    direct.execute("SELECT pgque.ticker()")
    fill = "INSERT INTO jobs (type, data) SELECT 'default', %s FROM generate_series(1, %s::int)"
    table = Table(title=f"Receiving a batch of {BATCH:,} events: events a second", title_justify="left")
    for heading in ("way", "receive", "DELETE ... SKIP LOCKED", "ratio"):
        table.add_column(heading, justify="right" if heading != "way" else "left")
    for way in ways:
        with way.connect() as connection:
            cursor = connection.cursor(binary=True)

            def received(cursor: psycopg.Cursor[tuple[object, ...]] = cursor) -> int:
                # Not acknowledged, so that the same batch comes again.
                return cursor.execute("SELECT * FROM pgque.receive('received', 'bench', %s)", [BATCH]).rowcount

            def taken(cursor: psycopg.Cursor[tuple[object, ...]] = cursor) -> int:
                return cursor.execute(TAKE_JOBS.format(BATCH)).rowcount

            direct.execute("TRUNCATE jobs")
            while received() != BATCH:  # the clock may be making the tick at this moment
                time.sleep(0.01)
            ours = rate_of(received, seconds)
            taking = 0.0
            for _ in range(4):  # the first one does not count
                direct.execute(fill, [PAYLOAD, BATCH])
                began = time.perf_counter()
                assert taken() == BATCH
                taking = max(taking, BATCH / (time.perf_counter() - began))
            table.add_row(way.name, f"{ours:,.0f}", f"{taking:,.0f}", f"{ours / taking:.1f}")
    console.print(table)
    direct.execute("SELECT pgque.drop_queue('received', true)")
    direct.execute("TRUNCATE jobs")
    direct.close()


CONSUME = r"""
SELECT batch_id AS batch, msg_id, type, payload, retry_count, created_at
  FROM pgque.receive('consumed', 'consumer ' || :client_id::int, 10000) \aset
SELECT pgque.ack(:batch)"""

CONSUME_PLAIN = r"""
SELECT id AS batch, type, data, created_at FROM plain
 WHERE id > (SELECT place FROM places WHERE consumer = :client_id::int) ORDER BY id LIMIT {} \aset
UPDATE places SET place = :batch WHERE consumer = :client_id::int"""


# PgQ's way to consume, in SQL and PL/pgSQL: a batch lies between two ticks, and its events are found by a statement
# that is made of their snapshots. Without what PgQ has besides: several queues, rotated tables, retries, checks.
PGQ = """
CREATE SCHEMA pgq;
CREATE TABLE pgq.event (ev_id bigint NOT NULL GENERATED ALWAYS AS IDENTITY,
    ev_time timestamptz NOT NULL DEFAULT now(), ev_txid xid8 NOT NULL DEFAULT pg_current_xact_id(), ev_owner int,
    ev_retry int, ev_type text, ev_data text, ev_extra1 text, ev_extra2 text, ev_extra3 text, ev_extra4 text);
CREATE INDEX ON pgq.event (ev_txid);
CREATE TABLE pgq.tick (tick_id bigint PRIMARY KEY, tick_time timestamptz NOT NULL DEFAULT now(),
    tick_snapshot pg_snapshot NOT NULL DEFAULT pg_current_snapshot());
CREATE SEQUENCE pgq.batch;
CREATE TABLE pgq.subscription (sub_consumer text PRIMARY KEY, sub_last_tick bigint NOT NULL,
    sub_active timestamptz NOT NULL DEFAULT now(), sub_batch bigint UNIQUE, sub_next_tick bigint)
    WITH (fillfactor = 50);
CREATE FUNCTION pgq.next_batch(consumer text) RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
    this pgq.subscription;
    following bigint;
BEGIN
    SELECT * INTO this FROM pgq.subscription WHERE sub_consumer = consumer FOR UPDATE;
    IF this.sub_batch IS NOT NULL THEN
        RETURN this.sub_batch;
    END IF;
    SELECT tick_id INTO following FROM pgq.tick WHERE tick_id > this.sub_last_tick ORDER BY tick_id LIMIT 1;
    IF NOT FOUND THEN
        RETURN NULL;
    END IF;
    UPDATE pgq.subscription SET sub_batch = nextval('pgq.batch'), sub_next_tick = following, sub_active = now()
     WHERE sub_consumer = consumer RETURNING sub_batch INTO this.sub_batch;
    RETURN this.sub_batch;
END $$;
CREATE FUNCTION pgq.receive(consumer text)
RETURNS TABLE (batch_id bigint, ev_id bigint, ev_type text, ev_data text, ev_retry int, ev_time timestamptz)
LANGUAGE plpgsql AS $$
DECLARE
    batch CONSTANT bigint := pgq.next_batch(consumer);
    last pg_snapshot;
    current pg_snapshot;
BEGIN
    SELECT l.tick_snapshot, n.tick_snapshot INTO last, current
      FROM pgq.subscription s JOIN pgq.tick l ON l.tick_id = s.sub_last_tick
      JOIN pgq.tick n ON n.tick_id = s.sub_next_tick
     WHERE s.sub_batch = batch;
    RETURN QUERY EXECUTE format(
        'SELECT %s::bigint, ev_id, ev_type, ev_data, ev_retry, ev_time FROM pgq.event'
        ' WHERE ev_txid >= %L AND ev_txid <= %L AND pg_visible_in_snapshot(ev_txid, %L)'
        ' AND NOT pg_visible_in_snapshot(ev_txid, %L) ORDER BY ev_id',
        batch, pg_snapshot_xmin(last), pg_snapshot_xmax(current), current, last);
END $$;
CREATE FUNCTION pgq.finish_batch(batch bigint) RETURNS int LANGUAGE plpgsql AS $$
BEGIN
    UPDATE pgq.subscription
       SET sub_active = now(), sub_last_tick = sub_next_tick, sub_next_tick = NULL, sub_batch = NULL
     WHERE sub_batch = batch;
    RETURN 1;
END $$;
"""

CONSUME_PGQ = r"""
SELECT batch_id AS batch, ev_id, ev_type, ev_data, ev_retry, ev_time
  FROM pgq.receive('consumer ' || :client_id::int) \aset
SELECT pgq.finish_batch(:batch)"""


def measure_consuming(ways: tuple[Way, ...], rounds: int, console: Console) -> None:
    """Consumers that each read all, in small batches: receive and ack, PgQ's way in SQL, a cursor in a plain table."""
    postmaster = postmaster_of(ways[0])
    tables = {}
    for what in ("Consuming: batches a second, all consumers together", "Consuming: PostgreSQL's CPU for a batch"):
        tables[what] = Table(title=what, title_justify="left")
        for heading in ("events in a batch", "consumers", "way"):
            tables[what].add_column(heading)
        for heading in ("receive, ack", "PgQ in SQL", "ratio", "SELECT, UPDATE", "ratio"):
            tables[what].add_column(heading, justify="right")
    rates, costs = tables.values()
    batches = 1000
    with ways[0].connect() as direct:
        direct.execute("CREATE TABLE places (consumer int PRIMARY KEY, place bigint NOT NULL) WITH (fillfactor = 50)")
        direct.execute(PGQ)
        direct.execute("SELECT pgque.stop()")
        for size in (10, 100):
            fill_yardsticks(direct, size, batches)
            for many in (1, 4):
                for way in ways:
                    scripts = (CONSUME, CONSUME_PGQ, CONSUME_PLAIN.format(size))
                    measured: tuple[list[tuple[float, float]], ...] = ([], [], [])
                    for _ in range(rounds):
                        fill_consumed(direct, many, size, batches)
                        for script, found in zip(scripts, measured, strict=True):
                            found.append(transactions(way, script, many, 0, postmaster, batches))
                        direct.execute("SELECT pgque.drop_queue('consumed', true)")
                        direct.execute("TRUNCATE places, pgq.subscription")
                    ours, pgq, plain = (
                        (statistics.median(rate for rate, _ in each), min(cost for _, cost in each) * 1e6)
                        for each in measured
                    )
                    row = (str(size), str(many), way.name)
                    rates.add_row(
                        *(*row, f"{ours[0]:,.0f}", f"{pgq[0]:,.0f}", f"{ours[0] / pgq[0]:.2f}"),
                        *(f"{plain[0]:,.0f}", f"{ours[0] / plain[0]:.2f}"),
                    )
                    costs.add_row(
                        *(*row, f"{ours[1]:.0f} µs", f"{pgq[1]:.0f} µs", f"{pgq[1] / ours[1]:.2f}"),
                        *(f"{plain[1]:.0f} µs", f"{plain[1] / ours[1]:.2f}"),
                    )
        direct.execute("SELECT pgque.start()")
        direct.execute("TRUNCATE plain RESTART IDENTITY")
    for table in tables.values():
        console.print(table)


def fill_yardsticks(direct: psycopg.Connection[tuple[object, ...]], size: int, batches: int) -> None:
    """The plain table, and the tables of PgQ's way, with so many batches."""
    direct.execute("TRUNCATE plain, pgq.event, pgq.tick RESTART IDENTITY")
    direct.execute(
        "INSERT INTO plain (type, data) SELECT 'default', %s FROM generate_series(1, %s::int)",
        [PAYLOAD, size * batches],
    )
    direct.execute("INSERT INTO pgq.tick VALUES (0)")
    for number in range(1, batches + 1):
        direct.execute(
            "INSERT INTO pgq.event (ev_type, ev_data) SELECT 'default', %s FROM generate_series(1, %s::int)",
            [PAYLOAD, size],
        )
        direct.execute("INSERT INTO pgq.tick VALUES (%s)", [number])
    direct.execute("VACUUM (ANALYZE) plain, pgq.event, pgq.tick")


def fill_consumed(direct: psycopg.Connection[tuple[object, ...]], consumers: int, size: int, batches: int) -> None:
    """A queue with so many batches, and for each consumer a place in the plain table."""
    direct.execute("SELECT pgque.create_queue('consumed')")
    direct.execute("SELECT pgque.set_queue_config('consumed', 'ticker_max_lag', '1 microsecond')")
    for number in range(consumers):
        direct.execute("SELECT pgque.subscribe('consumed', %s)", [f"consumer {number}"])
        direct.execute("INSERT INTO places VALUES (%s, 0)", [number])
        direct.execute("INSERT INTO pgq.subscription VALUES (%s, 0)", [f"consumer {number}"])
    for _ in range(batches):
        direct.execute("SELECT pgque.send_batch('consumed', array_fill(%s::text, ARRAY[%s]))", [PAYLOAD, size])
        direct.execute("SELECT pgque.ticker('consumed')")


class Sender(threading.Thread):
    """Sends events at random moments; each carries when it was sent."""

    def __init__(self, way: Way, statement: str, seconds: float):
        super().__init__(daemon=True)
        self._way, self._statement, self._seconds = way, statement, seconds

    def run(self) -> None:
        chance = random.Random(1)
        end = time.perf_counter() + self._seconds
        with self._way.connect() as connection:
            while time.perf_counter() < end:
                text = json.dumps({"sent": time.perf_counter(), "filler": PAYLOAD[:160]})
                connection.execute(self._statement, [text], prepare=True)
                time.sleep(chance.uniform(0.002, 0.09))


def delivered(way: Way, seconds: float) -> list[float]:
    """Milliseconds from sending to having received; the consumer waits for the notification of a tick."""
    with way.connect() as connection:
        connection.execute("LISTEN pgque_delivered")
        sender = Sender(way, "SELECT pgque.send('delivered', %s::text)", seconds)
        sender.start()
        found: list[float] = []
        while sender.is_alive():
            list(connection.notifies(timeout=0.5, stop_after=1))
            while rows := connection.execute(
                "SELECT batch_id, payload FROM pgque.receive('delivered', 'bench', 10000)", prepare=True
            ).fetchall():
                now = time.perf_counter()
                found += [(now - json.loads(str(payload))["sent"]) * 1000 for _, payload in rows]
                connection.execute("SELECT pgque.ack(%s)", [rows[0][0]], prepare=True)
    return sorted(found)


def polled(way: Way, period: float, seconds: float) -> list[float]:
    """The same by a queue of jobs that is looked at once in a period."""
    with way.connect() as connection:
        sender = Sender(way, "INSERT INTO jobs (data) VALUES (%s)", seconds)
        sender.start()
        found: list[float] = []
        while sender.is_alive():
            time.sleep(period)
            rows = connection.execute(TAKE_JOBS.format(1000)).fetchall()
            found += [(time.perf_counter() - json.loads(str(data))["sent"]) * 1000 for *_, data in rows]
    return sorted(found)


def measure_delivery(ways: tuple[Way, ...], seconds: float, console: Console) -> None:
    """From send to receive, at two tick periods."""
    table = Table(title="Delivery: milliseconds from send to receive", title_justify="left")
    for heading in ("way", "tick period", "median", "99th percentile", "goal for the median", "SKIP LOCKED, polled"):
        table.add_column(heading, justify="right" if heading != "way" else "left")
    with ways[0].connect() as direct:
        direct.execute("SELECT pgque.create_queue('delivered')")
        direct.execute("SELECT pgque.subscribe('delivered', 'bench')")
        for period in (100, 10):
            direct.execute("SELECT pgque.set_tick_period_ms(%s)", [period])
            for way in ways:
                ours, yardstick = delivered(way, seconds), polled(way, period / 1000, seconds / 2)
                table.add_row(
                    *(way.name, f"{period} ms", f"{statistics.median(ours):.1f}"),
                    *(f"{ours[int(len(ours) * 0.99)]:.1f}", f"{0.6 * period + 5:.0f}"),
                    f"{statistics.median(yardstick):.1f}",
                )
        direct.execute("SELECT pgque.set_tick_period_ms(100)")
        direct.execute("SELECT pgque.drop_queue('delivered', true)")
    console.print(table)


def measure_size(way: Way, events: int, console: Console) -> None:
    """What both queues take on disk while all events pass through, and a transaction is held open all the time."""
    table = Table(title=f"Size while {events:,} events pass, a transaction held open", title_justify="left")
    for heading in ("events so far", "queue", "SKIP LOCKED"):
        table.add_column(heading, justify="right")
    sizes = (
        "SELECT pg_size_pretty((SELECT sum(pg_total_relation_size(inhrelid)) FROM pg_inherits"
        " WHERE inhparent = (SELECT queue_data_pfx::regclass FROM pgque.queue WHERE queue_name = 'sized'))),"
        " pg_size_pretty(pg_total_relation_size('jobs'))"
    )
    chunk = min(50_000, events // 20)
    with way.connect() as connection, way.connect() as holder:
        connection.execute("SELECT pgque.create_queue('sized')")
        connection.execute("SELECT pgque.subscribe('sized', 'bench')")
        connection.execute("SELECT pgque.set_queue_config('sized', 'rotation_period', '1 ms')")
        connection.execute("TRUNCATE jobs")
        holder.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
        holder.execute("SELECT count(*) FROM pg_class")
        for done in range(chunk, events + 1, chunk):
            connection.execute("SELECT pgque.send_batch('sized', array_fill(%s::text, ARRAY[%s]))", [PAYLOAD, chunk])
            connection.execute("SELECT pgque.ticker('sized')")
            while row := connection.execute(
                "SELECT batch_id, count(*) FROM pgque.receive('sized', 'bench', 1000000) GROUP BY 1"
            ).fetchone():
                connection.execute("SELECT pgque.ack(%s)", [row[0]])
            connection.execute("SELECT pgque.maint()")
            connection.execute("SELECT pgque.maint_rotate_tables_step2()")
            connection.execute(
                "INSERT INTO jobs (type, data) SELECT 'default', %s FROM generate_series(1, %s::int)", [PAYLOAD, chunk]
            )
            connection.execute(TAKE_JOBS.format(chunk))
            if done % (chunk * max(1, events // chunk // 5)) == 0:
                queue, jobs = connection.execute(sizes).fetchone() or ("", "")
                table.add_row(f"{done:,}", str(queue), str(jobs))
        holder.execute("COMMIT")
    console.print(table)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=3)
    parser.add_argument("--events", type=int, default=1_000_000)
    parser.add_argument("--synchronous-commit", nargs="+", choices=("on", "off"), default=("off", "on"))
    parser.add_argument(
        "--only", nargs="*", choices=("sending", "batches", "receiving", "consuming", "delivery", "size"), default=()
    )
    options = parser.parse_args()
    console = Console(width=max(120, Console().width))
    with served() as server:
        ways = both_ways(server)
        with ways[0].connect() as connection:
            connection.execute("ALTER SYSTEM SET synchronous_commit = off")
            connection.execute("SELECT pg_reload_conf()")
        with ways[1].connect() as connection:  # that makes the server install the catalog, and look for queues
            connection.execute(TABLES)
        sending = tuple(with_commits(way, setting) for setting in options.synchronous_commit for way in ways)

        def measure_sending(works: list[Work]) -> None:
            title = "Sending: events a second; synchronous_commit off, on"
            side_by_side(title, works, sending, options.rounds, options.seconds, console, payload=PAYLOAD)

        measures = {
            "sending": lambda: measure_sending(SENDING),
            "batches": lambda: measure_sending(BATCHES),
            "receiving": lambda: measure_receiving(ways, options.seconds, console),
            "consuming": lambda: measure_consuming(ways, options.rounds, console),
            "delivery": lambda: measure_delivery(ways, options.seconds * 5, console),
            "size": lambda: measure_size(ways[0], options.events, console),
        }
        for name, measure in measures.items():
            if not options.only or name in options.only:
                measure()


if __name__ == "__main__":
    main()
