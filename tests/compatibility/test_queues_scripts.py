"""Scripts as PgQue's documentation and its clients have them: manual ticks, receiving, cooperative consumers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import psycopg
import pytest

from tests.e2e.conftest import Database

Eventually = Callable[..., Any]


def tick(database: Database, queue: str) -> int:
    """The idiom of PgQue's documentation: two statements."""
    database.run("SELECT pgque.force_next_tick(%s)", queue)
    made = database.value("SELECT pgque.ticker(%s)", queue)
    assert made is not None, "a clock that was faster takes nothing away"
    return int(made)


def state(database: Database, queue: str) -> dict[str, tuple[str, int | None, int | None]]:
    """Of each subscription: its role, batch and next tick."""
    rows = database.rows(
        "SELECT co_name, sub_role, sub_batch, sub_next_tick FROM pgque.subscription"
        " JOIN pgque.consumer ON co_id = sub_consumer JOIN pgque.queue ON queue_id = sub_queue WHERE queue_name = %s",
        queue,
    )
    return {name: (role, batch, following) for name, role, batch, following in rows}


# ---------------------------------------------------------------------------------------------------------------------
# Ticks


def test_a_forced_tick_is_made_at_each_call_beside_a_clock(queues: Database) -> None:
    queues.run("SELECT pgque.create_queue('forced')")
    queues.run("SELECT pgque.set_tick_period_ms(1)")  # a clock that is at it all the time
    try:
        for _ in range(30):
            last = queues.value("SELECT pgque.force_next_tick('forced')")
            assert queues.value("SELECT pgque.ticker('forced')") > last
            queues.run("SELECT pgque.force_tick('forced')")
            assert queues.value("SELECT pgque.ticker()") >= 1
    finally:
        queues.run("SELECT pgque.set_tick_period_ms(100)")


def test_a_forced_tick_is_made_in_the_transaction_that_forces_it(queues: Database) -> None:
    with queues.connect(autocommit=False) as connection:
        connection.execute("SELECT pgque.create_queue('at once')")
        for expected in (2, 3):
            forced = connection.execute("SELECT pgque.force_next_tick('at once')").fetchone()
            assert forced == (expected - 1,)
            assert connection.execute("SELECT pgque.ticker('at once')").fetchone() == (expected,)
        connection.execute("SELECT pgque.force_next_tick('at once')")
        ((ticks,),) = connection.execute("SELECT pgque.ticker()").fetchall()
        assert ticks >= 1
        last = connection.execute("SELECT last_tick_id FROM pgque.get_queue_info('at once')").fetchone()
        assert last == (4,)
        connection.commit()


def test_forcing_a_tick_holds_up_nobody(queues: Database) -> None:
    queues.run("SELECT pgque.create_queue('held up')")
    with queues.connect(autocommit=False) as first:
        first.execute("SELECT pgque.force_next_tick('held up')")
        queues.run("SET lock_timeout = '60s'")
        tick(queues, "held up")
        queues.run("RESET lock_timeout")


def test_events_are_delivered_within_the_period_although_the_lag_is_three_seconds(
    queues: Database, eventually: Eventually
) -> None:
    """By the clock, that is. Several, since one may come late for other reasons."""
    queues.run("SELECT pgque.create_queue('prompt'), pgque.subscribe('prompt', 'c')")
    eventually(lambda: queues.value("SELECT status = 'running' FROM pgque.status() WHERE component = 'ticker'"))
    ages = []
    for _ in range(5):
        queues.run("SELECT pgque.send('prompt', 'x')")
        ((batch, age),) = eventually(
            lambda: queues.rows(
                "SELECT batch_id, t.tick_time - m.created_at < interval '1.5 seconds'"
                " FROM pgque.receive('prompt', 'c') m"
                " JOIN pgque.subscription s ON s.sub_batch = m.batch_id"
                " JOIN pgque.tick t ON t.tick_queue = s.sub_queue AND t.tick_id = s.sub_next_tick"
            )
        )
        queues.run("SELECT pgque.ack(%s)", batch)
        ages.append(age)
    assert any(ages), "none of them before half of PgQ's three seconds was over"


# ---------------------------------------------------------------------------------------------------------------------
# Consumers


