"""Rotation: tables are emptied by TRUNCATE, as soon as nobody needs them, and never before."""

from __future__ import annotations

import psycopg
import pytest

from tests.catalog.conftest import Queue


@pytest.fixture
def rotating(queue: Queue) -> Queue:
    queue.value("SELECT pgque.set_queue_config(%s, 'rotation_period', '1 microsecond')", queue.name)
    return queue


def rotate(queue: Queue) -> int:
    """Step 1 of this queue and step 2, each in its transaction."""
    switched = int(queue.value("SELECT pgque.maint_rotate_tables_step1(%s)", queue.name))
    queue.value("SELECT pgque.maint_rotate_tables_step2()")
    return switched


def tables(queue: Queue) -> list[int]:
    """How many events each of the three tables has."""
    prefix = queue.value("SELECT queue_data_pfx FROM pgque.queue WHERE queue_name = %s", queue.name)
    return [int(queue.value(f"SELECT count(*) FROM {prefix}_{number}")) for number in range(3)]


def finish(queue: Queue, consumer: str) -> list[str]:
    batch = queue.value("SELECT pgque.next_batch(%s, %s)", queue.name, consumer)
    payloads = [row[0] for row in queue.rows("SELECT ev_data FROM pgque.get_batch_events(%s)", batch)]
    queue.value("SELECT pgque.finish_batch(%s)", batch)
    return payloads


def test_events_go_round_three_tables(rotating: Queue) -> None:
    rotating.value("SELECT pgque.subscribe(%s, 'c')", rotating.name)
    seen = []
    for number in range(5):
        rotating.send(f"event {number}")
        rotating.tick()
        assert finish(rotating, "c") == [f"event {number}"]
        assert rotate(rotating) == 1
        seen.append(tables(rotating))
    assert seen == [[1, 0, 0], [1, 1, 0], [0, 1, 1], [1, 0, 1], [1, 1, 0]]


def test_a_slow_consumer_keeps_its_events(rotating: Queue) -> None:
    rotating.value("SELECT pgque.subscribe(%s, 'slow')", rotating.name)
    rotating.send("kept")
    rotating.tick()
    assert [rotate(rotating) for _ in range(5)] == [1, 1, 0, 0, 0]
    assert finish(rotating, "slow") == ["kept"]
    assert [rotate(rotating) for _ in range(2)] == [1, 1]
    assert tables(rotating) == [0, 0, 0]


def test_events_that_no_tick_has_seen_are_kept_without_consumers(rotating: Queue) -> None:
    rotating.send("not ticked")
    assert [rotate(rotating) for _ in range(3)] == [1, 1, 0]
    rotating.value("SELECT pgque.subscribe(%s, 'new')", rotating.name)
    rotating.tick()
    assert finish(rotating, "new") == ["not ticked"]


def test_not_before_the_period_and_not_before_step_2(queue: Queue) -> None:
    assert queue.value("SELECT pgque.maint_rotate_tables_step1(%s)", queue.name) == 0
    queue.value("SELECT pgque.set_queue_config(%s, 'rotation_period', '1 microsecond')", queue.name)
    step1 = "SELECT pgque.maint_rotate_tables_step1(%s)"
    assert [queue.value(step1, queue.name) for _ in range(2)] == [1, 0]
    with queue.connection.transaction():
        assert queue.value("SELECT pgque.maint_rotate_tables_step2()") >= 1
    with queue.connection.transaction():  # a switch is not confirmed by its own transaction
        assert queue.value(step1, queue.name) == 1
        assert queue.value("SELECT pgque.maint_rotate_tables_step2()") == 0


def test_open_transaction_is_in_the_way_only_of_the_table_it_wrote(rotating: Queue, queue_database: str) -> None:
    rotating.value("SELECT pgque.subscribe(%s, 'c')", rotating.name)
    with psycopg.connect(queue_database) as idle, psycopg.connect(queue_database) as writer:
        idle.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        idle.execute("SELECT pg_current_xact_id(), count(*) FROM pgque.queue")
        for number in range(4):
            rotating.send(str(number))
            rotating.tick()
            assert finish(rotating, "c") == [str(number)]
            assert rotate(rotating) == 1
        # It still thinks that table 0 is the one to write to, which is current no more.
        current = rotating.value("SELECT queue_cur_table FROM pgque.queue WHERE queue_name = %s", rotating.name)
        assert current == 1
        writer.execute("SELECT pgque.send(%s, 'slow')", [rotating.name])
        for _ in range(4):
            rotating.tick()
            assert finish(rotating, "c") == []
            rotate(rotating)
        idle.execute("SELECT pgque.send(%s, 'idle')", [rotating.name])
        idle.commit()
        writer.commit()
        rotating.tick()
        assert [rotate(rotating) for _ in range(3)][-1] == 0
        assert sorted(finish(rotating, "c")) == ["idle", "slow"]
        assert rotate(rotating) == 1


