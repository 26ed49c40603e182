"""Compile a query: parse, build the operator tree, choose the storage's shape."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache

from sqlglot import exp

from sql.base.columns import Column, Field, Source
from sql.base.identity import keyable
from sql.base.text import derived, select
from sql.base.types import Types
from sql.build.builder import TreeBuilder
from sql.build.scope import Relation
from sql.canonical.dialect import generate, parse
from sql.canonical.other_filter import Exchange, OtherRows, exchanged
from sql.canonical.views import View, inline_views
from sql.compile.compiled import Compiled, Core, Remembered
from sql.compile.determined import determined
from sql.errors import NotDifferentiable
from sql.operators import (
    Aggregate,
    DistinctOn,
    Expand,
    Filter,
    Limit,
    Operator,
    Project,
    Recursion,
    Scan,
    Window,
)
from sql.operators.aggregates.accumulators import rescan_strategy
from sql.operators.aggregates.cached_accumulators import memory_name
from sql.operators.aggregates.linear_aggregate import addable
from sql.operators.filter import FILTER, Refiltered
from sql.operators.joins.matching import Matching
from sql.operators.joins.threshold_band import band_name
from sql.operators.pass_through import PassThrough
from sql.operators.plan import NOTHING, Plan, TreeFacts
from sql.operators.semi_join_reduction import SemiJoinReduction
from sql.operators.statement import StagedStatement
from sql.optimize.column_pruning import narrowed
from sql.optimize.predicate_pushdown import pushed_conditions, wholly_pushed
from sql.optimize.semi_join_reduction import bounds
from sql.optimize.single_use_deltas import netted_later
from sql.storage import (
    AffectedGroups,
    Bag,
    Groups,
    KeyedRows,
    Recomputed,
    Shape,
    Top,
    groups,
    recursive,
    touched_groups,
)
from sql.storage.recursive import recursion_strategies
from sql.storage.reserve import reserve_name
from sql.storage.root import below_projections, stored_keys
from sql.storage.shape import output_columns
from sql.storage.top import maintainable
from sql.storage.widened import WidenedRows


@dataclass(frozen=True, slots=True)
class ParsedQuery:
    """A query that can be maintained incrementally, once its probes are answered."""

    canonical: str
    ast: exp.Expr
    sources: tuple[Source, ...]
    output: tuple[Column, ...]
    special: frozenset[str]
    used: Mapping[int, frozenset[str]]
    grouping_sets: int = 1
    """The number of sets of the GROUP BY that has most."""
    views: tuple[View, ...] = ()
    exchange: Exchange | None = None
    """Where it takes the place of another query: the two as one."""
    _built: dict[object, tuple[Relation, tuple[str, ...]]] = field(default_factory=dict, compare=False)

    def probes(self, answers: Mapping[str, Sequence[Column]] | None = None) -> tuple[str, ...]:
        """SELECT statements whose output columns have to be described before the query can be compiled.

        ``answers`` holds those already known; what they say can lead to further questions.
        """
        return self._build(answers or {})[1]

    def compile(self, answers: Mapping[str, Sequence[Column]] | None = None) -> Compiled:
        """The compiled query; ``answers`` maps each probe to its output columns. Raises NotDifferentiable."""
        relation, asked = self._build(answers or {})
        if asked:
            raise ValueError(f"unanswered probe: {asked[0]}")
        return _compiled(self, relation)

    def _build(self, answers: Mapping[str, Sequence[Column]]) -> tuple[Relation, tuple[str, ...]]:
        """The operator tree as these answers let it be, and the probes without one. The last tree is kept."""
        known = tuple((probe, tuple(columns)) for probe, columns in answers.items())
        if known not in self._built:
            types = Types(answers)
            relation = TreeBuilder(self.sources, types, self.used, self.special).query(self.ast, {}, self.output)
            self._built.clear()
            self._built[known] = relation, tuple(types.asked)
        return self._built[known]


def regenerate(canonical: str) -> str:
    """The query as the compiler would write it: canonicalised again it must be the same text.

    >>> regenerate(" SELECT a.x FROM public.a WHERE (a.x > 1);")
    'SELECT a.x FROM public.a WHERE (a.x > 1)'
    """
    return generate(parse(canonical))


def parse_query(
    canonical: str,
    sources: Sequence[Source],
    output: Sequence[Column],
    special: frozenset[str] = frozenset(),
    views: Sequence[View] = (),
    before: str | None = None,
) -> ParsedQuery:
    """Parse a query for incremental maintenance.

    ``canonical`` is ``pg_get_viewdef`` under an empty search_path; ``output`` describes its columns; ``special`` names
    the user-defined functions in it (``schema.name``) that are aggregates, window functions or return sets;
    ``views`` are those that it reads, and those read by them. ``before`` is a query that only has another filter: then
    what is made takes a storage table from that query to this one. Raises NotDifferentiable.
    """
    return _parse_query(canonical, tuple(sources), tuple(output), special, tuple(views), before)


@lru_cache(maxsize=64)
def _parse_query(
    canonical: str,
    sources: tuple[Source, ...],
    output: tuple[Column, ...],
    special: frozenset[str],
    views: tuple[View, ...],
    before: str | None,
) -> ParsedQuery:
    exchange = None if before is None else exchanged(before, canonical, special)
    ast = inline_views(parse(canonical) if exchange is None else exchange.query, views)
    first = TreeBuilder(sources, Types(), None, special)
    tree = first.query(ast, {}, output).operator
    by_number: dict[int, frozenset[str]] = {}
    for number, source in first.scans.items():
        if not source.columns:
            raise NotDifferentiable("a table without columns")
        # A relation without columns would have no width at all; its key or first column is as good as any.
        some = {*(source.key[:1] or (source.columns[0].name,))}
        by_number[number] = frozenset(first.usage[number] or some)
    sets = max((len(operator.sets) for operator in tree.walk() if isinstance(operator, Expand)), default=1)
    return ParsedQuery(canonical, ast, sources, output, special, by_number, sets, views, exchange)


def opaque_query(canonical: str, output: Sequence[Column]) -> Compiled:
    """A query that is only ever evaluated in full; the text is not looked into."""
    rows = canonical.strip().rstrip(";")
    bag = Bag(rows, tuple(output))
    return Compiled(bag, (), {}, "Query", {}, Core(rows, rows, bag.core_types))


def _compiled(query: ParsedQuery, relation: Relation) -> Compiled:
    root, fields = relation.operator, relation.output
    # The query's own names are those PostgreSQL reports.
    fields = tuple((column.name, f) for column, (_, f) in zip(query.output, fields, strict=True))
    shape = choose_shape(root, fields, query.output)
    used: dict[int, set[str]] = {}
    for operator in root.walk():
        if isinstance(operator, Scan):
            used.setdefault(operator.source.oid, set()).update(f.origin[1] for f in operator.columns if f.origin)
    sources = tuple(source for source in query.sources if source.oid in used)
    used_columns = {
        source.oid: tuple(column.name for column in source.columns if column.name in used[source.oid])
        for source in sources
    }
    if query.exchange is not None:
        compiled = Compiled(shape, sources, used_columns, root.tree(), {}, _core(shape))
        return _in_place(query.exchange, compiled, root, fields)
    bounding, whole = bounds(root), read_whole(root, shape)
    return Compiled(
        shape,
        sources,
        used_columns,
        root.tree(),
        strategies(root, shape),
        _core(shape),
        pushed_conditions(root),
        TreeFacts(bounding, whole, narrowed(root), pushed=wholly_pushed(root)),
        remembered(root, shape, whole, bounding),
        netted_later(root),
        root,
        fields,
        whole=_own_text(query, root, shape),
    )


def _own_text(query: ParsedQuery, root: Operator, shape: Shape) -> str | None:
    """The query's own text where it gives what is stored, and PostgreSQL has no choice of rows.

    In the tree subqueries have become joins, which changes are computed by; all rows it may well read more often.
    """
    plain = isinstance(shape, Bag | KeyedRows) and not query.views
    return query.canonical.strip().rstrip(";") if plain and determined(root) else None


def _in_place(
    exchange: Exchange, compiled: Compiled, root: Operator, fields: tuple[tuple[str, Field], ...]
) -> Compiled:
    """The compiled query in the place of another one. Raises OtherRows."""
    shape = compiled.shape
    _check_exchange(shape, exchange)
    if exchange.added and isinstance(shape, KeyedRows):
        shape = WidenedRows(shape.rows, shape.output, shape.key, shape.fields, shape.root, exchange.added)
    changing = frozenset({FILTER} if exchange.added or exchanges_filter(root) else ())
    facts = TreeFacts(narrowed=narrowed(root))
    return replace(compiled, shape=shape, facts=facts, root=root, fields=fields, always=changing)


def exchanges_filter(root: Operator | None) -> bool:
    """Whether the query comes in the place of one with another filter."""
    return root is not None and any(isinstance(operator, Refiltered) for operator in root.walk())


def _check_exchange(shape: Shape, exchange: Exchange) -> None:
    """Raises OtherRows where a storage table of this shape cannot go from one query to another by changes."""
    if not isinstance(shape, KeyedRows | Bag | Groups | AffectedGroups):
        raise OtherRows("its rows are computed again at each refresh")
    if exchange.added and not isinstance(shape, KeyedRows):
        raise OtherRows("there are new columns, and its rows are not those of tables by their keys")
    if isinstance(shape, Groups) and not exchange.in_place:
        raise OtherRows("what its aggregates are made of is stored in another order")


def _core(shape: Shape) -> Core:
    on_spark = Plan(frozenset(), statement=StagedStatement())
    return Core(shape.core(NOTHING), shape.core(on_spark), shape.core_types)


def read_whole(root: Operator, shape: Shape) -> frozenset[int]:
    """The aggregates, by node, that one over all of their groups is made of, which reads them all."""
    found = set()
    for operator in root.walk():
        stored = isinstance(shape, Groups) and operator is shape.aggregate
        if isinstance(operator, Aggregate) and not operator.keys and not stored:
            below = operator.input
            while isinstance(below, Project | Filter | PassThrough):
                below = below.input
            found.add(below.node)
    return frozenset(found)


def remembered(
    root: Operator, shape: Shape, whole: frozenset[int], bounding: Mapping[int, Sequence[SemiJoinReduction]]
) -> Mapping[int, Remembered]:
    """By node, the operators that hand something on from one refresh to the next.

    Of aggregates it is their groups, where all of them are needed; of comparisons with one row the rows near it; of the
    first rows of a query those that follow.
    """
    if any(isinstance(operator, Recursion) for operator in root.walk()):
        return {}
    found = _groups(root, shape, whole, bounding) | _reserve(root, shape)
    return found | (_bands(root, bounding) if isinstance(shape, Top) or not isinstance(shape, Recomputed) else {})


def _groups(
    root: Operator, shape: Shape, whole: frozenset[int], bounding: Mapping[int, Sequence[SemiJoinReduction]]
) -> dict[int, Remembered]:
    """By node, the aggregates that hand on their groups."""
    found = {}
    for operator in root.walk():
        if not isinstance(operator, Aggregate) or (isinstance(shape, Groups) and operator is shape.aggregate):
            continue
        parts = addable(operator) if not operator.keys or operator.node in whole else None
        name = memory_name(operator, parts) if parts is not None and not bounding.get(operator.node) else None
        if name is not None:
            found[operator.node] = Remembered(name, operator.sources)
    return found


def _reserve(root: Operator, shape: Shape) -> dict[int, Remembered]:
    """The limit at the top, if it hands on the rows that follow."""
    name = reserve_name(root) if isinstance(shape, Top) and isinstance(root, Limit) else None
    return {} if name is None else {root.node: Remembered(name, root.sources)}


def _bands(root: Operator, bounding: Mapping[int, Sequence[SemiJoinReduction]]) -> dict[int, Remembered]:
    """By node, the comparisons with one row that hand on the rows near it: all changes of their rows are known."""
    found = {}
    for operator in root.walk():
        if isinstance(operator, Matching) and operator.with_one_row:
            complete = not any(bounding.get(below.node) for below in operator.left.walk())
            name = band_name(operator.left, operator.match) if complete else None
            if name is not None:
                found[operator.node] = Remembered(name, operator.sources)
    return found


def strategies(root: Operator, shape: Shape) -> dict[str, str]:
    """For each aggregate, window function and recursion of the query how it is maintained."""
    algebraic = {m.call: m.strategy for m in shape.maintained} if isinstance(shape, Groups) else {}
    return (
        {
            call.describe(): algebraic.get(call) or rescan_strategy(call)
            for operator in root.walk()
            if isinstance(operator, Aggregate)
            for call in operator.calls
        }
        | {
            f"{call.describe()} OVER ({operator.partition})": "computed again over the whole input"
            if not operator.keys
            else "computed again over touched partitions"
            for operator in root.walk()
            if isinstance(operator, Window)
            for call in operator.calls
        }
        | recursion_strategies(root, shape)
    )


def choose_shape(root: Operator, fields: tuple[tuple[str, Field], ...], output: tuple[Column, ...]) -> Shape:
    """Groups where the aggregate at the root adds up, rows with a key where there is one, else a bag."""
    rows = select(output_columns(fields), derived(root.new(NOTHING), "o"))
    decisive = below_projections(root)
    for operator in root.walk():
        if isinstance(operator, Recursion) and not operator.reproducible and operator is not decisive:
            raise NotDifferentiable("operator over a WITH RECURSIVE whose rows depend on the order of others")
    if isinstance(root, Limit) or (isinstance(decisive, Window) and not decisive.keys):
        base = _plain_shape(root, fields, output, rows)
        return Top(base, root, fields) if isinstance(root, Limit) and maintainable(root, fields) else Recomputed(base)
    if isinstance(decisive, DistinctOn | Aggregate) and all(keyable(key) for key in decisive.keys):
        return _grouped_shape(root, decisive, fields, output)
    if isinstance(decisive, Recursion):
        return recursive(output, root, fields, decisive) or Recomputed(Bag(rows, output, root, fields))
    return _plain_shape(root, fields, output, rows)


def _plain_shape(
    root: Operator, fields: tuple[tuple[str, Field], ...], output: tuple[Column, ...], rows: str
) -> KeyedRows | Bag:
    """Rows with a key where there is one, else a bag."""
    key = root_key(root, fields, output)
    return KeyedRows(rows, output, key, fields, root) if key else Bag(rows, output, root, fields)


def _grouped_shape(
    root: Operator,
    decisive: DistinctOn | Aggregate,
    fields: tuple[tuple[str, Field], ...],
    output: tuple[Column, ...],
) -> Shape:
    """Groups where all of an aggregate adds up, else groups that are computed again where something has changed."""
    by_field = {f.name: column for column, (_, f) in reversed(list(zip(output, fields, strict=True)))}
    key = stored_keys(decisive.keys, by_field)
    if isinstance(decisive, Aggregate):
        shape = groups(root, decisive, output, key, fields)
        if shape is not None:
            return shape
        decisive = replace(decisive, reproducible=False)
    return touched_groups(root, decisive, output, key, fields)


def root_key(
    root: Operator, fields: tuple[tuple[str, Field], ...], output: tuple[Column, ...]
) -> tuple[Column, ...] | None:
    """The output columns that hold the primary keys of all tables joined at the root, if there are such."""
    primary = root.row_key()
    by_origin = {f.origin: column for column, (_, f) in zip(output, fields, strict=True) if f.origin}
    if primary is None or not all(origin in by_origin for origin in primary):
        return None
    key = tuple(by_origin[origin] for origin in primary)
    return key if all(keyable(column) for column in key) else None
