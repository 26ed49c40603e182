"""Aggregate calls in PostgreSQL's canonical form: SQL/JSON aggregates, and calls of functions in a schema."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from sqlglot import exp
from sqlglot.generators.postgres import PostgresGenerator
from sqlglot.parsers.postgres import PostgresParser
from sqlglot.tokenizer_core import TokenType

from sql.canonical.nodes import all_of

OWN_SYNTAX = frozenset({"STRING_AGG", "JSON_AGG", "JSON_OBJECTAGG"})
"""Functions for which sqlglot has a syntax of its own; here they are calls like others, or have ours."""


class JsonAggregate(exp.Expression, exp.AggFunc):
    """``JSON_ARRAYAGG(value …)`` or ``JSON_OBJECTAGG(key : value …)``.

    ``syntax`` is what follows the arguments and their order: on NULL, unique keys, RETURNING.
    """

    arg_types = {"this": True, "expressions": True, "syntax": False}  # noqa: RUF012


def _json_aggregate(name: str) -> Callable[[PostgresParser], exp.Expr]:
    def parse(parser: Any) -> exp.Expr:
        arguments = [parser._parse_disjunction()]
        if name == "JSON_OBJECTAGG":
            parser._match(TokenType.COLON)
            arguments.append(parser._parse_disjunction())
        if _text(parser, ("ORDER", "NULL", "ABSENT", "WITH", "RETURNING")):
            parser.raise_error("FORMAT JSON")
        order = parser._parse_order(this=arguments[-1])
        arguments[-1] = order if order is not None else arguments[-1]
        return JsonAggregate(this=name, expressions=arguments, syntax=_text(parser, ()))

    return parse


def _text(parser: Any, until: tuple[str, ...]) -> str:
    """The tokens up to the closing parenthesis or one of some words, as they stand."""
    first, depth = parser._curr, 0
    last = None
    while parser._curr:
        token = parser._curr
        if depth == 0 and (token.token_type == TokenType.R_PAREN or token.text.upper().split()[0] in until):
            break
        depth += (token.token_type == TokenType.L_PAREN) - (token.token_type == TokenType.R_PAREN)
        last = token
        parser._advance()
    return parser._find_sql(first, last) if last else ""


def _json_aggregate_sql(generator: PostgresGenerator, node: JsonAggregate) -> str:
    separator = " : " if node.name == "JSON_OBJECTAGG" else ", "
    arguments = separator.join(generator.sql(argument) for argument in node.expressions)
    syntax = node.args.get("syntax")
    return f"{node.name}({arguments}{' ' + syntax if syntax else ''})"


PARSERS: dict[str, Callable[..., Any]] = {name: _json_aggregate(name) for name in ("JSON_ARRAYAGG", "JSON_OBJECTAGG")}

TRANSFORMS: Mapping[type[exp.Expr], Callable[..., str]] = {JsonAggregate: _json_aggregate_sql}


def qualified_calls(statement: exp.Expr) -> exp.Expr:
    """The statement with calls of functions in a schema as what they are.

    sqlglot takes ``app.f(x) FILTER (…)``, and the same with WITHIN GROUP or OVER, for a column of a table ``app``.
    """
    for column in all_of(statement, exp.Column):
        inner = column.this
        if isinstance(inner, exp.Filter | exp.WithinGroup | exp.Window):
            function = inner
            while isinstance(function.this, exp.Filter | exp.WithinGroup | exp.Window):
                function = function.this
            schema = column.args["table"]
            function.set("this", exp.Dot(this=schema, expression=function.this))
            column.replace(inner)
    return statement
