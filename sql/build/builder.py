"""From the parsed query to the operator tree.

Each construct of a SELECT becomes one operator, bottom up: FROM, WHERE, GROUP BY, HAVING, the select list, DISTINCT.
A reference to a CTE gets its own subtree, unless the CTE aggregates and is read again (`common`). Column names are made
unique in the whole tree.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import replace

from sqlglot import exp

from sql.base.columns import Column, Field, Source
from sql.base.columns import field as described
from sql.base.types import Types
from sql.build import whole_rows
from sql.build.common_tables import WithQuery, references
from sql.build.constructs import JOINS, QUERIES
from sql.build.from_functions import Rows, constant_rows
from sql.build.joins import aliased_join
from sql.build.ordering import limit, limited
from sql.build.protocol import Scope, Subplan
from sql.build.recursion import recursive_tables
from sql.build.scope import Binding, FromClause, Relation
from sql.build.set_operations import build_values
from sql.build.subqueries.attach import attached, filtered
from sql.build.subqueries.extract import extract
from sql.build.subqueries.subplan import WITHIN, has_placeholder
from sql.canonical.dialect import generate
from sql.canonical.row_expressions import check, conjuncts, equated, replace_columns
from sql.errors import NotDifferentiable
from sql.operators import Constants, Filter, Join, Operator, Scan


class TreeBuilder:
    """Builds one operator tree; see `protocol.Builder`.

    ``used`` gives for each scan, in order, the columns somebody reads; without it all are read, and `usage` tells
    afterwards which were. ``special`` names the query's own functions that are aggregates, window functions or return
    sets.
    """

    def __init__(
        self,
        sources: Sequence[Source],
        types: Types,
        used: Mapping[int, frozenset[str]] | None = None,
        special: frozenset[str] = frozenset(),
    ):
        self.sources: Mapping[tuple[str, str], Source] = {(source.schema, source.name): source for source in sources}
        self.types = types
        self.used = used
        self.usage: dict[int, set[str]] = {}
        self.scans: dict[int, Source] = {}
        self.special = special
        self.subplans: dict[object, tuple[int, Subplan]] = {}
        self.common: dict[int, tuple[exp.Expr, Relation]] = {}
        self._scopes: list[Scope] = [{}]
        self.names = 0

    @property
    def scope(self) -> Scope:
        """The WITH queries in scope in the query that is being built."""
        return self._scopes[-1]

    @property
    def depth(self) -> int:
        """How many queries contain the one that is being built."""
        return len(self._scopes)

    def subplan(self, number: int) -> Subplan:
        """A subquery that has been taken out of an expression."""
        return next(plan for known, plan in self.subplans.values() if known == number)

    def apart(self, used: Mapping[int, frozenset[str]] | None) -> TreeBuilder:
        """A builder for a part of the query whose scans are numbered, and used, apart. It goes on with the names."""
        part = TreeBuilder(list(self.sources.values()), self.types, used, self.special)
        part.names = self.names
        return part

    def fresh(self, hint: str) -> str:
        """A column name used nowhere else in the tree."""
        self.names += 1
        return f"{hint[:20]}_{self.names}"

    def query(self, query: exp.Expr, scope: Scope, output: Sequence[Column] | None = None) -> Relation:
        """A SELECT or set operation. ``output`` describes its columns where they are known."""
        query = query.unnest() if isinstance(query, exp.Subquery) else query
        build = QUERIES.get(type(query))
        if build is None:
            raise NotDifferentiable(type(query).__name__.upper())
        if query.args.get("locks"):
            raise NotDifferentiable("FOR UPDATE")
        self._scopes.append(self.common_tables(query, scope))
        relation = build(self, query, self.scope, output)
        self._scopes.pop()
        within = tuple(dict.fromkeys(f for _, f in relation.output[: query.meta.get(WITHIN, 0)]))
        return limit(query, relation, within) if limited(query) else relation

    def common_tables(self, query: exp.Expr, scope: Scope) -> Scope:
        """The WITH queries in scope inside a query."""
        clause = query.args.get("with_")
        if clause is None:
            return scope
        if clause.args.get("recursive"):
            return recursive_tables(clause, scope)
        for common in clause.expressions:
            columns = tuple(column.name for column in common.args["alias"].columns)
            several = references(query, common.alias) > 1
            scope = {**scope, common.alias: WithQuery(common.this, columns, scope, several)}
        return scope

    def from_clause(self, query: exp.Select, scope: Scope) -> FromClause:
        """Everything in FROM."""
        clause = query.args.get("from_")
        if clause is None:
            return FromClause([Constants(((),), ())])
        if query.args.get("laterals"):
            raise NotDifferentiable("LATERAL")
        result = self.item(clause.this, scope)
        self.joins(result, query.args.get("joins") or (), scope)
        return result

    def joins(self, left: FromClause, joins: Sequence[exp.Join], scope: Scope) -> None:
        """Joins, one after the other, onto what is there."""
        for join in joins:
            kind = " ".join(filter(None, (join.method, join.side, join.kind)))
            build = JOINS.get(kind)
            if build is None:
                raise NotDifferentiable(f"{kind} JOIN".replace("OUTER ", ""))
            build(self, left, join, scope)

    def item(self, node: exp.Expr, scope: Scope) -> FromClause:
        """One item of FROM: a table, a derived table, or a join in parentheses."""
        joins = node.args.get("joins") or ()
        rows = Rows.of(node)
        if rows is not None:
            result = constant_rows(self, rows)
        elif isinstance(node, exp.Subquery):
            inner = node.this
            if isinstance(inner, exp.Table | exp.Subquery | exp.Lateral):
                result = self.item(inner, scope)
                if node.alias:
                    result = aliased_join(result, node.args["alias"])
            else:
                result = self.derived_table(node.alias, self.query(inner, scope), node.args.get("alias"))
                if whole_rows.wanted(node):
                    result = whole_rows.with_marker(self, result)
        elif isinstance(values := node.this if isinstance(node.this, exp.Values) else node, exp.Values):
            alias = node.args.get("alias") or values.args.get("alias")
            result = self.derived_table(alias.name if alias else "", build_values(self, values), alias)
        elif isinstance(node, exp.Table):
            result = self.table(node, scope)
        else:
            raise NotDifferentiable(type(node).__name__.upper())
        self.joins(result, joins, scope)
        return result

    def table(self, node: exp.Table, scope: Scope) -> FromClause:
        """A table or a reference to a WITH query."""
        if not isinstance(node.this, exp.Identifier):
            raise NotDifferentiable("set-returning function in FROM")
        if node.args.get("sample"):
            raise NotDifferentiable("TABLESAMPLE")
        if node.args.get("only"):
            raise NotDifferentiable("FROM ONLY")
        alias = node.args.get("alias")
        common = scope.get(node.name) if not node.db else None
        if common is not None:
            result = self.derived_table(node.alias or node.name, common.relation(self), alias)
            return whole_rows.with_marker(self, result) if whole_rows.wanted(node) else result
        source = self.sources.get((node.db, node.name))
        if source is None:
            raise NotDifferentiable(f'relation "{node.db}.{node.name}"' if node.db else f'relation "{node.name}"')
        relation = self.scan(source)
        clause = self.derived_table(node.alias or node.name, relation, alias)
        if whole_rows.wanted(node):
            clause.operators[0], row = whole_rows.with_whole_row(self, source, relation)
            clause.bindings = [replace(b, columns={**b.columns, "*": row}) for b in clause.bindings]
        return clause

    def scan(self, source: Source) -> Relation:
        """A reference to a source."""
        number = len(self.usage)
        self.usage[number] = set()
        self.scans[number] = source
        wanted = self.used[number] if self.used is not None else {column.name for column in source.columns}
        pairs = [(column, self.fresh(column.name)) for column in source.columns]
        columns = tuple(described(name, c, (number, c.name)) for c, name in pairs if c.name in wanted)
        return Relation(Scan(source, number, columns), tuple((f.origin[1], f) for f in columns if f.origin is not None))

    def derived_table(self, alias: str, relation: Relation, columns: exp.TableAlias | None) -> FromClause:
        """A relation under a name, its columns possibly renamed."""
        names = [name for name, _ in relation.output]
        renamed = [column.name for column in columns.columns] if columns else []
        if renamed and isinstance(relation.operator, Scan):
            every = [column.name for column in relation.operator.source.columns]
            new_names = dict(zip(every, renamed, strict=False))
            names = [new_names.get(name, name) for name in names]
        elif renamed:
            names[: len(renamed)] = renamed
        binding = Binding(alias, {n: f for n, (_, f) in zip(names, relation.output, strict=True)})
        visible: list[tuple[str, str | None]] = [(name, f.name) for name, f in binding.columns.items()]
        if isinstance(relation.operator, Scan):
            every = [column.name for column in relation.operator.source.columns]
            every[: len(renamed)] = renamed
            visible = [(n, binding.columns[n].name if n in binding.columns else None) for n in every]
        return FromClause([relation.operator], [], [binding], visible)

    def resolve(self, node: exp.Expr, bindings: Sequence[Binding], *, condition: bool = False) -> exp.Expr:
        """An expression with the tree's column names, after a look at what it contains.

        Of a ``condition`` it only matters whether it is true.
        """
        node = self.without_subqueries(whole_rows.expanded(node, bindings), bindings, condition=condition)
        check(node, self.special)
        return replace_columns(node, lambda column: self.column(column, bindings))

    def without_subqueries(self, node: exp.Expr, bindings: Sequence[Binding], *, condition: bool = False) -> exp.Expr:
        """An expression with placeholders for its subqueries."""
        return extract(self, node, bindings, condition=condition)

    def column(self, column: exp.Column, bindings: Sequence[Binding]) -> Field:
        """The column that a reference means."""
        found = [
            binding.columns[column.name]
            for binding in bindings
            if column.name in binding.columns
            and (binding.alias == column.table if column.table else column.name not in binding.merged)
        ]
        if len(found) != 1:
            whole = isinstance(column.this, exp.Star)
            raise NotDifferentiable("whole-row reference" if whole else f'reference "{generate(column)}"')
        origin = found[0].origin
        if origin is not None:
            self.usage[origin[0]].add(origin[1])
        return found[0]

    def combined(self, clause: FromClause, where: exp.Expr | None) -> Operator:
        """The inputs joined and filtered."""
        conditions = [*clause.conditions]
        if where is not None:
            conditions += conjuncts(self.resolve(where, clause.bindings, condition=True))
        conditions = [c for c in conditions if not (isinstance(c, exp.Boolean) and c.this)]
        subqueries = [c for c in conditions if has_placeholder(c)]
        conditions = [c for c in conditions if not has_placeholder(c)]
        operator = _joined(clause, conditions)
        return self.filtered(operator, subqueries) if subqueries else operator

    def filtered(self, operator: Operator, conditions: Sequence[exp.Expr]) -> Operator:
        """The rows for which all conditions are true."""
        return filtered(self, operator, conditions)

    def attached(self, operator: Operator, expressions: Sequence[exp.Expr]) -> tuple[Operator, list[exp.Expr]]:
        """The operator with the results of all subqueries in the expressions, and the expressions over its columns."""
        return attached(self, operator, expressions)


def _joined(clause: FromClause, conditions: Sequence[exp.Expr]) -> Operator:
    """The inputs where the conditions hold. Columns that are equated are no longer NULL there, nor in the clause."""
    sure = {name for condition in conditions for name in equated(condition) if name}
    columns = tuple(_not_null(f, sure) for operator in clause.operators for f in operator.columns)
    clause.bindings = [
        replace(b, columns={n: _not_null(f, sure) for n, f in b.columns.items()}) for b in clause.bindings
    ]
    if len(clause.operators) > 1:
        return Join(tuple(clause.operators), tuple(conditions), columns)
    (operator,) = clause.operators
    return Filter(operator, exp.and_(*conditions, wrap=True, copy=True), columns) if conditions else operator


def _not_null(column: Field, sure: Set[str]) -> Field:
    """A column where those that are ``sure`` to have a value have one."""
    return column.where_not_null() if column.name in sure else column
