"""Which stream table reads which: order of refresh, cycles, and the schedules that follow from others'."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import chain, combinations

import networkx as nx

from catalog.stream_tables import StreamTable


class DependencyGraph:
    """The stream tables of a database, with an edge from each to those that read it."""

    def __init__(self, tables: Iterable[StreamTable]):
        self._tables = {table.pgt_id: table for table in tables}
        self._by_storage = {table.relid: table.pgt_id for table in self._tables.values()}
        self._graph: nx.DiGraph[int] = nx.DiGraph()
        self._graph.add_nodes_from(self._tables)
        self._graph.add_edges_from(
            (self._by_storage[source], table.pgt_id)
            for table in self._tables.values()
            for source in table.sources
            if source in self._by_storage and source != table.relid
        )
        self._circular = False
        for component in list(nx.strongly_connected_components(self._graph)):
            if len(component) == 1:
                continue
            numbers = {self._tables[pgt_id].circle for pgt_id in component}
            if len(numbers) == 1 and None not in numbers:
                self._circular = True
            else:
                # Owners can write down what their stream tables read. Those of such a cycle have no order.
                self._graph.remove_edges_from(list(self._graph.subgraph(component).edges))

    def generations(self) -> list[list[StreamTable]]:
        """The stream tables in the order to refresh them; those of one generation do not depend on each other, unless
        they are a circle.
        """
        if not self._circular:
            generations = nx.topological_generations(self._graph)
            return [[self._tables[pgt_id] for pgt_id in sorted(generation)] for generation in generations]
        components = nx.condensation(self._graph)
        members = components.nodes(data="members")
        found = (
            chain.from_iterable(members[each] for each in generation)
            for generation in nx.topological_generations(components)
        )
        return [[self._tables[pgt_id] for pgt_id in sorted(generation)] for generation in found]

    def reads(self, pgt_id: int) -> list[int]:
        """The stream tables that one reads directly."""
        return list(self._graph.predecessors(pgt_id))

    def downstream(self, pgt_id: int) -> frozenset[int]:
        """The stream tables that read one, directly or through others."""
        return frozenset(nx.descendants(self._graph, pgt_id))

    def diamond(self, pgt_id: int) -> frozenset[int]:
        """The diamond that meets in a stream table: itself, and the stream tables on the paths that meet; or nothing.

        Paths meet where two of the relations that it reads come from the same one. What both paths come through does
        not belong to it. `pgtrickle.diamond_groups()` says the same.
        """
        found: set[int] = set()
        for left, right in combinations(map(self._origins, dict.fromkeys(self._tables[pgt_id].sources)), 2):
            both = left & right
            found.update(
                self._by_storage[relation]
                for relation in (left | right) - both
                if relation in self._by_storage and not both.isdisjoint(self._origins(relation))
            )
        return frozenset(found | {pgt_id}) if found else frozenset()

    def _origins(self, relation: int) -> frozenset[int]:
        """A relation and all that it comes from, as OIDs."""
        if relation not in self._by_storage:
            return frozenset({relation})
        pgt_id = self._by_storage[relation]
        through = [self._tables[each] for each in (pgt_id, *nx.ancestors(self._graph, pgt_id))]
        return frozenset(chain.from_iterable((table.relid, *table.sources) for table in through))

    def together(self, sets: Iterable[Iterable[int]]) -> list[tuple[StreamTable, ...]]:
        """All stream tables in the order to refresh them, where those of each set, and of each circle, are refreshed
        at once.

        Sets that have a member in common are one, and what stands between members of one belongs to it, too.
        """
        ordered = list(chain.from_iterable(self.generations()))
        sets = list(sets)
        if not sets and not self._circular:
            return [(table,) for table in ordered]
        order = {table.pgt_id: place for place, table in enumerate(ordered)}
        joined = self._graph.copy()
        for members in sets:
            first, *others = members
            joined.add_edges_from(chain.from_iterable(((first, each), (each, first)) for each in others))
        # With edges there and back a set is a component, and so is all that lies on a path between two of its members.
        components = nx.condensation(joined)
        found = [components.nodes[each]["members"] for each in nx.topological_sort(components)]
        return [tuple(self._tables[each] for each in sorted(members, key=order.__getitem__)) for members in found]

    def would_cycle(self, storage: int, sources: Iterable[int]) -> list[str] | None:
        """The cycle that a stream table with this storage would close by reading these relations, as qualified names.

        None if there would be none.
        """
        target = self._by_storage.get(storage)
        for source in sources:
            if source == storage and target is not None:
                return [self._title(target)]
            if target is None or source not in self._by_storage:
                continue
            if nx.has_path(self._graph, target, self._by_storage[source]):
                return [
                    self._title(pgt_id) for pgt_id in nx.shortest_path(self._graph, target, self._by_storage[source])
                ]
        return None

    def circle(self, storage: int, sources: Iterable[int]) -> list[StreamTable]:
        """The circle that a stream table with this storage is a member of if it reads these relations.

        Empty if there is none, or if it only reads itself.
        """
        target = self._by_storage.get(storage)
        if target is None:
            return []
        graph = self._graph.copy()
        graph.remove_edges_from(list(graph.in_edges(target)))
        graph.add_edges_from((self._by_storage[source], target) for source in sources if source in self._by_storage)
        circle = next(members for members in nx.strongly_connected_components(graph) if target in members)
        return [self._tables[pgt_id] for pgt_id in sorted(circle)] if len(circle) > 1 else []

    def effective_schedules(self) -> dict[int, float]:
        """Seconds between refreshes, by pgt_id.

        A `calculated` stream table is refreshed as often as the most frequent of those that read it, directly or
        through others; if none of them has a duration of its own, every `pg_trickle.default_schedule_seconds`. Cron
        schedules do not count, and are not in the result.
        """
        schedules: dict[int, float] = {}
        for table in self._tables.values():
            if table.schedule_seconds is not None:
                schedules[table.pgt_id] = table.schedule_seconds
                continue
            if table.cron is not None:
                continue
            readers = (self._tables[reader].schedule_seconds for reader in self.downstream(table.pgt_id))
            schedules[table.pgt_id] = min(
                (seconds for seconds in readers if seconds is not None), default=table.default_seconds
            )
        return schedules

    def _title(self, pgt_id: int) -> str:
        return f"{self._tables[pgt_id].schema}.{self._tables[pgt_id].name}"
