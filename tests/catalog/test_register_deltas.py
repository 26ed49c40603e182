"""High-write mode: what is pending counts at once, merging changes nothing to see, and a lost buffer loses nothing."""

from __future__ import annotations

import json
import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import count
from typing import Any

import psycopg
import pytest
from psycopg import sql

from tests.catalog.conftest import Connection, sqlstate
from tests.catalog.test_register_concurrency import together, value, wrong

_numbers = count(1)

Open = Callable[[], Connection]

ITEMS = (1, 2, None)
PERIODS = ("2025-12-31 23:30+00", "2026-01-01", "2026-04-18 14:30", "2026-04-30")


@pytest.fixture
def sessions(register_database: str) -> Iterator[Open]:
    """Sessions of this test, in UTC."""
    opened: list[Connection] = []

    def connect() -> Connection:
        opened.append(psycopg.connect(register_database, autocommit=True, options="-c TimeZone=UTC"))
        return opened[-1]

    yield connect
    for connection in opened:
        connection.close()


def create(connection: Connection, **arguments: Any) -> str:
    """A new register over `item` and `lot` with the resources `n` and `amount`, in high-write mode unless said."""
    name = f"high_{next(_numbers)}"
    arguments = {"high_write": True, **arguments}
    connection.execute(
        f'SELECT accum.register_create(\'{name}\', \'{{"item": "int", "lot": "text"}}\', '
        f'\'{{"n": "int", "amount": "numeric(12,2)"}}\'{"".join(f", {key} := %s" for key in arguments)})',
        list(arguments.values()),
    )
    return name


def movement(recorder: str, item: int | None, n: int, period: str = "2026-04-18") -> dict[str, Any]:
    return {"recorder": recorder, "period": period, "item": item, "lot": "A", "n": n, "amount": n * 2}


def post(connection: Connection, name: str, *movements: dict[str, Any]) -> None:
    connection.execute("SELECT accum.register_post(%s, %s::jsonb)", [name, json.dumps(movements)])


def balance(connection: Connection, name: str, **dimensions: Any) -> Any:
    return value(connection, f"SELECT (accum.{name}_balance(%s::jsonb) ->> 'n')::int", json.dumps(dimensions))


def lose(connection: Connection, name: str) -> None:
    """What PostgreSQL does to an unlogged table when it recovers from a crash."""
    connection.execute(
        "SET session_replication_role = replica;"
        f"TRUNCATE accum.{name}_balance_cache_delta, accum.{name}_balance_cache_alive;"
        "RESET session_replication_role"
    )


def pending(connection: Connection, name: str) -> int:
    return int(value(connection, f"SELECT count(*) FROM accum.{name}_balance_cache_delta"))


def maintain(connection: Connection, name: str, isolation: str = "READ COMMITTED") -> dict[str, Any]:
    """A turn of the engine."""
    with connection.transaction():
        connection.execute(f"SET TRANSACTION ISOLATION LEVEL {isolation}")
        return dict(value(connection, "SELECT accum_internal._maintain_deltas(%s, 0, 1000000)", name))


# ---------------------------------------------------------------------------------------------------------------------
# What is pending counts


