"""Which stream table reads which: order of refresh, cycles, and the schedules that follow from others'."""

from __future__ import annotations

from collections.abc import Iterable

import networkx as nx

from catalog.stream_tables import StreamTable


class DependencyGraph:
    """The stream tables of a database, with an edge from each to those that read it."""

    def __init__(self, tables: Iterable[StreamTable]):
        self._tables = {table.pgt_id: table for table in tables}
        by_storage = {table.relid: table.pgt_id for table in self._tables.values()}
        self._graph: nx.DiGraph[int] = nx.DiGraph()
        self._graph.add_nodes_from(self._tables)
        self._graph.add_edges_from(
            (by_storage[source], table.pgt_id)
            for table in self._tables.values()
            for source in table.sources
            if source in by_storage
        )
        # Owners can write down what their stream tables read. Those of a cycle have no order among themselves.
        for component in list(nx.strongly_connected_components(self._graph)):
            self._graph.remove_edges_from(list(self._graph.subgraph(component).edges))

    def generations(self) -> list[list[StreamTable]]:
        """The stream tables in the order to refresh them; those of one generation do not depend on each other."""
        generations = nx.topological_generations(self._graph)
        return [[self._tables[pgt_id] for pgt_id in sorted(generation)] for generation in generations]

    def reads(self, pgt_id: int) -> list[int]:
        """The stream tables that one reads directly."""
        return list(self._graph.predecessors(pgt_id))

    def downstream(self, pgt_id: int) -> frozenset[int]:
        """The stream tables that read one, directly or through others."""
        return frozenset(nx.descendants(self._graph, pgt_id))

    def would_cycle(self, storage: int, sources: Iterable[int]) -> list[str] | None:
        """The cycle that a stream table with this storage would close by reading these relations, as qualified names.

        None if there would be none.
        """
        by_storage = {table.relid: table.pgt_id for table in self._tables.values()}
        target = by_storage.get(storage)
        for source in sources:
            if source == storage and target is not None:
                return [self._title(target)]
            if target is None or source not in by_storage:
                continue
            if nx.has_path(self._graph, target, by_storage[source]):
                return [self._title(pgt_id) for pgt_id in nx.shortest_path(self._graph, target, by_storage[source])]
        return None

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
