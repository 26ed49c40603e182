"""Which stream table reads which: order of refresh, cycles, and the schedules that follow from others'."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from catalog.stream_tables import StreamTable


class DependencyGraph:
    """The stream tables of a database, with an edge from each to those that read it."""

    def __init__(self, tables: Iterable[StreamTable]):
        self._tables = {table.pgt_id: table for table in tables}
        self._by_storage = {table.relid: table.pgt_id for table in self._tables.values()}
        self._readers: dict[int, list[int]] = {pgt_id: [] for pgt_id in self._tables}
        for table in self._tables.values():
            for source in dict.fromkeys(table.sources):
                if source in self._by_storage:
                    self._readers[self._by_storage[source]].append(table.pgt_id)
        self._generations, ordered = _generations(self._readers)
        if len(ordered) < len(self._tables):
            # Owners can write down what their stream tables read. Those of a cycle have no order among themselves.
            self._readers = {
                pgt_id: readers
                if pgt_id in ordered
                else [reader for reader in readers if pgt_id not in _paths(self._readers, reader)]
                for pgt_id, readers in self._readers.items()
            }
            self._generations, _ = _generations(self._readers)
        self._read: dict[int, list[int]] = {pgt_id: [] for pgt_id in self._tables}
        for pgt_id, readers in self._readers.items():
            for reader in readers:
                self._read[reader].append(pgt_id)

    def generations(self) -> list[list[StreamTable]]:
        """The stream tables in the order to refresh them; those of one generation do not depend on each other."""
        return [[self._tables[pgt_id] for pgt_id in sorted(generation)] for generation in self._generations]

    def reads(self, pgt_id: int) -> list[int]:
        """The stream tables that one reads directly."""
        return list(self._read[pgt_id])

    def downstream(self, pgt_id: int) -> frozenset[int]:
        """The stream tables that read one, directly or through others."""
        return frozenset(_paths(self._readers, pgt_id)) - {pgt_id}

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
            paths, read = _paths(self._readers, target), self._by_storage[source]
            if read in paths:
                return [self._title(pgt_id) for pgt_id in _path(paths, read)]
        return None

    def effective_schedules(self) -> dict[int, float]:
        """Seconds between refreshes, by pgt_id.

        A `calculated` stream table is refreshed as often as the most frequent of those that read it, directly or
        through others; if none of them has a schedule of its own, every `pg_trickle.default_schedule_seconds`.
        """
        schedules: dict[int, float] = {}
        for table in self._tables.values():
            if table.schedule_seconds is not None:
                schedules[table.pgt_id] = table.schedule_seconds
                continue
            readers = (self._tables[reader].schedule_seconds for reader in self.downstream(table.pgt_id))
            schedules[table.pgt_id] = min(
                (seconds for seconds in readers if seconds is not None), default=table.default_seconds
            )
        return schedules

    def _title(self, pgt_id: int) -> str:
        return f"{self._tables[pgt_id].schema}.{self._tables[pgt_id].name}"


def _generations(readers: Mapping[int, Iterable[int]]) -> tuple[list[list[int]], set[int]]:
    """Nodes in topological order, generation by generation, and all of them; without those in or behind a cycle."""
    waiting = dict.fromkeys(readers, 0)
    for edges in readers.values():
        for reader in edges:
            waiting[reader] += 1
    generations, generation = list[list[int]](), [node for node, count in waiting.items() if not count]
    while generation:
        generations.append(generation)
        following = []
        for node in generation:
            for reader in readers[node]:
                waiting[reader] -= 1
                if not waiting[reader]:
                    following.append(reader)
        generation = following
    return generations, {node for generation in generations for node in generation}


def _paths(readers: Mapping[int, Iterable[int]], start: int) -> dict[int, int | None]:
    """The nodes that can be reached from one, itself included, each with the node before it on a shortest path."""
    before: dict[int, int | None] = {start: None}
    found = [start]
    for node in found:  # which grows meanwhile
        for reader in readers[node]:
            if reader not in before:
                before[reader] = node
                found.append(reader)
    return before


def _path(before: Mapping[int, int | None], end: int) -> list[int]:
    """The path to a node, from where the search began."""
    path, node = [end], before[end]
    while node is not None:
        path.append(node)
        node = before[node]
    return path[::-1]