def test_pending_rows_count_in_every_read(sessions: Open) -> None:
    connection = sessions()
    name = create(connection)
    cached = f"SELECT item, n, amount::int FROM accum.{name}_balance_cache ORDER BY item"
    reads = (
        f"SELECT period::text, item, n FROM accum.{name}_totals_day ORDER BY period, item",
        f"SELECT period::text, item, n FROM accum.{name}_totals_month ORDER BY period, item",
        f"SELECT period::text, item, n FROM accum.{name}_totals_year ORDER BY period, item",
        f"SELECT accum.{name}_balance('{{\"item\": 1, \"lot\": \"A\"}}') ->> 'n', accum.{name}_balance() ->> 'amount'",
        f"SELECT accum.{name}_balance('{{\"item\": 1}}', at_date := '2026-03-31') ->> 'n'",
        "SELECT t ->> 'item', t ->> 'n'"
        f" FROM accum.{name}_turnover('2026-04-01', '2026-04-30', group_by := '[\"item\"]') t",
    )
    expected = [
        [("2026-03-02", 1, 5), ("2026-04-18", 1, 10), ("2026-04-18", 2, 7)],
        [("2026-03-01", 1, 5), ("2026-04-01", 1, 10), ("2026-04-01", 2, 7)],
        [("2026-01-01", 1, 15), ("2026-01-01", 2, 7)],
        [("15", "44.00")],
        [("5",)],
        [("1", "10"), ("2", "7")],
    ]
    post(connection, name, movement("a", 1, 5, "2026-03-02"))
    connection.execute("SELECT accum._force_delta_merge()")
    post(connection, name, movement("b", 1, 10), movement("b", 2, 7))
    assert pending(connection, name) == 2
    assert connection.execute(cached).fetchall() == [(1, 5, 10), (2, 0, 0)]
    assert [connection.execute(read).fetchall() for read in reads] == expected
    assert value(connection, "SELECT accum._force_delta_merge()") == 2
    assert pending(connection, name) == 0
    assert [connection.execute(read).fetchall() for read in reads] == expected
    assert connection.execute(cached).fetchall() == [(1, 15, 30), (2, 7, 14)]
    lose(connection, name)
    assert [connection.execute(read).fetchall() for read in reads] == expected


def test_the_balance_of_a_cell_is_looked_up_by_a_plan_for_all_cells(sessions: Open) -> None:
    """Nothing is planned for the values of a call, and yet what is pending is found by an index."""
    connection = sessions()
    name = create(connection)
    with connection.transaction():
        connection.execute(f"LOCK TABLE accum.{name}_balance_cache_epoch IN EXCLUSIVE MODE")  # nothing is merged
        for recorder in range(200):
            post(connection, name, *(movement(str(recorder), item, 1) for item in range(10)))
        connection.execute("SET LOCAL plan_cache_mode = force_generic_plan")
        scanned = f"SELECT pg_stat_get_xact_tuples_returned('accum.{name}_balance_cache_delta'::regclass)"
        before = value(connection, scanned)
        for item in (3, 7, None, 11):
            assert balance(connection, name, item=item, lot="A") == (200 if item in (3, 7) else 0)
        assert value(connection, scanned) == before, "no row was read by a sequential scan"
        assert balance(connection, name) == 2000
        assert value(connection, scanned) == before + 2000
    assert value(connection, "SELECT accum._force_delta_merge()") == 2000
    assert balance(connection, name, item=3, lot="A") == 200


def test_a_register_of_turnovers_has_pending_totals(sessions: Open) -> None:
    connection = sessions()
    name = create(connection, kind="turnover", totals_period="month")
    post(connection, name, movement("a", 1, 5), movement("a", 1, 6, "2026-04-20"))
    totals = f"SELECT period::text, n FROM accum.{name}_totals_month"
    assert connection.execute(totals).fetchall() == [("2026-04-01", 11)]
    assert connection.execute("SELECT accum._force_delta_merge()").fetchall() == [(1,)]
    assert connection.execute(totals).fetchall() == [("2026-04-01", 11)]
    assert wrong(connection, name) == []


def test_a_version_grows_with_each_statement_and_never_comes_twice(sessions: Open) -> None:
    connection = sessions()
    name = create(connection)
    version = f"SELECT version FROM accum.{name}_balance_cache"
    seen = []
    for step in range(6):
        post(connection, name, movement(f"d{step}", 1, 1))
        if step in (1, 4):
            connection.execute("SELECT accum._force_delta_merge()")
            seen.append(value(connection, version))
        if step == 2:
            connection.execute("SELECT accum.register_unpost(%s, 'd2')", [name])
            lose(connection, name)
            connection.execute("SELECT accum._force_delta_merge()")
            seen.append(value(connection, version))
    connection.execute("SELECT accum._force_delta_merge()")
    seen.append(value(connection, version))
    assert seen == sorted(set(seen)) and len(seen) == 4


