"""A compiled query over the rows that its sources had at a timestamp in the past, and what changed then.

The tree is the same but for its scans. So every operator computes its delta from states and changes as it did when
these were of now.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from .bounds import bounds
from .compiled import Compiled
from .narrowing import narrowed
from .operators import Operator, Scan
from .operators.given import substituted
from .operators.version_scan import VersionScan


def versioned(compiled: Compiled) -> Compiled:
    """The query for whoever has filled its sources' `versions`, to be followed and nothing else."""
    assert compiled.root is not None
    made: dict[int, Operator] = {}
    root = _versioned(compiled.root, compiled.used_columns, made)
    return replace(
        compiled,
        root=root,
        bounds=bounds(root),
        whole=frozenset(id(made[known]) for known in compiled.whole),
        narrowed=narrowed(root),
        netted_later=frozenset(),
        versioned=True,
        _cache={},
    )


def _versioned(operator: Operator, used: Mapping[int, tuple[str, ...]], made: dict[int, Operator]) -> Operator:
    """An operator over version scans; what is in several places of the tree stays one operator."""
    if id(operator) not in made:
        if isinstance(operator, Scan):
            source = operator.source
            made[id(operator)] = VersionScan(source, operator.number, operator.columns, used[source.oid])
        else:
            others = {id(below): _versioned(below, used, made) for below in operator.inputs}
            made[id(operator)] = substituted(operator, others)
    return made[id(operator)]
