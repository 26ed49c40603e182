"""Constants to sort or group by: where PostgreSQL takes them for something else than what is written.

``pg_get_viewdef`` writes the negated constant of ``ORDER BY - '1'::integer`` as ``(- 1)``; read again that is -1, the
position of a column in the select list, which there is none. With its type it is a value again.

A key of grouping sets is NULL in the rows of the sets that lack it. PostgreSQL's planner finds the places by comparing
expressions, but not those of a constant: that is NULL only as the column of the select list by which it is grouped, and
up to PostgreSQL 17 not even there below DISTINCT or a set operation.
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


def uses_of_key(key: exp.Expr) -> int | None:
    """How often a key that some sets lack can be used and is surely NULL where it is to be; None for any number.

    None at all of what the planner may make a constant, ``key`` being an expression of the canonical text: what has no
    column, or a part that decides it (a NULL, a condition). One of what it takes for different values wherever it
    stands, or may put something else in the place of: a subquery, a function in SQL. Doubtful ones are included.

    >>> def found(*texts: str) -> list[int | None]:
    ...     return [uses_of_key(parse(f"SELECT {text}").expressions[0]) for text in texts]
    >>> found("length('x'::text)", "CURRENT_DATE", "COALESCE(1, k)", "(NULL::integer + k)", "((k > 1) OR true)")
    [0, 0, 0, 0, 0]
    >>> found("(k + length('x'::text))", "CASE WHEN true THEN 1 ELSE k END", "CASE 1 WHEN k THEN k END")
    [0, 0, 0]
    >>> found("(SELECT max(k) FROM t)", "(k IN (SELECT k FROM t))", "public.one(k)", "(k OPERATOR(public.+) 1)")
    [1, 1, 1, 1]
    >>> found("CASE k WHEN 1 THEN 2 ELSE 3 END", "CASE WHEN (k = 1) THEN 2 ELSE 3 END", "NOT k", "lower(k)")
    [None, None, None, None]
    >>> found("k", "COALESCE(k, 1)", "(k + 1)", "date_trunc('month'::text, k)", "(k IS NULL)", "(k).f")
    [None, None, None, None, None, None]
    >>> found("CASE WHEN (k > 1) THEN NULL::integer ELSE k END", "(k)::text", "(k = ANY (ARRAY[1, 2]))", "k[1:2]")
    [None, None, None, None]
    >>> found("(k - '1 day'::interval)")
    [None]
    """
    if contains(key, exp.Query):
        return 1
    if _known(key) or any(map(_may_decide, nodes(key))):
        return 0
    return 1 if any(map(_is_of_a_user, nodes(key))) else None


_NEVER_NULL = (
    *(exp.Literal, exp.Boolean, exp.Interval, exp.Var, exp.Array, exp.Tuple, exp.Any, exp.Slice),
    *(exp.Cast, exp.DataType, exp.DataTypeParam, exp.Identifier, exp.Paren, exp.Neg, exp.Add, exp.Sub, exp.Mul),
    *(exp.CurrentDate, exp.CurrentTimestamp),
)
"""What an expression without columns consists of that is certainly not NULL."""


def _may_decide(node: exp.Expr) -> bool:
    """Whether a part of an expression may have one value, whatever its columns hold, because of what else is in it."""
    if isinstance(node, exp.Case | exp.Connector) or _is_coalesce(node):
        return any(map(_known, _deciding(node)))
    if isinstance(node, exp.If | exp.Is | exp.NullSafeEQ | exp.NullSafeNEQ) or _known(node):
        return False
    parts = [part for part in node.iter_expressions() if _known(part)]
    return any(not isinstance(each, _NEVER_NULL) for part in parts for each in nodes(part))


def _is_of_a_user(node: exp.Expr) -> bool:
    """Whether it is a function or operator with a schema: PostgreSQL's own have none in the canonical text."""
    return isinstance(node, exp.Operator) or (isinstance(node, exp.Dot) and isinstance(node.expression, exp.Func))


def _known(part: exp.Expr) -> bool:
    return not contains(part, exp.Column)


def _is_coalesce(node: exp.Expr) -> bool:
    return isinstance(node, exp.Anonymous) and node.name.upper() == "COALESCE"


def _deciding(node: exp.Expr) -> list[exp.Expr]:
    """The parts of CASE, AND, OR and COALESCE of which one that is known may decide it."""
    if isinstance(node, exp.Case):
        return [node.this] if node.this else [branch.this for branch in node.args["ifs"]]
    return [node.this, node.expression] if isinstance(node, exp.Connector) else node.expressions[:1]