def test_merging_takes_what_is_old_enough_and_not_more_than_a_batch(sessions: Open) -> None:
    connection = sessions()
    connection.execute("SELECT accum._force_delta_merge()")  # of the other tests' registers
    name = create(connection)
    for n in range(5):
        post(connection, name, movement(f"d{n}", n, n))
    assert value(connection, "SELECT accum._force_delta_merge(p_max_age := interval '1 hour')") == 0
    merge = "SELECT accum._force_delta_merge(p_max_age := interval '0 seconds', p_batch_size := 2)"
    assert [value(connection, merge) for _ in range(4)] == [2, 2, 1, 0]
    assert wrong(connection, name) == []


def test_a_superuser_does_not_merge_with_an_owners_triggers(sessions: Open) -> None:
    connection = sessions()
    connection.execute("CREATE ROLE merge_owner; GRANT INSERT ON accum._registers TO merge_owner; SET ROLE merge_owner")
    try:
        name = create(connection)
        connection.execute("RESET ROLE")
        post(connection, name, movement("a", 1, 1))
        connection.execute("SELECT accum._force_delta_merge()")
        assert pending(connection, name) == 1
        connection.execute("SET ROLE merge_owner")
        assert value(connection, "SELECT accum._force_delta_merge()") == 1
    finally:
        connection.execute("RESET ROLE; DROP OWNED BY merge_owner CASCADE; DROP ROLE merge_owner")
        connection.execute("DELETE FROM accum._registers WHERE to_regclass('accum.' || name || '_movements') IS NULL")


@pytest.mark.parametrize("kind", ["balance", "turnover"])
def test_random_operations_with_merges_and_lost_buffers(sessions: Open, kind: str) -> None:
    connection = sessions()
    name = create(connection, kind=kind)
    rng = random.Random(6)
    documents = [f"d{n}" for n in range(8)]

    def lines(recorder: str) -> str:
        some = [movement(recorder, rng.choice(ITEMS), rng.randint(-9, 9), rng.choice(PERIODS)) for _ in range(3)]
        return json.dumps(some)

    for step in range(40):
        document = rng.choice(documents)
        what = rng.choice(
            ["post", "post", "repost", "unpost", "insert", "update", "delete", "merge", "batch", "lose", "on"]
        )
        match what:
            case "post":
                connection.execute("SELECT accum.register_post(%s, %s::jsonb)", [name, lines(document)])
            case "repost":
                connection.execute("SELECT accum.register_repost(%s, %s, %s::jsonb)", [name, document, lines(document)])
            case "unpost":
                connection.execute("SELECT accum.register_unpost(%s, %s)", [name, document])
            case "insert":
                connection.execute(
                    f"INSERT INTO accum.{name}_movements (recorder, period, item, lot, n, amount)"
                    " SELECT %s, now() - i * interval '20 days', i %% 3, 'B', i, 1 FROM generate_series(1, 20) i",
                    [document],
                )
            case "update":
                connection.execute(
                    f"UPDATE accum.{name}_movements SET n = n + 1, item = 2 WHERE recorder = %s", [document]
                )
            case "delete":
                connection.execute(f"DELETE FROM accum.{name}_movements WHERE n > 15")
            case "merge":
                connection.execute("SELECT accum._force_delta_merge()")
            case "batch":
                connection.execute("SELECT accum._force_delta_merge(p_batch_size := 3)")
            case "lose":
                lose(connection, name)
            case "on":
                for high_write in (False, True):
                    connection.execute("SELECT accum.register_alter(%s, high_write := %s)", [name, high_write])
        assert wrong(connection, name) == [], f"step {step}, {what}"


# ---------------------------------------------------------------------------------------------------------------------
# Many at once


def test_writers_of_one_cell_wait_neither_for_each_other_nor_for_a_merge(sessions: Open) -> None:
    first, second, third = sessions(), sessions(), sessions()
    name = create(first)
    post(first, name, movement("a", 1, 1))
    for session in (second, third):
        session.execute("SET lock_timeout = '60s'")
    with first.transaction():
        post(first, name, movement("b", 1, 10))
        with second.transaction():
            post(second, name, movement("c", 1, 100))
            assert value(third, "SELECT accum._force_delta_merge()") == 1
            assert balance(third, name, item=1, lot="A") == 1
    assert balance(third, name, item=1, lot="A") == 111


