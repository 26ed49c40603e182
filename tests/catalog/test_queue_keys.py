"""Groups with a key: members get disjoint keys, and each key's events in order, whatever happens."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from tests.catalog.conftest import Queue

Message = tuple[int, int, str, str]
"""Batch, event, key, payload."""


@pytest.fixture
def keyed(queue: Queue) -> Queue:
    """A queue with a group whose key is ev_extra1."""
    queue.value("SELECT pgque.set_ordering_key(%s, 'team', 'ev_extra1')", queue.name)
    return queue


def send(queue: Queue, *events: str) -> None:
    """Events "key:payload"."""
    for event in events:
        key, _, payload = event.partition(":")
        queue.value("SELECT pgque.insert_event(%s, 't', %s, %s, NULL, NULL, NULL)", queue.name, payload, key or None)


def receive(queue: Queue, worker: str, dead: str | None = None) -> list[Message]:
    rows = queue.rows(
        "SELECT batch_id, msg_id, extra1, payload FROM pgque.receive_coop(%s, 'team', %s, 1000000, %s::interval)",
        *(queue.name, worker, dead),
    )
    return [(int(batch), int(event), key, payload) for batch, event, key, payload in rows]


def short(messages: list[Message]) -> list[str]:
    return [f"{key}:{payload}" for _, _, key, payload in messages]


def ack(queue: Queue, messages: list[Message]) -> int:
    return int(queue.value("SELECT pgque.ack(%s)", messages[0][0]))


def nack(queue: Queue, message: Message, after: str = "0") -> int:
    row = f"ROW({message[1]}::bigint{', NULL' * 9})::pgque.message"
    return int(queue.value(f"SELECT pgque.nack(%s, {row}, %s::interval)", message[0], after))


def join(queue: Queue, *workers: str) -> None:
    for worker in workers:
        queue.value("SELECT pgque.register_subconsumer(%s, 'team', %s)", queue.name, worker)


def found(messages: list[Message], key: str) -> Message:
    return next(message for message in messages if message[2] == key)


def held(queue: Queue) -> int:
    statement = (
        "SELECT count(*) FROM pgque.held_event JOIN pgque.subscription ON sub_id = owner"
        " JOIN pgque.queue ON queue_id = sub_queue WHERE queue_name = %s"
    )
    return int(queue.value(statement, queue.name))


def test_members_get_disjoint_keys_and_all_events(keyed: Queue) -> None:
    join(keyed, *"abc")
    sent = [f"k{n % 30}:{n}" for n in range(300)]
    send(keyed, *sent)
    keyed.tick()
    batches = [receive(keyed, worker) for worker in "abc"]
    keys = [{key for _, _, key, _ in batch} for batch in batches]
    assert all(keys), "each has a share"
    assert not keys[0] & keys[1] and not keys[0] & keys[2] and not keys[1] & keys[2]
    assert receive(keyed, "a") == batches[0], "a batch is given again until it is finished"
    got = [event for batch in batches for event in short(batch)]
    for batch in batches:
        assert ack(keyed, batch) == 1
    while rest := receive(keyed, "a"):
        got += short(rest)
        ack(keyed, rest)
    assert Counter(got) == Counter(sent)
    for batch in batches:
        for key in {key for _, _, key, _ in batch}:
            assert [p for _, _, k, p in batch if k == key] == [
                s.partition(":")[2] for s in sent if s.startswith(f"{key}:")
            ]


def test_a_key_comes_again_only_when_its_batch_is_closed(keyed: Queue) -> None:
    join(keyed, "a", "b")
    send(keyed, "x:1")
    keyed.tick()
    first = receive(keyed, "a")
    send(keyed, "x:2", "y:1", "z:1", "w:1")
    keyed.tick()
    others = receive(keyed, "b")
    assert "x" not in {key for _, _, key, _ in others} and others
    ack(keyed, others)
    while more := receive(keyed, "b"):
        assert "x" not in {key for _, _, key, _ in more}
        ack(keyed, more)
    ack(keyed, first)
    assert short(receive(keyed, "b")) == ["x:2"]


def test_what_is_given_again_keeps_back_the_later_events_of_its_key(keyed: Queue) -> None:
    send(keyed, "x:1", "y:1", "x:2", "x:3", "y:2")
    keyed.tick()
    batch = receive(keyed, "a")
    assert nack(keyed, batch[short(batch).index("x:2")], "1 hour") == 1
    assert nack(keyed, batch[short(batch).index("x:2")], "1 hour") == 0, "asked for already"
    assert receive(keyed, "a") == batch, "the batch remains what it was"
    ack(keyed, batch)
    send(keyed, "x:4", "y:3")
    keyed.tick()
    batch = receive(keyed, "a")
    assert short(batch) == ["y:3"]
    ack(keyed, batch)
    assert receive(keyed, "a") == []
    assert held(keyed) == 3
    keyed.connection.execute("UPDATE pgque.held_event SET due = now() WHERE due > now()")
    batch = receive(keyed, "b")
    assert short(batch) == ["x:2", "x:3", "x:4"]
    retries = "SELECT ev_data, ev_retry FROM pgque.get_batch_events(%s)"
    assert keyed.rows(retries, batch[0][0]) == [("2", 1), ("3", None), ("4", None)]
    assert nack(keyed, batch[1]) == 1
    ack(keyed, batch)
    assert short(receive(keyed, "c")) == ["x:3", "x:4"]
    assert held(keyed) == 2


def test_what_is_due_wakes_the_listeners(keyed: Queue) -> None:
    send(keyed, "x:1")
    keyed.tick()
    batch = receive(keyed, "a")
    nack(keyed, batch[0])
    ack(keyed, batch)
    new = "SELECT ev_new FROM pgque.get_queue_info(%s)"
    assert keyed.value(new, keyed.name) == 0
    keyed.value("SELECT pgque.maint_retry_events()")
    assert keyed.value(new, keyed.name) == 1
    keyed.value("SELECT pgque.maint_retry_events()")
    assert keyed.value(new, keyed.name) == 1, "once is enough"
    assert short(receive(keyed, "a")) == ["x:1"]


def test_dead_letters_keep_nothing_back(keyed: Queue) -> None:
    keyed.value("SELECT pgque.set_queue_config(%s, 'max_retries', '1')", keyed.name)
    send(keyed, "x:1", "x:2")
    keyed.tick()
    for expected in (["x:1", "x:2"], ["x:1", "x:2"], ["x:2"]):
        batch = receive(keyed, "a")
        assert short(batch) == expected
        if expected[0] == "x:1":
            assert nack(keyed, batch[0]) == 1
        # Whoever goes on with the second event of a key that waits has it again.
        if expected == ["x:1", "x:2"] and keyed.rows("SELECT * FROM pgque.dlq_inspect(%s)", keyed.name):
            ack(keyed, batch)
            assert receive(keyed, "a") == []
            break
        ack(keyed, batch)
    assert keyed.rows("SELECT ev_data, ev_retry FROM pgque.dlq_inspect(%s)", keyed.name) == [("1", 1)]
    assert held(keyed) == 0


@pytest.mark.parametrize("nacked", [False, True])
def test_the_batch_of_a_dead_member_is_taken_over_in_order(keyed: Queue, nacked: bool) -> None:
    join(keyed, "heir", "dead")
    send(keyed, "x:1", "x:2", "x:3")
    keyed.tick()
    batch = receive(keyed, "dead")
    send(keyed, "x:4")
    keyed.tick()
    assert receive(keyed, "heir", "1 hour") == []
    if nacked:
        nack(keyed, batch[1])
    heirs = receive(keyed, "heir", "0 seconds")
    assert short(heirs) == ["x:1", "x:2", "x:3"]
    assert heirs[0][0] != batch[0][0]
    assert ack(keyed, batch) == 0
    assert f"batch {batch[0][0]} not found" in str(keyed.fails("SELECT pgque.batch_retry(%s, 0)", batch[0][0]))
    ack(keyed, heirs)
    assert short(receive(keyed, "dead")) == ["x:4"]
    assert held(keyed) == 0


def test_held_events_survive_a_takeover(keyed: Queue) -> None:
    send(keyed, "x:1", "x:2")
    keyed.tick()
    batch = receive(keyed, "dead")
    nack(keyed, batch[0])
    ack(keyed, batch)
    batch = receive(keyed, "dead")
    assert short(batch) == ["x:1", "x:2"]
    nack(keyed, batch[1])
    assert short(receive(keyed, "heir", "0 seconds")) == ["x:1", "x:2"]


def test_who_leaves_gives_back_what_it_has_and_order_holds(keyed: Queue) -> None:
    join(keyed, "a", "b")
    send(keyed, "x:1", "x:2")
    keyed.tick()
    receive(keyed, "a")
    assert keyed.value("SELECT pgque.unregister_subconsumer(%s, 'team', 'a', 1)", keyed.name) == 1
    send(keyed, "x:3")
    keyed.tick()
    assert receive(keyed, "b") == [], "due in a minute"
    keyed.connection.execute("UPDATE pgque.held_event SET due = now() WHERE due > now()")
    batch = receive(keyed, "b")
    assert short(batch) == ["x:1", "x:2", "x:3"]
    ack(keyed, batch)
    # The group stays one when its last member has left.
    assert keyed.value("SELECT pgque.unregister_subconsumer(%s, 'team', 'b')", keyed.name) == 1
    assert "ordering key" in str(keyed.fails("SELECT pgque.next_batch(%s, 'team')", keyed.name))
    send(keyed, "x:4")
    keyed.tick()
    assert short(receive(keyed, "c")) == ["x:4"]


def test_batch_retry_keeps_the_order(keyed: Queue) -> None:
    send(keyed, "x:1", "y:1", "x:2")
    keyed.tick()
    batch = receive(keyed, "a")
    assert keyed.value("SELECT pgque.batch_retry(%s, 0)", batch[0][0]) == len(batch)
    ack(keyed, batch)
    send(keyed, "x:3")
    keyed.tick()
    got: list[str] = []
    while batch := receive(keyed, "a"):
        got += short(batch)
        ack(keyed, batch)
    assert sorted(got) == ["x:1", "x:2", "x:3", "y:1"]
    assert [event for event in got if event[0] == "x"] == ["x:1", "x:2", "x:3"]


def test_a_path_into_json_and_events_without_a_key(queue: Queue) -> None:
    queue.value("SELECT pgque.set_ordering_key(%s, 'team', '$.customer.id')", queue.name)
    join(queue, "a", "b")
    bodies = [f'{{"customer": {{"id": {n % 5}}}, "n": {n}}}' for n in range(40)]
    queue.send(*bodies, "not JSON", '{"other": 1}')
    queue.tick()
    got: list[str] = []
    while batch := receive(queue, "a") + receive(queue, "b"):
        got += [payload for *_, payload in batch]
        for number in {number for number, *_ in batch}:
            queue.value("SELECT pgque.ack(%s)", number)
    assert Counter(got) == Counter([*bodies, "not JSON", '{"other": 1}'])
    for customer in range(5):
        own = [body for body in got if f'"id": {customer}}}' in body]
        assert own == [body for body in bodies if f'"id": {customer}}}' in body]


def test_what_is_no_key_and_when_it_may_change(queue: Queue) -> None:
    change = "SELECT pgque.set_ordering_key(%s, 'team', %s)"
    for wrong in ("ev_data", "customer", "", "ev_extra5"):
        assert queue.fails(change, queue.name, wrong).sqlstate == "22023"
    assert queue.fails(change, queue.name, "$.[").sqlstate == "42601"
    assert "Event queue not created yet" in str(queue.fails(change, "nowhere", "ev_type"))
    assert queue.value(change, queue.name, "ev_extra1") == 1
    send(queue, "x:1", "y:1")
    queue.tick()
    batch = receive(queue, "a")
    assert "not finished" in str(queue.fails(change, queue.name, "ev_type"))
    ack(queue, batch)
    while batch := receive(queue, "a"):
        ack(queue, batch)
    assert queue.value(change, queue.name, "ev_type") == 1
    send(queue, "x:2")
    queue.tick()
    assert short(receive(queue, "a")) == ["x:2"]
    assert "subconsumer" in str(queue.fails("SELECT pgque.set_ordering_key(%s, 'team.a', 'ev_type')", queue.name))
    queue.value("SELECT pgque.ack(current_batch) FROM pgque.get_consumer_info(%s, 'team.a')", queue.name)
    assert queue.value(change, queue.name, None) == 1
    send(queue, "x:3", "y:3")
    queue.tick()
    assert short(receive(queue, "a")) == ["x:3", "y:3"]


def test_a_large_slot_comes_in_parts(keyed: Queue) -> None:
    keyed.value("SELECT pgque.set_queue_config(%s, 'max_batch_events', '10')", keyed.name)
    join(keyed, "a", "b")
    sent = [f"x:{n}" for n in range(35)] + [f"y:{n}" for n in range(5)]
    send(keyed, *sent)
    keyed.tick()
    got: list[str] = []
    sizes = []
    while batch := receive(keyed, "a"):
        sizes.append(len(batch))
        if len(sizes) == 2:  # taken over in the middle
            batch = receive(keyed, "b", "0 seconds")
        if len(sizes) == 3:
            nack(keyed, batch[-1])
        got += short(batch)[: -1 if len(sizes) == 3 else None]
        assert ack(keyed, batch) == 1
    assert max(sizes) <= 16, "held events come with their key's others"
    assert [event for event in got if event[0] == "x"] == sent[:35]
    assert [event for event in got if event[0] == "y"] == sent[35:]


def test_rotation_keeps_what_a_slot_has_not_had(keyed: Queue) -> None:
    keyed.value("SELECT pgque.set_queue_config(%s, 'rotation_period', '1 microsecond')", keyed.name)
    join(keyed, "a", "b")
    send(keyed, "x:1", "y:1", "z:1", "u:1", "v:1")
    keyed.tick()
    slow = receive(keyed, "a")
    got = short(slow)
    for _ in range(4):
        keyed.value("SELECT pgque.maint_rotate_tables_step1(%s)", keyed.name)
        keyed.value("SELECT pgque.maint_rotate_tables_step2()")
        keyed.tick()
        while batch := receive(keyed, "b"):
            got += short(batch)
            ack(keyed, batch)
    assert receive(keyed, "a") == slow
    ack(keyed, slow)
    assert sorted(got) == ["u:1", "v:1", "x:1", "y:1", "z:1"]


def test_a_group_that_is_moved_gets_everything_again(keyed: Queue) -> None:
    start = keyed.value("SELECT last_tick FROM pgque.get_consumer_info(%s, 'team')", keyed.name)
    send(keyed, "x:1", "x:2")
    keyed.tick()
    batch = receive(keyed, "a")
    move = "SELECT pgque.register_consumer_at(%s, 'team', %s)"
    assert "active batch" in str(keyed.fails(move, keyed.name, start))
    nack(keyed, batch[0], "1 hour")
    ack(keyed, batch)
    keyed.value(move, keyed.name, start)
    assert short(receive(keyed, "a")) == ["x:1", "x:2"]


def test_administrators_read_a_batch_by_a_cursor(keyed: Queue) -> None:
    send(keyed, "x:1", "x:2", "x:3")
    keyed.tick()
    batch = receive(keyed, "a")
    with keyed.connection.transaction():
        keyed.connection.execute("SET LOCAL ROLE pgque_admin")
        rows = keyed.rows("SELECT ev_data FROM pgque.get_batch_cursor(%s, 'c', 1)", batch[0][0])
        rows += [(row[5],) for row in keyed.rows("FETCH ALL FROM c")]
    assert rows == [("1",), ("2",), ("3",)]


class Team:
    """Members that come, work, fail, die and leave at random; what they have handled, and in which order."""

    def __init__(self, queue: Queue, seed: int):
        self.queue, self.rng = queue, random.Random(seed)
        self.members: dict[str, list[Message] | None] = {}
        self.dead: set[str] = set()
        self.handled: list[tuple[str, str]] = []
        self.number = 0
        self.sent = 0
        self.open: list[psycopg.Connection[Any]] = []

    def send(self, connections: list[psycopg.Connection[Any]]) -> None:
        """In several transactions at once, which end in any order, also by a rollback."""
        connection = self.rng.choice(connections)
        for _ in range(self.rng.choice([1, 1, 2, 5])):
            self.sent += 1
            connection.execute(
                "SELECT pgque.insert_event(%s, 't', %s, %s, NULL, NULL, NULL)",
                [self.queue.name, str(self.sent), self.rng.choice(["a", "b", "c", "d", "e", "f", None])],
            )
        if self.rng.random() < 0.6:
            (connection.rollback if self.rng.random() < 0.15 else connection.commit)()

    def join(self) -> None:
        if len(self.members) < 5:
            self.number += 1
            self.members[f"w{self.number}"] = None

    def die(self) -> None:
        if self.members and self.rng.random() < 0.5:
            self.dead.add(self.rng.choice(list(self.members)))

    def leave(self) -> None:
        living = [name for name in self.members if name not in self.dead]
        if living:
            name = self.rng.choice(living)
            self.queue.value("SELECT pgque.unregister_subconsumer(%s, 'team', %s, 1)", self.queue.name, name)
            self.queue.connection.execute("UPDATE pgque.held_event SET due = now() WHERE due > now()")
            del self.members[name]

    def take(self, name: str, dead: str | None = None) -> None:
        batch = receive(self.queue, name, dead)
        self.members[name] = batch or None

    def finish(self, name: str) -> None:
        """Handle a batch: what fails is given again, and the rest of its key is left alone."""
        batch = self.members[name] or []
        done, failed = [], set()
        for message in batch:
            _, _, key, payload = message
            if key is not None and key in failed:
                continue
            if self.rng.random() < 0.15:
                try:
                    nack(self.queue, message)
                except psycopg.Error as error:
                    assert "batch not found" in str(error), "taken over"
                    break
                failed.add(key)
            else:
                done.append((key, payload))
        if batch and ack(self.queue, batch) == 1:
            self.handled += done
        self.members[name] = None

    def step(self, connections: list[psycopg.Connection[Any]]) -> None:
        act = self.rng.random()
        living = [name for name in self.members if name not in self.dead]
        if act < 0.3:
            self.send(connections)
        elif act < 0.45:
            self.queue.tick()
        elif act < 0.5 or not living:
            self.join()
        elif act < 0.52:
            self.die()
        elif act < 0.54:
            self.leave()
        else:
            name = self.rng.choice(living)
            if self.members[name]:
                self.finish(name)
            else:
                self.take(name, "0 seconds" if self.dead and self.rng.random() < 0.2 else None)

    def drain(self) -> None:
        """One member that is left does all that is left, without failures."""
        self.rng.random = lambda: 1.0  # type: ignore[method-assign]
        self.members["last"] = None
        for _ in range(3):
            self.queue.tick()
            while True:
                self.take("last", "0 seconds")
                if not self.members["last"]:
                    break
                self.finish("last")


@pytest.fixture
def senders(queue: Queue, queue_database: str) -> Iterator[list[psycopg.Connection[Any]]]:
    connections = [psycopg.connect(queue_database) for _ in range(3)]
    yield connections
    for connection in connections:
        connection.close()


@pytest.mark.one_in(3)
@pytest.mark.parametrize("limit", [None, 3])
@pytest.mark.parametrize("seed", range(6))
def test_order_holds_whatever_happens(
    keyed: Queue, senders: list[psycopg.Connection[Any]], seed: int, limit: int | None
) -> None:
    """Each event once, and those of a key in the order in which a consumer of its own gets them."""
    keyed.value("SELECT pgque.subscribe(%s, 'reference')", keyed.name)
    keyed.value("SELECT pgque.set_queue_config(%s, 'max_retries', '1000')", keyed.name)
    if limit is not None:
        keyed.value("SELECT pgque.set_queue_config(%s, 'max_batch_events', %s)", keyed.name, str(limit))
    team = Team(keyed, seed)
    for _ in range(400):
        team.step(senders)
    for connection in senders:
        connection.commit()
    team.drain()
    reference: list[tuple[str, str]] = []
    while rows := keyed.rows(
        "SELECT batch_id, extra1, payload FROM pgque.receive(%s, 'reference', 1000000)", keyed.name
    ):
        reference += [(key, payload) for _, key, payload in rows]
        keyed.value("SELECT pgque.ack(%s)", rows[0][0])
    assert Counter(team.handled) == Counter(reference)
    assert len(reference) > 100
    for wanted in "abcdef":
        assert [p for key, p in team.handled if key == wanted] == [p for key, p in reference if key == wanted], wanted
    assert held(keyed) == 0
