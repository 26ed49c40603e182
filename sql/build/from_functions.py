"""Items of FROM that read no table: functions, ROWS FROM, JSON_TABLE, XMLTABLE, lateral VALUES and subqueries."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from sqlglot import exp

from sql.base.columns import Field
from sql.base.columns import field as described
from sql.base.text import derived, quote, select
from sql.build.projection import projected
from sql.build.protocol import Builder
from sql.build.scope import Binding, FromClause
from sql.canonical.dialect import generate
from sql.canonical.from_items import RowSource
from sql.canonical.local_nodes import output_names
from sql.errors import NotDifferentiable
from sql.operators import Constants, Join, Operator, SetReturning
from sql.operators.plan import NOTHING
from sql.operators.set_returning import ROW

ARGUMENTS = "__pgt_arguments"


@dataclass(frozen=True, slots=True)
class Rows:
    """A source of rows: what follows FROM, but for its alias, and the columns it gives."""

    node: exp.Expr
    alias: str
    definitions: tuple[exp.Expr, ...]
    names: tuple[str, ...]
    ordinality: bool
    arguments: tuple[exp.Expr, ...] = ()
    """Arguments with subqueries over tables; in ``node`` a column of ``ARGUMENTS`` stands for each."""

    @staticmethod
    def of(node: exp.Expr) -> Rows | None:
        """The source of rows that an item of FROM is; None if it reads tables."""
        source = node.this
        if isinstance(node, exp.Table):
            if isinstance(source, exp.Identifier | exp.Values) or not isinstance(source, exp.Expr):
                return None
            if node.args.get("db"):
                source = exp.Dot(this=node.args["db"].copy(), expression=source.copy())
        elif isinstance(node, exp.Subquery) and isinstance(source, exp.Values):
            source = exp.Subquery(this=source.copy())
        elif not isinstance(node, exp.Lateral) or (isinstance(source, exp.Subquery) and _reads_tables(source)):
            return None
        source, arguments = _taken_out(source)
        alias = node.args.get("alias")
        definitions = tuple(alias.columns) if alias else ()
        names = [column.name for column in definitions]
        own = _own_names(source)
        return Rows(
            source,
            alias.name if alias else "",
            definitions,
            (*names, *own[len(names) :]),
            bool(node.args.get("ordinality")),
            arguments,
        )

    def prepared(self, builder: Builder, operator: Operator, bindings: Sequence[Binding]) -> tuple[Operator, Binding]:
        """An operator with columns for the arguments that have subqueries in them, and the names of these columns."""
        wanted: list[tuple[str, exp.Expr]] = []
        wanted += [(f.name, exp.column(exp.to_identifier(f.name, quoted=True))) for f in operator.columns]
        wanted += [("argument", builder.resolve(argument, bindings)) for argument in self.arguments]
        project, fields = projected(builder, operator, wanted)
        columns = {str(i): f for i, f in enumerate(fields[len(operator.columns) :])}
        return project, Binding(ARGUMENTS, columns)

    def resolved(self, builder: Builder, bindings: Sequence[Binding]) -> exp.Expr:
        """The source over the columns of one row."""
        items = (exp.Table, exp.Lateral, exp.Subquery, exp.Values)
        local = {node.alias for node in self.node.walk() if isinstance(node, items)} - {""}
        query = self.node.find(exp.Query, exp.Values) is not None

        def replaced(node: exp.Expr) -> exp.Expr:
            if not isinstance(node, exp.Column) or (query and node.table in local):
                return node
            if query and node.table == "*VALUES*":
                return node
            if query and not node.table:
                raise NotDifferentiable(f'reference "{generate(node)}"')
            name = builder.column(node, bindings).name
            return exp.column(exp.to_identifier(name, quoted=True), table=exp.to_identifier(ROW, quoted=True))

        return self.node.transform(replaced)

    def text(self, resolved: exp.Expr) -> str:
        """The item of FROM, called f."""
        columns = ", ".join(
            f"{quote(d.name)} {generate(d.args['kind'])}" if isinstance(d, exp.ColumnDef) else quote(d.name)
            for d in self.definitions
        )
        ordinality = " WITH ORDINALITY" if self.ordinality else ""
        return f"{generate(resolved)}{ordinality} AS f{f'({columns})' if columns else ''}"

    @property
    def called(self) -> str:
        """What to call it in a description."""
        if isinstance(self.node, exp.Subquery):
            return "subquery"
        return generate(self.node).partition("(")[0].strip().lower()


def _own_names(source: exp.Expr) -> list[str]:
    if isinstance(source, RowSource):
        return [column.name for column in source.args.get("columns") or ()]
    return output_names(source.this) if isinstance(source, exp.Subquery) else []


def _reads_tables(source: exp.Expr) -> bool:
    return any(isinstance(table.this, exp.Identifier) for table in source.find_all(exp.Table))


def _taken_out(source: exp.Expr) -> tuple[exp.Expr, tuple[exp.Expr, ...]]:
    """A source with its subqueries over tables taken out of it, argument by argument."""
    if not _reads_tables(source):
        return source, ()
    source = source.copy()
    calls = [call for call in source.walk(prune=lambda node: isinstance(node, exp.Query)) if isinstance(call, exp.Func)]
    taken: list[exp.Expr] = []
    for call in calls:
        if any(call is node for part in taken for node in part.walk()):
            continue
        for argument in [argument for argument in call.expressions if _reads_tables(argument)]:
            column = exp.column(exp.to_identifier(str(len(taken)), quoted=True), table=ARGUMENTS)
            argument.replace(column)
            taken.append(argument)
    if _reads_tables(source):
        raise NotDifferentiable("subquery in a function in FROM")
    return source, tuple(taken)


def constant_rows(builder: Builder, rows: Rows) -> FromClause:
    """A source that depends on nothing beside it in FROM."""
    if rows.arguments:
        prepared, binding = rows.prepared(builder, Constants(((),), ()), ())
        operator = _called(builder, rows, prepared, rows.resolved(builder, [binding]))
    else:
        operator = _called(builder, rows, Constants(((),), ()), rows.resolved(builder, ()))
    return FromClause([operator], [], [_binding(rows, operator)], _visible(rows, operator))


def lateral_rows(builder: Builder, rows: Rows, left: FromClause) -> FromClause:
    """A source beside what is there, as an inner join: it becomes part of the operators whose columns it uses."""
    if rows.arguments:
        prepared, binding = rows.prepared(builder, builder.combined(left, None), left.bindings)
        operator = _called(builder, rows, prepared, rows.resolved(builder, [*left.bindings, binding]))
        left.operators, left.conditions = [operator], []
        return FromClause([], [], [_binding(rows, operator)], _visible(rows, operator))
    resolved = rows.resolved(builder, left.bindings)
    used = {column.name for column in resolved.find_all(exp.Column) if column.table == ROW}
    inputs = [o for o in left.operators if used & {column.name for column in o.columns}]
    if not inputs:
        return constant_rows(builder, rows)
    operator = _called(builder, rows, _joined(left, inputs), resolved)
    at = next(i for i, o in enumerate(left.operators) if o is inputs[0])
    rest = [o for o in left.operators if not any(o is i for i in inputs)]
    left.operators = [*rest[:at], operator, *rest[at:]]
    return FromClause([], [], [_binding(rows, operator)], _visible(rows, operator))


def padded_rows(builder: Builder, rows: Rows, operator: Operator, bindings: Sequence[Binding]) -> FromClause:
    """A source beside an operator, as a left join whose condition is yet to be set."""
    if rows.arguments:
        operator, binding = rows.prepared(builder, operator, bindings)
        bindings = [*bindings, binding]
    called = replace(_called(builder, rows, operator, rows.resolved(builder, bindings)), padded=True)
    return FromClause([called], [], [_binding(rows, called)], _visible(rows, called))


def flattened(join: exp.Join) -> list[exp.Join] | None:
    """The joins in parentheses one after the other, where one in there uses columns of what stands before.

    ``A ⋈ (B ⟕ f(a, b)) = (A ⋈ B) ⟕ f(a, b)``, and so for inner joins.
    """
    first = join.this
    while isinstance(first, exp.Subquery) and not first.alias and not isinstance(first.this, exp.Query):
        first = first.this
    joins = first.args.get("joins") or ()
    if first is join.this or not joins or join.args.get("using"):
        return None
    if any(j.side in ("RIGHT", "FULL") or j.args.get("using") for j in joins):
        return None
    if not _uses_what_stands_before([first, *(j.this for j in joins)]):
        return None
    alone = first.copy()
    alone.set("joins", None)
    return [exp.Join(this=alone), *joins]


def _uses_what_stands_before(items: Sequence[exp.Expr]) -> bool:
    """Whether one of the items uses columns of none of them."""
    inside = {node.alias_or_name for node in items}
    laterals = [node for node in items if isinstance(node, exp.Lateral)]
    return any(c.table not in inside for node in laterals for c in node.this.find_all(exp.Column))


def padded_on(right: FromClause, conditions: Sequence[exp.Expr]) -> Operator:
    """What `padded_rows` has made, with the condition of the left join."""
    (operator,) = right.operators
    assert isinstance(operator, SetReturning)
    return replace(operator, condition=exp.and_(*conditions, wrap=True)) if conditions else operator


def _joined(left: FromClause, inputs: Sequence[Operator]) -> Operator:
    """Some of the operators of a FROM clause as one, with the conditions that concern them alone."""
    if len(inputs) == 1:
        return inputs[0]
    columns = tuple(column for operator in inputs for column in operator.columns)
    names = {column.name for column in columns}
    own = [c for c in left.conditions if {column.name for column in c.find_all(exp.Column)} <= names]
    left.conditions = [c for c in left.conditions if c not in own]
    return Join(tuple(inputs), tuple(own), columns)


def _called(builder: Builder, rows: Rows, operator: Operator, resolved: exp.Expr) -> SetReturning:
    results = tuple(Field(builder.fresh(name), "") for name in rows.names)
    called = SetReturning(operator, rows.text(resolved), rows.names, results, rows.called)
    probe = select([quote(result.name) for result in results], derived(called.new(NOTHING), "p"))
    answers = builder.types.describe(probe, len(results))
    return replace(called, results=tuple(described(f.name, c) for f, c in zip(results, answers, strict=True)))


def _binding(rows: Rows, operator: SetReturning) -> Binding:
    return Binding(rows.alias, dict(zip(rows.names, operator.results, strict=True)))


def _visible(rows: Rows, operator: SetReturning) -> list[tuple[str, str | None]]:
    return [(name, result.name) for name, result in zip(rows.names, operator.results, strict=True)]