def test_writers_a_merger_and_crashes_in_every_snapshot(sessions: Open) -> None:
    """A reader compares what is read with the movements, in one snapshot each time, while all this goes on."""
    connection = sessions()
    name = create(connection)
    finished = threading.Event()
    compared: list[tuple[Any, ...]] = []
    writing = threading.Barrier(4)

    def write(session: Connection, writer: int) -> None:
        for n in range(40):
            post(session, name, movement(f"{writer}/{n}", 1, 1), movement(f"{writer}/{n}", n % 3, n))
            if n % 4 == 0:
                session.execute("SELECT accum.register_unpost(%s, %s)", [name, f"{writer}/{n}"])
        if writing.wait(60) == 0:
            finished.set()

    def merge(session: Connection) -> None:
        while not finished.is_set():
            session.execute("SELECT accum._force_delta_merge(p_batch_size := 7)")

    def crash(session: Connection) -> None:
        while not finished.is_set():
            lose(session, name)
            try:
                if "lost" in maintain(session, name):
                    maintain(session, name, "REPEATABLE READ")
            except psycopg.errors.SerializationFailure:
                pass  # somebody has repaired it

    def read(session: Connection) -> None:
        while not finished.is_set():
            compared.extend(
                session.execute(
                    f"SELECT (SELECT coalesce(sum(n), 0) FROM accum.{name}_movements),"
                    f" (SELECT coalesce(sum(n), 0) FROM accum.{name}_totals_month),"
                    f" (accum.{name}_balance() ->> 'n')::int"
                ).fetchall()
            )

    writers = [partial(write, sessions(), writer) for writer in range(4)]
    together([*writers, *(partial(work, sessions()) for work in (merge, crash, read))])
    assert [row for row in compared if len(set(row)) > 1] == []
    assert len({row[0] for row in compared}) > 1
    assert wrong(connection, name) == []
    connection.execute("SELECT accum._force_delta_merge()")
    assert pending(connection, name) == 0
    assert wrong(connection, name) == []


def test_repair_leaves_alone_what_others_commit_meanwhile(sessions: Open) -> None:
    connection, writer = sessions(), sessions()
    name = create(connection)
    post(connection, name, movement("a", 1, 1))
    lose(connection, name)
    assert maintain(connection, name) == {"lost": True}
    with connection.transaction():
        connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        merged = value(connection, "SELECT accum_internal._maintain_deltas(%s, 0, 10)", name)
        assert merged == {"merged": 0, "rest": False}
        writer.execute("SET lock_timeout = '60s'")
        post(writer, name, movement("b", 1, 10))
        assert balance(writer, name, item=1, lot="A") == 11
    assert pending(connection, name) == 1
    assert balance(connection, name, item=1, lot="A") == 11
    assert wrong(connection, name) == []


# ---------------------------------------------------------------------------------------------------------------------
# On and off


