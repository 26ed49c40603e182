"""A compiled query over the rows that its sources had at a timestamp in the past, and what changed then.

The tree is the same but for its scans. So every operator computes its delta from states and changes as it did when
these were of now.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import replace

from sql.compile.compiled import Compiled
from sql.compile.tick_accumulators import Running, running
from sql.operators import Aggregate, Operator, Recursion, Scan
from sql.operators.input import substituted
from sql.operators.plan import TreeFacts
from sql.operators.versions.version_scan import VersionScan
from sql.optimize.column_pruning import narrowed
from sql.optimize.semi_join_reduction import bounds


def versioned(compiled: Compiled, keys: Mapping[int, Sequence[str]]) -> Compiled:
    """The query for whoever has filled its sources' `versions`, to be followed and nothing else.

    ``keys``: further columns of sources, by which their rows are told apart.
    """
    assert compiled.root is not None
    used = {
        source.oid: tuple(
            column.name
            for column in source.columns
            if column.name in compiled.used_columns[source.oid] or column.name in keys.get(source.oid, ())
        )
        for source in compiled.sources
    }
    made: dict[int, Operator] = {}
    root = _versioned(compiled.root, used, made)
    bounding, whole = bounds(root), frozenset(made[known].node for known in compiled.facts.whole)
    carried = _carried(compiled.root, made, whole | bounding.keys())
    return replace(
        compiled,
        used_columns=used,
        root=root,
        facts=TreeFacts(
            bounding, whole, narrowed(root), running={kept.aggregate.node: kept.groups for kept in carried}
        ),
        netted_later=frozenset(),
        versioned=True,
        running=carried,
        _cache={},
    )


def _carried(root: Operator, made: Mapping[int, Operator], others: Set[int]) -> tuple[Running, ...]:
    """The aggregates whose groups are kept, each after those that it reads; not ``others``, which know only some."""
    if any(isinstance(operator, Recursion) for operator in root.walk()):
        return ()
    pairs: dict[int, tuple[Aggregate, Aggregate]] = {}
    for original in reversed(list(root.walk())):
        aggregate = made[original.node]
        if isinstance(original, Aggregate) and isinstance(aggregate, Aggregate) and aggregate.node not in others:
            pairs.setdefault(aggregate.node, (aggregate, original))
    return running([*pairs.values()])


def _versioned(operator: Operator, used: Mapping[int, tuple[str, ...]], made: dict[int, Operator]) -> Operator:
    """An operator over version scans; what is in several places of the tree stays one operator."""
    if operator.node not in made:
        if isinstance(operator, Scan):
            source = operator.source
            made[operator.node] = VersionScan(source, operator.number, operator.columns, used[source.oid])
        else:
            others = {below.node: _versioned(below, used, made) for below in operator.inputs}
            made[operator.node] = substituted(operator, others)
    return made[operator.node]
