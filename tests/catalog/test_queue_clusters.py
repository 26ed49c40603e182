"""Queues that are dumped from one cluster and restored into another, where transaction ids mean something else."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator

import psycopg
import pytest

from catalog.systems import QUEUES
from server.postgres.cluster import EmbeddedPostgres
from tests.catalog.conftest import Queue, install_into
from tests.clusters import started_cluster

NAME = "moved"

IDLE_TICKS = 4000
"""More than a young cluster has used transaction ids."""


@pytest.fixture(scope="module")
def young_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedPostgres]:
    """A cluster that has used few transaction ids."""
    with started_cluster(tmp_path_factory.mktemp("young") / "data") as postgres:
        yield postgres


@pytest.fixture
def moved(cluster: EmbeddedPostgres, young_cluster: EmbeddedPostgres) -> Iterator[None]:
    """A database of this name in both clusters, to be moved from one to the other."""
    for postgres in (cluster, young_cluster):
        with psycopg.connect(postgres.dsn(), autocommit=True) as admin:
            install_into(postgres.dsn(), system=QUEUES)  # for the roles, which no dump of a database has
            admin.execute(f"CREATE DATABASE {NAME}")
    yield
    for postgres in (cluster, young_cluster):
        with psycopg.connect(postgres.dsn(), autocommit=True) as admin:
            admin.execute(f"DROP DATABASE {NAME} WITH (FORCE)")


def move(origin: EmbeddedPostgres, target: EmbeddedPostgres) -> None:
    """Dump the database, and restore it in the other cluster."""
    dump = subprocess.run([origin.bin_dir / "pg_dump", origin.dsn(NAME)], check=True, capture_output=True).stdout
    command = [target.psql, "-Xq", "-v", "ON_ERROR_STOP=1", target.dsn(NAME)]
    subprocess.run(command, input=dump, check=True, stdout=subprocess.DEVNULL)


def use_up_transaction_ids(connection: psycopg.Connection, number: int) -> None:
    connection.execute(
        "DO $$ BEGIN FOR i IN 1 .. " + str(number) + " LOOP PERFORM pg_current_xact_id(); COMMIT; END LOOP; END $$"
    )


def filled(cluster: EmbeddedPostgres, idle: int) -> dict[str, list[list[str]]]:
    """A queue with consumers at several ticks, then idle ticks; what each is still to be given, batch by batch."""
    install_into(cluster.dsn(NAME), system=QUEUES)
    with (
        psycopg.connect(cluster.dsn(NAME), autocommit=True) as connection,
        psycopg.connect(cluster.dsn(NAME)) as slow,
    ):
        queue = Queue(connection, "q")
        queue.value("SELECT pgque.create_queue('q')")
        slow.execute("SELECT pgque.send('q', 'slow')")
        for consumer in ("first", "working", "second", "third"):
            queue.value("SELECT pgque.subscribe('q', %s)", consumer)
            queue.send(f"{consumer} a", f"{consumer} b")
            queue.tick()
        assert queue.rows("SELECT payload FROM pgque.receive('q', 'working')") == [("working a",), ("working b",)]
        slow.commit()
        queue.tick()
        queue.value("SELECT pgque.subscribe('q', 'last')")
        queue.value(
            "INSERT INTO pgque.tick SELECT tick_queue, tick_id + n, tick_time, tick_snapshot, tick_event_seq"
            " FROM (SELECT * FROM pgque.tick ORDER BY tick_id DESC LIMIT 1) AS t, generate_series(1, %s) AS n"
            " RETURNING 1",
            idle,
        )
        queue.send("not ticked")
    ticked = [
        ["first a", "first b"],
        ["working a", "working b"],
        ["second a", "second b"],
        ["third a", "third b"],
        ["slow"],
    ]
    pending = ["not ticked"]
    return {
        "first": [*ticked, pending],
        "working": [*ticked[1:], pending],
        "second": [*ticked[2:], pending],
        "third": [*ticked[3:], pending],
        "last": [pending],
    }


def batches(queue: Queue, consumer: str) -> list[list[str]]:
    """The payloads of every batch that has some, in order of their ids, acknowledged."""
    found = []
    while rows := queue.rows("SELECT batch_id, payload FROM pgque.receive('q', %s) ORDER BY msg_id", consumer):
        found.append([payload for _, payload in rows])
        assert queue.value("SELECT pgque.ack(%s)", rows[0][0]) == 1
    return found


@pytest.mark.parametrize("direction", ["to a younger cluster", "to an older cluster"])
def test_restored_queue_delivers_what_was_due_and_what_is_sent_since(
    cluster: EmbeddedPostgres, young_cluster: EmbeddedPostgres, moved: None, direction: str
) -> None:
    origin, target = (cluster, young_cluster) if "younger" in direction else (young_cluster, cluster)
    with psycopg.connect(cluster.dsn(), autocommit=True) as admin:
        use_up_transaction_ids(admin, 5000)
    due = filled(origin, IDLE_TICKS if target is young_cluster else 1)
    move(origin, target)
    with psycopg.connect(target.dsn(NAME), autocommit=True) as connection:
        queue = Queue(connection, "q")
        ticks = queue.rows("SELECT tick_id FROM pgque.tick ORDER BY 1")
        queue.send("sent before anybody looked")
        assert queue.rows("SELECT payload FROM pgque.receive('q', 'working')") == [("working a",), ("working b",)]
        queue.send("sent afterwards")
        queue.value("SELECT pgque._tick_early()")
        kept = queue.rows("SELECT tick_id FROM pgque.tick ORDER BY 1")[:-1]
        assert 6 <= len(kept) < IDLE_TICKS if target is young_cluster else kept == ticks
        delivered(queue, due, ["sent before anybody looked", "sent afterwards"])


def delivered(queue: Queue, due: dict[str, list[list[str]]], since: list[str]) -> None:
    """Each consumer gets its batches as they were, and what has been sent since. What all have seen goes."""
    assert {consumer: batches(queue, consumer) for consumer in due} == {
        consumer: [*ticked, [*pending, *since]] for consumer, (*ticked, pending) in due.items()
    }
    queue.send("one more")
    queue.tick()
    assert {consumer: batches(queue, consumer) for consumer in due} == {consumer: [["one more"]] for consumer in due}
    for _ in range(6):
        queue.value("UPDATE pgque.queue SET queue_switch_time = '-infinity' RETURNING 1")
        queue.tick()
        for consumer in due:
            batches(queue, consumer)
        queue.value("SELECT pgque.maint()")
        queue.value("SELECT pgque.maint_rotate_tables_step2()")
    assert queue.value("SELECT count(*) FROM pgque.event_template") == 0, "what all have seen does not stay for ever"


def test_parts_and_keys_go_on_where_they_were(
    cluster: EmbeddedPostgres, young_cluster: EmbeddedPostgres, moved: None
) -> None:
    """A consumer, a group and a group with a key, each in the middle of what lies between two ticks."""
    take = "SELECT batch_id, payload FROM pgque.receive_coop('parts', %s, 'w', 1000)"
    install_into(cluster.dsn(NAME), system=QUEUES)
    with psycopg.connect(cluster.dsn(NAME), autocommit=True) as connection:
        queue = Queue(connection, "parts")
        queue.value("SELECT pgque.create_queue('parts')")
        queue.value("SELECT pgque.set_queue_config('parts', 'max_batch_events', '4')")
        queue.value("SELECT pgque.subscribe('parts', 'c')")
        queue.value("SELECT pgque.register_subconsumer('parts', 'group', 'w')")
        queue.value("SELECT pgque.set_ordering_key('parts', 'keyed', 'ev_type')")
        queue.value("SELECT pgque.register_subconsumer('parts', 'keyed', 'w')")
        events = [str(number) for number in range(10)]
        queue.send(*events)
        queue.tick()
        queue.value("SELECT pgque.ack(pgque.next_batch('parts', 'c'))")
        for consumer in ("group", "keyed"):
            rows = queue.rows(take, consumer)
            assert [payload for _, payload in rows] == events[:4]
            if consumer == "keyed":  # the rest of the part is held
                nack = (
                    "SELECT pgque.nack(%s, m, '0') FROM pgque.receive_coop('parts', 'keyed', 'w') m WHERE payload = '2'"
                )
                assert queue.value(nack, rows[0][0]) == 1
            queue.value("SELECT pgque.ack(%s)", rows[0][0])
        queue.send("last")
        queue.tick()
    move(cluster, young_cluster)
    install_into(young_cluster.dsn(NAME), system=QUEUES)
    with psycopg.connect(young_cluster.dsn(NAME), autocommit=True) as connection:
        queue = Queue(connection, "parts")
        for consumer, left in (("keyed", events[2:]), ("group", events[4:]), ("c", events[4:])):
            got: list[str] = []
            statement = take if consumer != "c" else "SELECT batch_id, payload FROM pgque.receive('parts', %s, 1000)"
            while rows := queue.rows(statement, consumer):
                got += [payload for _, payload in rows]
                queue.value("SELECT pgque.ack(%s)", rows[0][0])
            assert got == [*left, "last"], consumer