@pytest.mark.long
def test_the_mode_is_switched_while_everybody_is_at_work(sessions: Open) -> None:
    """Whoever needs several tables of a register locks them in one order: nobody deadlocks."""
    connection = sessions()
    name = create(connection)
    finished = threading.Event()
    done: Counter[str] = Counter()
    changed = (psycopg.errors.SerializationFailure, psycopg.errors.UndefinedTable)

    def until_finished(work: Callable[[Connection], object], session: Connection) -> None:
        while not finished.is_set():
            try:
                work(session)
                done[work.__name__] += 1
            except changed:  # it was another kind of register when it was looked up
                done[f"{work.__name__} again"] += 1
            time.sleep(0.02)

    def switch(session: Connection) -> None:
        try:
            for number in range(12):
                session.execute("SELECT accum.register_alter(%s, high_write := %s)", [name, number % 2 == 1])
        finally:
            finished.set()

    def engine(session: Connection) -> None:
        maintain(session, name)

    def force(session: Connection) -> None:
        session.execute("SELECT accum._force_delta_merge()")

    def write(session: Connection) -> None:
        post(session, name, movement("w", 1, 1), movement("w", 2, 1))

    def write_and_merge(session: Connection) -> None:
        with session.transaction():
            post(session, name, movement("w", 3, 1))
            session.execute("SELECT accum._force_delta_merge()")

    def read(session: Connection) -> None:
        session.execute(f"SELECT accum.{name}_balance(), accum.{name}_balance('{{}}', '2026-04-18 12:00')")

    def look_at_tables(session: Connection) -> None:
        session.execute(f"SELECT * FROM accum.{name}_balance_cache")
        session.execute(f"SELECT * FROM accum.{name}_totals_day")

    def rebuild(session: Connection) -> None:
        session.execute("SELECT accum.register_rebuild_cache(%s)", [name])

    works = (engine, force, write, write_and_merge, read, look_at_tables, rebuild)
    together([partial(switch, sessions()), *(partial(until_finished, work, sessions()) for work in works)])
    assert {work.__name__ for work in works} <= {*done}, done
    assert wrong(connection, name) == []
    expected = value(connection, f"SELECT count(*) FROM accum.{name}_movements")
    assert value(connection, f"SELECT (accum.{name}_balance() -> 'n')::int") == expected


@pytest.mark.parametrize("first", ["balance_cache", "movements_default"])
def test_who_waited_for_the_movements_before_they_are_locked_is_let_go(sessions: Open, first: str) -> None:
    """It has another table, which is to be locked, too; and PostgreSQL is about to look whether that is a deadlock."""
    connection, writer, reader, altering = (sessions() for _ in range(4))
    name = create(connection)
    waiting = (
        "SELECT clock_timestamp() - waitstart FROM pg_locks WHERE pid = %s AND NOT granted"
        f" AND relation = 'accum.{name}_movements'::regclass AND clock_timestamp() - waitstart > %s::interval"
    )

    def await_waiting(session: Connection, least: str) -> None:
        deadline = time.monotonic() + 60
        while not connection.execute(waiting, [session.info.backend_pid, least]).fetchall():
            assert time.monotonic() < deadline
            time.sleep(0.01)

    reader.execute("SET deadlock_timeout = '400ms'")
    with ThreadPoolExecutor() as threads:
        writer.execute("BEGIN")
        post(writer, name, movement("a", 1, 1))
        altered = threads.submit(altering.execute, f"SELECT accum.register_alter('{name}', high_write := false)")
        await_waiting(altering, "0")
        reader.execute("BEGIN")
        reader.execute(f"SELECT FROM accum.{name}_{first}")
        read = threads.submit(reader.execute, f"SELECT n FROM accum.{name}_movements")
        await_waiting(reader, "300ms")
        writer.execute("COMMIT")
        assert read.result().fetchall() == [(1,)]
        reader.execute("COMMIT")
        altered.result()
    assert wrong(connection, name) == []
    assert value(connection, "SELECT accum.register_info(%s) -> 'high_write'", name) is False


