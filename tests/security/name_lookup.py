"""Which names in the source of a function mean what the caller's search_path says: of types, functions, operators.

Stricter than it need be: a word that is neither known here, nor qualified, nor a name of the function's own counts.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

TOKEN = re.compile(
    r"""(?P<comment>--[^\n]*|/\*.*?\*/)
      | (?P<string>'(?:[^']|'')*')
      | (?P<qualified>operator\s*\(\s*pg_catalog\s*\.\s*[-+*/<>=~!@\#%^&|`?]+\s*\))
      | (?P<name>(?:"(?:[^"]|"")+"|[A-Za-z_][\w$]*)(?:\s*\.\s*(?:"(?:[^"]|"")+"|[A-Za-z_][\w$]*|\*))*)
      | (?P<number>\d+(?:\.\d+)?)
      | (?P<parameter>\$\d+)
      | (?P<assign>:=|=>)
      | (?P<cast>::)
      | (?P<operator>[-+*/<>=~!@\#%^&|`?]+)
      | (?P<mark>[(),;\[\].])
      | (?P<space>\s+)""",
    re.X | re.S | re.I,
)

# Words of PL/pgSQL and SQL that look nothing up. Not here, since PostgreSQL looks their operator or function up by its
# search_path: LIKE, IN, BETWEEN, NULLIF, DISTINCT, ANY, CASE with an operand, ORDER BY … USING, names of types.
WORDS = frozenset(
    re.findall(
        r"\w+",
        """
    all and any_value array as asc begin by case coalesce collate commit conflict constant continue current_user
    data_exception declare default delete desc detail diagnostics do else elsif end errcode exception execute
    exists exit false filter for found from get group hint if info insert into is lateral limit lock locked loop
    materialized message new next not nothing notice nowait null old on only or order ordinality others over
    partition perform pg_context query raise recursive return returning rollback row row_count select session_user
    set share skip sqlerrm sqlstate stacked strict tg_argv tg_name tg_op tg_relid tg_table_name tg_table_schema
    then true unique_violation update user using values warning when where while with within
    """,
    )
)


TYPES = frozenset(["int", "integer", "bigint", "smallint", "boolean", "numeric", "real", "interval"])
"""Types that are words of the grammar, which means those of pg_catalog by them whatever the search_path."""


def _is_no_operator(text: str, before: str, following: str) -> bool:
    """Whether it is the star of "all columns", or the sign of a constant."""
    if text == "*":
        return before in ("(", "select")
    return text == "-" and before in ("(", ",") and following.isdigit()


def unqualified(source: str, arguments: Sequence[str]) -> list[str]:
    """What the source of a function with these arguments leaves to the search_path to say."""
    source = source.replace("#variable_conflict use_variable", "")  # to the compiler
    tokens = [(m.lastgroup or "", m.group()) for m in TOKEN.finditer(source)]
    assert "".join(text for _, text in tokens) == source, "not understood"
    tokens = [(kind, text) for kind, text in tokens if kind not in ("comment", "space")]
    known = {name.lower() for name in arguments if name} | _declared(tokens) | _aliases(tokens)
    wrong = []
    for place, (kind, text) in enumerate(tokens):
        following = tokens[place + 1][1] if place + 1 < len(tokens) else ""
        before = tokens[place - 1][1].lower() if place else ""
        if kind == "cast" and following.lower() in TYPES:
            continue
        if kind == "name" and (following == "=>" or (before == "::" and text.lower() in TYPES)):
            continue
        if kind == "operator" and not _is_no_operator(text, before, following):
            wrong.append(text)
        elif kind == "cast" and not following.lower().startswith("pg_catalog."):
            wrong.append(f"::{following}")
        elif kind == "name" and "." not in text:
            if text.lower() not in WORDS | known or (
                following == "(" and before != "as" and text.lower() in known - WORDS
            ):
                wrong.append(text)
            elif text.lower() == "case" and following.lower() != "when" and before != "end":
                wrong.append("CASE with an operand")
    return wrong


def _declared(tokens: list[tuple[str, str]]) -> set[str]:
    """Variables: a name that is followed by a qualified type, within DECLARE … BEGIN; loop variables of FOR."""
    declared = set()
    inside = False
    for place, (kind, text) in enumerate(tokens):
        word = text.lower()
        if word == "declare":
            inside = True
        elif word == "begin":
            inside = False
        elif kind == "name" and "." not in text and place + 1 < len(tokens):
            opens = tokens[place - 1][1].lower() in ("declare", ";")
            if inside and opens and ("." in tokens[place + 1][1] or tokens[place + 1][1].lower() == "constant"):
                declared.add(word)
    return declared


def _aliases(tokens: list[tuple[str, str]]) -> set[str]:
    """Names that are given with AS, and the columns of such."""
    aliases = set()
    for place, (kind, text) in enumerate(tokens[:-1]):
        if text.lower() != "as" or tokens[place + 1][0] != "name":
            continue
        aliases.add(tokens[place + 1][1].lower())
        rest = tokens[place + 2 :]
        if rest and rest[0][1] == "(":
            for kind, text in rest[1:]:
                if kind == "name":
                    aliases.add(text.lower())
                elif text != ",":
                    break
    return aliases