def test_reader_of_the_table_postpones_rotation(rotating: Queue, queue_database: str) -> None:
    prefix = rotating.value("SELECT queue_data_pfx FROM pgque.queue WHERE queue_name = %s", rotating.name)
    with psycopg.connect(queue_database) as dump:
        dump.execute(f"LOCK TABLE {prefix}_1 IN ACCESS SHARE MODE")
        assert rotate(rotating) == 0
        dump.rollback()
    assert rotate(rotating) == 1


def test_registration_in_progress_postpones_rotation(rotating: Queue, queue_database: str) -> None:
    first = rotating.tick()
    with psycopg.connect(queue_database) as registering:
        registering.execute("SELECT pgque.register_consumer_at(%s, 'c', %s)", [rotating.name, first])
        rotating.send("x")
        rotating.tick()
        assert rotate(rotating) == 0
        registering.commit()
    assert [rotate(rotating) for _ in range(3)] == [1, 1, 0]
    assert finish(rotating, "c") == ["x"]


def test_ticks_that_everybody_has_passed_are_removed(rotating: Queue) -> None:
    rotating.value("SELECT pgque.subscribe(%s, 'c')", rotating.name)
    for _ in range(5):
        rotating.tick()
    finish(rotating, "c")
    rotate(rotating)
    ticks = rotating.rows(
        "SELECT tick_id FROM pgque.tick JOIN pgque.queue ON queue_id = tick_queue WHERE queue_name = %s ORDER BY 1",
        rotating.name,
    )
    assert ticks == [(2,), (3,), (4,), (5,), (6,)]


def test_maint_rotates_and_calls_the_queues_own_functions(rotating: Queue) -> None:
    connection = rotating.connection
    connection.execute(
        "CREATE ROLE queue_hooks; GRANT pgque_admin TO queue_hooks; GRANT CREATE ON SCHEMA public TO queue_hooks;"
        "CREATE TABLE maintained (queue text, who text); ALTER TABLE maintained OWNER TO queue_hooks;"
        "CREATE FUNCTION extra_maint(queue text) RETURNS int LANGUAGE sql SECURITY DEFINER AS"
        " 'INSERT INTO public.maintained VALUES (queue, current_user) RETURNING 1';"
        "CREATE FUNCTION broken_maint(queue text) RETURNS int LANGUAGE sql SECURITY DEFINER AS 'SELECT 1/0';"
        "ALTER FUNCTION extra_maint(text) OWNER TO queue_hooks; ALTER FUNCTION broken_maint(text) OWNER TO queue_hooks"
    )
    connection.execute(
        "UPDATE pgque.queue SET queue_extra_maint = '{public.broken_maint,public.extra_maint}' WHERE queue_name = %s",
        [rotating.name],
    )
    notices: list[str] = []
    connection.add_notice_handler(lambda notice: notices.append(str(notice.message_primary)))
    try:
        assert rotating.value("SELECT pgque.maint()") >= 2
        called = [(rotating.name, "queue_hooks")]
        assert rotating.rows("SELECT * FROM maintained") == called
        assert notices == [f"maint: public.broken_maint of queue {rotating.name} failed: division by zero"]
        # It is somebody else's, and does not offer its rights; or has none to its table.
        for change, back in (
            ("SECURITY INVOKER", "SECURITY DEFINER"),
            ("OWNER TO pgque_reader", "OWNER TO queue_hooks"),
            ("RENAME TO another", None),
        ):
            connection.execute(f"ALTER FUNCTION extra_maint(text) {change}")
            notices.clear()
            rotating.value("SELECT pgque.maint()")
            assert len(notices) == 2, change
            if back is not None:
                connection.execute(f"ALTER FUNCTION extra_maint(text) {back}")
        assert rotating.rows("SELECT * FROM maintained") == called
        # Its own, it calls with its own rights.
        connection.execute("ALTER FUNCTION another(text) RENAME TO extra_maint")
        connection.execute("ALTER FUNCTION extra_maint(text) SECURITY INVOKER")
        connection.execute("ALTER FUNCTION extra_maint(text) OWNER TO CURRENT_USER")
        rotating.value("SELECT pgque.maint()")
        assert rotating.rows("SELECT * FROM maintained") == [*called, (rotating.name, rotating.value("SELECT user"))]
    finally:
        connection.execute("UPDATE pgque.queue SET queue_extra_maint = NULL; DROP OWNED BY queue_hooks")
        connection.execute("DROP FUNCTION IF EXISTS extra_maint(text), broken_maint(text); DROP ROLE queue_hooks")
        rotating.value("SELECT pgque.maint_rotate_tables_step2()")


def test_rotation_refuses_a_snapshot_that_may_be_old(rotating: Queue) -> None:
    with rotating.connection.transaction():
        rotating.connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        with pytest.raises(psycopg.errors.RaiseException, match="read committed"), rotating.connection.transaction():
            rotating.value("SELECT pgque.maint_rotate_tables_step1(%s)", rotating.name)