def test_the_mode_is_switched_with_data_and_grants(sessions: Open) -> None:
    connection = sessions()
    name = create(connection, high_write=False)
    role = f"reader_{name}"
    connection.execute(f"CREATE ROLE {role}")
    post(connection, name, movement("a", 1, 1))
    connection.execute(f"GRANT SELECT ON accum.{name}_balance_cache TO {role}")
    connection.execute(f"GRANT SELECT (period, n) ON accum.{name}_totals_year TO PUBLIC")
    reads = [f"SELECT (accum.{name}_balance() -> 'n')::int", f"SELECT period::text, n FROM accum.{name}_totals_year"]

    def seen() -> list[list[tuple[Any, ...]]]:
        with connection.transaction():
            connection.execute(f"SET LOCAL ROLE {role}")
            return [connection.execute(read).fetchall() for read in reads]

    try:
        for high_write, n in ((True, 11), (False, 21), (True, 31)):
            connection.execute("SELECT accum.register_alter(%s, high_write := %s)", [name, high_write])
            post(connection, name, movement("b", 1, 10))
            assert seen() == [[(n,)], [("2026-01-01", n)]]
            if high_write:
                lose(connection, name)
                assert seen() == [[(n,)], [("2026-01-01", n)]]
            assert wrong(connection, name) == []
        assert value(connection, "SELECT accum.register_info(%s) -> 'high_write'", name) is True
        for table in (
            "balance_cache_stored",
            "balance_cache_delta",
            "balance_cache_epoch",
            "balance_cache_alive",
            "movements",
        ):
            with pytest.raises(psycopg.errors.InsufficientPrivilege), connection.transaction():
                connection.execute(f"SET LOCAL ROLE {role}")
                connection.execute(sql.SQL("SELECT * FROM accum.{}").format(sql.Identifier(f"{name}_{table}")))
        with pytest.raises(psycopg.errors.InsufficientPrivilege), connection.transaction():
            connection.execute(f"SET LOCAL ROLE {role}")
            connection.execute(f'SELECT * FROM accum_internal."{name}.recorded"(gen_random_uuid())')
    finally:
        connection.execute(f"DROP OWNED BY {role}; DROP ROLE {role}")


def test_columns_are_added_in_high_write_mode(sessions: Open) -> None:
    connection = sessions()
    name = create(connection)
    post(connection, name, movement("a", 1, 1))
    connection.execute(
        'SELECT accum.register_alter(%s, add_dimensions := \'{"color": "text"}\', add_resources := \'{"w": "real"}\')',
        [name],
    )
    post(connection, name, {**movement("b", 1, 10), "color": "red", "w": 0.5})
    cache = f"SELECT item, color, sum(n), sum(w) FROM accum.{name}_totals_year GROUP BY 1, 2 ORDER BY 3"
    assert connection.execute(cache).fetchall() == [(1, None, 1, 0.0), (1, "red", 10, 0.5)]
    lose(connection, name)
    assert connection.execute(cache).fetchall() == [(1, None, 1, 0.0), (1, "red", 10, 0.5)]
    assert wrong(connection, name) == []


def test_what_reads_a_table_is_not_left_with_a_part_of_the_truth(sessions: Open) -> None:
    connection = sessions()
    name = create(connection, high_write=False)
    connection.execute(f"CREATE VIEW public.of_{name} AS SELECT n FROM accum.{name}_balance_cache")
    with pytest.raises(psycopg.errors.DependentObjectsStillExist) as refused:
        connection.execute("SELECT accum.register_alter(%s, high_write := true)", [name])
    assert refused.value.diag.message_primary == (
        f'cannot change high_write of register "{name}" because other objects depend on its tables'
    )
    assert refused.value.diag.message_detail == f"view of_{name} depends on table accum.{name}_balance_cache".replace(
        "view of", "view public.of"
    )
    connection.execute(f"DROP VIEW public.of_{name}")
    connection.execute("SELECT accum.register_alter(%s, high_write := true)", [name])
    assert wrong(connection, name) == []


def test_dropping_leaves_nothing(sessions: Open) -> None:
    connection = sessions()
    name = create(connection)
    post(connection, name, movement("a", 1, 1))
    connection.execute("SELECT accum.register_drop(%s, force := true)", [name])
    left = (
        "SELECT oid::regclass::text FROM pg_class WHERE relname LIKE %(name)s"
        " UNION ALL SELECT oid::regproc::text FROM pg_proc WHERE proname LIKE %(name)s"
    )
    assert connection.execute(left, {"name": f"%{name}%"}).fetchall() == []
    assert sqlstate(connection, "SELECT accum.register_info(%s)", name) == "42704"


def test_rows_of_a_clock_that_was_set_back_are_merged(sessions: Open) -> None:
    connection = sessions()
    name = create(connection)
    post(connection, name, movement("a", 1, 5))
    connection.execute(f"UPDATE accum.{name}_balance_cache_delta SET created_at = created_at + interval '1 hour'")
    merged = connection.execute(
        "SELECT accum_internal._merge_deltas(accum_internal._register(%s), '2 seconds', 100)", [name]
    ).fetchone()
    assert merged == (1,)
