"""A differential refresh in Spark's dialect: the views that its delta is computed with, and the stages it ends in.

A source's new rows are the view ``source_<oid>``, its net changes ``delta_<oid>``; each common table expression of the
plan is a view of its own, which Spark may keep while the refresh goes on, since others read it more than once.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from sql.base.columns import Source
from sql.compile.compiled import RemotePlan
from sql.operators.captured_changes import delta_name
from sql.spark.protocol import Environment
from sql.spark.relations import Relation
from sql.spark.render import Renderer, SparkQuery, delta_view_name, typed, understood


@dataclass(frozen=True, slots=True)
class SparkView:
    """A view of Spark's that the refresh makes. ``repeated``: other queries read it more than once."""

    name: str
    sql: str
    repeated: bool


@dataclass(frozen=True, slots=True)
class SparkStages:
    """What Spark computes: the ``views``, and over them one query for each of the ``stages``.

    ``reads`` gives the columns of each source that are read, as rows or as changes. ``repeated`` are the views of
    changes that are read more than once.
    """

    views: tuple[SparkView, ...]
    stages: tuple[SparkQuery, ...]
    reads: Mapping[int, tuple[str, ...]]
    repeated: tuple[str, ...]


def render_stages(
    refresh: RemotePlan,
    sources: Sequence[Source],
    changed: Collection[int],
    *,
    prefix: str = "",
    environment: Environment | None = None,
) -> SparkStages:
    """Render what Spark computes of a differential refresh; see `render_spark` for the other arguments.

    ``changed`` are the sources whose changes are read; ``prefix`` is put before the names of the views. Changes the
    expressions of ``refresh``. Raises NotExpressible.
    """
    deltas = {delta_name(source.oid).strip('"'): source for source in sources if source.oid in changed}
    environment = environment or Environment()
    renderer = Renderer(sources, environment, deltas)
    scope: dict[str, Relation] = {}
    for name, query in refresh.views:
        relation = renderer.query(understood(query, sources, environment), scope)
        scope[name] = Relation(relation.sql, relation.columns, prefix + name.removeprefix("__pgt_"))
    rendered = [
        (stage, renderer.given_out(renderer.query(understood(stage.query, sources, environment), scope)))
        for stage in refresh.stages
    ]
    uses = renderer.uses
    views = [SparkView(relation.view, relation.sql, uses[relation.view] > 1) for relation in scope.values()]
    changes = tuple(name for oid in sorted(changed) if uses[name := delta_view_name(oid)] > 1)
    reads = {oid: tuple(names) for oid, names in renderer.reads.items()}
    queries = [typed(SparkQuery(r.sql, reads, r.declared), stage.types, sources) for stage, r in rendered]
    return SparkStages(tuple(views), tuple(queries), reads, changes)
