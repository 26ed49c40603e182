"""Expressions of PostgreSQL's canonical form that sqlglot's dialect does not read, or reads as something else.

A function whose arguments are separated by words (the SQL/JSON and XML functions, SUBSTRING) is read piece by piece:
the expressions in it, whose columns have to be renamed, and between them the words as PostgreSQL wrote them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from sqlglot import exp
from sqlglot.generators.postgres import PostgresGenerator
from sqlglot.parsers.postgres import PostgresParser
from sqlglot.tokenizer_core import TokenType

from sql.canonical.nodes import all_of


class Worded(exp.Expression):
    """An expression whose syntax is its own: ``expressions`` are the pieces, expressions and, as `exp.Var`, words."""

    arg_types = {"expressions": True}  # noqa: RUF012


_NAMES = (
    *("JSON", "JSON_OBJECT", "JSON_ARRAY", "JSON_SCALAR", "JSON_SERIALIZE", "JSON_VALUE", "JSON_QUERY", "JSON_EXISTS"),
    *("XMLELEMENT", "XMLATTRIBUTES", "XMLFOREST", "XMLPI", "XMLROOT", "XMLPARSE", "XMLSERIALIZE", "XMLEXISTS"),
    "SUBSTRING",
)
_FIRST_WORDS = {
    **dict.fromkeys(("XMLELEMENT", "XMLPI"), 2),
    **dict.fromkeys(("XMLPARSE", "XMLSERIALIZE"), 1),
}
"""How many words stand before the first expression."""

_BEFORE_EXPRESSION = frozenset({"PASSING", "DEFAULT", "FROM", "FOR", "SIMILAR", "ESCAPE", "VERSION", ",", ":"})
_SESSION_WORDS = frozenset({"CURRENT_ROLE", "USER", "SYSTEM_USER", "CURRENT_SCHEMA", "CURRENT_CATALOG"})
_INTERVAL_FIELDS = frozenset({"YEAR", "MONTH", "DAY", "HOUR", "MINUTE", "SECOND"})


def _worded_function(name: str) -> Callable[[Any], exp.Expr]:
    def parse(parser: Any) -> exp.Expr:
        pieces: list[exp.Expr] = [exp.var(f"{name}(")]
        for _ in range(_FIRST_WORDS.get(name, 0)):
            pieces.append(exp.var(parser.next_text()))
        expected = not parser.at("RETURNING")
        while not parser.at(")") and parser._curr:
            if expected and not (parser.at("RETURNING") or parser.at("NO")):
                pieces.append(parser._parse_disjunction())
                expected = False
                continue
            expected = parser._curr.text.upper() in _BEFORE_EXPRESSION and not (name == "XMLROOT" and parser.at(","))
            if parser.at("("):
                # The length of a type.
                pieces.append(exp.var(parser.text_to_parenthesis()))
            else:
                pieces.append(exp.var(parser.next_text()))
        return Worded(expressions=[*pieces, exp.var(")")])

    return parse


PARSERS: dict[str, Callable[..., Any]] = {name: _worded_function(name) for name in _NAMES}


def _worded(generator: PostgresGenerator, node: Worded) -> str:
    return " ".join(generator.sql(piece) for piece in node.expressions)


def _array(generator: PostgresGenerator, node: exp.Array) -> str:
    first = node.expressions[0] if node.expressions else None
    if isinstance(first, exp.Query) and not isinstance(first, exp.Subquery):
        return f"ARRAY({generator.sql(first)})"
    # In brackets a subquery gives one element.
    return f"ARRAY[{', '.join(generator.sql(element) for element in node.expressions)}]"


def _join(generator: PostgresGenerator, node: exp.Join) -> str:
    alias = node.args.get("using_alias")
    return generator.join_sql(node) + (f" AS {generator.sql(alias)}" if alias else "")


TRANSFORMS: Mapping[type[exp.Expr], Callable[..., str]] = {Worded: _worded, exp.Array: _array, exp.Join: _join}


class ExpressionParser(PostgresParser):
    """Reads them."""

    UNARY_PARSERS = {  # noqa: RUF012
        **PostgresParser.UNARY_PARSERS,
        TokenType.PLUS: lambda self: Worded(expressions=[exp.var("+"), self._parse_unary()]),
        TokenType.PARAMETER: lambda self: Worded(expressions=[exp.var("@"), self._parse_unary()]),
    }
    QUOTED_TYPES_TO_PRESERVE = {*PostgresParser.QUOTED_TYPES_TO_PRESERVE, "bit"}  # noqa: RUF012

    def at(self, word: str) -> bool:
        """Whether the next token is this one."""
        return bool(self._curr) and self._curr.text.upper() == word and self._curr.token_type != TokenType.STRING

    def next_text(self) -> str:
        """The text of the next token, which is then behind."""
        token = self._curr
        self._advance()
        return self._find_sql(token, token)

    def text_to_parenthesis(self) -> str:
        """The text of what stands in parentheses, and these."""
        start, depth = self._curr, 0
        while self._curr:
            depth += self.at("(") - self.at(")")
            self._advance()
            if depth == 0:
                break
        return self._find_sql(start, self._prev)

    def _parse_function_call(self, *args: Any, **kwargs: Any) -> exp.Expr | None:
        quoted = self._curr and self._curr.token_type == TokenType.IDENTIFIER
        if quoted:
            # In quotes it is no word of the grammar.
            kwargs["anonymous"] = True
        return super()._parse_function_call(*args, **kwargs)

    def _parse_unary(self) -> exp.Expr | None:
        if self.at("COLLATION") and self._next and self._next.text.upper() == "FOR":
            self._advance(2)
            return Worded(expressions=[exp.var("COLLATION FOR"), super()._parse_unary()])
        return super()._parse_unary()

    def _parse_is(self, this: exp.Expr | None) -> exp.Expr | None:
        index = self._index
        negated = self._match_text_seq("NOT")
        for words in (("UNKNOWN",), ("DOCUMENT",), ("NORMALIZED",), *((f, "NORMALIZED") for f in _NORMAL_FORMS)):
            if self._match_text_seq(*words):
                found = self.expression(exp.Is(this=this, expression=exp.var(" ".join(words))))
                return self.expression(exp.Not(this=found)) if negated else found
        self._retreat(index)
        return super()._parse_is(this)

    def _parse_join(self, *args: Any, **kwargs: Any) -> exp.Join | None:
        join = super()._parse_join(*args, **kwargs)
        if join and join.args.get("using") and self._match(TokenType.ALIAS):
            join.set("using_alias", self._parse_id_var())
        return join

    def _parse_at_time_zone(self, this: exp.Expr | None) -> exp.Expr | None:
        if self._match_text_seq("AT", "LOCAL"):
            return self._parse_at_time_zone(Worded(expressions=[this, exp.var("AT LOCAL")]))
        return super()._parse_at_time_zone(this)

    def _parse_types(self, *args: Any, **kwargs: Any) -> exp.Expr | None:
        after_cast = self._prev and self._prev.token_type == TokenType.DCOLON
        if after_cast and (self.at("BIT") or self.at("INTERVAL")):
            return self._parse_worded_type()
        return super()._parse_types(*args, **kwargs)

    def _parse_worded_type(self) -> exp.DataType:
        """``bit``, ``bit varying``, ``interval day to second``, with their lengths."""
        words = [self.next_text()]
        while self.at("VARYING") or self.at("TO") or (self._curr and self._curr.text.upper() in _INTERVAL_FIELDS):
            words.append(self.next_text())
        if self.at("("):
            words.append(self.text_to_parenthesis())
        kind = " ".join(words)
        if kind.lower() == "interval":
            return exp.DataType.build("interval")
        result = exp.DataType(this=exp.DataType.Type.USERDEFINED, kind=kind)
        while self._match_pair(TokenType.L_BRACKET, TokenType.R_BRACKET):
            result = exp.DataType(this=exp.DataType.Type.ARRAY, expressions=[result], nested=True)
        return result


_NORMAL_FORMS = ("NFC", "NFD", "NFKC", "NFKD")


def plain_words(statement: exp.Expr) -> exp.Expr:
    """The statement with what sqlglot wrongly takes for columns: CURRENT_ROLE and its like, names of collations."""
    for column in all_of(statement, exp.Column):
        word = column.name.upper()
        if isinstance(column.parent, exp.Collate) and column.arg_key == "expression":
            column.replace(exp.var(".".join(part.sql(dialect="postgres") for part in column.parts)))
        elif word in _SESSION_WORDS and not column.table and not column.this.args.get("quoted"):
            column.replace(exp.var(word))
    return statement
