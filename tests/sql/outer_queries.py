"""Random queries with subqueries over the tables of `outer`: nested, correlated over several levels, of every kind."""

from __future__ import annotations

from itertools import count

from hypothesis import strategies as st

_COMPARISONS = ["=", "<>", "<", ">=", ">"]


@st.composite
def queries(draw: st.DrawFn) -> str:
    """A SELECT over o."""
    return _Queries(draw).query()


class _Queries:
    def __init__(self, draw: st.DrawFn):
        self.draw = draw
        self.numbers = count(1)
        self.left = 4
        """How many subqueries there may still be: each makes the statement longer, and planning it slower."""

    def one_of(self, *choices: str) -> str:
        return self.draw(st.sampled_from(choices))

    def query(self) -> str:
        kind = self.one_of("where", "where", "select", "select", "group", "lateral", "join")
        depth = self.draw(st.integers(1, 2))
        if kind == "where":
            return f"SELECT o.id, o.v FROM o WHERE {self.condition(['o'], depth)}"
        if kind == "select":
            value = self.one_of("c", "s")
            computed = self.condition(["o"], depth) if value == "c" else self.scalar(["o"], depth)
            return f"SELECT o.id, {computed} AS c FROM o"
        if kind == "group":
            part = self.one_of("argument", "having", "after")
            if part == "argument":
                return f"SELECT o.k, sum({self.scalar(['o'], 1)}) AS s FROM o GROUP BY o.k"
            if part == "having":
                return (
                    f"SELECT o.k, count(*) AS n FROM o GROUP BY o.k HAVING {self.one_of('count(*)', 'sum(o.v)')} > "
                    + (self.scalar(["o"], 1, columns="k"))
                )
            return f"SELECT o.k, {self.scalar(['o'], 1, columns='k')} AS s FROM o GROUP BY o.k"
        if kind == "join":
            side = self.one_of("JOIN", "LEFT JOIN")
            return f"SELECT o.id, x.id AS other FROM o {side} u x ON x.k = o.k AND {self.condition(['o', 'x'], 1)}"
        join = self.one_of("CROSS JOIN", "LEFT JOIN")
        body = self.rows(["o"], depth)
        on = f" ON {self.one_of('true', 'l.x > o.v')}" if join == "LEFT JOIN" else ""
        return f"SELECT o.id, l.x FROM o {join} LATERAL ({body}) l(x){on}"

    def column(self, outer: list[str], columns: str = "kv") -> str:
        return f"{self.draw(st.sampled_from(outer))}.{self.one_of(*columns)}"

    def condition(self, outer: list[str], depth: int, columns: str = "kv") -> str:
        kind = self.one_of("exists", "in", "any", "scalar", "plain", "not", "or", "row", "case", "and")
        if depth <= 0 or self.left <= 0:
            kind = "plain"
        x = self.column(outer, columns)
        if kind == "exists":
            return f"{self.one_of('', 'NOT ')}EXISTS ({self.rows(outer, depth - 1, columns)})"
        if kind == "in":
            return f"{x} {self.one_of('IN', 'NOT IN')} ({self.rows(outer, depth - 1, columns)})"
        if kind == "any":
            return (
                f"{x} {self.one_of(*_COMPARISONS)} {self.one_of('ANY', 'ALL')} ({self.rows(outer, depth - 1, columns)})"
            )
        if kind == "scalar":
            return f"{x} {self.one_of(*_COMPARISONS)} {self.scalar(outer, depth, columns)}"
        if kind == "not":
            return f"NOT ({self.condition(outer, depth, columns)})"
        if kind in ("or", "and"):
            left, right = self.condition(outer, depth, columns), self.condition(outer, depth - 1, columns)
            return f"({left} {kind.upper()} {right})"
        if kind == "row":
            alias = f"r{next(self.numbers)}"
            where = self.where(alias, outer, 0, columns)
            pair = f"SELECT {alias}.k, {alias}.v FROM {self.one_of('t', 'u')} {alias}{where}"
            return f"({x}, {self.column(outer, columns)}) {self.one_of('IN', 'NOT IN')} ({pair})"
        if kind == "case":
            inside = [self.condition(outer, depth - 1, columns) for _ in range(2)]
            return f"CASE WHEN {self.condition(outer, depth, columns)} THEN {inside[0]} ELSE {inside[1]} END"
        return f"{x} {self.one_of(*_COMPARISONS)} {self.one_of('1', '2', self.column(outer, columns))}"

    def where(self, alias: str, outer: list[str], depth: int, columns: str = "kv") -> str:
        conditions = []
        for _ in range(self.draw(st.integers(0, 2))):
            operator = self.one_of("=", "=", "=", "<", "IS NOT DISTINCT FROM")
            conditions.append(f"{alias}.{self.one_of('k', 'v')} {operator} {self.column(outer, columns)}")
        if depth > 0 and self.left > 0 and self.draw(st.booleans()):
            conditions.append(self.condition([alias], depth, "kv"))
        return f" WHERE {' AND '.join(conditions)}" if conditions else ""

    def rows(self, outer: list[str], depth: int, columns: str = "kv") -> str:
        """A subquery of one integer column."""
        self.left -= 1
        alias = f"s{next(self.numbers)}"
        table = self.one_of("t", "t", "u")
        where = self.where(alias, outer, depth, columns)
        shape = self.one_of(
            "plain", "plain", "plain", "distinct", "group", "limit", "union", "aggregate", "join", "derived"
        )
        if shape == "distinct":
            return f"SELECT DISTINCT {alias}.v FROM {table} {alias}{where}"
        if shape == "group":
            having = self.one_of("", " HAVING count(*) > 1", f" HAVING max({alias}.v) > {self.column(outer, columns)}")
            column = self.one_of(f"{alias}.k", "count(*)::int")
            return f"SELECT {column} FROM {table} {alias}{where} GROUP BY {alias}.k{having}"
        if shape == "limit":
            return f"SELECT {alias}.v FROM {table} {alias}{where} ORDER BY {alias}.v{self.one_of('', ' DESC')} LIMIT 2"
        if shape == "union":
            operator = self.one_of("UNION", "UNION ALL", "INTERSECT", "EXCEPT", "EXCEPT ALL")
            other = self.one_of("SELECT u.v FROM u", f"SELECT {self.column(outer, columns)}")
            return f"SELECT {alias}.v FROM {table} {alias}{where} {operator} {other}"
        if shape == "aggregate":
            return f"SELECT {self.one_of('max', 'min')}({alias}.v) FROM {table} {alias}{where}"
        if shape == "join":
            side = self.one_of("JOIN", "LEFT JOIN")
            on = f"y.v = {self.one_of(f'{alias}.v', self.column(outer, columns))}"
            return f"SELECT y.k FROM {table} {alias} {side} u y ON {on}{where}"
        if shape == "derived":
            inner = f"SELECT {alias}.v, count(*) AS n FROM {table} {alias}{where} GROUP BY {alias}.v"
            return f"SELECT z.n::int FROM ({inner}) z WHERE z.v IS NOT NULL"
        return f"SELECT {alias}.{self.one_of('k', 'v')} FROM {table} {alias}{where}"

    def scalar(self, outer: list[str], depth: int, columns: str = "kv") -> str:
        """A subquery of one integer in one row."""
        self.left -= 1
        alias = f"a{next(self.numbers)}"
        table = self.one_of("t", "u")
        where = self.where(alias, outer, depth - 1, columns)
        kind = self.one_of("count", "max", "expression", "limit", "of rows", "array")
        if kind == "limit":
            return f"(SELECT {alias}.v FROM {table} {alias}{where} ORDER BY {alias}.v LIMIT 1)"
        if kind == "of rows":
            return f"(SELECT sum(w.x)::int FROM ({self.rows(outer, depth - 1, columns)}) w(x))"
        if kind == "array":
            return f"cardinality(ARRAY({self.rows(outer, depth - 1, columns)}))"
        result = {"count": "count(*)::int", "max": f"max({alias}.v)"}.get(
            kind, f"coalesce(sum({alias}.k) + {self.column(outer, columns)}, -1)::int"
        )
        return f"(SELECT {result} FROM {table} {alias}{where})"
