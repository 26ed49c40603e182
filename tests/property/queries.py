"""Random defining queries: everything that is maintained incrementally, nested over itself.

A query is generated as text with typed output columns. Types are named by what may be done with them: `int`, `text`,
`numeric` (of fixed scale: equal values look equal), `loose` (numeric of any scale, with NaN and infinities: equal
values may look different) and `float` (multiples of a half: sums do not depend on the order).
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import count

from hypothesis import strategies as st
from hypothesis.strategies import DrawFn

Columns = tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Relation:
    """Something a query can select from: its text in a FROM clause (without alias) and its typed columns."""

    text: str
    columns: Columns


@dataclass(frozen=True, slots=True)
class Query:
    """A SELECT and its typed output columns."""

    text: str
    columns: Columns
    exact: bool = True
    """Equal values of its columns also look equal."""


BASE_TABLES = (
    Relation("a", (("id", "int"), ("k", "int"), ("v", "int"), ("s", "text"), ("n", "numeric"))),
    Relation("b", (("i", "int"), ("j", "int"), ("w", "int"), ("t", "text"))),
    Relation("c", (("k", "int"), ("v", "int"), ("s", "text"))),
    Relation("d", (("k", "int"), ("f", "float"), ("u", "loose"))),
    Relation("e", (("k", "int"), ("v", "int"), ("s", "text"))),
)

CREATE_TABLES = """
CREATE TABLE a (id int PRIMARY KEY, k int, v int, s text, n numeric(6, 2));
CREATE TABLE b (i int, w int, t text, j int, PRIMARY KEY (i, j));
CREATE TABLE c (gone date, k int, v int, s text); ALTER TABLE c DROP COLUMN gone;
CREATE TABLE d (k int, f float8, u numeric);
CREATE TABLE e (k int, v int, s text) PARTITION BY RANGE (k);
CREATE TABLE e_low PARTITION OF e FOR VALUES FROM (MINVALUE) TO (1);
CREATE TABLE e_rest PARTITION OF e DEFAULT;
"""

_LITERALS = {
    "int": ["0", "1", "2", "3", "-1", "NULL::int"],
    "text": ["'x'", "'y'", "'xy'", "''", "NULL::text"],
    "numeric": ["0.50", "1.00", "2.25", "-1.50", "NULL::numeric(6,2)"],
    "loose": ["1.0", "1.00", "2.5", "'NaN'::numeric", "'Infinity'::numeric", "NULL::numeric"],
    "float": ["0.5::float8", "1::float8", "-2.5::float8", "'NaN'::float8", "'Infinity'::float8", "NULL::float8"],
}


@st.composite
def scalars(draw: DrawFn, kind: str, columns: Columns, depth: int = 2) -> str:
    """An expression of a type over columns (given with their qualified names)."""
    own = [name for name, of in columns if of == kind]
    leaf = st.sampled_from(own) if own else st.sampled_from(_LITERALS[kind])
    if depth == 0:
        return draw(leaf)
    choice = draw(st.integers(0, 9))
    if choice <= 5:
        return draw(leaf)
    if choice == 6:
        return draw(st.sampled_from(_LITERALS[kind]))

    def sub(of: str = kind) -> str:
        return draw(scalars(of, columns, depth - 1))

    if choice == 7:
        return f"coalesce({sub()}, {sub()})"
    if choice == 8:
        return f"CASE WHEN {draw(predicates(columns, depth - 1))} THEN {sub()} ELSE {sub()} END"
    match kind:
        case "int":
            form = draw(st.sampled_from(["({0} + {1})", "({0} - {1})", "({0} % 3)", "length({2})", "abs({0})"]))
            return form.format(sub(), sub(), sub("text"))
        case "text":
            form = draw(st.sampled_from(["({0} || {1})", "upper({0})", "left({0}, 1)", "({2})::text"]))
            return form.format(sub(), sub(), sub("int"))
        case "numeric":
            form = draw(st.sampled_from(["({0} + {1})", "({0} - {1})", "round({0}, 2)", "({2})::numeric(8,2)"]))
            return form.format(sub(), sub(), sub("int"))
        case "loose":
            return draw(st.sampled_from(["({0} + {1})", "(- {0})"])).format(sub(), sub())
        case _:
            return draw(st.sampled_from(["({0} + {1})", "(- {0})", "({2})::float8"])).format(sub(), sub(), sub("int"))


@st.composite
def predicates(draw: DrawFn, columns: Columns, depth: int = 2) -> str:
    """A condition over columns."""
    kinds = sorted({kind for _, kind in columns})
    kind = draw(st.sampled_from(kinds))

    def sub() -> str:
        return draw(scalars(kind, columns, max(0, depth - 1)))

    choice = draw(st.integers(0, 8 if depth else 5))
    match choice:
        case 0 | 1 | 2:
            return f"({sub()} {draw(st.sampled_from(['=', '<', '>', '<=', '<>']))} {sub()})"
        case 3:
            return f"({sub()} IS {draw(st.sampled_from(['', 'NOT ']))}NULL)"
        case 4:
            return f"({sub()} IN ({', '.join(_LITERALS[kind][:3])}))"
        case 5:
            return f"({sub()} IS {draw(st.sampled_from(['', 'NOT ']))}DISTINCT FROM {sub()})"
        case 6:
            return f"({sub()} BETWEEN {sub()} AND {sub()})"
        case 7:
            return f"(NOT {draw(predicates(columns, depth - 1))})"
        case _:
            word = draw(st.sampled_from(["AND", "OR"]))
            return f"({draw(predicates(columns, depth - 1))} {word} {draw(predicates(columns, depth - 1))})"


@st.composite
def joins(draw: DrawFn, relations: tuple[Relation, ...], depth: int, aliases: count[int]) -> tuple[str, Columns]:
    """A FROM clause: one relation or several joined, and the qualified columns."""
    many = draw(st.sampled_from([1, 1, 1, 2, 2, 3]))
    text, columns = "", ()
    for n in range(many):
        if depth > 0 and draw(st.integers(0, 3)) == 0:
            inner = draw(queries(relations, depth - 1, aliases))
            source, own = f"({inner.text})", inner.columns
        else:
            relation = draw(st.sampled_from(relations))
            source, own = relation.text, relation.columns
        alias = f"r{next(aliases)}"
        mine = tuple((f"{alias}.{name}", kind) for name, kind in own)
        if n == 0:
            text, columns = f"{source} AS {alias}", mine
            continue
        both = columns + mine
        pairs = [(x, y) for x, of in columns for y, kind in mine if of == kind]
        how = draw(st.integers(0, 5))
        if how <= 3 and pairs:
            left, right = draw(st.sampled_from(pairs))
            condition = f"{left} = {right}"
            if draw(st.booleans()):
                condition += f" AND {draw(predicates(both, 1))}"
            text += f" JOIN {source} AS {alias} ON {condition}"
        elif how == 4:
            text += f" JOIN {source} AS {alias} ON {draw(predicates(both, 1))}"
        else:
            text += f" CROSS JOIN {source} AS {alias}"
        columns = both
    return text, columns


@st.composite
def aggregates(draw: DrawFn, columns: Columns) -> tuple[str, str]:
    """An aggregate call and its type."""
    name = draw(st.sampled_from(["count(*)", "count", "sum", "avg", "min", "max"]))
    clause = f" FILTER (WHERE {draw(predicates(columns, 1))})" if draw(st.integers(0, 3)) == 0 else ""
    if name == "count(*)":
        return f"count(*){clause}", "int"
    kinds = (
        ["int", "text", "numeric", "loose", "float"]
        if name in ("count", "min", "max")
        else ["int", "numeric", "loose", "float"]
    )
    kind = draw(st.sampled_from([k for k in kinds if k in {of for _, of in columns}] or ["int"]))
    distinct = "DISTINCT " if draw(st.integers(0, 3)) == 0 else ""
    result = "int" if name == "count" else kind
    call = f"{name}({distinct}{draw(scalars(kind, columns, 1))}){clause}"
    if name in ("sum", "avg") and kind == "int":
        # bigint and numeric of unfixed scale: both are cast to what the type's other expressions are.
        return (f"({call})::int", "int") if name == "sum" else (call, "loose")
    return (call, "loose") if name == "avg" and kind == "numeric" else (call, result)


@st.composite
def selects(
    draw: DrawFn, relations: tuple[Relation, ...], depth: int, aliases: count[int], kinds: tuple[str, ...] | None
) -> Query:
    """One SELECT; with `kinds`, with output columns of these types."""
    source, columns = draw(joins(relations, depth, aliases))
    where = f" WHERE {draw(predicates(columns))}" if draw(st.booleans()) else ""
    shape = draw(st.sampled_from(["plain", "plain", "distinct", "group", "group", "group", "whole"]))
    if kinds is not None and shape in ("group", "whole"):
        shape = "plain"
    exact = all(kind not in ("loose", "float") for _, kind in columns)
    if shape in ("plain", "distinct"):
        if kinds is None:
            kinds = tuple(draw(st.lists(st.sampled_from(sorted({of for _, of in columns})), min_size=1, max_size=4)))
        items = [(draw(scalars(kind, columns)), kind) for kind in kinds]
        if shape == "plain" and kinds and draw(st.booleans()):
            items = (
                [*((name, kind) for name, kind in columns[:4]), *items] if len(kinds) < 3 and kinds is None else items
            )
        text = f"SELECT {'DISTINCT ' if shape == 'distinct' else ''}" + _select_list(items) + f" FROM {source}{where}"
        return Query(text, _named(items), exact)
    keys = []
    if shape == "group":
        chosen = draw(st.lists(st.sampled_from(sorted({of for _, of in columns})), min_size=1, max_size=2))
        keys = [(draw(scalars(kind, columns, draw(st.integers(0, 1)))), kind) for kind in chosen]
    calls = draw(st.lists(aggregates(columns), min_size=0 if keys else 1, max_size=4))
    shown = keys if not keys or draw(st.integers(0, 4)) else keys[:-1]
    items = shown + calls
    if not items:
        items = [("count(*)", "int")]
    grouping = " GROUP BY " + ", ".join(f"({text})" for text, _ in keys) if keys else ""
    having = ""
    if draw(st.integers(0, 2)) == 0:
        having = f" HAVING {draw(st.sampled_from(['count(*) > 1', 'count(*) <> 2', 'max(1) = 1']))}"
        ints = [text for text, kind in calls if kind == "int"]
        if ints and draw(st.booleans()):
            having = f" HAVING {draw(st.sampled_from(ints))} > {draw(st.sampled_from(['0', '1', '2']))}"
    text = f"SELECT {_select_list(items)} FROM {source}{where}{grouping}{having}"
    return Query(text, _named(items), exact)


def _select_list(items: list[tuple[str, str]]) -> str:
    return ", ".join(f"{text} AS c{n}" for n, (text, _) in enumerate(items))


def _named(items: list[tuple[str, str]]) -> Columns:
    return tuple((f"c{n}", kind) for n, (_, kind) in enumerate(items))


@st.composite
def queries(draw: DrawFn, relations: tuple[Relation, ...], depth: int, aliases: count[int] | None = None) -> Query:
    """A query over relations, nested up to a depth."""
    aliases = aliases or count(1)
    form = draw(st.integers(0, 7))
    if form == 0 and depth > 0:
        first = draw(selects(relations, depth - 1, aliases, None))
        kinds = tuple(kind for _, kind in first.columns)
        second = draw(selects(relations, depth - 1, aliases, kinds))
        return Query(f"{first.text} UNION ALL {second.text}", first.columns, first.exact and second.exact)
    if form == 1 and depth > 0:
        shared = draw(queries(relations, depth - 1, aliases))
        name = f"w{next(aliases)}"
        within = (*relations, *(Relation(name, shared.columns),) * max(2, len(relations)))
        body = draw(selects(within, 0, aliases, None))
        return Query(f"WITH {name} AS ({shared.text}) {body.text}", body.columns, body.exact and shared.exact)
    return draw(selects(relations, depth, aliases, None))