def test_receive_finishes_an_empty_window(queues: Database) -> None:
    queues.run("SELECT pgque.create_queue('empty'), pgque.subscribe('empty', 'c')")
    for _ in range(3):
        tick(queues, "empty")
        assert queues.rows("SELECT * FROM pgque.receive('empty', 'c')") == []
        assert state(queues, "empty") == {"c": ("normal", None, None)}
    queues.run("SELECT pgque.send('empty', 'x')")
    tick(queues, "empty")
    assert queues.rows("SELECT payload FROM pgque.receive('empty', 'c')") == [("x",)]


def test_receive_finishes_an_empty_batch_that_next_batch_has_given(queues: Database) -> None:
    queues.run("SELECT pgque.create_queue('given'), pgque.subscribe('given', 'c')")
    tick(queues, "given")
    batch = queues.value("SELECT pgque.next_batch('given', 'c')")
    assert state(queues, "given")["c"][1] == batch
    assert queues.rows("SELECT * FROM pgque.receive('given', 'c')") == []
    assert state(queues, "given")["c"][1] is None
    assert queues.value("SELECT pgque.finish_batch(%s)", batch) == 0


def test_a_consumer_is_repositioned_and_its_partial_batch_dropped(queues: Database) -> None:
    queues.run("SELECT pgque.create_queue('moved'), pgque.subscribe('moved', 'c')")
    queues.run("SELECT pgque.send('moved', 'x')")
    tick(queues, "moved")
    ((batch, _),) = queues.rows("SELECT batch_id, payload FROM pgque.receive('moved', 'c')")
    assert queues.value("SELECT pgque.register_consumer_at('moved', 'c', 1)") == 0
    assert state(queues, "moved") == {"c": ("normal", None, None)}
    assert queues.value("SELECT pgque.ack(%s)", batch) == 0
    assert queues.rows("SELECT payload FROM pgque.receive('moved', 'c')") == [("x",)]


def test_consumers_that_nobody_is_any_more_are_deleted(queues: Database) -> None:
    for queue in ("one", "other"):
        queues.run("SELECT pgque.create_queue(%s)", queue)
        queues.run("SELECT pgque.subscribe(%s, 'twofold')", queue)
    known = "SELECT count(*) FROM pgque.consumer WHERE co_name = 'twofold'"
    assert queues.value("SELECT pgque.unsubscribe('one', 'twofold')") == 1
    assert queues.value(known) == 1
    assert queues.value("SELECT pgque.unregister_consumer('other', 'twofold')") == 1
    assert queues.value(known) == 0
    assert queues.value("SELECT pgque.subscribe('one', 'twofold')") == 1


def test_dead_letters_outlive_their_consumer_and_go_with_the_queue(queues: Database) -> None:
    queues.run("SELECT pgque.create_queue('mortal'), pgque.subscribe('mortal', 'dead')")
    queues.run("UPDATE pgque.queue SET queue_max_retries = 0 WHERE queue_name = 'mortal'")
    queues.run("SELECT pgque.send('mortal', 'x')")
    tick(queues, "mortal")
    queues.run("SELECT pgque.nack(m.batch_id, m, '0', 'poison') FROM pgque.receive('mortal', 'dead') m")
    assert queues.value("SELECT pgque.unsubscribe('mortal', 'dead')") == 1
    letters = "SELECT co_name, dl_reason FROM pgque.dead_letter JOIN pgque.consumer ON co_id = dl_consumer_id"
    assert queues.rows(letters) == [("dead", "poison")]
    queues.run("SELECT pgque.drop_queue('mortal', true)")
    assert queues.rows("SELECT FROM pgque.consumer WHERE co_name = 'dead'") == []


def test_events_that_an_administrator_copies_into_the_current_table(queues: Database) -> None:
    queues.run("SELECT pgque.create_queue('copied'), pgque.subscribe('copied', 'c')")
    table = queues.value("SELECT pgque.current_event_table('copied')")
    sequence = queues.value("SELECT queue_event_seq FROM pgque.queue WHERE queue_name = 'copied'")
    with queues.connect(autocommit=False) as connection:
        connection.execute("SET LOCAL ROLE pgque_admin")
        ids = [connection.execute("SELECT nextval(%s)", [sequence]).fetchone() for _ in range(3)]
        with connection.cursor().copy(f"COPY {table} (ev_id, ev_time, ev_type, ev_data) FROM STDIN") as copy:
            for (number,) in ids:
                copy.write_row((number, "2026-01-01", "copied", f"row {number}"))
        connection.commit()
    tick(queues, "copied")
    assert queues.rows("SELECT type, payload FROM pgque.receive('copied', 'c')") == [
        ("copied", f"row {number}") for (number,) in ids
    ]


