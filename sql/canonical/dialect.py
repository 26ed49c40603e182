"""PostgreSQL's canonical form, read and written so that it stays the same text.

sqlglot's own PostgreSQL dialect recognises functions by what they do and writes them in its own way (``strpos`` becomes
``POSITION``, ``now()`` becomes ``CURRENT_TIMESTAMP``). Here a function call stays the call that it is; only the five
aggregates that the compiler takes apart are recognised.
"""

from __future__ import annotations

import threading
from functools import lru_cache

import sqlglot
from sqlglot import exp
from sqlglot.dialects.postgres import Postgres
from sqlglot.errors import SqlglotError
from sqlglot.generators.postgres import PostgresGenerator
from sqlglot.parsers.postgres import PostgresParser

from sql.canonical import aggregates, expressions, from_items
from sql.canonical.nodes import nodes
from sql.canonical.null_safe_equal import NullSafeEqual, generate_same
from sql.errors import NotDifferentiable


def _negated(generator: PostgresGenerator, node: exp.Not) -> str:
    # What the user negates, PostgreSQL has put in parentheses; without any, NOT belongs to the operator.
    inner = node.this
    if isinstance(inner, exp.RegexpLike):
        return generator.binary(inner, "!~")
    if isinstance(inner, exp.RegexpILike):
        return generator.binary(inner, "!~*")
    if isinstance(inner, exp.Is):
        return f"{generator.sql(inner, 'this')} IS NOT {generator.sql(inner, 'expression')}"
    return f"NOT {generator.sql(node, 'this')}"


def _trim(generator: PostgresGenerator, node: exp.Trim) -> str:
    parts = [generator.sql(node, "position"), generator.sql(node, "expression"), "FROM", generator.sql(node, "this")]
    return f"TRIM({' '.join(part for part in parts if part)})"


def _current_time(generator: PostgresGenerator, node: exp.CurrentTime) -> str:
    return f"CURRENT_TIME({generator.sql(node, 'this')})" if node.this else "CURRENT_TIME"


def _frame(generator: PostgresGenerator, node: exp.WindowSpec) -> str:
    bounds = [
        " ".join(filter(None, (generator.sql(node, side), generator.sql(node, f"{side}_side"))))
        for side in ("start", "end")
    ]
    # Without BETWEEN the frame ends at the current row.
    extent = f"BETWEEN {bounds[0]} AND {bounds[1]}" if bounds[1] else bounds[0]
    excluded = node.args.get("exclude")
    return f"{node.args['kind']} {extent}" + (f" EXCLUDE {excluded.name}" if excluded else "")


class Canonical(Postgres):
    """The dialect of ``pg_get_viewdef``."""

    class Parser(from_items.RowSourceParser, expressions.ExpressionParser):
        """Function calls are not interpreted."""

        FUNCTIONS = {  # noqa: RUF012
            name: builder
            for name, builder in PostgresParser.FUNCTIONS.items()
            if name in ("COUNT", "SUM", "AVG", "MIN", "MAX")
        }

        FUNCTION_PARSERS = {
            name: parser
            for name, parser in PostgresParser.FUNCTION_PARSERS.items()
            if name not in {"DATE_PART", *aggregates.OWN_SYNTAX}
        } | {**aggregates.PARSERS, **expressions.PARSERS}

        ARRAY_CONSTRUCTORS = {"ARRAY": exp.Array}  # noqa: RUF012 - list[1] is an element of a column

    class Generator(PostgresGenerator):
        """Operators are written as operators."""

        MULTI_ARG_DISTINCT = True

        TRANSFORMS = {  # noqa: RUF012
            **PostgresGenerator.TRANSFORMS,
            **from_items.TRANSFORMS,
            **aggregates.TRANSFORMS,
            **expressions.TRANSFORMS,
            NullSafeEqual: lambda self, node: generate_same(self.sql, node),
            exp.Not: _negated,
            exp.Trim: _trim,
            exp.WindowSpec: _frame,
            exp.CurrentTime: _current_time,
            exp.Pow: lambda self, node: self.binary(node, "^"),
            exp.StartsWith: lambda self, node: self.binary(node, "^@"),
            exp.Sqrt: lambda self, node: f"|/ {self.sql(node, 'this')}",
            exp.Cbrt: lambda self, node: f"||/ {self.sql(node, 'this')}",
        }


_PLACES = frozenset({"line", "col", "start", "end"})


@lru_cache(maxsize=64)
def parse(query: str) -> exp.Query:
    """A canonical query as a syntax tree, not to be changed. Raises NotDifferentiable if sqlglot cannot read it."""
    try:
        statement = sqlglot.parse_one(query, read=Canonical)
    except SqlglotError as error:
        raise NotDifferentiable("syntax that the compiler does not know") from error
    if isinstance(statement, exp.Values):
        statement = from_items.values_query(statement)
    statement = expressions.plain_words(aggregates.qualified_calls(statement))
    if not isinstance(statement, exp.Query):
        raise NotDifferentiable("syntax that the compiler does not know")
    for node in nodes(statement):
        # Their places in the text, for which nobody asks, are most of what a copy of them costs.
        if node._meta is not None and node._meta.keys() <= _PLACES:
            node._meta = None
    return statement


def generate(node: exp.Expr) -> str:
    """An expression or query as PostgreSQL text.

    >>> generate(parse("SELECT strpos(a, b), (a !~ b), (a IS NOT TRUE), now() FROM t"))
    'SELECT strpos(a, b), (a !~ b), (a IS NOT TRUE), now() FROM t'
    """
    if isinstance(node, exp.Query):
        return node.sql(dialect=Canonical, normalize_functions=False)
    # To copy an expression takes ten times as long as to write it, and the generator changes none of these. It asks for
    # the parent of some, which the copy would not have.
    parent, node.parent = node.parent, None
    try:
        return _generator().generate(node, copy=False)
    finally:
        node.parent = parent


_LOCAL = threading.local()


def _generator() -> Canonical.Generator:
    """This thread's generator."""
    if not hasattr(_LOCAL, "generator"):
        _LOCAL.generator = Canonical().generator(normalize_functions=False)
    generator: Canonical.Generator = _LOCAL.generator
    return generator
