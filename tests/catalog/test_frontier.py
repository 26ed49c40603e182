"""Which changes a frontier has seen: all that ask give the same answer, which is worked out here once more."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from engine.session.snapshots import Frontier, PgSnapshot
from sql.base.frontier import unseen
from sql.operators.captured_changes import PENDING
from tests.catalog.conftest import Engine

Change = tuple[int, int]
"""A transaction, and the number of one of its changes."""

UNLIMITED = 2**62


@dataclass(frozen=True)
class Case:
    """A frontier, as it is stored, and changes."""

    running: frozenset[int]
    newest: int
    own: int | None
    last: int
    changes: tuple[Change, ...]

    @property
    def snapshot(self) -> str:
        return f"{min(self.running, default=self.newest)}:{self.newest}:{','.join(map(str, sorted(self.running)))}"

    @property
    def frontier(self) -> dict[str, str | int | None]:
        own = None if self.own is None else str(self.own)
        return {"snapshot": self.snapshot, "xid": own, "change_id": None if own is None else self.last}

    def unseen(self, *, own: bool = True) -> list[Change]:
        """The changes that were not seen: by its snapshot alone if the frontier's own transaction does not count."""
        return [
            (xid, number)
            for xid, number in self.changes
            if (number > self.last if own and xid == self.own else xid >= self.newest or xid in self.running)
        ]


def cases(count: int, seed: int = 18) -> Iterator[Case]:
    """Random ones, of few transactions and numbers, so that they meet each other and the snapshot's bounds."""
    chosen = random.Random(seed)
    for _ in range(count):
        running = frozenset(chosen.sample(range(100, 110), chosen.choice((0, 0, 1, 3))))
        newest = chosen.randint(max(running, default=99) + 1, 111)
        own = chosen.choice((None, chosen.randint(99, 113)))
        known = [(xid, number) for xid in range(97, 115) for number in range(3, 8)]
        changes = tuple(sorted(chosen.sample(known, chosen.choice((1, 1, 2, 5, 30)))))
        yield Case(running, newest, own, chosen.randint(2, 8), changes)


@pytest.fixture
def table(engine: Engine) -> Engine:
    """Table t, read by stream table 1 and by subscription 1 of a server."""
    engine.connection.execute("CREATE TABLE t (id int PRIMARY KEY)")
    engine.refresh(engine.create("st", t=["id"]))
    engine.connection.execute(
        "INSERT INTO pgtrickle.pgt_subscription_servers (server) VALUES (1);"
        "INSERT INTO pgtrickle.pgt_subscriptions (server, subscriber, runs_as) VALUES (1, 10, 10);"
        "INSERT INTO pgtrickle.pgt_subscription_sources"
        " SELECT 1, source_relid, '{id}', 10, pgtrickle._fingerprint(source_relid, '{id}'), generation"
        " FROM pgtrickle.pgt_captures"
    )
    return engine


def left(engine: Engine, condition: str = "true") -> list[Change]:
    """The changes in the buffer of t that satisfy a condition."""
    buffer = f"pgtrickle_changes.changes_{engine.oid('t')}"
    statement = (
        f'SELECT "__pgt_xid"::text::bigint, "__pgt_change_id" FROM {buffer} AS c WHERE {condition} ORDER BY 1, 2'
    )
    return [(xid, number) for xid, number in engine.connection.execute(statement.encode())]


def prepared(engine: Engine, case: Case) -> None:
    """The case's changes in the buffer, its frontier for the stream table."""
    buffer = f"pgtrickle_changes.changes_{engine.oid('t')}"
    engine.connection.execute(f"DELETE FROM {buffer}")
    for xid, number in case.changes:
        engine.connection.execute(
            f'INSERT INTO {buffer} ("__pgt_change_id", "__pgt_xid", "__pgt_w", "id") VALUES (%s, %s::text::xid8, 1, 1)',
            [number, str(xid)],
        )
    engine.connection.execute(
        "UPDATE pgtrickle.pgt_stream_tables SET frontier = frontier || %s::jsonb", [json.dumps(case.frontier)]
    )


