"""Random scalar expressions, conditions, aggregate and window calls over typed columns, as text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from hypothesis import strategies as st
from hypothesis.strategies import DrawFn

from tests.property.schemas import INEXACT, LITERALS, Columns

T = TypeVar("T")

FORMS: dict[str, list[tuple[str, ...]]] = {
    # A form, and the types of what goes into its places.
    "int": [
        ("({} + {})", "int", "int"),
        ("({} - {})", "int", "int"),
        ("({} % 3)", "int"),
        ("length({})", "text"),
        ("abs({})", "int"),
        ("greatest({}, {})", "int", "int"),
        ("nullif({}, {})", "int", "int"),
        ("cardinality({})", "ints"),
        ("({})[1]", "ints"),
        ("extract(day FROM {})::int", "date"),
        ("({})::int", "bool"),
    ],
    "text": [
        ("({} || {})", "text", "text"),
        ("upper({})", "text"),
        ("left({}, 1)", "text"),
        ("({})::text", "int"),
        ("substring({} FROM 2)", "text"),
        ("({} ->> 'a')", "json"),
        ("concat_ws('-', {}, {})", "text", "int"),
        ("to_char({}, 'YYYY-MM')", "date"),
        ('least({}, {} COLLATE "C")', "text", "text"),
    ],
    "numeric": [
        ("({} + {})", "numeric", "numeric"),
        ("({} - {})", "numeric", "numeric"),
        ("round({}, 2)", "numeric"),
        ("({})::numeric(8,2)", "int"),
    ],
    "loose": [("({} + {})", "loose", "loose"), ("(- {})", "loose"), ("({} / 4.0)", "int")],
    "float": [("({} + {})", "float", "float"), ("(- {})", "float"), ("({})::float8", "int")],
    "bool": [],
    "date": [("({} + ({} % 3)::int)", "date", "int"), ("greatest({}, {})", "date", "date")],
    "ints": [
        ("ARRAY[{}, {}]::int[]", "int", "int"),
        ("array_append({}, {}::int)", "ints", "int"),
        ("({})[1:2]", "ints"),
    ],
    "json": [
        ("({} -> 'b')", "json"),
        ("({} -> 0)", "json"),
        ("to_jsonb({})", "int"),
        ("jsonb_build_object('a', {}, 'b', {})", "int", "text"),
        ("jsonb_build_array({})", "text"),
    ],
}
CONDITIONS: list[tuple[str, ...]] = [
    ("({} LIKE '%x')", "text"),
    ("({} SIMILAR TO '(x|y)%')", "text"),
    ("({} = ANY ({}))", "int", "ints"),
    ("({} <> ALL (ARRAY[{}, 2]))", "int", "int"),
    ("({} && {})", "ints", "ints"),
    ("({} ? 'a')", "json"),
    ("({} @> '{{\"a\": 1}}')", "json"),
    ("({} IS TRUE)", "bool"),
    ("({} IS NOT FALSE)", "bool"),
    ("({} IS UNKNOWN)", "bool"),
    ("(({}, {}) < ({}, {}))", "int", "text", "int", "text"),
    ("(({}, {}) = ({}, {}))", "int", "int", "int", "int"),
    ("(ROW({}, {}) IS NOT DISTINCT FROM ROW({}, {}))", "int", "text", "int", "text"),
    ("({}::text IS JSON)", "text"),
    ("({} BETWEEN SYMMETRIC {} AND {})", "int", "int", "int"),
]
ORDERED = ("int", "text", "numeric", "loose", "float", "date")
"""Types that min and max take."""


class Expressions:
    """Draws expressions. `subqueries` is overridden by what knows relations."""

    def __init__(self, draw: DrawFn):
        self._draw = draw

    def pick(self, options: Sequence[T]) -> T:
        return self._draw(st.sampled_from(options))

    def number(self, most: int) -> int:
        return self._draw(st.integers(0, most))

    def one_in(self, n: int) -> bool:
        return self.number(n - 1) == n - 1

    def scalar_subquery(self, kind: str, outer: Columns) -> str | None:
        """A subquery of one value, None where there is to be none."""
        return None

    def condition_with_subquery(self, columns: Columns) -> str | None:
        """EXISTS, IN and their like."""
        return None

    def leaf(self, kind: str, columns: Columns) -> str:
        own = [name for name, of in columns if of == kind]
        return self.pick(own) if own else self.pick(LITERALS[kind])

    def scalar(self, kind: str, columns: Columns, depth: int = 2, *, plain: bool = False) -> str:
        """An expression of a type; `plain`: without subqueries."""
        choice = self.number(11) if depth else 0
        if choice <= 5:
            return self.leaf(kind, columns)
        if choice == 6:
            return self.pick(LITERALS[kind])
        if choice == 7:
            parts = [self.scalar(kind, columns, depth - 1, plain=plain) for _ in range(2)]
            return f"coalesce({', '.join(parts)})"
        if choice == 8:
            condition = self.predicate(columns, depth - 1, plain=plain)
            parts = [self.scalar(kind, columns, depth - 1, plain=plain) for _ in range(2)]
            return f"CASE WHEN {condition} THEN {parts[0]} ELSE {parts[1]} END"
        if choice == 9 and not plain and (found := self.scalar_subquery(kind, columns)) is not None:
            return found
        if kind == "bool":
            return self.predicate(columns, depth - 1, plain=plain)
        return self._form(self.pick(FORMS[kind]), columns, depth, plain)

    def _form(self, form: tuple[str, ...], columns: Columns, depth: int, plain: bool) -> str:
        return form[0].format(*(self.scalar(kind, columns, depth - 1, plain=plain) for kind in form[1:]))

    def predicate(self, columns: Columns, depth: int = 2, *, plain: bool = False) -> str:
        """A condition; `plain`: without subqueries."""
        kind = self.pick(sorted({kind for _, kind in columns}) or ["int"])

        def sub() -> str:
            return self.scalar(kind, columns, max(0, depth - 1), plain=plain)

        match self.number(12 if depth > 0 else 5):
            case 0 | 1 | 2:
                other = self.pick(LITERALS[kind]) if self.one_in(2) else sub()
                return f"({sub()} {self.pick(['=', '<', '>', '<=', '<>'])} {other})"
            case 3:
                return f"({sub()} IS {self.pick(['', 'NOT '])}NULL)"
            case 4:
                return f"({sub()} {self.pick(['IN', 'NOT IN'])} ({', '.join(LITERALS[kind][:3])}))"
            case 5:
                return f"({sub()} IS {self.pick(['', 'NOT '])}DISTINCT FROM {sub()})"
            case 6:
                return f"({sub()} BETWEEN {sub()} AND {sub()})"
            case 7:
                return f"(NOT {self.predicate(columns, depth - 1, plain=plain)})"
            case 8:
                return self._form(self.pick(CONDITIONS), columns, depth, plain)
            case 9 | 10 if not plain and (found := self.condition_with_subquery(columns)) is not None:
                return found
            case _:
                left, right = (self.predicate(columns, depth - 1, plain=plain) for _ in range(2))
                return f"({left} {self.pick(['AND', 'OR'])} {right})"

    # Aggregates

    def aggregate(self, columns: Columns, *, over: bool = False) -> tuple[str, str]:
        """An aggregate call and its type; `over`: one that can stand before OVER."""
        filter_clause = f" FILTER (WHERE {self.predicate(columns, 1, plain=True)})" if self.one_in(4) else ""
        distinct = "DISTINCT " if not over and self.one_in(5) else ""

        def some(*kinds: str) -> tuple[str, str]:
            there = [kind for kind in kinds if kind in {of for _, of in columns}]
            kind = self.pick(there or kinds[:1])
            return kind, self.scalar(kind, columns, 1, plain=True)

        match self.number(10 if over else 20):
            case 0 | 1:
                return f"count(*){filter_clause}", "int"
            case 2:
                _, argument = some(*FORMS)
                return f"count({distinct}{argument}){filter_clause}", "int"
            case 3 | 4:
                kind, argument = some("int", "numeric", "loose", "float")
                call = f"sum({distinct}{argument}){filter_clause}"
                # bigint is cast to what the type's other expressions are.
                return ((call, "bigint") if kind == "int" else (call, kind)) if over else self._narrowed(call, kind)
            case 5:
                kind, argument = some("int", "numeric", "loose", "float")
                call = f"avg({distinct}{argument}){filter_clause}"
                if kind == "float" and over:
                    return f"sum({argument}){filter_clause}", "float"
                return (f"round(({call})::numeric, 6)", "loose") if kind == "float" else (call, "loose")
            case 6 | 7 | 8:
                kind, argument = some(*ORDERED)
                return f"{self.pick(['min', 'max'])}({distinct}{argument}){filter_clause}", kind
            case 9:
                _, argument = some("bool")
                return f"{self.pick(['bool_and', 'bool_or', 'every'])}({argument}){filter_clause}", "bool"
            case 10:
                kind, argument = some("int", "numeric")
                function = self.pick(["var_pop", "var_samp", "stddev_pop", "stddev_samp", "variance", "stddev"])
                return f"{function}({distinct}{argument}){filter_clause}", "loose"
            case 11:
                _, argument = some("text")
                return f"string_agg({distinct}{argument}, ',' ORDER BY {argument}){filter_clause}", "text"
            case 12:
                _, argument = some("int")
                argument = f"({argument})::int"
                return f"array_agg({distinct}{argument} ORDER BY {argument} DESC){filter_clause}", "ints"
            case 13:
                _, argument = some("text", "int", "date", "bool")
                return f"jsonb_agg({distinct}{argument} ORDER BY {argument}){filter_clause}", "json"
            case 14:
                _, key = some("text")
                _, value = some("int", "text")
                key = f"coalesce({key}, 'n')"
                return f"jsonb_object_agg({key}, {value} ORDER BY {key}, {value}){filter_clause}", "json"
            case 15:
                _, argument = some("int")
                return f"{self.pick(['bit_and', 'bit_or', 'bit_xor'])}({distinct}{argument}){filter_clause}", "int"
            case 16:
                kind, argument = some("int", "text", "numeric", "date")
                return f"mode() WITHIN GROUP (ORDER BY {argument}){filter_clause}", kind
            case 17:
                kind, argument = some("int", "text", "numeric", "date")
                return f"percentile_disc(0.5) WITHIN GROUP (ORDER BY {argument} DESC){filter_clause}", kind
            case 18:
                _, argument = some("int")
                return f"percentile_cont(0.25) WITHIN GROUP (ORDER BY {argument}){filter_clause}", "float"
            case 19:
                _, argument = some("int")
                return f"rank(1) WITHIN GROUP (ORDER BY {argument}){filter_clause}", "int"
            case _:
                function = self.pick(["corr", "covar_pop", "covar_samp", "regr_slope", "regr_intercept", "regr_r2"])
                arguments = ", ".join(some("int")[1] for _ in range(2))
                return f"round(({function}({arguments}){filter_clause})::numeric, 6)", "loose"

    @staticmethod
    def _narrowed(call: str, kind: str) -> tuple[str, str]:
        return (f"({call})::int", "int") if kind == "int" else (call, kind)

    # Windows

    def total_order(self, columns: Columns) -> str:
        """An order in which only equal rows tie."""
        ways = ["", "", " DESC", " NULLS FIRST", " DESC NULLS LAST"]
        return ", ".join(f"{name}{self.pick(ways) if n < 2 else ''}" for n, (name, _) in enumerate(columns))

    def window(self, columns: Columns) -> tuple[str, str]:
        """A window call over columns, whose result ties do not decide, and its type."""
        partition = ""
        if self.one_in(2):
            keys = [self.pick(columns)[0]]
            if self.one_in(4):
                keys.append(self.scalar(self.pick(columns)[1], columns, 1, plain=True))
            partition = f"PARTITION BY {', '.join(keys)} "
        total = f"ORDER BY {self.total_order(columns)}"
        kind = self.pick(sorted({kind for _, kind in columns}))
        argument = self.scalar(kind, columns, 1, plain=True)
        choice = self.number(9)
        if choice == 0:
            return f"row_number() OVER ({partition}{total})", "int"
        if choice == 1:
            order = self.pick(columns)[0]
            function = self.pick(["rank()", "dense_rank()"])
            return f"{function} OVER ({partition}ORDER BY {order}{self.pick(['', ' DESC'])})", "int"
        if choice == 2:
            function = self.pick(["percent_rank()", "cume_dist()"])
            return f"({function} OVER ({partition}ORDER BY {self.pick(columns)[0]}))::numeric", "loose"
        if choice == 3:
            return f"ntile({self.pick(['2', '3'])}) OVER ({partition}{total})", "int"
        if choice == 4:
            more = self.pick(["", ", 2", f", 1, {self.pick(LITERALS[kind][:2])}"]) if kind in ("text", "date") else ""
            return f"{self.pick(['lag', 'lead'])}({argument}{more}) OVER ({partition}{total})", kind
        if choice == 5:
            function = self.pick([f"first_value({argument})", f"last_value({argument})", f"nth_value({argument}, 2)"])
            return f"{function} OVER ({partition}{total}{self._frame('ROWS')})", kind
        call, result = self.aggregate(columns, over=True)
        by, of = self.pick(columns)
        if choice == 6:
            window = partition.strip()
        elif choice == 7:
            window = f"{partition}{total}{self._frame('ROWS')}"
        elif choice == 8:
            window = f"{partition}ORDER BY {by}{self._frame('GROUPS')}"
        elif of in ("int", "numeric"):
            window = f"{partition}ORDER BY {by}{self._frame('RANGE')}"
        else:
            window = f"{partition}ORDER BY {by}"
        text = f"{call} OVER ({window})"
        return (f"({text})::int", "int") if result == "bigint" else (text, result)

    def _frame(self, mode: str) -> str:
        start = self.pick(["UNBOUNDED PRECEDING", "1 PRECEDING", "CURRENT ROW"])
        end = self.pick(["CURRENT ROW", "1 FOLLOWING", "UNBOUNDED FOLLOWING"])
        exclude = self.pick(["", "", "", " EXCLUDE CURRENT ROW", " EXCLUDE TIES", " EXCLUDE GROUP"])
        return f" {mode} BETWEEN {start} AND {end}{exclude}"


def exact(columns: Columns) -> bool:
    """Whether equal values of these columns, and of what is computed from them, look equal."""
    return all(kind not in INEXACT for _, kind in columns)
