"""Joins of FROM: inner ones are collected and become one operator, outer ones become an operator of their own."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from sqlglot import exp

from sql.base.columns import Field
from sql.build.from_functions import Rows, flattened, lateral_rows, padded_on, padded_rows
from sql.build.projection import projected
from sql.build.protocol import Builder, Scope
from sql.build.scope import Binding, FromClause
from sql.build.subqueries.attach import on_condition
from sql.build.subqueries.extract import extract
from sql.build.subqueries.lateral import lateral
from sql.canonical.row_expressions import conjuncts
from sql.operators import Filter, FullJoin, LeftJoin, Merged, Operator


def build_inner_join(builder: Builder, left: FromClause, join: exp.Join, scope: Scope) -> None:
    """[INNER] JOIN … ON or USING, CROSS JOIN, and the comma."""
    flat = flattened(join)
    if flat is not None:
        builder.joins(left, flat, scope)
        left.conditions += conjuncts(builder.resolve(join.args["on"], left.bindings)) if join.args.get("on") else []
        return
    rows = Rows.of(join.this)
    right = lateral_rows(builder, rows, left) if rows else _right(builder, left, join, scope)
    pairs = _using(builder, left, right, join)
    names = list(pairs)
    visible = _visible(left, right, {name: pair[0].name for name, pair in pairs.items()})
    left.conditions += [_equal(*pair) for pair in pairs.values()]
    same = [name for name, pair in pairs.items() if pair[0].type == pair[1].type]
    # Unqualified, a merged column is the left one.
    right.bindings = [replace(b, merged=b.merged | set(same)) for b in right.bindings]
    left.add(right)
    left.conditions += right.lateral
    left.visible = visible
    on = join.args.get("on")
    if on is not None:
        left.conditions += conjuncts(builder.resolve(on, left.bindings, condition=True))
    _convert(builder, left, {name: pairs[name] for name in names if name not in same})
    _name_merged(left, join, names)


def build_left_join(builder: Builder, left: FromClause, join: exp.Join, scope: Scope) -> None:
    """LEFT JOIN."""
    _build_outer_join(builder, left, join, scope, mirrored=False)


def build_right_join(builder: Builder, left: FromClause, join: exp.Join, scope: Scope) -> None:
    """RIGHT JOIN: the mirrored left join."""
    _build_outer_join(builder, left, join, scope, mirrored=True)


def _build_outer_join(builder: Builder, left: FromClause, join: exp.Join, scope: Scope, *, mirrored: bool) -> None:
    rows = None if mirrored else Rows.of(join.this)
    if rows:
        operator = builder.combined(left, None)
        right = padded_rows(builder, rows, operator, left.bindings)
    else:
        right = _right(builder, left, join, scope)
    pairs = _using(builder, left, right, join)
    names = list(pairs)
    if mirrored:
        pairs = {name: (pair[1], pair[0]) for name, pair in pairs.items()}
    kept, padded = (right, left) if mirrored else (left, right)
    visible = _visible(left, right, {name: pair[0].name for name, pair in pairs.items()})
    same = [name for name, pair in pairs.items() if pair[0].type == pair[1].type]
    conditions = _conditions(builder, left, right, join, pairs)
    if rows:
        joined = padded_on(right, conditions)
    else:
        outer, inner = builder.combined(kept, None), builder.combined(padded, None)
        outer, inner, conditions = on_condition(builder, outer, inner, [*right.lateral, *conditions])
        inner, conditions = _pushed(inner, conditions)
        joined = LeftJoin(outer, inner, tuple(conditions))
    padded.bindings = [replace(b, merged=b.merged | set(same)) for b in padded.bindings]
    _become(left, right, joined)
    left.visible = visible
    _convert(builder, left, {name: pairs[name] for name in names if name not in same})
    _name_merged(left, join, names)


def build_full_join(builder: Builder, left: FromClause, join: exp.Join, scope: Scope) -> None:
    """FULL JOIN; a column merged by USING is that of the side that has a row."""
    right = _right(builder, left, join, scope)
    pairs = _using(builder, left, right, join)
    names = list(pairs)
    same = {name: pair for name, pair in pairs.items() if pair[0].type == pair[1].type}
    merged = {
        name: Merged(
            replace(
                mine,
                name=builder.fresh(name),
                not_null=mine.not_null and theirs.not_null,
                equality_is_identity=mine.equality_is_identity and theirs.equality_is_identity,
                origin=None,
                scale=mine.scale if mine.scale == theirs.scale else None,
            ),
            mine,
            theirs,
        )
        for name, (mine, theirs) in same.items()
    }
    columns = {name: merged[name].column.name if name in merged else mine.name for name, (mine, _) in pairs.items()}
    visible = _visible(left, right, columns)
    conditions = _conditions(builder, left, right, join, pairs)
    first, second = builder.combined(left, None), builder.combined(right, None)
    first, second, conditions = on_condition(builder, first, second, conditions, full=True)
    left.bindings = [replace(b, merged=b.merged | set(same)) for b in left.bindings]
    right.bindings = [replace(b, merged=b.merged | set(same)) for b in right.bindings]
    _become(left, right, FullJoin(first, second, tuple(conditions), tuple(merged.values())))
    left.visible = visible
    if merged:
        left.bindings.append(Binding("", {name: m.column for name, m in merged.items()}))
    _convert(builder, left, {name: pairs[name] for name in names if name not in same})
    _name_merged(left, join, names)


def aliased_join(clause: FromClause, alias: exp.TableAlias) -> FromClause:
    """A join in parentheses under a name of its own, which hides the names in it."""
    fields = {f.name: f for binding in clause.bindings for f in binding.columns.values()}
    names = [name for name, _ in clause.visible]
    renamed = [column.name for column in alias.columns]
    names[: len(renamed)] = renamed
    columns = {
        name: fields[column] for name, (_, column) in zip(names, clause.visible, strict=True) if column in fields
    }
    clause.bindings = [Binding(alias.name, columns)]
    clause.visible = [(name, column) for name, (_, column) in zip(names, clause.visible, strict=True)]
    return clause


def _right(builder: Builder, left: FromClause, join: exp.Join, scope: Scope) -> FromClause:
    if isinstance(join.this, exp.Lateral) and Rows.of(join.this) is None:
        return lateral(builder, left, join.this)
    return builder.item(join.this, scope)


def _using(builder: Builder, left: FromClause, right: FromClause, join: exp.Join) -> dict[str, tuple[Field, Field]]:
    """The columns that USING names, of both sides."""
    return {
        column.name: (
            builder.column(exp.column(column.name), left.bindings),
            builder.column(exp.column(column.name), right.bindings),
        )
        for column in join.args.get("using") or ()
    }


def _conditions(
    builder: Builder,
    left: FromClause,
    right: FromClause,
    join: exp.Join,
    pairs: Mapping[str, tuple[Field, Field]],
) -> list[exp.Expr]:
    on = join.args.get("on")
    conditions: list[exp.Expr] = [_equal(*pair) for pair in pairs.values()]
    if on is not None:
        bindings = [*left.bindings, *right.bindings]
        on = extract(builder, on, bindings, condition=True, filters=False)
        conditions += conjuncts(builder.resolve(on, bindings))
    return [c for c in conditions if not (isinstance(c, exp.Boolean) and c.this)]


def _pushed(padded: Operator, conditions: list[exp.Expr]) -> tuple[Operator, list[exp.Expr]]:
    """Conditions on the padded side alone decide which of its rows take part at all."""
    own = {f.name for f in padded.columns}
    below = [c for c in conditions if {column.name for column in c.find_all(exp.Column)} <= own]
    # A condition without columns is left where it stands: it says nothing of the padded side.
    below = [c for c in below if c.find(exp.Column)]
    if not below:
        return padded, conditions
    rest = [c for c in conditions if c not in below]
    return Filter(padded, exp.and_(*below, wrap=True), padded.columns), rest


def _become(left: FromClause, right: FromClause, operator: Operator) -> None:
    """The left clause now stands for an operator over both."""
    fields = {f.name: f for f in operator.columns}
    left.operators = [operator]
    left.conditions = []
    left.bindings = [
        replace(b, columns={name: fields[f.name] for name, f in b.columns.items()})
        for b in [*left.bindings, *right.bindings]
    ]


def _visible(left: FromClause, right: FromClause, merged: Mapping[str, str]) -> list[tuple[str, str | None]]:
    """The columns of a join in order: those that USING merges, the left's, the right's."""
    rest = [(name, column) for name, column in [*left.visible, *right.visible] if name not in merged]
    return [*merged.items(), *rest]


def _convert(builder: Builder, clause: FromClause, pairs: Mapping[str, tuple[Field, Field]]) -> None:
    """Merge columns of different types: the result has the type that both are converted to."""
    if not pairs:
        return
    operator = builder.combined(clause, None)
    wanted = [(f.name, _reference(f)) for f in operator.columns]
    wanted += [
        (name, exp.Anonymous(this="COALESCE", expressions=[_reference(f) for f in pair]))
        for name, pair in pairs.items()
    ]
    project, fields = projected(builder, operator, wanted)
    merged = dict(zip(pairs, fields[len(operator.columns) :], strict=True))
    clause.operators, clause.conditions = [project], []
    clause.bindings = [replace(b, merged=b.merged | set(pairs)) for b in clause.bindings]
    clause.bindings.append(Binding("", merged))
    clause.visible = [(name, merged[name].name if name in merged else column) for name, column in clause.visible]


def _name_merged(clause: FromClause, join: exp.Join, names: list[str]) -> None:
    """``USING (…) AS name``: a name for the merged columns alone."""
    alias = join.args.get("using_alias")
    if alias is None:
        return
    fields = {f.name: f for binding in clause.bindings for f in binding.columns.values()}
    visible = dict(reversed(clause.visible))
    columns = {name: fields[column] for name in names if (column := visible[name]) is not None}
    clause.bindings.append(Binding(alias.name, columns, frozenset(names)))


def _equal(left: Field, right: Field) -> exp.Expr:
    return exp.EQ(this=_reference(left), expression=_reference(right))


def _reference(column: Field) -> exp.Expr:
    return exp.column(exp.to_identifier(column.name, quoted=True))
