"""What canonical text says in FROM beside tables and subqueries: functions, ROWS FROM, JSON_TABLE, XMLTABLE, VALUES.

A source of rows is read piece by piece: the expressions in it, whose columns have to be renamed, and between them the
text as PostgreSQL wrote it.
"""

from __future__ import annotations

from typing import Any

from sqlglot import exp
from sqlglot.generators.postgres import PostgresGenerator
from sqlglot.parsers.postgres import PostgresParser
from sqlglot.tokenizer_core import Token, TokenType


class RowSource(exp.Expression):
    """``expressions`` are the pieces: expressions and, as `exp.Var`, text. ``columns``: names that the text gives."""

    arg_types = {"expressions": True, "columns": False}  # noqa: RUF012


class ValuesQuery(exp.Select):
    """VALUES where a query stands; in FROM there is the `exp.Values`."""


def values_query(values: exp.Values) -> ValuesQuery:
    """VALUES as a query of its own."""
    query = ValuesQuery(expressions=[exp.Star()], from_=exp.From(this=values))
    for key in exp.QUERY_MODIFIERS:
        modifier = values.args.get(key)
        if modifier:
            values.set(key, None)
            query.set(key, modifier)
    return query


def _pieces(generator: PostgresGenerator, node: RowSource) -> str:
    return " ".join(generator.sql(piece) for piece in node.expressions)


def _values(generator: PostgresGenerator, node: ValuesQuery) -> str:
    rows = ", ".join(generator.sql(row) for row in node.args["from_"].this.expressions)
    modifiers = [generator.sql(node, key) for key in ("order", "limit", "offset")]
    return "".join([generator.prepend_ctes(node, f"VALUES {rows}"), *modifiers])


def _common_table(generator: PostgresGenerator, node: exp.CTE) -> str:
    clauses = "".join(f" {generator.sql(node, key)}" for key in ("search", "cycle") if node.args.get(key))
    return generator.cte_sql(node) + clauses


def _lateral(generator: PostgresGenerator, node: exp.Lateral) -> str:
    # In parentheses it can be the first of a join.
    return generator.lateral_sql(node) + generator.expressions(node, key="joins", sep="", flat=True)


def _search(generator: PostgresGenerator, node: exp.RecursiveWithSearch) -> str:
    columns = ", ".join(generator.sql(column) for column in node.expressions)
    parts = ["CYCLE" if node.args["kind"] == "CYCLE" else f"SEARCH {node.args['kind']} FIRST BY", columns]
    parts += ["SET", generator.sql(node, "expression")]
    for key, word in (("to", "TO"), ("default", "DEFAULT"), ("using", "USING")):
        value = node.args.get(key)
        parts += [word, _constant(generator, value)] if value else []
    return " ".join(parts)


def _constant(generator: PostgresGenerator, node: exp.Expr) -> str:
    # PostgreSQL writes 'Y'::text here, which its own grammar does not take.
    return (
        f"{generator.sql(node, 'to')} {generator.sql(node, 'this')}"
        if isinstance(node, exp.Cast)
        else generator.sql(node)
    )


class SearchOrCycle(exp.RecursiveWithSearch):
    """SEARCH or CYCLE of a WITH query, by any number of columns."""

    arg_types = {**exp.RecursiveWithSearch.arg_types, "this": False, "expressions": True}  # noqa: RUF012


TRANSFORMS: dict[type[exp.Expr], Any] = {
    RowSource: _pieces,
    ValuesQuery: _values,
    exp.CTE: _common_table,
    exp.Lateral: _lateral,
    SearchOrCycle: _search,
}


