"""Constants to sort or group by, which PostgreSQL's own canonical text can make a position of.

``pg_get_viewdef`` writes the negated constant of ``ORDER BY - '1'::integer`` as ``(- 1)``; read again that is -1, the
position of a column in the select list, which there is none. With its type it is a value again.
"""

from __future__ import annotations

import re

from sqlglot import exp

from sql.canonical.dialect import generate, parse
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
