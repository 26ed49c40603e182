"""FROM in Spark's dialect: tables, their net changes, derived tables, VALUES and joins; what columns mean over them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from sqlglot import exp

from sql.base.columns import WEIGHT, Source
from sql.errors import NotExpressible
from sql.operators.targets.spark import COPIES
from sql.spark.expressions import SparkExpressions
from sql.spark.numbers.exact import Layers
from sql.spark.protocol import Environment
from sql.spark.relations import FromClause, Relation, SourceColumn, has_joins, named, reference, refuse_parts, renamed
from sql.spark.text.collations import DEFAULT
from sql.spark.types import BIGINT, SparkType, Typed
from sql.spark.values import as_type, identifier, kept_scale, unify

Scope = Mapping[str, Relation]
"""The WITH queries around a query, by name."""

Levels = tuple[Mapping[str, Mapping[str, Any]], ...]
"""The items of FROM clauses by their aliases, that of the query itself first, then those around it."""


def view_name(oid: int) -> str:
    """The Spark view that stands for a source."""
    return f"source_{oid}"


def delta_view_name(oid: int) -> str:
    """The Spark view that stands for the net changes of a source: its columns and `__pgt_w`."""
    return f"delta_{oid}"


@dataclass(frozen=True, slots=True)
class SourceView:
    """What Spark has of a source, in SQL, and the types of columns of which more is known than PostgreSQL says."""

    item: str
    types: Mapping[str, SparkType] = field(default_factory=dict)


class FromClauses:
    """Renders FROM clauses over ``sources``, and over their net changes, ``deltas``, by the names of these.

    ``query`` renders a derived table. ``views`` has the sources that are not `view_name`, by oid. ``reads`` gathers the
    columns read of each source, ``uses`` how often each view of changes, or of a query, is read.
    """

    def __init__(
        self,
        sources: Sequence[Source],
        deltas: Mapping[str, Source],
        environment: Environment,
        query: Callable[[Any, Scope], Relation],
        views: Mapping[int, SourceView],
    ):
        self._views = views
        self._deltas = deltas
        self._sources = {(source.schema, source.name): source for source in sources}
        self._environment = environment
        self._collated = {(oid, column): name for oid, column, name in environment.collations.columns}
        self._query = query
        self._aliases = 0
        self.reads: dict[int, dict[str, None]] = {}
        self.uses = Counter[str]()

    def alias(self) -> str:
        """An alias that no other relation has."""
        self._aliases += 1
        return f"r{self._aliases - 1}"

    def expressions(self, levels: Levels, layers: Layers | None = None) -> SparkExpressions:
        """Renders expressions where these items can be seen."""
        return SparkExpressions(lambda column: resolve(column, levels), self._environment, layers=layers)

    def clause(self, node: exp.Select, scope: Scope) -> FromClause:
        """The FROM clause of a SELECT. Raises NotExpressible."""
        clause = FromClause()
        first = node.args.get("from_")
        if first is None:
            if node.args.get("joins"):
                raise NotExpressible("FROM")
            return clause
        clause.sql = self._item(first.this, scope, clause)
        if (
            isinstance(first.this, exp.Table | exp.Subquery)
            and not node.args.get("joins")
            and len(clause.bindings) == 1
        ):
            clause.single = clause.sql.rpartition(" AS ")[2]
        for join in node.args.get("joins") or ():
            clause.sql += self._join(join, scope, clause)
        return clause

    def _item(self, node: Any, scope: Scope, clause: FromClause) -> str:
        """One item of FROM, with the joins that stand in its parentheses."""
        joins = node.args.get("joins") or ()
        if isinstance(node, exp.Table):
            sql = self._table(node, scope, clause)
        elif isinstance(node, exp.Subquery) and isinstance(node.this, exp.Table | exp.Subquery) and not node.alias:
            sql = (
                f"({self._item(node.this, scope, clause)})"
                if has_joins(node.this)
                else self._item(node.this, scope, clause)
            )
        elif isinstance(node, exp.Subquery):
            refuse_parts(node, frozenset(("this", "alias", "joins")))
            names = [column.name for column in node.args["alias"].columns] if node.args.get("alias") else []
            sql = self._derived(renamed(self._query(node.this, scope), names), node.alias, clause)
        elif isinstance(node, exp.Values):
            refuse_parts(node, frozenset(("expressions", "alias", "joins")))
            names = [column.name for column in node.args["alias"].columns] if node.args.get("alias") else []
            sql = self._derived(renamed(self._values(node), names), node.alias, clause)
        else:
            raise NotExpressible(str(node.key).upper())
        return sql + "".join(self._join(join, scope, clause) for join in joins)

    def _values(self, node: exp.Values) -> Relation:
        """VALUES of constants."""
        nothing = self.expressions(())
        rows = [row.expressions if isinstance(row, exp.Tuple) else [row.unnest()] for row in node.expressions]
        values = [[nothing.render(value) for value in row] for row in rows]
        types = [unify([value.type for value in column], "VALUES") for column in zip(*values, strict=True)]
        selects = []
        for row in values:
            items = [
                named(n, Typed(as_type(value, type_), type_, kept_scale(value, type_)))
                for n, (value, type_) in enumerate(zip(row, types, strict=True))
            ]
            selects.append(f"SELECT {', '.join(items)}")
        columns = tuple((f"column{n}", type_) for n, type_ in enumerate(types, 1))
        return Relation(" UNION ALL ".join(selects), columns)

    def _table(self, node: exp.Table, scope: Scope, clause: FromClause) -> str:
        refuse_parts(node, frozenset(("this", "db", "alias", "joins")))
        names = [column.name for column in node.args["alias"].columns] if node.args.get("alias") else []
        if not node.db and node.name in scope:
            self.uses.update(scope[node.name].used)
            return self._derived(renamed(scope[node.name], names), node.alias or node.name, clause)
        delta = None if node.db else self._deltas.get(node.name)
        source = delta or self._sources.get((node.db, node.name))
        if source is None or not isinstance(node.this, exp.Identifier):
            raise NotExpressible(f'relation "{node.name or node.key}"')
        alias = self.alias()
        columns = self._source_columns(source, alias, names)
        if delta is not None:
            columns[WEIGHT] = Typed(f"{alias}.{identifier(WEIGHT)}", BIGINT)
        self._bind(clause, node.alias or node.name, columns)
        if delta is None:
            return f"{self._view(source.oid).item} AS {alias}"
        self.uses[delta_view_name(source.oid)] += 1
        return f"{delta_view_name(source.oid)} AS {alias}"

    def _view(self, oid: int) -> SourceView:
        return self._views.get(oid) or SourceView(view_name(oid))

    def _source_columns(self, source: Source, alias: str, names: Sequence[str]) -> dict[str, Any]:
        """The columns of a source; ``names`` rename the first ones."""
        reads = self.reads.setdefault(source.oid, {})
        known = self._view(source.oid).types
        columns: dict[str, Any] = {}
        for position, column in enumerate(source.columns):
            name = names[position] if position < len(names) else column.name
            collation = self._collated.get((source.oid, column.name), DEFAULT)
            ordered = self._environment.collations.ordered(collation)
            columns[name] = SourceColumn(alias, column, reads, ordered, collation, known.get(column.name))
        return columns

    def _derived(self, relation: Relation, name: str, clause: FromClause) -> str:
        alias = self.alias()
        columns = {name: reference(alias, n, type_) for n, (name, type_) in enumerate(relation.columns)}
        if len(columns) < len(relation.columns):
            raise NotExpressible("a derived table with two columns of one name")
        self._bind(clause, name or alias, columns)
        return f"{relation.item} AS {alias}"

    def _bind(self, clause: FromClause, name: str, columns: Mapping[str, Any]) -> None:
        if name in clause.bindings:
            raise NotExpressible(f'two items called "{name}" in FROM')
        clause.bindings[name] = dict(columns)

    def _join(self, join: exp.Join, scope: Scope, clause: FromClause) -> str:
        refuse_parts(join, frozenset(("this", "on", "side", "kind")))
        side, kind = (join.args.get(part) or "" for part in ("side", "kind"))
        if kind not in ("", "INNER", "CROSS", "OUTER") or side not in ("", "LEFT", "RIGHT", "FULL"):
            raise NotExpressible(f"{side} {kind} JOIN".strip())
        called = join.this.this if isinstance(join.this, exp.Lateral) else None
        if isinstance(called, exp.Anonymous) and called.name == COPIES:
            expressions = self.expressions((clause.bindings,))
            number = expressions.render(called.expressions[0]).sql
            return f" LATERAL VIEW explode(array_repeat(0, CAST({number} AS INT))) {self.alias()} AS x"
        item = self._item(join.this, scope, clause)
        if has_joins(join.this):
            item = f"({item})"
        condition = join.args.get("on")
        if condition is None:
            return f" CROSS JOIN {item}"
        expressions = self.expressions((clause.bindings,))
        return f" {side or 'INNER'} JOIN {item} ON {expressions.boolean(condition)}"


def resolve(column: exp.Column, levels: Levels) -> Typed:
    """What a column means where these items can be seen. Raises NotExpressible."""
    if column.args.get("db") or isinstance(column.this, exp.Star):
        raise NotExpressible("*" if isinstance(column.this, exp.Star) else f"column {column.sql('postgres')}")
    for bindings in levels:
        if column.table and column.table not in bindings:
            continue
        items = [bindings[column.table]] if column.table else bindings.values()
        found = [item[column.name] for item in items if column.name in item]
        if len(found) == 1:
            return found[0].use() if isinstance(found[0], SourceColumn) else found[0]
        if found or column.table:
            break
    raise NotExpressible(f"column {column.sql('postgres')}")