# ---------------------------------------------------------------------------------------------------------------------
# Cooperative consumers: "Cooperative-aware inherited functions"


@pytest.fixture
def team(queues: Database) -> Database:
    """Queue `shared` with consumer `team` and its members `a` and `b`."""
    if queues.rows("SELECT FROM pgque.queue WHERE queue_name = 'shared'"):
        queues.run("SELECT pgque.drop_queue('shared', true)")
    queues.run("SELECT pgque.create_queue('shared')")
    for member in ("a", "b"):
        queues.run("SELECT pgque.subscribe_subconsumer('shared', 'team', %s)", member)
    return queues


def test_normal_functions_point_from_dotted_names_to_the_cooperative_ones(team: Database) -> None:
    for consumer in ("team", "team.a"):
        for call in ("receive", "next_batch", "next_batch_info"):
            with pytest.raises(psycopg.Error, match=r"receive_coop\(\)"):
                team.run(f"SELECT * FROM pgque.{call}('shared', %s)", consumer)
        assert team.value("SELECT pgque.subscribe('shared', %s)", consumer) == 0, "they are registered"
    with pytest.raises(psycopg.Error, match="has registered subconsumers"):
        team.run("SELECT pgque.unregister_consumer('shared', 'team')")


def test_a_member_leaves_by_its_dotted_name_and_the_last_one_makes_the_consumer_normal(team: Database) -> None:
    assert team.value("SELECT pgque.unregister_consumer('shared', 'team.a')") == 1
    assert {name: role for name, (role, *_) in state(team, "shared").items()} == {
        "team": "coop_main",
        "team.b": "coop_member",
    }
    assert team.value("SELECT pgque.unregister_consumer('shared', 'team.a')") == 0
    assert team.value("SELECT pgque.unsubscribe('shared', 'team.b')") == 1
    assert state(team, "shared") == {"team": ("normal", None, None)}
    assert team.rows("SELECT co_name FROM pgque.consumer WHERE co_name LIKE 'team.%%'") == []
    team.run("SELECT pgque.send('shared', 'x')")
    tick(team, "shared")
    assert team.rows("SELECT payload FROM pgque.receive('shared', 'team')") == [("x",)]


def test_a_member_with_a_batch_does_not_leave_with_it(team: Database) -> None:
    team.run("SELECT pgque.send('shared', 'x')")
    tick(team, "shared")
    ((batch,),) = team.rows("SELECT batch_id FROM pgque.receive_coop('shared', 'team', 'a')")
    with pytest.raises(psycopg.Error, match="has active batch"):
        team.run("SELECT pgque.unregister_consumer('shared', 'team.a')")
    assert team.value("SELECT pgque.ack(%s)", batch) == 1
    assert team.value("SELECT pgque.unregister_consumer('shared', 'team.a')") == 1


def test_the_row_of_a_group_never_has_a_batch(team: Database) -> None:
    for payload in ("1", "2", "3"):
        team.run("SELECT pgque.send('shared', %s)", payload)
        tick(team, "shared")
        for member in ("a", "b"):
            for (batch,) in team.rows("SELECT batch_id FROM pgque.receive_coop('shared', 'team', %s)", member):
                assert state(team, "shared")["team"] == ("coop_main", None, None)
                team.run("SELECT pgque.ack(%s)", batch)
    with pytest.raises(psycopg.errors.CheckViolation):
        team.run("UPDATE pgque.subscription SET sub_batch = 9999 WHERE sub_role = 'coop_main'")


def test_a_group_whose_members_somebody_has_deleted_is_a_normal_consumer(team: Database) -> None:
    team.run("DELETE FROM pgque.subscription WHERE sub_role = 'coop_member'")
    assert state(team, "shared")["team"][0] == "coop_main"
    team.run("SELECT pgque.send('shared', 'x')")
    tick(team, "shared")
    assert team.rows("SELECT payload FROM pgque.receive('shared', 'team')") == [("x",)]
    assert state(team, "shared")["team"][0] == "normal"


# ---------------------------------------------------------------------------------------------------------------------
# From the first call to the last


