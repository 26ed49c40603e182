"""What the compiler writes for PostgreSQL alone, said in plain words before it is rendered for Spark.

The operators' SQL has to name things that only matter where equal values can look different, or where a numeric can be
infinite. Of the types that Spark may group by, equal values look the same, and its numerics are numbers.
So these rewrites keep the meaning, whoever has written the query.
"""

from __future__ import annotations

from typing import Any

from sqlglot import exp

from sql.spark.user_defined.types import JsonbAgg, Picked

_SPECIAL = frozenset({"nan", "infinity", "-infinity"})


def simplified(query: exp.Expr) -> exp.Expr:
    """The query in plain words. Changes its argument.

    >>> import sqlglot
    >>> print(simplified(sqlglot.parse_one(
    ...     'SELECT g.a, n.b FROM t AS g CROSS JOIN LATERAL (SELECT g.c + 1 AS b) AS n', read="postgres"
    ... )).sql("postgres"))
    SELECT g.a, (g.c + 1) AS "b" FROM t AS g
    >>> print(simplified(sqlglot.parse_one(
    ...     'SELECT (array_agg(a.x ORDER BY a.x::text COLLATE "C"))[1] AS x FROM a GROUP BY a.x', read="postgres"
    ... )).sql("postgres"))
    SELECT PICKED(a.x) AS x FROM a GROUP BY a.x
    >>> print(simplified(sqlglot.parse_one(
    ...     "SELECT CASE WHEN num_nulls(x) = 0 THEN format('%s'::text, x) END AS x FROM a", read="postgres"
    ... )).sql("postgres"))
    SELECT CAST(x AS TEXT) AS x FROM a
    """
    _without_synonyms(query)
    for case in list(query.find_all(exp.Case)):
        _without_padding(case)
    for select in list(query.find_all(exp.Select)):
        _without_laterals(select)
        _without_looks(select)
    for member in list(query.find_all(exp.In)):
        _without_special_numbers(member)
    return query


def _without_padding(case: exp.Case) -> None:
    """A value's text with its trailing blanks (`identity.as_text`) is its text: no type that Spark has loses any."""
    if len(case.args["ifs"]) != 1 or case.args.get("this") or case.args.get("default"):
        return
    (only,) = case.args["ifs"]
    shown = only.args["true"]
    if not isinstance(shown, exp.Format) or len(shown.expressions) != 1:
        return
    (value,) = shown.expressions
    present = exp.EQ(this=exp.func("num_nulls", value.copy()), expression=exp.Literal.number(0))
    if shown.this.sql("postgres") == "CAST('%s' AS TEXT)" and only.this.sql("postgres") == present.sql("postgres"):
        case.replace(exp.cast(value.copy(), "text"))


def _without_laterals(select: exp.Select) -> None:
    """A lateral SELECT without FROM only names expressions: they take the place of the names."""
    for join in list(select.args.get("joins") or ()):
        names = _named_expressions(join.this)
        if names is None or join.args.get("on") or join.args.get("side"):
            continue
        alias = join.this.alias
        join.pop()
        for column in [c for c in select.find_all(exp.Column) if c.table == alias and c.name in names]:
            inlined: exp.Expr = exp.paren(names[column.name].copy())
            if column.parent is select:
                inlined = exp.alias_(inlined, column.name, quoted=True)
            column.replace(inlined)


def _named_expressions(item: Any) -> dict[str, exp.Expr] | None:
    if not isinstance(item, exp.Lateral) or not isinstance(item.this, exp.Subquery):
        return None
    inner = item.this.this
    if not isinstance(inner, exp.Select) or not inner.expressions:
        return None
    if any(value for part, value in inner.args.items() if part != "expressions"):
        return None
    return {expression.alias_or_name: expression.unalias() for expression in inner.expressions}


def _without_looks(select: exp.Select) -> None:
    """Partitions by a value and by what it looks like are those by the value, and any of a group's is the value."""
    group = select.args.get("group")
    if group is not None:
        keys = {key.sql("postgres"): key for key in group.expressions}
        for bracket in list(select.find_all(exp.Bracket)):
            picked = _picked(bracket)
            if picked is not None and picked.sql("postgres") in keys and bracket.parent_select is select:
                bracket.replace(Picked(this=picked.copy()))
    for window in list(select.find_all(exp.Window)):
        by = window.args.get("partition_by") or []
        texts = {key.sql("postgres") for key in by}
        window.set("partition_by", [key for key in by if looks_of(key) not in texts])


def _without_synonyms(query: exp.Expr) -> None:
    """`every` is `bool_and`, and `jsonb_agg` is an aggregate."""
    for call in list(query.find_all(exp.Anonymous)):
        if call.name.lower() == "every" and not isinstance(call.parent, exp.Dot):
            call.replace(exp.LogicalAnd(this=call.expressions[0]))
        elif call.name.lower() == "jsonb_agg" and len(call.expressions) == 1 and not isinstance(call.parent, exp.Dot):
            call.replace(JsonbAgg(this=call.expressions[0]))


def looks_of(key: Any) -> str:
    """The expression of `(x::text) COLLATE "C"`, empty if it is something else."""
    key = key.unnest()
    if not isinstance(key, exp.Collate) or key.expression.name != "C":
        return ""
    cast = key.this.unnest()
    if not isinstance(cast, exp.Cast) or not cast.to.is_type("text"):
        return ""
    return str(cast.this.unnest().sql("postgres"))


def _picked(bracket: exp.Bracket) -> exp.Expr | None:
    """The expression of `(array_agg(x ORDER BY ...))[1]`."""
    inner = bracket.this.unnest()
    if not isinstance(inner, exp.ArrayAgg) or [index.name for index in bracket.expressions] != ["0"]:
        return None
    argument = inner.this
    picked = argument.this if isinstance(argument, exp.Order) else argument
    return picked if isinstance(picked, exp.Column) else None


def _without_special_numbers(member: exp.In) -> None:
    """No numeric of Spark's is NaN or infinite."""
    items = member.expressions
    if items and all(_is_special(item) for item in items):
        member.replace(exp.paren(exp.and_(member.this.is_(exp.null()), exp.null())))


def _is_special(item: Any) -> bool:
    return (
        isinstance(item, exp.Cast)
        and item.to.is_type("decimal")
        and isinstance(item.this, exp.Literal)
        and item.this.name.lower() in _SPECIAL
    )
