"""Diamonds are found by the scheduler and by `diamond_groups()`, which must say the same."""

from __future__ import annotations

import random
from dataclasses import replace

import networkx

from catalog.graph import DependencyGraph
from catalog.stream_tables import StreamTable
from tests.catalog.conftest import Engine
from tests.catalog.test_graph import stream_table

TABLES = (998, 999)


def by_scheduler(tables: list[StreamTable]) -> set[frozenset[int]]:
    """Diamonds; those with a member in common are one."""
    graph = DependencyGraph(tables)
    shared: networkx.Graph[int] = networkx.Graph()
    for table in tables:
        if members := graph.diamond(table.pgt_id):
            networkx.add_star(shared, [table.pgt_id, *sorted(members - {table.pgt_id})])
    return {frozenset(component) for component in networkx.connected_components(shared)}


def test_random_graphs(engine: Engine) -> None:
    connection, chance = engine.connection, random.Random(1)
    found = 0
    for _ in range(60):
        tables = []
        for pgt_id in range(1, chance.randrange(3, 9)):
            below = [*range(1, pgt_id), *TABLES]
            reads = chance.sample(below, chance.randrange(1, min(4, len(below) + 1)))
            relids = tuple(each if each in TABLES else 100 + each for each in reads)
            tables.append(replace(stream_table(pgt_id), sources=relids))
        with connection.transaction(force_rollback=True):
            for table in tables:
                connection.execute(
                    "INSERT INTO pgtrickle.pgt_definitions (pgt_id, pgt_relid, pgt_name, pgt_schema,"
                    " defining_query, pgt_owner) VALUES (%s, %s, %s, 'public', 'SELECT 1', 10)",
                    [table.pgt_id, table.relid, table.name],
                )
                for source in table.sources:
                    connection.execute(
                        "INSERT INTO pgtrickle.pgt_dependencies (pgt_id, source_relid, source_type)"
                        " VALUES (%s, %s, 'TABLE')",
                        [table.pgt_id, source],
                    )
            groups = connection.execute(
                "SELECT array_agg(substr(member_name, 3)::int) FROM pgtrickle.diamond_groups() GROUP BY group_id"
            ).fetchall()
        assert by_scheduler(tables) == {frozenset(members) for (members,) in groups}
        found += len(groups)
    assert found > 20