def test_a_session_of_pgq_from_the_first_call_to_the_last(live_db: Database) -> None:
    """Without a clock, so that every number is known. A lag and a period of 0 have every call do its work."""
    db = live_db
    db.run("SELECT pgque.stop()")
    assert db.value("SELECT pgque.maint_retry_events()") == 0
    assert db.value("SELECT pgque.create_queue('fresh')") == 1
    assert db.value("SELECT pgque.ticker('fresh')") == 2, "the second tick comes at once"
    assert db.value("SELECT pgque.ticker('fresh')") is None
    assert db.value("SELECT pgque.drop_queue('fresh')") == 1
    db.run("SELECT pgque.create_queue('myqueue'), pgque.register_consumer('myqueue', 'consumer')")
    db.run("UPDATE pgque.queue SET queue_ticker_max_lag = '0', queue_ticker_idle_period = '0'")
    assert db.value("SELECT pgque.next_batch('myqueue', 'consumer')") is None
    assert db.value("SELECT pgque.ticker()") == 1
    assert [db.value("SELECT pgque.next_batch('myqueue', 'consumer')") for _ in range(2)] == [1, 1]
    assert db.rows("SELECT queue_name, consumer_name, prev_tick_id, tick_id FROM pgque.get_batch_info(1)") == [
        ("myqueue", "consumer", 1, 2)
    ]
    assert [db.value("SELECT pgque.finish_batch(1)") for _ in range(2)] == [1, 0]
    assert db.value("SELECT pgque.ticker()") == 1
    assert db.value("SELECT pgque.next_batch('myqueue', 'consumer')") == 2
    assert db.rows("SELECT * FROM pgque.get_batch_events(2)") == []
    assert db.value("SELECT pgque.finish_batch(2)") == 1

    db.run("SELECT pgque.insert_event('myqueue', 'r1', 'data')")
    db.run("SELECT pgque.insert_event('myqueue', 'r2', 'data', 'extra1', 'extra2', 'extra3', 'extra4')")
    db.run("SELECT pgque.insert_event('myqueue', 'r3', 'data')")
    assert db.value("SELECT pgque.ticker()") == 1
    for limits in ("'1 hour', NULL, NULL", "NULL, 10000, NULL", "NULL, NULL, '10 minutes'"):
        assert db.rows(f"SELECT batch_id FROM pgque.next_batch_custom('myqueue', 'consumer', {limits})") == [(None,)]
    assert db.value("SELECT pgque.next_batch('myqueue', 'consumer')") == 3
    columns = "ev_id, ev_retry, ev_type, ev_extra4"
    events = [(1, None, "r1", None), (2, None, "r2", "extra4"), (3, None, "r3", None)]
    assert db.rows(f"SELECT {columns} FROM pgque.get_batch_events(3)") == events
    with db.connect(autocommit=False) as connection:
        first = connection.execute(f"SELECT {columns} FROM pgque.get_batch_cursor(3, 'acurs', 2)").fetchall()
        assert first == events[:2]
        assert len(connection.execute("FETCH 10 FROM acurs").fetchall()) == 1
        connection.execute("CLOSE acurs")
    assert db.value("SELECT pgque.event_retry(3, 2, 0)") == 1
    assert db.value("SELECT pgque.event_retry(3, 2, 0)") == 0
    assert db.value("SELECT pgque.batch_retry(3, 0)") == 2
    assert db.value("SELECT pgque.finish_batch(3)") == 1
    assert db.value("SELECT pgque.maint_retry_events()") == 3
    assert db.value("SELECT pgque.ticker()") == 1
    assert db.rows("SELECT msg_id, retry_count FROM pgque.receive('myqueue', 'consumer')") == [(1, 1), (2, 1), (3, 1)]
    assert db.value("SELECT pgque.ack(sub_batch) FROM pgque.subscription") == 1

    db.run("UPDATE pgque.queue SET queue_rotation_period = '0 seconds'")
    assert db.rows("SELECT queue_name, pgque.maint_rotate_tables_step1(queue_name) FROM pgque.queue") == [
        ("myqueue", 1)
    ]
    assert db.value("SELECT pgque.maint_rotate_tables_step2()") == 1
    assert db.value("SELECT pgque.current_event_table('myqueue')").endswith("_1")
    assert db.value("SELECT pgque.unregister_consumer('myqueue', 'consumer')") == 1
    assert db.value("SELECT pgque.drop_queue('myqueue')") == 1
    assert db.rows("SELECT FROM pgque.consumer") == []
