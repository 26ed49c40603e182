"""Order, cycles and schedules of stream tables that read each other."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import networkx
from hypothesis import given
from hypothesis import strategies as st

from catalog.graph import DependencyGraph
from catalog.stream_tables import StreamTable

BASE = 999
"""A plain table."""


def stream_table(pgt_id: int, *reads: int, schedule: float | None = None, cron: str | None = None) -> StreamTable:
    """A stream table whose storage has the OID 100 + pgt_id, reading others by id, or BASE."""
    return StreamTable(
        pgt_id=pgt_id,
        schema="public",
        name=f"st{pgt_id}",
        relid=100 + pgt_id,
        owner=10,
        status="ACTIVE",
        refresh_mode="DIFFERENTIAL",
        is_populated=True,
        needs_reinit=False,
        age_seconds=100.0,
        staleness=10.0,
        as_of="2026-01-01 00:00:00+00",
        schedule_seconds=schedule,
        cron=cron,
        time_zone="UTC",
        clock=1.8e9,
        default_seconds=1.0,
        sources=tuple(source if source == BASE else 100 + source for source in reads),
        untracked=False,
    )


def test_generations_follow_what_is_read() -> None:
    graph = DependencyGraph([stream_table(1, 3, 2), stream_table(2, 3), stream_table(3, BASE), stream_table(4, BASE)])
    assert [[table.pgt_id for table in generation] for generation in graph.generations()] == [[3, 4], [2], [1]]
    assert sorted(graph.reads(1)) == [2, 3] and graph.reads(3) == []
    assert graph.downstream(3) == {1, 2}


def test_cron_takes_no_part_in_the_schedules_of_others() -> None:
    graph = DependencyGraph(
        [stream_table(1, BASE), stream_table(2, 1, cron="@hourly"), stream_table(3, 2, schedule=60)]
    )
    assert graph.effective_schedules() == {1: 60, 3: 60}


def test_calculated_takes_the_shortest_schedule_downstream() -> None:
    graph = DependencyGraph(
        [stream_table(1, BASE), stream_table(2, 1, schedule=60), stream_table(3, 1), stream_table(4, 3, schedule=10)]
    )
    assert graph.effective_schedules() == {1: 10, 2: 60, 3: 10, 4: 10}


def test_calculated_without_readers_takes_the_default() -> None:
    lonely = replace(stream_table(2, 1), default_seconds=7.0)
    assert DependencyGraph([stream_table(1, BASE, schedule=5), lonely]).effective_schedules() == {1: 5, 2: 7.0}


def test_cycles_are_named() -> None:
    graph = DependencyGraph([stream_table(1, BASE), stream_table(2, 1), stream_table(3, 2)])
    assert graph.would_cycle(101, [103]) == ["public.st1", "public.st2", "public.st3"]
    assert graph.would_cycle(101, [101]) == ["public.st1"]
    assert graph.would_cycle(103, [101, BASE]) is None


def test_cycle_that_an_owner_has_written_down_has_no_order() -> None:
    """Others, and what reads those of the cycle, keep theirs."""
    cycle = [stream_table(1, 2), stream_table(2, 3), stream_table(3, 1), stream_table(4, 4)]
    graph = DependencyGraph([*cycle, stream_table(5, 2), stream_table(6, 5, BASE)])
    assert [[table.pgt_id for table in generation] for generation in graph.generations()] == [[1, 2, 3, 4], [5], [6]]


@given(st.sets(st.tuples(st.integers(1, 9), st.integers(1, 9)), max_size=30), st.integers(1, 9), st.integers(1, 9))
def test_any_graph_is_ordered_as_the_textbooks_order_it(edges: set[tuple[int, int]], target: int, source: int) -> None:
    nodes = range(1, 10)
    graph = DependencyGraph(
        stream_table(node, *(read for read, reader in sorted(edges) if reader == node)) for node in nodes
    )
    expected: networkx.DiGraph[int] = networkx.DiGraph()
    expected.add_nodes_from(nodes)
    expected.add_edges_from(edges)
    for component in list(networkx.strongly_connected_components(expected)):
        expected.remove_edges_from(list(expected.subgraph(component).edges))
    generations = [[table.pgt_id for table in generation] for generation in graph.generations()]
    assert generations == [sorted(generation) for generation in networkx.topological_generations(expected)]
    for node in nodes:
        assert sorted(graph.reads(node)) == sorted(expected.predecessors(node))
        assert graph.downstream(node) == networkx.descendants(expected, node)
    cycle = graph.would_cycle(100 + target, [100 + source])
    if not networkx.has_path(expected, target, source):
        assert cycle is None
    else:
        path = [int(name.removeprefix("public.st")) for name in cycle or []]
        assert (path[0], path[-1]) == (target, source)
        assert len(path) == len(networkx.shortest_path(expected, target, source))
        assert all(expected.has_edge(*edge) for edge in pairwise(path))


def test_a_circle_has_a_place_and_keeps_its_edges() -> None:
    """Its members are of one generation, behind all that any of them reads, and refreshed at once."""
    circle = [replace(stream_table(1, 2, BASE), circle=1), replace(stream_table(2, 1, 3), circle=1)]
    graph = DependencyGraph([*circle, stream_table(3, BASE), stream_table(4, 1), stream_table(5, BASE)])
    assert [[table.pgt_id for table in generation] for generation in graph.generations()] == [[3, 5], [1, 2], [4]]
    units = [tuple(table.pgt_id for table in unit) for unit in graph.together([])]
    assert (1, 2) in units and units.index((3,)) < units.index((1, 2)) < units.index((4,))
    assert sorted(graph.reads(2)) == [1, 3] and graph.downstream(3) == {1, 2, 4}
    # A set with one of the members has all of them.
    assert (1, 2, 4) in [tuple(table.pgt_id for table in unit) for unit in graph.together([{1, 4}])]


def test_the_circle_that_a_query_would_close() -> None:
    """Of a member that is to read something else only what it reads then counts."""
    chain = [stream_table(1, BASE), stream_table(2, 1), stream_table(3, 2), stream_table(4, 1)]
    assert [table.pgt_id for table in DependencyGraph(chain).circle(101, [103])] == [1, 2, 3]
    assert DependencyGraph(chain).circle(101, [BASE]) == DependencyGraph(chain).circle(101, [101]) == []
    closed = [replace(table, circle=1) for table in (stream_table(1, 3), *chain[1:3])]
    assert [table.pgt_id for table in DependencyGraph(closed).circle(101, [102])] == [1, 2]
