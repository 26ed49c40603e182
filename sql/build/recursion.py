"""WITH RECURSIVE: which of its queries are recursive, and the operator for one that is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from sqlglot import exp

from sql.base.columns import Column, Field, Source
from sql.base.columns import field as described
from sql.base.functions import AGGREGATES, WINDOW_FUNCTIONS
from sql.build.common_tables import WithQuery
from sql.build.protocol import Builder, CommonTable
from sql.build.scope import Relation
from sql.canonical.local_nodes import output_names
from sql.canonical.row_expressions import aggregate_name
from sql.errors import NotDifferentiable
from sql.operators import Recursion, Scan
from sql.operators.plan import NOTHING
from sql.operators.recursion.fixpoint import Fixpoint, Term, WorkingTable


@dataclass(frozen=True, slots=True)
class RecursiveTable(CommonTable):
    """A WITH query that reads itself. ``names`` are its columns, those that SEARCH and CYCLE add among them."""

    clause: exp.CTE
    names: tuple[str, ...]
    records: frozenset[str]
    scope: Mapping[str, CommonTable]

    @property
    def name(self) -> str:
        """The query's name."""
        return str(self.clause.alias)

    def relation(self, builder: Builder) -> Relation:
        return build_recursion(builder, self)


def recursive_tables(clause: exp.With, scope: Mapping[str, CommonTable]) -> Mapping[str, CommonTable]:
    """The WITH queries in scope after a WITH RECURSIVE: each sees all others, and itself."""
    inside = dict(scope)
    for common in clause.expressions:
        columns = tuple(column.name for column in common.args["alias"].columns)
        if any(table.name == common.alias and not table.db for table in common.this.find_all(exp.Table)):
            inside[common.alias] = _recursive(common, columns, inside)
        else:
            inside[common.alias] = WithQuery(common.this, columns, inside)
    return inside


def _recursive(common: exp.CTE, columns: tuple[str, ...], scope: Mapping[str, CommonTable]) -> RecursiveTable:
    names = [*columns, *output_names(common.this)[len(columns) :]]
    records = []
    search, cycle = common.args.get("search"), common.args.get("cycle")
    if search:
        records.append(search.args["expression"].name)
    if cycle:
        names_of_cycle = [cycle.args[key].name for key in ("expression", "using")]
        records.append(names_of_cycle[1])
        names += [*records[:-1], *names_of_cycle]
    else:
        names += records
    return RecursiveTable(common, tuple(names), frozenset(records), scope)


def build_recursion(builder: Builder, table: RecursiveTable) -> Relation:
    """The operator that computes a recursive WITH query."""
    queries: dict[str, CommonTable] = {}
    _collect(table.name, table, queries)
    clauses = [_clause(name, query) for name, query in queries.items()]
    for clause in clauses:
        _check(clause)
    scans = tuple(_scan(builder, source, clauses) for source in _sources(builder, clauses))
    number, names = _wanted(builder, table)
    fields = {name: builder.fresh(name) for name in names}
    query = exp.Select(
        expressions=[
            exp.alias_(exp.column(exp.to_identifier(name, quoted=True)), fresh, quoted=True)
            for name, fresh in fields.items()
        ],
        from_=exp.From(this=exp.Table(this=exp.to_identifier(table.name, quoted=True))),
        with_=exp.With(expressions=clauses, recursive=True),
    )
    ordered = any(_order_matters(clause, builder.special) for clause in clauses)
    reproducible = not ordered and not _looks_matter(scans, clauses) and not table.records & set(names)
    recursion = Recursion(table.name, query, scans, tuple(Field(fields[name], "") for name in names), reproducible)
    recursion = _typed(builder, recursion, {fields[name] for name in table.records if name in fields})
    if reproducible:
        recursion = replace(recursion, fixpoint=_fixpoint(builder, table, recursion.columns))
    columns = tuple(
        replace(column, origin=(number, name)) for name, column in zip(names, recursion.columns, strict=True)
    )
    return Relation(replace(recursion, columns=columns), tuple(zip(names, columns, strict=True)))


def _looks_matter(scans: tuple[Scan, ...], clauses: list[exp.CTE]) -> bool:
    """Whether rows become one that are equal and can look different."""
    alike = all(column.equality_is_identity for scan in scans for column in scan.columns)
    return not alike and any(map(_merges, clauses))


def _collect(name: str, table: CommonTable, found: dict[str, CommonTable]) -> None:
    """A WITH query and those that it reads, these first."""
    if name in found:
        if found[name] is not table:
            raise NotDifferentiable(f'two WITH queries "{name}" in a recursion')
        return
    if isinstance(table, RecursiveTable):
        query: exp.Expr = table.clause.this
    elif isinstance(table, WithQuery):
        query = table.query
    else:
        raise NotDifferentiable("correlated WITH RECURSIVE")
    for node in query.find_all(exp.Table):
        if not node.db and node.name != name and node.name in table.scope:
            _collect(node.name, table.scope[node.name], found)
    found[name] = table


def _clause(name: str, table: CommonTable) -> exp.CTE:
    if isinstance(table, RecursiveTable):
        return table.clause.copy()
    assert isinstance(table, WithQuery)
    columns = [exp.to_identifier(column, quoted=True) for column in table.names]
    alias = exp.TableAlias(this=exp.to_identifier(name, quoted=True), columns=columns)
    return exp.CTE(this=table.query.copy(), alias=alias)


def _check(clause: exp.CTE) -> None:
    for node in clause.walk():
        if isinstance(node, exp.Query) and node.args.get("locks"):
            raise NotDifferentiable("FOR UPDATE")
        if isinstance(node, exp.Table) and node.args.get("only"):
            raise NotDifferentiable("FROM ONLY")
        if isinstance(node, exp.TableSample):
            raise NotDifferentiable("TABLESAMPLE")
        if isinstance(node, exp.Column) and isinstance(node.this, exp.Star):
            raise NotDifferentiable("whole-row reference")