class RowSourceParser(PostgresParser):
    """Reads sources of rows."""

    MODIFIABLES = (*PostgresParser.MODIFIABLES, exp.Lateral)  # type: ignore[assignment]

    def _parse_unnest(self, with_alias: bool = True) -> exp.Unnest | None:
        # unnest() is a function like any other.
        return None

    def _parse_lateral(self) -> exp.Lateral | None:
        index = self._index
        if not self._match(TokenType.LATERAL):
            return super()._parse_lateral()
        source = self._parse_row_source() or self._parse_called()
        if source is None:
            self._retreat(index)
            return super()._parse_lateral()
        ordinality = self._match_pair(TokenType.WITH, TokenType.ORDINALITY)
        alias = self._parse_table_alias()
        return self.expression(
            exp.Lateral(this=source, view=False, outer=False, alias=alias, ordinality=bool(ordinality))
        )

    def _parse_table(self, *args: Any, **kwargs: Any) -> exp.Expr | None:
        source = self._parse_row_source()
        if source is None:
            return super()._parse_table(*args, **kwargs)
        ordinality = self._match_pair(TokenType.WITH, TokenType.ORDINALITY)
        table = self.expression(
            exp.Table(this=source, alias=self._parse_table_alias(), ordinality=bool(ordinality) or None)
        )
        if kwargs.get("joins"):
            for join in self._parse_joins():
                table.append("joins", join)
        return table

    def _parse_called(self) -> exp.Expr | None:
        """A function call, possibly with a schema."""
        if self._curr.token_type == TokenType.L_PAREN:
            return None
        this = self._parse_function(any_token=True) or self._parse_id_var(any_token=False)
        while self._match(TokenType.DOT):
            called = self._parse_function(any_token=True) or self._parse_id_var(any_token=False)
            this = self.expression(exp.Dot(this=this, expression=called))
        return this

    def _parse_row_source(self) -> RowSource | exp.Anonymous | None:
        """What is not written as other functions are; None if something else comes."""
        if self._next.token_type == TokenType.L_PAREN:
            match self._curr.text.upper():
                case "UNNEST":
                    self._advance(2)
                    arguments = self._parse_csv(self._parse_assignment)
                    self._match_r_paren()
                    return self.expression(exp.Anonymous(this="unnest", expressions=arguments))
                case "JSON_TABLE":
                    return self._parse_json_rows()
                case "XMLTABLE":
                    return self._parse_xml_rows()
        if self._match_text_seq("ROWS", "FROM"):
            return self._parse_rows_from()
        return None

    def _parse_rows_from(self) -> RowSource:
        pieces: list[exp.Expr] = [exp.var("ROWS FROM(")]
        self._match_l_paren()
        while True:
            source = self._parse_row_source() or self._parse_called()
            if source is None:
                self.raise_error("expected a function")
            else:
                pieces.append(source)
            if self._match(TokenType.ALIAS):
                pieces.append(exp.var(f"AS {self._text_to_parenthesis()}"))
            if not self._match(TokenType.COMMA):
                break
            pieces.append(exp.var(","))
        self._match_r_paren()
        return self.expression(RowSource(expressions=[*pieces, exp.var(")")]))

    def _parse_json_rows(self) -> RowSource:
        self._advance(2)
        pieces: list[exp.Expr | None] = [exp.var("JSON_TABLE("), self._parse_assignment()]
        start = self._curr
        while self._curr.text.upper() not in ("PASSING", "COLUMNS"):
            self._advance()
        pieces.append(exp.var(self._find_sql(start, self._prev)))
        if self._match_text_seq("PASSING"):
            pieces.append(exp.var("PASSING"))
            while True:
                pieces.append(self._parse_assignment())
                self._match(TokenType.ALIAS)
                pieces.append(exp.var(f"AS {self._curr_text_and_advance()}"))
                if not self._match(TokenType.COMMA):
                    break
                pieces.append(exp.var(","))
        self._match_text_seq("COLUMNS")
        first = self._index
        pieces.append(exp.var(f"COLUMNS {self._text_to_parenthesis()}"))
        names = _json_columns(self._tokens[first : self._index])
        start, rest = self._curr, ""
        while self._curr.token_type != TokenType.R_PAREN:
            self._advance()
            rest = self._find_sql(start, self._prev)
        self._match_r_paren()
        return self.expression(RowSource(expressions=[*pieces, exp.var(f"{rest})")], columns=names))

    def _parse_xml_rows(self) -> RowSource:
        self._advance(2)
        pieces: list[exp.Expr | None] = [exp.var("XMLTABLE(")]
        names: list[exp.Identifier] = []
        depth, column = 0, False
        while depth >= 0:
            before = self._prev.text.upper()
            if self._curr.token_type == TokenType.L_PAREN and before in ("PASSING", "PATH", "DEFAULT", "("):
                pieces.append(self._parse_primary())
                continue
            text = self._curr.text.upper()
            depth += (text == "(") - (text == ")")
            if column:
                names.append(_identifier(self._curr))
            column = depth == 0 and (text == "COLUMNS" or (text == "," and bool(names)))
            pieces.append(exp.var(self._curr_text_and_advance()))
        return self.expression(RowSource(expressions=pieces, columns=names))

    def _curr_text_and_advance(self) -> str:
        token = self._curr
        self._advance()
        return self._find_sql(token, token)

    def _text_to_parenthesis(self) -> str:
        """The text of what stands in parentheses, and these."""
        start, depth = self._curr, 0
        while True:
            depth += (self._curr.token_type == TokenType.L_PAREN) - (self._curr.token_type == TokenType.R_PAREN)
            self._advance()
            if depth == 0:
                return self._find_sql(start, self._prev)

    def _parse_derived_table_values(self, allow_value_synonym: bool = False) -> exp.Values | None:
        index = self._index
        if self._match_pair(TokenType.L_PAREN, TokenType.VALUES):
            self._parse_csv(self._parse_value)
            plain = self._curr.token_type == TokenType.R_PAREN
            self._retreat(index)
            if not plain:
                # With ORDER BY or LIMIT it is a query like any other.
                return None
        return super()._parse_derived_table_values(allow_value_synonym)

    def _values_to_select(self, values: exp.Values) -> exp.Select:
        return values_query(values)

    def _parse_cte(self) -> exp.CTE | exp.FunctionSpecification | None:
        common = super()._parse_cte()
        if isinstance(common, exp.CTE):
            for key in ("search", "cycle"):
                clause = self._parse_recursive_with_search()
                if clause is not None:
                    common.set("cycle" if clause.args["kind"] == "CYCLE" else key, clause)
        return common

    def _parse_recursive_with_search(self) -> exp.RecursiveWithSearch | None:
        if self._match_text_seq("SEARCH"):
            kind = self._curr_text_and_advance().upper()
            self._match_text_seq("FIRST", "BY")
        elif self._match_text_seq("CYCLE"):
            kind = "CYCLE"
        else:
            return None
        columns = self._parse_csv(self._parse_id_var)
        return self.expression(
            SearchOrCycle(
                kind=kind,
                expressions=columns,
                expression=self._match_text_seq("SET") and self._parse_id_var(),
                to=self._match_text_seq("TO") and self._parse_bitwise(),
                default=self._match(TokenType.DEFAULT) and self._parse_bitwise(),
                using=self._match_text_seq("USING") and self._parse_id_var(),
            )
        )


def _identifier(token: Token) -> exp.Identifier:
    return exp.to_identifier(token.text, quoted=True)


def _json_columns(tokens: list[Token]) -> list[exp.Identifier]:
    """The names that a COLUMNS clause of JSON_TABLE gives, in nested paths, too."""
    names = []
    lists: list[bool] = []
    for i, token in enumerate(tokens):
        before = tokens[i - 1] if i else None
        if token.token_type == TokenType.L_PAREN:
            lists.append(before is None or before.text.upper() == "COLUMNS")
        elif token.token_type == TokenType.R_PAREN:
            lists.pop()
        elif lists and lists[-1] and before is not None and before.token_type in (TokenType.L_PAREN, TokenType.COMMA):
            nested = [t.text.upper() for t in tokens[i : i + 2]] == ["NESTED", "PATH"]
            if not (nested and tokens[i + 2].token_type == TokenType.STRING):
                names.append(_identifier(token))
    return names
