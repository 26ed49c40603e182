"""Graphs are laid out so that they can be read."""

from __future__ import annotations

import itertools
import random

from server.console.layout import COLUMN, layout

WIDE, HIGH = 205, 46
"""Of a node, as `graph.js` draws it."""


def _graph(nodes: int, seed: int) -> tuple[list[str], list[tuple[str, str]]]:
    """A graph as databases have it: some sources, and stream tables that read one to three others."""
    chance = random.Random(seed)
    names = [f"n{number}" for number in range(nodes)]
    edges = {
        (names[chance.randrange(max(0, number - 60), number)], names[number])
        for number in range(nodes // 5, nodes)
        for _ in range(chance.randrange(1, 4))
    }
    return names, sorted(edges)


def test_no_two_of_a_thousand_nodes_stand_in_one_place_and_edges_lead_to_the_right() -> None:
    names, edges = _graph(1000, 1)
    found = layout(names, edges)
    assert set(found.nodes) == set(names)
    places = sorted({*found.nodes.values(), *(place for through in found.lanes.values() for place in through)})
    assert len(places) >= 1000
    for at, (x, y) in enumerate(places):
        for right, below in places[at + 1 :]:
            if right >= x + WIDE:
                break
            assert abs(below - y) >= HIGH
    for source, target in edges:
        stops = [found.nodes[source], *found.lanes.get((source, target), []), found.nodes[target]]
        assert all(before[0] < after[0] for before, after in itertools.pairwise(stops))


def test_circle_is_one_layer_and_does_not_keep_others_from_theirs() -> None:
    found = layout(["a", "b", "c", "d"], [("a", "b"), ("b", "c"), ("c", "b"), ("c", "d"), ("d", "d")]).nodes
    assert found["a"][0] < found["b"][0] == found["c"][0] < found["d"][0]


def test_nothing_and_many_that_are_alone() -> None:
    assert layout([], []).nodes == {}
    alone = layout([f"n{number:03}" for number in range(100)], []).nodes
    assert len(set(alone.values())) == 100
    assert max(x for x, _ in alone.values()) > 5 * COLUMN  # not one long column
