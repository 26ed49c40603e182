"""CASE, COALESCE, GREATEST, LEAST and NULLIF in Spark's dialect."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from typing import Any

from sqlglot import exp

from sql.canonical.written import read
from sql.errors import NotExpressible
from sql.operators.subqueries.enforce_single_row import CHECK
from sql.spark.numbers.exact import failure
from sql.spark.protocol import Expressions, Rule
from sql.spark.text.collations import common
from sql.spark.types import BOOLEAN, Typed
from sql.spark.user_defined.types import label_at, place_of
from sql.spark.values import as_type, comparable, kept_scale, unify


def _case(expressions: Expressions, node: exp.Case) -> Typed:
    if len(node.args["ifs"]) == 1 and node == _single():
        counted = expressions.render(node.args["ifs"][0].this.this)
        several = failure("more than one row returned by a subquery used as an expression")
        return Typed(f"(CASE WHEN {counted.sql} > 1 THEN CAST({several} AS BOOLEAN) ELSE TRUE END)", BOOLEAN)
    operand = node.this
    branches = [branch.args["true"] for branch in node.args["ifs"]]
    values = [expressions.render(value) for value in branches]
    if node.args.get("default") is not None:
        values.append(expressions.render(node.args["default"]))
    type_ = unify([value.type for value in values], "CASE")
    whens = []
    for branch in node.args["ifs"]:
        condition = branch.this if operand is None else exp.EQ(this=operand.copy(), expression=branch.this.copy())
        whens.append(expressions.boolean(condition))

    def case(texts: Sequence[str]) -> str:
        branches = [f"WHEN {when} THEN {text}" for when, text in zip(whens, texts, strict=False)]
        default = f" ELSE {texts[-1]}" if len(texts) > len(whens) else ""
        return f"(CASE {' '.join(branches)}{default} END)"

    scales = [kept_scale(value, type_) for value in values]
    return Typed(case([as_type(value, type_) for value in values]), type_, case(scales) if scales[0] else "")


def _coalesce(expressions: Expressions, node: exp.Coalesce) -> Typed:
    return _chosen(expressions, "coalesce", [node.this, *node.expressions])


def _greatest(expressions: Expressions, node: exp.Greatest) -> Typed:
    return _chosen(expressions, "greatest", [node.this, *node.expressions], ordering=True)


def _least(expressions: Expressions, node: exp.Least) -> Typed:
    return _chosen(expressions, "least", [node.this, *node.expressions], ordering=True)


def _chosen(expressions: Expressions, name: str, arguments: Sequence[Any], *, ordering: bool = False) -> Typed:
    values = [expressions.render(argument) for argument in arguments]
    type_ = unify([value.type for value in values], name.upper())
    if ordering and type_.enum:
        places = (place_of(value, expressions.environment).sql for value in values)
        return label_at(f"{name}({', '.join(places)})", type_, expressions.environment)
    if ordering and not (type_.ordered and type_.groupable):
        raise NotExpressible(f"{name.upper()} of {type_.name}")
    scales = [kept_scale(value, type_) for value in values]
    if scales[0]:
        if ordering:
            raise NotExpressible(f"{name.upper()} of numerics with different scales")
        whens = [f"WHEN {v.sql} IS NOT NULL THEN {scale}" for v, scale in zip(values, scales, strict=True)]
        scales[0] = f"(CASE {' '.join(whens)} END)"
    return Typed(f"{name}({', '.join(as_type(value, type_) for value in values)})", type_, scales[0])


def _nullif(expressions: Expressions, node: exp.Nullif) -> Typed:
    left, right = expressions.render(node.this), expressions.render(node.expression)
    one, other = comparable(left, right, ordering=False)
    type_ = replace(left.type, collation=common((left.type.collation, right.type.collation)))
    return Typed(f"(CASE WHEN {one} = {other} THEN NULL ELSE {left.sql} END)", type_, left.display)


@cache
def _single() -> exp.Expr:
    """How the compiler has PostgreSQL raise the error of a scalar subquery with several rows."""
    return read(CHECK)


CONDITIONALS: Mapping[type[Any], tuple[Rule, tuple[str, ...]]] = {
    exp.Case: (_case, ("this", "ifs", "default")),
    exp.Coalesce: (_coalesce, ("this", "expressions")),
    exp.Greatest: (_greatest, ("this", "expressions", "ignore_nulls")),
    exp.Least: (_least, ("this", "expressions", "ignore_nulls")),
    exp.Nullif: (_nullif, ("this", "expression")),
}
"""By construct: how it is rendered, and the parts of it that the rendering looks at."""