_UNORDERED = frozenset(["bit_and", "bit_or", "bit_xor", "bool_and", "bool_or", "count", "every", "max", "min"])


def _order_matters(clause: exp.CTE, special: frozenset[str]) -> bool:
    """Whether what is left open by SQL, the order of rows, can have an influence on the result."""
    for node in clause.walk():
        if isinstance(node, exp.Query) and (node.args.get("limit") or node.args.get("offset")):
            return True
        if isinstance(node, exp.Distinct) and node.args.get("on"):
            return True
        if isinstance(node, exp.Window | exp.AggFunc) and not isinstance(node, exp.Count | exp.Min | exp.Max):
            return True
        if isinstance(node, exp.Dot) and aggregate_name(node, special):
            return True
        if isinstance(node, exp.Anonymous) and str(node.this).lower() in AGGREGATES - _UNORDERED | WINDOW_FUNCTIONS:
            return True
    return False


def _merges(clause: exp.CTE) -> bool:
    """Whether rows become one that are equal, of which some may look different: SQL leaves open which is given out."""
    return any(
        isinstance(node, exp.Distinct | exp.Group | exp.Intersect | exp.Except)
        or (isinstance(node, exp.Union) and bool(node.args.get("distinct")))
        for node in clause.walk()
    )


def _sources(builder: Builder, clauses: list[exp.CTE]) -> list[Source]:
    found: dict[int, Source] = {}
    for clause in clauses:
        for node in clause.find_all(exp.Table):
            if node.db and isinstance(node.this, exp.Identifier):
                source = builder.sources.get((node.db, node.name))
                if source is None:
                    raise NotDifferentiable(f'relation "{node.db}.{node.name}"')
                found[source.oid] = source
    return list(found.values())


def _scan(builder: Builder, source: Source, clauses: list[exp.CTE]) -> Scan:
    """A scan of the columns that a recursion can be using: all whose names it mentions, and the key."""
    number = len(builder.usage)
    mentioned = {node.name for clause in clauses for node in clause.find_all(exp.Identifier)}
    renamed = any(
        node.args.get("alias") and node.args["alias"].columns
        for clause in clauses
        for node in clause.find_all(exp.Table)
        if (node.db, node.name) == (source.schema, source.name)
    )
    every = {column.name for column in source.columns}
    relation = builder.scan(source)
    builder.usage[number] |= every if renamed else (mentioned & every) | set(source.key)
    assert isinstance(relation.operator, Scan)
    return relation.operator


def _wanted(builder: Builder, table: RecursiveTable) -> tuple[int, list[str]]:
    """The number that the columns are read under; of those that hold records the ones that are read, and all others."""
    number = len(builder.usage)
    builder.usage[number] = set()
    builder.scans[number] = Source(0, "", table.name, tuple(Column(name, "") for name in table.names))
    used = builder.used[number] if builder.used is not None else frozenset(table.names)
    return number, [name for name in table.names if name in used or name not in table.records]


def _typed(builder: Builder, recursion: Recursion, records: set[str]) -> Recursion:
    """The recursion with its columns' types; records have none that a table could have."""
    plain = replace(recursion, columns=tuple(f for f in recursion.columns if f.name not in records))
    answers = iter(builder.types.describe(plain.new(NOTHING), len(plain.columns)))
    columns = tuple(
        Field(f.name, "record[]", hashable=False, equality_is_identity=False)
        if f.name in records
        else described(f.name, next(answers))
        for f in recursion.columns
    )
    return replace(recursion, columns=columns)


@dataclass(frozen=True, slots=True)
class _Working(CommonTable):
    """The recursion's name within its recursive term."""

    table: WorkingTable
    names: tuple[str, ...]

    def relation(self, builder: Builder) -> Relation:
        return Relation(self.table, tuple(zip(self.names, self.table.columns, strict=True)))


def _fixpoint(builder: Builder, table: RecursiveTable, columns: tuple[Field, ...]) -> Fixpoint | None:
    """The recursion's terms as operators; None if they contain what is only computed as a whole."""
    query = table.clause.this
    if not all(column.type for column in columns):
        return None
    if table.records or not isinstance(query, exp.Union) or any(map(query.args.get, ("limit", "offset", "order"))):
        return None
    try:
        used = _used(*_terms(builder, table, columns, None))
        return _terms(builder, table, columns, used)[1]
    except NotDifferentiable:
        return None


def _terms(
    builder: Builder, table: RecursiveTable, columns: tuple[Field, ...], used: Mapping[int, frozenset[str]] | None
) -> tuple[Builder, Fixpoint]:
    inner = builder.apart(used)  # its scans are not those of the query
    query = table.clause.this
    working = WorkingTable(
        tuple(replace(c, name=inner.fresh(n), origin=None) for n, c in zip(table.names, columns, strict=True))
    )
    scope = inner.common_tables(query, table.scope)
    base = inner.query(query.left, scope)
    step = inner.query(query.right, {**scope, table.name: _Working(working, table.names)})
    terms = [Term(r.operator, tuple(f for _, f in r.output)) for r in (base, step)]
    builder.names = inner.names
    return inner, Fixpoint(terms[0], terms[1], working, bool(query.args.get("distinct")), columns)


def _used(builder: Builder, fixpoint: Fixpoint) -> dict[int, frozenset[str]]:
    return {
        number: frozenset(builder.usage[number] or {*(source.key[:1] or (source.columns[0].name,))}) | set(source.key)
        for number, source in builder.scans.items()
    }
