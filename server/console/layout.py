"""Where the nodes of a graph stand: layers from left to right, ordered so that few edges cross.

Each connected part is laid out by itself: its layers by the longest path (nodes in a circle share a layer), the order
within a layer by the mean place of the neighbours, which is repeated a few times. The parts are put into rows, as words
are into lines.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

import networkx as nx

COLUMN, LINE = 295, 62
"""Distances of nodes from left to right and from top to bottom, in pixels of a picture that is not scaled."""
MOST_IN_COLUMN = 30
"""A layer with more nodes has several columns."""
SWEEPS = 4
LANE = "\x00"
"""With what the names of lanes begin, and no node's does."""
GAP = 40

Point = tuple[int, int]
Places = dict[str, Point]


@dataclass(frozen=True, slots=True)
class Layout:
    """Upper left corners of nodes, and of the free places through which an edge over several layers goes."""

    nodes: Places
    lanes: dict[tuple[str, str], list[Point]]


def layout(nodes: Iterable[str], edges: Iterable[tuple[str, str]]) -> Layout:
    """Where everything stands.

    >>> found = layout(["a", "b", "c"], [("a", "b"), ("b", "c"), ("a", "c")])
    >>> found.nodes["a"][0], found.nodes["b"][0], found.nodes["c"][0]
    (0, 295, 590)
    >>> len(found.lanes["a", "c"]), found.lanes["a", "c"][0] == found.nodes["b"]
    (1, False)
    """
    graph = nx.DiGraph()
    graph.add_nodes_from(nodes)
    graph.add_edges_from(edges)
    parts: list[Places] = []
    lanes: dict[tuple[str, str], list[str]] = {}
    for part in nx.weakly_connected_components(graph):
        places, through = _part(graph.subgraph(part))
        parts.append(places)
        lanes |= through
    parts.sort(key=lambda part: (-len(part), min(part)))
    found = _in_rows(parts)
    return Layout(
        {node: place for node, place in found.items() if not node.startswith(LANE)},
        {edge: [found[lane] for lane in through] for edge, through in lanes.items()},
    )


def _part(graph: nx.DiGraph) -> tuple[Places, dict[tuple[str, str], list[str]]]:
    layers = _layers(graph)
    drawn, lanes = _with_lanes(graph, layers)
    _order(drawn, layers)
    found: Places = {}
    x = 0
    tallest = max(min(len(layer), MOST_IN_COLUMN) for layer in layers)
    for layer in layers:
        columns = math.ceil(len(layer) / MOST_IN_COLUMN)
        height = math.ceil(len(layer) / columns)
        top = (tallest - height) * LINE // 2
        for place, node in enumerate(layer):
            column, line = divmod(place, height)
            found[node] = (x + column * COLUMN, top + line * LINE)
        x += columns * COLUMN
    return found, lanes


def _with_lanes(graph: nx.DiGraph, layers: list[list[str]]) -> tuple[nx.DiGraph, dict[tuple[str, str], list[str]]]:
    """The graph with edges between neighbouring layers alone. An edge over several goes through a lane in each between.

    Edges that come from one node share its lanes.
    """
    level = {node: at for at, layer in enumerate(layers) for node in layer}
    drawn = nx.DiGraph()
    lanes: dict[tuple[str, str], list[str]] = {}
    drawn.add_nodes_from(graph)
    for source, target in sorted(graph.edges):
        through = [f"{LANE}{source} {at}" for at in range(level[source] + 1, level[target])]
        for at, lane in enumerate(through, level[source] + 1):
            if lane not in drawn:
                layers[at].append(lane)
        nx.add_path(drawn, [source, *through, target])
        if through:
            lanes[source, target] = through
    return drawn, lanes


def _layers(graph: nx.DiGraph) -> list[list[str]]:
    """The nodes of each layer, the sources first."""
    condensed = nx.condensation(graph)
    depth: dict[int, int] = {}
    for circle in nx.topological_sort(condensed):
        depth[circle] = max((depth[before] + 1 for before in condensed.predecessors(circle)), default=0)
    layers: dict[int, list[str]] = defaultdict(list)
    for circle, members in condensed.nodes(data="members"):
        layers[depth[circle]].extend(sorted(members))
    return [sorted(layers[level]) for level in sorted(layers)]


def _order(graph: nx.DiGraph, layers: list[list[str]]) -> None:
    """Order each layer by the mean place of its neighbours, forwards and backwards."""
    place = {node: float(at) for layer in layers for at, node in enumerate(layer)}
    for sweep in range(SWEEPS):
        forwards = sweep % 2 == 0
        neighbours = graph.predecessors if forwards else graph.successors
        for layer in layers if forwards else reversed(layers):
            means = {}
            for node in layer:
                found = [place[each] for each in neighbours(node)]
                means[node] = sum(found) / len(found) if found else place[node]
            layer.sort(key=lambda node: (means[node], node))
            place.update((node, float(at)) for at, node in enumerate(layer))


def _in_rows(parts: list[Places]) -> Places:
    sizes = [(max(x for x, _ in p.values()) + COLUMN, max(y for _, y in p.values()) + LINE) for p in parts]
    area = sum(width * height for width, height in sizes)
    width = max([1.6 * math.sqrt(area), *(w for w, _ in sizes)], default=0)
    found: Places = {}
    left = top = tallest = 0
    for part, (wide, high) in zip(parts, sizes, strict=True):
        if left and left + wide > width:
            left, top, tallest = 0, top + tallest + GAP, 0
        found.update({node: (left + x, top + y) for node, (x, y) in part.items()})
        left += wide + GAP
        tallest = max(tallest, high)
    return found
