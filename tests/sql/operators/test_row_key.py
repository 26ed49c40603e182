"""Which tables' keys tell the rows of a join apart, and that rows stay exact when they are told apart by so little."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest

from server.postgres.cluster import EmbeddedPostgres
from sql.storage import KeyedRows
from tests.sql.conftest import Workspace, open_workspace

TABLES = """
CREATE TABLE fact (id int PRIMARY KEY, one int, two int, v int);
CREATE TABLE dim (id int PRIMARY KEY, up int, label text);
CREATE TABLE top (id int PRIMARY KEY, label text);
CREATE TABLE twin (id int PRIMARY KEY, v int);
CREATE TABLE pair (x int, y int, v int, PRIMARY KEY (x, y));
"""
NAMES = ("fact", "dim", "top", "twin", "pair")

KEYED = {
    "star": ("SELECT f.id, f.v, d.label FROM fact f JOIN dim d ON d.id = f.one", ["id"]),
    "snowflake": (
        "SELECT f.id, d.label, t.label AS of FROM top t JOIN dim d ON t.id = d.up JOIN fact f ON f.one = d.id",
        ["id"],
    ),
    "two ways to one table": (
        "SELECT f.id, a.label, b.label AS other FROM fact f JOIN dim a ON a.id = f.one JOIN dim b ON b.id = f.two",
        ["id"],
    ),
    "one to one": ("SELECT f.id, f.v, t.v AS w FROM fact f JOIN twin t ON t.id = f.id", ["id"]),
    "whole key": ("SELECT f.id, p.v FROM fact f JOIN pair p ON p.x = f.one AND p.y = f.two", ["id"]),
    "half a key": ("SELECT f.id, p.x, p.y, p.v FROM fact f JOIN pair p ON p.x = f.one", ["id", "x", "y"]),
    "many to many": ("SELECT f.id, d.id AS dim, d.label FROM fact f JOIN dim d ON d.up = f.v", ["id", "dim"]),
    "left": ("SELECT f.id, d.label FROM fact f LEFT JOIN dim d ON d.id = f.one", ["id"]),
    "left of half a key": ("SELECT f.id, p.x, p.y FROM fact f LEFT JOIN pair p ON p.x = f.one", ["id", "x", "y"]),
    "inequality": ("SELECT f.id, t.id AS top FROM fact f JOIN top t ON t.id < f.one", ["id", "top"]),
}


@pytest.fixture(scope="module")
def joined(cluster: EmbeddedPostgres) -> Iterator[Workspace]:
    yield from open_workspace(cluster, "row_keys", TABLES, NAMES)


def batch(chance: random.Random) -> list[str]:
    """Some changes of every table, many of them of the columns that join."""
    number = lambda: chance.choice(["NULL", "0", "1", "2", "3"])  # noqa: E731
    statements = []
    for _ in range(6):
        n = chance.randrange(5)
        statements += chance.sample(
            [
                f"INSERT INTO fact VALUES ({n}, {number()}, {number()}, {number()}) ON CONFLICT DO NOTHING",
                f"UPDATE fact SET one = {number()}, two = {number()} WHERE id = {n}",
                f"DELETE FROM fact WHERE id = {n}",
                f"UPDATE fact SET id = id + 10 WHERE id = {n} AND NOT EXISTS (SELECT FROM fact WHERE id = {n + 10})",
                f"INSERT INTO dim VALUES ({n}, {number()}, 'd{n}') ON CONFLICT (id) DO UPDATE SET up = excluded.up",
                f"DELETE FROM dim WHERE id = {n}",
                f"INSERT INTO top VALUES ({n}, 't') ON CONFLICT (id) DO UPDATE SET label = top.label || 't'",
                f"DELETE FROM top WHERE id = {n}",
                f"INSERT INTO twin VALUES ({n}, {number()}) ON CONFLICT (id) DO UPDATE SET v = excluded.v",
                f"DELETE FROM twin WHERE id = {n}",
                f"INSERT INTO pair VALUES ({n}, {chance.randrange(4)}, 7) ON CONFLICT (x, y) DO UPDATE SET v = 8",
                f"DELETE FROM pair WHERE x = {n}",
            ],
            4,
        )
    return statements


def test_rows_are_told_apart_by_the_least_that_does_it_and_stay_exact(joined: Workspace) -> None:
    streams = {name: joined.stream(name, query) for name, (query, _) in KEYED.items()}
    for name, (_, key) in KEYED.items():
        shape = streams[name].compiled.shape
        assert isinstance(shape, KeyedRows), name
        assert sorted(column.name for column in shape.key) == sorted(key), name
    chance = random.Random(7)
    for _ in range(12):
        joined.execute("BEGIN", *batch(chance), "COMMIT")
        for name, stream in streams.items():
            stream.refresh()
            assert stream.difference() == [], name


def test_a_key_that_is_not_in_the_output_tells_nothing(joined: Workspace) -> None:
    assert not joined.stream("bag", "SELECT f.v, d.id FROM fact f JOIN dim d ON d.id = f.one").compiled.keyed