def test_text_of_the_catalog_is_that_of_the_compiler(table: Engine) -> None:
    assert table.value("SELECT pgtrickle._unseen('$1', '$2', '$3')") == unseen("$1", "$2", "$3")
    assert table.value("SELECT pgtrickle._unseen('$1')") == unseen("$1")


def test_every_place_gives_the_same_answer(table: Engine) -> None:
    source = table.oid("t")
    for case in cases(120):
        prepared(table, case)
        pending, alone = case.unseen(), case.unseen(own=False)
        frontier = json.dumps(case.frontier)
        # Statements of a refresh.
        assert left(table, PENDING[0].replace("$1", f"'{frontier}'::jsonb")) == pending, case
        # What reads changes from the mirror, where numbers are bigints.
        seen = Frontier.parse(case.frontier).condition("c.__pgt_xid::text::bigint", "c.__pgt_change_id")
        assert left(table, f"NOT {seen}") == pending, case
        # What a refresh finds when it begins, and what is shown to users.
        assert table.pending(1) == {"t": len(pending)}, case
        assert table.value("SELECT pgtrickle._pending(%s, %s)", source, frontier) == len(pending), case
        for most in (5, UNLIMITED):
            has = table.value("SELECT pgtrickle._has_unseen(%s, %s, %s)", source, frontier, most)
            assert has == any(number <= most for _, number in pending), case
        # What looks with a snapshot: the mirror's maintenance and its reader, subscriptions.
        assert left(table, unseen(f"'{PgSnapshot.parse(case.snapshot)}'::pg_snapshot")) == alone, case
        assert table.value("SELECT pgtrickle._changed_since(%s, %s)", source, case.snapshot) == bool(alone), case
        changed = "SELECT array_agg(source) FROM pgtrickle._changed_sources(ARRAY[%s::bigint], %s::text::pg_snapshot)"
        assert table.value(changed, source, case.snapshot) == ([source] if alone else None), case
        news = "SELECT array_agg(changed) FROM pgtrickle._subscription_news('{1}', %s::text::pg_snapshot, false)"
        assert table.value(news, case.snapshot) == ([[source]] if alone else None), case


@pytest.mark.parametrize("by_truncate", ["true", "false"])
def test_cleanup_leaves_what_somebody_has_not_seen(table: Engine, by_truncate: str) -> None:
    table.connection.execute(f"SET pg_trickle.cleanup_use_truncate = {by_truncate}")
    table.connection.execute("DELETE FROM pgtrickle.pgt_subscription_servers")
    for case in cases(60):
        prepared(table, case)
        table.value("SELECT pgtrickle._cleanup_buffers()")
        assert left(table) == case.unseen(), case
    mirror = (
        "INSERT INTO pgtrickle.pgt_mirrors (mirror, source_relid, frontier, held_until)"
        " VALUES (gen_random_uuid(), %s, %s::text::pg_snapshot, 'infinity')"
    )
    for case, other in zip(cases(60), cases(60, seed=19), strict=True):
        prepared(table, case)
        table.connection.execute("DELETE FROM pgtrickle.pgt_mirrors")
        table.connection.execute(mirror, [table.oid("t"), other.snapshot])
        table.value("SELECT pgtrickle._cleanup_buffers()")
        behind = Case(other.running, other.newest, None, 0, case.changes).unseen()
        assert left(table) == sorted({*case.unseen(), *behind}), (case, other)


def test_no_other_function_asks_which_changes_are_visible(table: Engine) -> None:
    rows = table.connection.execute(
        "SELECT p.proname FROM pg_proc p WHERE p.pronamespace = 'pgtrickle'::regnamespace"
        " AND p.prosrc ~ 'visible_in_snapshot\\(c\\.'"
    ).fetchall()
    assert rows == [("_unseen",)]
