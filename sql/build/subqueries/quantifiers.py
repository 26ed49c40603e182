"""The parts of ``x op ANY (Q)``, ``x op ALL (Q)`` and ``ARRAY(Q)``, and the conditions that they are made into."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from sqlglot import exp

from sql.build.subqueries.guards import OWN


def is_quantified(node: exp.Expr | None) -> bool:
    return isinstance(node, exp.Any | exp.All) and isinstance(node.this, exp.Query)


def array_query(node: exp.Expr) -> exp.Expr | None:
    """The subquery of ``ARRAY(subquery)``."""
    called = isinstance(node, exp.Array) or (isinstance(node, exp.Anonymous) and str(node.this).upper() == "ARRAY")
    # ARRAY[(subquery)] is an array of one scalar subquery's value.
    if called and len(node.expressions) == 1 and isinstance(node.expressions[0], exp.Query):
        return None if isinstance(node.expressions[0], exp.Subquery) else node.expressions[0]
    return None


def row_items(node: exp.Expr) -> list[exp.Expr] | None:
    """The columns of a row constructor."""
    node = node.unnest()
    if isinstance(node, exp.Tuple) or (isinstance(node, exp.Anonymous) and str(node.this).upper() == "ROW"):
        return list(node.expressions)
    return None


def comparison(node: exp.Expr, operands: Sequence[exp.Expr]) -> Callable[[list[exp.Expr]], exp.Expr]:
    """``operands op columns``."""

    def compare(columns: list[exp.Expr]) -> exp.Expr:
        if isinstance(node, exp.EQ):
            pairs = zip(operands, columns, strict=True)
            return exp.and_(*(exp.EQ(this=x.copy(), expression=c.copy()) for x, c in pairs), wrap=True)
        new = node.copy()
        sides = [list(operands), columns]
        if len(operands) == 1:
            left, right = operands[0].copy(), columns[0].copy()
        else:
            left, right = (exp.Anonymous(this="ROW", expressions=[s.copy() for s in side]) for side in sides)
        new.set("this", left)
        new.set("expression", right)
        return new

    return compare


def truth_test(node: exp.Expr, value: str, *, negated: bool) -> exp.Expr:
    test = exp.Is(this=exp.paren(node), expression=exp.true() if value == "TRUE" else exp.false())
    return exp.Not(this=test) if negated else test


def unknown() -> exp.Expr:
    return exp.cast(exp.null(), "boolean")


def chosen(first: tuple[exp.Expr, exp.Expr], second: tuple[exp.Expr, exp.Expr], otherwise: exp.Expr) -> exp.Expr:
    ifs = [exp.If(this=condition, true=value) for condition, value in (first, second)]
    case = exp.Case(ifs=ifs, default=otherwise)
    case.meta[OWN] = True
    return case
