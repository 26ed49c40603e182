"""Functions that users have written in SQL, for Spark: their bodies stand where they are called.

PostgreSQL says what a body means: it is asked to read it as a query over one row, whose columns are the parameters
(`engine.stream_tables.sql_functions`). That takes the place of a call: each parameter as the argument, cast to the
parameter's type, and all of it cast to the type of the result.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar

from sqlglot import exp

from sql.canonical.written import read
from sql.errors import NotExpressible

MOST_NODES = 5_000
"""So much may calls become in all: one that uses an argument twice doubles what is in it."""


@dataclass(frozen=True, slots=True)
class SqlFunction:
    """A function of a user's. ``definition`` is what PostgreSQL makes of its body, as a query over its parameters.

    ``parameters`` are names, as the definition has them, and types; ``defaults`` are those of the last ones, constants
    as PostgreSQL writes them. ``refused`` says why it is not put in the place of its calls.
    """

    schema: str
    name: str
    parameters: tuple[tuple[str, str], ...] = ()
    result: str = ""
    strict: bool = False
    definition: str = ""
    refused: str = ""
    defaults: tuple[str, ...] = ()


class Passed(exp.Cast):
    """An argument, or the value of a body, as the type that the function has declared.

    PostgreSQL casts it without a word where it is of another type; one that is of the type stays as it is. ``declared``
    is a literal with the type as `format_type` gives it.
    """

    arg_types: ClassVar[dict[str, bool]] = {**exp.Cast.arg_types, "declared": True}
    _sql_names: ClassVar[list[str]] = ["PASSED"]


def obstacle(definition: str, defaults: Sequence[str] = ()) -> str:
    """Why a body cannot be put in the place of a call, nothing if it can.

    >>> obstacle("SELECT ( SELECT (f.a + 1)) AS body FROM ( SELECT NULL::integer AS a) f", ["'-7'::integer"])
    ''
    >>> obstacle("SELECT ( SELECT max(x.b) FROM ( VALUES (f.a), (1)) x(b)) AS body FROM ( SELECT NULL::integer AS a) f")
    'whose body is more than an expression'
    """
    try:
        _body(definition)
        for default in defaults:
            _constant(default)
    except NotExpressible as reason:
        return str(reason)
    return ""


@lru_cache(maxsize=64)
def _body(definition: str) -> exp.Expr:
    """The expression of a body, over columns named as the parameters; not to be changed. Raises NotExpressible."""
    outer = read(definition)
    held = outer.expressions[0].unalias() if isinstance(outer, exp.Select) and len(outer.expressions) == 1 else None
    select = held.this if isinstance(held, exp.Subquery) else None
    if not isinstance(select, exp.Select) or len(select.expressions) != 1:
        raise NotExpressible("whose body is more than an expression")
    if any(value for part, value in select.args.items() if part != "expressions"):
        raise NotExpressible("whose body is more than an expression")
    body: exp.Expr = select.expressions[0].unalias()
    if body.find(exp.Query, exp.AggFunc, exp.Window, exp.Star):
        raise NotExpressible("whose body is more than an expression")
    if body.find(exp.Collate):
        raise NotExpressible("whose body has a collation of its own")
    return body


def _constant(default: str) -> exp.Expr:
    """A default as an expression. Raises NotExpressible for one that is not a constant."""
    written: exp.Expr = read(f"SELECT {default}").expressions[0]
    bare = written.unnest()
    while isinstance(bare, exp.Cast | exp.Neg):
        bare = bare.this.unnest()
    if not isinstance(bare, exp.Literal | exp.Null | exp.Boolean):
        raise NotExpressible("with a default that is not a constant")
    return written


def inlined(query: exp.Expr, functions: Sequence[SqlFunction]) -> exp.Expr:
    """The query with the bodies of functions in the places of their calls. Changes its argument.

    Raises NotExpressible for a call of a function that cannot be put there.

    >>> body = "SELECT ( SELECT (f.a + 1)) AS body FROM ( SELECT NULL::integer AS a) f"
    >>> f = SqlFunction("public", "f", (("a", "integer"),), "integer", definition=body)
    >>> print(inlined(read("SELECT public.f(t.x) AS y FROM t"), [f]).sql("postgres"))
    SELECT PASSED((PASSED(t.x, INT, 'integer') + 1), INT, 'integer') AS y FROM t
    """
    if functions:
        _Inlining(functions).inline(query)
    return query


class _Inlining:
    """Puts bodies in the places of calls, and counts what has come about."""

    def __init__(self, functions: Iterable[SqlFunction]):
        self._functions: Mapping[tuple[str, str, int], SqlFunction] = {
            (one.schema, one.name, number): one
            for one in functions
            if not one.refused
            for number in range(len(one.parameters) - len(one.defaults), len(one.parameters) + 1)
        }
        self._refused = {(one.schema, one.name): one for one in functions if one.refused}
        self._nodes = 0

    def inline(self, query: exp.Expr, within: tuple[SqlFunction, ...] = ()) -> None:
        """Replace the calls in a query, or in the body of functions, innermost calls first."""
        for call in reversed(list(_calls(query))):
            written = self._body_of(call, within)
            self._nodes += sum(1 for _ in written.walk())
            if self._nodes > MOST_NODES:
                raise NotExpressible("functions of SQL that become too long where they are called")
            call.replace(written)

    def _body_of(self, call: exp.Dot, within: tuple[SqlFunction, ...]) -> exp.Expr:
        schema, called = call.this.name, call.expression
        if refused := self._refused.get((schema, called.name)):
            raise NotExpressible(f"function {schema}.{called.name}, {refused.refused}")
        function = self._functions.get((schema, called.name, len(called.expressions)))
        if function is None:
            return call.copy()
        if function in within:
            raise NotExpressible(f"function {schema}.{called.name}, which calls itself")
        arguments = {
            name: _argument(value, type_)
            for (name, type_), value in zip(function.parameters, _in_order(function, called.expressions), strict=True)
        }
        holder = exp.Paren(this=_body(function.definition).copy())
        self.inline(holder, (*within, function))
        return _called(function, holder, arguments)


def _calls(query: exp.Expr) -> Iterator[exp.Dot]:
    """The calls of functions with a schema."""
    for dot in query.find_all(exp.Dot):
        if isinstance(dot.this, exp.Identifier) and isinstance(dot.expression, exp.Anonymous):
            yield dot


def _in_order(function: SqlFunction, values: Sequence[exp.Expr]) -> list[exp.Expr]:
    """The arguments of a call in the order of the parameters. Raises NotExpressible."""
    names = [name for name, _ in function.parameters]
    found: dict[str, exp.Expr] = {}
    for position, value in enumerate(values):
        if isinstance(value, exp.Variadic | exp.Star):
            raise NotExpressible(f"function {function.schema}.{function.name} with {value.key}")
        by_name = isinstance(value, exp.Kwarg)
        found[value.this.name if by_name else names[position]] = value.expression if by_name else value
    first = len(names) - len(function.defaults)
    for name, default in zip(names[first:], function.defaults, strict=True):
        if name not in found:
            found[name] = _constant(default)
    if found.keys() != {*names}:
        raise NotExpressible(f"function {function.schema}.{function.name} with other arguments than it has")
    return [found[name] for name in names]


def _argument(value: exp.Expr, type_: str) -> exp.Expr:
    """An argument; literals of the parameter's type stay literals, which some functions have to be given."""
    passed, literal = _passed(value, type_), value.unnest()
    if isinstance(literal, exp.Cast) and literal.to.sql("postgres") == passed.to.sql("postgres"):
        return value
    whole = isinstance(literal, exp.Literal) and literal.is_int
    return value if whole and type_ == "integer" else passed


def _passed(value: exp.Expr, type_: str) -> Passed:
    to = exp.DataType.build(type_, dialect="postgres", udt=True)
    return Passed(this=value.copy(), to=to, declared=exp.Literal.string(type_))


def _called(function: SqlFunction, holder: exp.Paren, arguments: Mapping[str, exp.Expr]) -> exp.Expr:
    """The body over arguments, as a value of the function's type."""
    used = set()
    for column in list(holder.find_all(exp.Column)):
        used.add(column.name)
        column.replace(arguments[column.name].copy())
    for name, type_ in function.parameters:
        if name not in used and type_ in ("text", "character varying"):
            # The result is under its collation nevertheless.
            raise NotExpressible(f"function {function.schema}.{function.name}, which does not use all of its arguments")
    value = _passed(holder.this, function.result)
    if not function.strict or not arguments:
        return value
    missing = [exp.Is(this=argument.copy(), expression=exp.Null()) for argument in arguments.values()]
    return exp.Case(ifs=[exp.If(this=exp.or_(*missing, wrap=False), true=exp.Null())], default=value)
