"""Random defining queries: everything that is maintained incrementally, nested over itself.

A query is generated as text with typed output columns (the types are those of `schemas`). What PostgreSQL leaves open
is not generated: wherever the order of rows decides something, it is a total one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hypothesis import strategies as st
from hypothesis.strategies import DrawFn

from tests.property.expressions import ORDERED, Expressions, exact
from tests.property.schemas import LITERALS, Columns, Relation


@dataclass(frozen=True, slots=True)
class Query:
    """A SELECT and its typed output columns."""

    text: str
    columns: Columns
    exact: bool = True
    """Equal values of its columns also look equal."""
    reads: frozenset[str] = frozenset()
    """The relations it reads."""


class Queries(Expressions):
    """Draws queries over relations. A budget of relations keeps them from growing without end."""

    def __init__(self, draw: DrawFn, relations: Sequence[Relation], budget: int):
        super().__init__(draw)
        self.relations = list(relations)
        self.budget = budget
        self._aliases = 0
        self.exact = True
        self._reads: set[str] = set()

    def alias(self, letter: str = "r") -> str:
        self._aliases += 1
        return f"{letter}{self._aliases}"

    def query(self, depth: int, outer: Columns = (), kinds: tuple[str, ...] | None = None) -> Query:
        """A query of any form; with `kinds`, with output columns of these types."""
        form = self.number(11) if depth > 0 else 0
        if form == 11:
            return self._common_table(depth, outer, kinds)
        if form == 10 and self.one_in(2):
            return self._recursive(depth) if kinds is None else self.select(depth, outer, kinds)
        if form in (8, 9):
            first = self.select(depth - 1, outer, kinds)
            second = self.query(depth - 1, outer, tuple(kind for _, kind in first.columns))
            word = self.pick(["UNION ALL", "UNION", "INTERSECT", "INTERSECT ALL", "EXCEPT", "EXCEPT ALL"])
            return self._made(f"({first.text}) {word} ({second.text})", first.columns)
        return self.select(depth, outer, kinds)

    def _made(self, text: str, columns: Columns) -> Query:
        return Query(text, columns, self.exact, frozenset(self._reads))

    # WITH

    def _common_table(self, depth: int, outer: Columns, kinds: tuple[str, ...] | None) -> Query:
        shared = self.query(depth - 1, outer)
        name = self.alias("w")
        before = list(self.relations)
        self.relations += [Relation(name, shared.columns)] * max(2, len(before))
        self.budget += 1
        body = self.select(depth - 1, outer, kinds)
        self.relations = before
        return self._made(f"WITH {name} AS ({shared.text}) {body.text}", body.columns)

    def _recursive(self, depth: int) -> Query:
        """A closure over pairs by UNION, or a walk of bounded length by UNION ALL."""
        name, one, two = self.alias("w"), self.alias(), self.alias()
        start, step = (self.relation(depth - 1, ("int",)) for _ in range(2))
        first = [self.leaf("int", start.columns) for _ in range(2)]
        from_, to = (self.leaf("int", step.columns) for _ in range(2))
        qualified = tuple((f"{one}.{column}", kind) for column, kind in start.columns)
        first = [text if text in LITERALS["int"] else f"{one}.{text}" for text in first]
        from_, to = (text if text in LITERALS["int"] else f"{two}.{text}" for text in (from_, to))
        reached = (*((f"{two}.{column}", kind) for column, kind in step.columns), (f"{name}.c0", "int"))
        where = f" WHERE {self.predicate(qualified, 1)}" if self.one_in(2) else ""
        condition = f"{name}.c1 = {from_}" + (f" AND {self.predicate(reached, 1)}" if self.one_in(3) else "")
        base = f"SELECT ({first[0]})::bigint AS c0, ({first[1]})::bigint AS c1"
        again = f"SELECT {self.pick([f'{name}.c0', f'{name}.c1'])}, ({to})::bigint"
        join = f" FROM {name} JOIN {step.text} AS {two} ON {condition}"
        columns: Columns = (("c0", "int"), ("c1", "int"))
        if self.one_in(2):
            text = f"{base} FROM {start.text} AS {one}{where} UNION {again}{join}"
        else:
            columns = (*columns, ("c2", "int"))
            text = f"{base}, 0 AS c2 FROM {start.text} AS {one}{where}"
            text += f" UNION ALL {again}, {name}.c2 + 1{join} WHERE {name}.c2 < 2"
        before = list(self.relations)
        self.relations += [Relation(name, columns)] * len(before)
        body = self.select(0, ())
        self.relations = before
        return self._made(
            f"WITH RECURSIVE {name} (c0, c1{', c2' if len(columns) > 2 else ''}) AS ({text}) {body.text}", body.columns
        )

    # FROM

    def relation(self, depth: int, wanted: tuple[str, ...] = ()) -> Relation:
        """A table, a WITH query or a derived table, with columns of the wanted types if there is such a one."""
        self.budget -= 1
        if depth > 0 and self.budget > 0 and self.one_in(4):
            inner = self.query(depth - 1)
            return Relation(f"({inner.text})", inner.columns)
        if self.one_in(25):
            rows = [f"({', '.join(self.pick(LITERALS[kind]) for kind in ('int', 'text'))})" for _ in range(2)]
            return Relation(
                f"(SELECT * FROM (VALUES {', '.join(rows)}) AS v (c0, c1))", (("c0", "int"), ("c1", "text"))
            )
        fitting = [r for r in self.relations if set(wanted) <= {kind for _, kind in r.columns}]
        found = self.pick(fitting or self.relations)
        self._reads.add(found.text)
        self.exact = self.exact and exact(found.columns)
        return found

    def _function(self, columns: Columns) -> tuple[str, Columns]:
        """A set-returning function over columns: its text with an alias, and its columns."""
        alias = self.alias()
        forms = [
            (f"generate_series(0, least({self.scalar('int', columns, 1)}, 2))", "int"),
            (f"unnest({self.scalar('ints', columns, 1)})", "int"),
            (f"string_to_table({self.scalar('text', columns, 1)}, 'x')", "text"),
        ]
        arrays = [name for name, kind in columns if kind == "json"]
        if arrays:
            array = self.pick(arrays)
            array = f"CASE WHEN jsonb_typeof({array}) = 'array' THEN {array} END"
            forms += [(f"jsonb_array_elements({array})", "json"), (f"jsonb_array_elements_text({array})", "text")]
        text, kind = self.pick(forms)
        if self.one_in(3):
            return f"{text} WITH ORDINALITY AS {alias} (x, n)", ((f"{alias}.x", kind), (f"{alias}.n", "int"))
        if self.one_in(5):
            other, second = self.pick(forms)
            columns = ((f"{alias}.x", kind), (f"{alias}.y", second))
            return f"ROWS FROM ({text}, {other}) AS {alias} (x, y)", columns
        return f"{text} AS {alias} (x)", ((f"{alias}.x", kind),)

    def source(self, depth: int, outer: Columns) -> tuple[str, Columns]:
        """A FROM clause, and the qualified columns."""
        first = self.relation(depth)
        alias = self.alias()
        text = f"{first.text} AS {alias}"
        columns: Columns = tuple((f"{alias}.{name}", kind) for name, kind in first.columns)
        for _ in range(self.pick([0, 0, 0, 1, 1, 2])):
            if self.budget <= 0:
                break
            text, columns = self._joined(text, columns, depth, outer)
        return text, columns

    def _joined(self, text: str, columns: Columns, depth: int, outer: Columns) -> tuple[str, Columns]:
        way = self.number(9)
        if way == 8:
            function, own = self._function(columns + outer)
            join = self.pick([" CROSS JOIN LATERAL {}", ", LATERAL {}", " LEFT JOIN LATERAL {} ON true"])
            # A comma binds less than JOIN: what is left of it could not be seen further to the right.
            join = join if not join.startswith(",") else " JOIN LATERAL {} ON true"
            return text + join.format(function), columns + own
        if way == 9 and depth > 0:
            self.budget -= 1
            inner = self.query(depth - 1, columns + outer)
            alias = self.alias()
            own = tuple((f"{alias}.{name}", kind) for name, kind in inner.columns)
            condition = self.predicate(columns + own, 1) if self.one_in(3) else "true"
            return (
                f"{text} {self.pick(['LEFT JOIN', 'JOIN'])} LATERAL ({inner.text}) AS {alias} ON {condition}",
                columns + own,
            )
        if way == 7 and self.budget > 1:
            inner_text, own = self.source(0, ())
            right = f"({inner_text} CROSS JOIN (SELECT 1 AS one) AS {self.alias()})"
        else:
            relation = self.relation(depth)
            alias = self.alias()
            right = f"{relation.text} AS {alias}"
            own = tuple((f"{alias}.{name}", kind) for name, kind in relation.columns)
        pairs = [
            (x, y)
            for x, of in columns
            for y, kind in own
            if of == kind and kind in ("int", "text", "numeric", "date", "bool")
        ]
        kind = self.pick(["JOIN", "JOIN", "LEFT JOIN", "LEFT JOIN", "RIGHT JOIN", "FULL JOIN"])
        both = columns + own
        if not pairs:
            return f"{text} CROSS JOIN {right}", both
        condition = " = ".join(self.pick(pairs))
        if kind != "FULL JOIN":
            if self.one_in(3):
                condition += f" AND {self.predicate(both, 1, plain=True)}"
            elif self.one_in(5):
                condition = self.predicate(both, 1, plain=True)
        elif self.one_in(3):
            condition += f" AND {' = '.join(self.pick(pairs))}"
        return f"{text} {kind} {right} ON {condition}", both

    # Subqueries in expressions

    def scalar_subquery(self, kind: str, outer: Columns) -> str | None:
        if self.budget <= 0:
            return None
        outer = _columns_alone(outer)
        if self.one_in(2):
            inner = self.select(0, outer, (kind,), one_row=True)
            return f"({inner.text})"
        source, columns = self.source(0, outer)
        where = f" WHERE {self.predicate(columns + outer, 1)}" if self.number(3) else ""
        calls = [self.aggregate(columns) for _ in range(2)]
        for call, found in calls:
            if found == kind:
                return f"(SELECT {call} FROM {source}{where})"
        value = "count(*)" if kind == "int" else f"NULL::{_cast(kind)}"
        return f"(SELECT {value} FROM {source}{where} HAVING count(*) < 3)"

    def condition_with_subquery(self, columns: Columns) -> str | None:
        if self.budget <= 0:
            return None
        around = _columns_alone(columns)
        form = self.number(5)
        if form == 5 and (compared := self.comparison_with_one_row(columns)) is not None:
            return compared
        if form == 0:
            inner = self.select(0, around)
            return f"({self.pick(['', 'NOT '])}EXISTS ({inner.text}))"
        if form in (1, 2):
            kind = self.pick(sorted({kind for _, kind in columns}))
            inner = self.select(0, around, (kind,))
            return f"({self.scalar(kind, columns, 1, plain=True)} {self.pick(['IN', 'NOT IN'])} ({inner.text}))"
        if form == 3:
            kinds = tuple(self.pick(sorted({kind for _, kind in columns})) for _ in range(2))
            inner = self.select(0, around, kinds)
            values = ", ".join(self.scalar(kind, columns, 1, plain=True) for kind in kinds)
            return f"(({values}) {self.pick(['IN', 'NOT IN'])} ({inner.text}))"
        kind = self.pick([kind for kind in sorted({kind for _, kind in columns}) if kind in ORDERED] or ["int"])
        inner = self.select(0, around, (kind,))
        comparison = f"{self.pick(['=', '<', '>=', '<>'])} {self.pick(['ANY', 'ALL'])}"
        return f"({self.scalar(kind, columns, 1, plain=True)} {comparison} ({inner.text}))"

    def comparison_with_one_row(self, columns: Columns) -> str | None:
        """A value beside an aggregate of others, which speaks of no outer column."""
        source, others = self.source(0, ())
        kinds = [kind for kind in ("int", "numeric") if any(kind == found for _, found in columns)]
        values = [name for name, kind in others if kind in ("int", "numeric")]
        if not kinds or not values:
            return None
        where = f" WHERE {self.predicate(others, 1, plain=True)}" if self.one_in(3) else ""
        call = f"{self.pick(['avg', 'max', 'min', 'sum', 'count'])}({self.pick(values)})"
        value = self.scalar(self.pick(kinds), columns, 1, plain=True)
        return f"({value} {self.pick(['>', '>=', '<', '<='])} (SELECT {call} FROM {source}{where}))"

    # SELECT

    def select(
        self, depth: int, outer: Columns = (), kinds: tuple[str, ...] | None = None, *, one_row: bool = False
    ) -> Query:
        """One SELECT. `outer` are the columns of the queries around it that it can speak of."""
        source, columns = self.source(depth, outer)
        where = f" WHERE {self.predicate(columns + outer)}" if self.one_in(2) else ""
        shape = self.pick(["plain"] * 5 + ["group"] * 4 + ["whole"] * 2 + ["sets", "distinct on"])
        tail, having = "", ""
        visible = columns
        if shape in ("group", "whole", "sets"):
            tail, visible = self._grouping(shape, columns)
            if self.one_in(3):
                having = f" HAVING {self.predicate(visible + outer, 1)}"
        windows: Columns = ()
        if depth >= 0 and self.one_in(5):
            windows = tuple(self.window(visible) for _ in range(self.pick([1, 1, 2])))
        pool = visible + windows + windows
        if kinds is None:
            kinds = tuple(self.pick(sorted({kind for _, kind in pool})) for _ in range(self.pick([1, 2, 2, 3])))
        items = [(self.scalar(kind, pool + (outer if self.one_in(3) else ())), kind) for kind in kinds]
        for n, (_, kind) in enumerate(windows[: len(items)]):
            if items[n][1] == kind:
                items[n] = windows[n]
        if shape == "plain" and not one_row and self.one_in(12) and items[0][1] == "int":
            items[0] = (self.pick([f"unnest({self.leaf('ints', visible)})", "generate_series(1, 2)"]), "int")
        word = ""
        if shape == "distinct on":
            by = self.leaf(self.pick(columns)[1], columns)
            word, tail = f"DISTINCT ON ({by}) ", f" ORDER BY {by}, {self.total_order(columns)}"
        elif self.one_in(6):
            word = "DISTINCT "
        named = tuple((f"c{n}", kind) for n, (_, kind) in enumerate(items))
        listed = ", ".join(f"{text} AS c{n}" for n, (text, _) in enumerate(items))
        text = f"SELECT {word}{listed} FROM {source}{where}{tail}{having}"
        if shape == "distinct on":  # of rows that are the same, windows make others
            text += f", {self._positions(len(items))}{' LIMIT 1' if one_row else ''}"
        elif one_row:
            text += f" ORDER BY {self._positions(len(items))} LIMIT 1"
        elif self.one_in(12):
            text += self._limit(len(items))
        return self._made(text, named)

    def _grouping(self, shape: str, columns: Columns) -> tuple[str, Columns]:
        """GROUP BY, and what can be spoken of afterwards: keys and aggregates."""
        keys: list[tuple[str, str]] = []
        constants = set()
        if shape != "whole":
            for _ in range(self.pick([1, 1, 2]) if shape == "group" else 2):
                name, kind = self.pick(columns)
                if self.one_in(3):
                    expression = self.scalar(kind, columns, 1, plain=True)
                    name = name if expression in LITERALS[kind] else expression
                elif shape == "sets" and self.one_in(8):
                    name = f"coalesce({self.pick(LITERALS[kind])})"
                    constants |= {name} if self.number(3) else set()  # used elsewhere it is refused
                keys.append((name, kind))
        calls = [self.aggregate(columns) for _ in range(self.pick([1, 1, 2, 3]))]
        texts = [f"({text})" for text, _ in keys]
        if shape == "whole":
            return "", tuple(calls)
        if shape == "group":
            return f" GROUP BY {', '.join(texts)}", (*keys, *calls)
        form = self.pick(
            [
                "ROLLUP ({0}, {1})",
                "CUBE ({0}, {1})",
                "GROUPING SETS (({0}), ({1}), ())",
                "GROUPING SETS (({0}, {1}), ({0}), ({0}))",
            ]
        )
        grouping = (f"GROUPING({texts[0]}, {texts[1]})", "int")
        shown = [key for key in keys if key[0] not in constants]
        return f" GROUP BY {form.format(*texts)}", (*shown, *calls, grouping)

    def _positions(self, many: int) -> str:
        ways = ["", " DESC", " NULLS FIRST", " DESC NULLS LAST"]
        return ", ".join(f"{n + 1}{self.pick(ways)}" for n in range(many))

    def _limit(self, many: int) -> str:
        if self.one_in(4):
            return f" ORDER BY 1{self.pick(['', ' DESC'])} FETCH FIRST {self.pick(['1', '2'])} ROWS WITH TIES"
        offset = f" OFFSET {self.pick(['1', '2'])}" if self.one_in(3) else ""
        return f" ORDER BY {self._positions(many)} LIMIT {self.pick(['1', '2', '4'])}{offset}"


def _columns_alone(columns: Columns) -> Columns:
    """Without aggregate and window calls, which have no place in a subquery."""
    return tuple((name, kind) for name, kind in columns if "(" not in name)


def _cast(kind: str) -> str:
    return LITERALS[kind][-1].partition("::")[2]


@st.composite
def queries(draw: DrawFn, relations: tuple[Relation, ...], depth: int) -> Query:
    """A query over relations, nested up to a depth."""
    return Queries(draw, relations, budget=2 + 2 * depth).query(depth)
