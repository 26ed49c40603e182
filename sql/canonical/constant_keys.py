"""Constants to sort or group by: where PostgreSQL takes them for something else than what is written.

``pg_get_viewdef`` writes the negated constant of ``ORDER BY - '1'::integer`` as ``(- 1)``; read again that is -1, the
position of a column in the select list, which there is none. With its type it is a value again.

A key of grouping sets is NULL in the rows of the sets that lack it. PostgreSQL's planner finds the places by comparing
expressions, but not those of a constant: that is NULL only as the column of the select list by which it is grouped.
"""

from __future__ import annotations

import re

from sqlglot import exp

from sql.canonical.dialect import generate, parse
from sql.canonical.nodes import contains, nodes
from sql.errors import NotDifferentiable

_NEGATED = re.compile(r"\(- [(\d]")


def without_positions(canonical: str) -> str:
    """The query with the types of negated constants among its keys; as it is where there are none.

    >>> without_positions("SELECT (- 1.00) AS a FROM public.t ORDER BY (- 1.00), (- x)")
    'SELECT (-1.00) AS a FROM public.t ORDER BY CAST((-1.00) AS DECIMAL), (-x)'
    >>> without_positions("SELECT (- (- 1)) AS a FROM public.t ORDER BY (- (- 1))")
    'SELECT (-(-1)) AS a FROM public.t ORDER BY CAST((-(-1)) AS INT)'
    >>> without_positions("SELECT (- x) AS a FROM public.t ORDER BY (- x)")
    'SELECT (- x) AS a FROM public.t ORDER BY (- x)'
    """
    if not _NEGATED.search(canonical):
        return canonical
    try:
        statement = parse(canonical).copy()
    except NotDifferentiable:
        return canonical
    found = False
    for clause in list(statement.find_all(exp.Order, exp.Group, exp.Distinct)):
        keys = clause.args["on"].expressions if clause.args.get("on") else clause.expressions
        for key in list(keys):
            value = key.this if isinstance(key, exp.Ordered) else key
            type_ = _type(value.unnest())
            if type_ is not None:
                value.replace(exp.Cast(this=value.copy(), to=exp.DataType.build(type_)))
                found = True
    return generate(statement) if found else canonical


def _type(node: exp.Expr) -> str | None:
    """The type of a negated number, which can be so more than once; None of anything else."""
    number = node
    while isinstance(number, exp.Neg):
        number = number.this.unnest()
    if number is node or not isinstance(number, exp.Literal) or number.is_string:
        return None
    digits = number.name
    return "decimal" if not digits.isdigit() or int(digits) >= 2**63 else "int" if int(digits) < 2**31 else "bigint"


def may_be_constant(key: exp.Expr) -> bool:
    """Whether PostgreSQL's planner may make one value of an expression of the canonical text, or takes it for one.

    What has no column is such a one, and a subquery can be. With columns it can be one if the planner knows a part that
    decides it: a NULL, a condition, the body of a function in SQL. Doubtful ones are included.

    >>> def found(*texts: str) -> list[bool]:
    ...     return [may_be_constant(parse(f"SELECT {text}").expressions[0]) for text in texts]
    >>> found("length('x'::text)", "CURRENT_DATE", "(SELECT max(k) FROM t)", "(k IN (SELECT k FROM t))")
    [True, True, True, True]
    >>> found("COALESCE(1, k)", "(NULL::integer + k)", "public.one(k)", "CASE WHEN true THEN 1 ELSE k END")
    [True, True, True, True]
    >>> found("(k + length('x'::text))", "((k > 1) OR true)", "(k OPERATOR(public.+) 1)", "CASE 1 WHEN k THEN k END")
    [True, True, True, True]
    >>> found("CASE k WHEN 1 THEN 2 ELSE 3 END", "CASE WHEN (k = 1) THEN 2 ELSE 3 END", "NOT k", "lower(k)")
    [False, False, False, False]
    >>> found("k", "COALESCE(k, 1)", "(k + 1)", "date_trunc('month'::text, k)", "(k IS NULL)", "(k).f")
    [False, False, False, False, False, False]
    >>> found("CASE WHEN (k > 1) THEN NULL::integer ELSE k END", "(k)::text", "(k = ANY (ARRAY[1, 2]))", "k[1:2]")
    [False, False, False, False]
    >>> found("(k - '1 day'::interval)")
    [False]
    """
    return _known(key) or contains(key, exp.Query) or any(map(_may_decide, nodes(key)))


_NEVER_NULL = (
    *(exp.Literal, exp.Boolean, exp.Interval, exp.Var, exp.Array, exp.Tuple, exp.Any, exp.Slice),
    *(exp.Cast, exp.DataType, exp.DataTypeParam, exp.Identifier, exp.Paren, exp.Neg, exp.Add, exp.Sub, exp.Mul),
    *(exp.CurrentDate, exp.CurrentTimestamp),
)
"""What an expression without columns consists of that is certainly not NULL."""


def _may_decide(node: exp.Expr) -> bool:
    """Whether a part of an expression may have one value, whatever its columns hold, because of what else is in it."""
    if isinstance(node, exp.Dot | exp.Operator):
        return isinstance(node, exp.Operator) or isinstance(node.expression, exp.Func)  # of a user
    if isinstance(node, exp.Case | exp.Connector) or _is_coalesce(node):
        return any(map(_known, _deciding(node)))
    if isinstance(node, exp.If | exp.Is | exp.NullSafeEQ | exp.NullSafeNEQ) or _known(node):
        return False
    parts = [part for part in node.iter_expressions() if _known(part)]
    return any(not isinstance(each, _NEVER_NULL) for part in parts for each in nodes(part))


def _known(part: exp.Expr) -> bool:
    return not contains(part, exp.Column)


def _is_coalesce(node: exp.Expr) -> bool:
    return isinstance(node, exp.Anonymous) and node.name.upper() == "COALESCE"


def _deciding(node: exp.Expr) -> list[exp.Expr]:
    """The parts of CASE, AND, OR and COALESCE of which one that is known may decide it."""
    if isinstance(node, exp.Case):
        return [node.this] if node.this else [branch.this for branch in node.args["ifs"]]
    return [node.this, node.expression] if isinstance(node, exp.Connector) else node.expressions[:1]
