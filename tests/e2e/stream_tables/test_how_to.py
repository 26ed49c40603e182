"""The examples of `docs/how-to` and `docs/migrating`: every answer must be the one that is printed there."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psycopg
import pytest
from deltalake import DeltaTable
from psycopg.conninfo import make_conninfo

from tests.e2e.conftest import Database, drop_role
from tests.e2e.documentation import assert_examples_are_true, page

DOCS = Path(__file__).parents[3] / "docs"
PAGES = sorted(
    str(path.relative_to(DOCS)) for folder in ("how-to", "migrating") for path in (DOCS / folder).glob("*.md")
)


@pytest.fixture
def live_db(emptied_live_db: Database) -> Database:
    return emptied_live_db


def program(text: str) -> dict[str, Any]:
    """What the program of a page defines."""
    (source,) = re.findall(r"```python\n(.*?)```\n", text, re.DOTALL)
    names: dict[str, Any] = {}
    exec(source, names)
    return names


@pytest.mark.parametrize("name", PAGES)
def test_examples_are_true(live_db: Database, name: str, tmp_path: Path) -> None:
    try:
        assert_examples_are_true(live_db, page(name).replace("/srv/lake", str(tmp_path)))
    finally:
        if name == "how-to/dashboard.md":
            drop_role(live_db.connection, "dashboard")


def test_outbox_gives_a_batch_again_that_could_not_be_published(live_db: Database) -> None:
    run = program(page("how-to/outbox.md"))["run"]
    live_db.run("SELECT pgque.create_queue('outbox'), pgque.subscribe('outbox', 'mailer')")
    live_db.run("SELECT pgque.send('outbox', 'order.placed', '{\"order\": 1}'::jsonb)")
    for _ in range(2):
        with pytest.raises(ValueError) as failure:
            run(live_db.server.dsn(live_db.name), _fail)
        assert failure.value.args == ("order.placed", 1, {"order": 1})


def _fail(*event: Any) -> None:
    raise ValueError(*event)


def test_cache_follows_the_view(live_db: Database, eventually: Callable[..., Any]) -> None:
    text = page("how-to/cache.md")
    live_db.run(re.findall(r"```sql\n(.*?)```", text, re.DOTALL)[0])
    cache: dict[int, Any] = {}
    dsn = make_conninfo(live_db.server.dsn(live_db.name), application_name="cache")
    keep_current = program(text)["keep_current"]
    follower = threading.Thread(target=_until_terminated, args=(keep_current, dsn, cache, threading.Event()))
    follower.start()
    try:
        eventually(lambda: cache == {1: ["ann", 2, 30], 2: ["bob", 1, 5]})
        live_db.run("INSERT INTO orders VALUES (4, 2, 10); DELETE FROM customers WHERE id = 1")
        eventually(lambda: cache == {2: ["bob", 2, 15]})
    finally:
        live_db.run("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'cache'")
        follower.join(60)
    assert not follower.is_alive()


def _until_terminated(follow: Callable[..., None], *arguments: Any) -> None:
    with pytest.raises(psycopg.OperationalError):
        follow(*arguments)


@pytest.mark.long
def test_lake_has_every_change_once(live_db: Database, eventually: Callable[..., Any], tmp_path: Path) -> None:
    text, location = page("how-to/lake.md"), str(tmp_path / "orders")
    live_db.run(re.findall(r"```sql\n(.*?)```", text, re.DOTALL)[0])
    follow = program(text)["follow"]

    def current() -> list[tuple[str, ...]]:
        if not DeltaTable.is_deltatable(location):
            return []
        rows = DeltaTable(location).to_pyarrow_table().to_pylist()
        copies: dict[tuple[str, ...], int] = {}
        for row in rows:
            key = (row["id"], row["customer"], row["amount"])
            copies[key] = copies.get(key, 0) + row["diff"]
        return sorted(key for key, number in copies.items() for _ in range(number))

    for change, expected in (
        ("SELECT", [("1", "ann", "10.00"), ("2", "bob", "20.00")]),
        ("UPDATE orders SET amount = 11 WHERE id = 1", [("1", "ann", "11.00"), ("2", "bob", "20.00")]),
        ("DELETE FROM orders WHERE id = 2", [("1", "ann", "11.00")]),
    ):
        live_db.run(change)  # while nobody follows
        stop = threading.Event()
        follower = threading.Thread(
            target=follow,
            args=(live_db.server.dsn(live_db.name), "SELECT id, customer, amount FROM orders", location, stop),
        )
        follower.start()
        try:
            eventually(lambda expected=expected: current() == expected)
        finally:
            stop.set()
            follower.join(60)
        assert not follower.is_alive()
