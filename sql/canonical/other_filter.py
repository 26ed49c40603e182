"""Two queries over the same rows, as one: they differ in conditions of their WHERE, and in columns."""

from __future__ import annotations

from dataclasses import dataclass

from sqlglot import exp

from sql.canonical.dialect import generate, parse
from sql.canonical.row_expressions import conjuncts, returns_set
from sql.errors import NotDifferentiable


class OtherFilter(exp.Expression):
    """In a WHERE: ``this`` was a condition of it until now, ``expression`` is one from now on; one can be missing."""

    arg_types = {"this": False, "expression": False}  # noqa: RUF012


class OtherRows(NotDifferentiable):
    """What one query gives does not follow from what another one gave, and rows that only one of them reads."""


@dataclass(frozen=True, slots=True)
class Exchange:
    """A query that takes the place of another one; in its WHERE an `OtherFilter` says what the other one's was.

    ``in_place``: the columns that it has stand where the other one has them. ``added`` are those that it has alone.
    """

    query: exp.Query
    in_place: bool
    added: tuple[str, ...]


def exchanged(before: str, canonical: str, special: frozenset[str] = frozenset()) -> Exchange:
    """The second of two queries in the place of the first one. Raises OtherRows.

    >>> query = exchanged("SELECT x FROM t WHERE ((x > 1) AND (y > 2))", "SELECT x FROM t WHERE ((y > 2) AND (x < 9))")
    >>> changed = query.query.find(OtherFilter)
    >>> generate(changed.this), generate(changed.expression)
    ('x > 1', 'x < 9')
    """
    queries = parse(before).copy(), parse(canonical).copy()
    wheres = [_conditions(query) for query in queries]
    columns = [{generate(expression): expression for expression in query.expressions} for query in queries]
    kept = list(columns[1].values())
    _check_columns(columns[0], columns[1], special, distinct=bool(queries[0].args.get("distinct")))
    added = tuple(expression.alias_or_name for text, expression in columns[1].items() if text not in columns[0])
    in_place = [*columns[0]][: len(kept)] == [*columns[1]]
    for query in queries:
        query.set("where", None)
        query.set("expressions", None)
    if generate(queries[0]) != generate(queries[1]):
        raise OtherRows("the queries differ in more than their filters")
    query = queries[1]
    query.set("expressions", kept)
    _exchange_conditions(query, *wheres)
    return Exchange(query, in_place, added)


def read_rows(before: str, canonical: str) -> tuple[str, str, str]:
    """What each of two queries that can be exchanged reads, and what both of them do: queries without columns.

    >>> for text in read_rows("SELECT x FROM t WHERE (x > 1)", "SELECT x, count(*) FROM t WHERE (x < 9) GROUP BY x"):
    ...     text
    'SELECT 1 FROM t WHERE x > 1'
    'SELECT 1 FROM t WHERE x < 9'
    'SELECT 1 FROM t WHERE x > 1 AND x < 9'
    """
    queries = parse(before).copy(), parse(canonical).copy()
    former, later = (_conditions(query) for query in queries)
    rows = queries[1]
    for part in ("group", "having", "windows", "distinct", "order"):
        rows.set(part, None)
    rows.set("expressions", [exp.Literal.number(1)])
    texts = []
    for conditions in (former, later, [*former, *later]):
        rows.set("where", exp.Where(this=exp.and_(*conditions, wrap=True)) if conditions else None)
        texts.append(generate(rows))
    return texts[0], texts[1], texts[2]


def _check_columns(
    before: dict[str, exp.Expr], now: dict[str, exp.Expr], special: frozenset[str], *, distinct: bool
) -> None:
    went = [expression for text, expression in before.items() if text not in now]
    came = [expression for text, expression in now.items() if text not in before]
    if {e.alias_or_name for e in came} & {e.alias_or_name for e in before.values()}:
        raise OtherRows("columns are computed otherwise")
    if (went or came) and distinct:
        raise OtherRows("with other columns other rows are distinct")
    if any(returns_set(expression, special) for expression in (*went, *came)):
        raise OtherRows("a column makes several rows of one")


def _exchange_conditions(query: exp.Query, before: list[exp.Expr], now: list[exp.Expr]) -> None:
    texts = [{generate(condition.unnest()) for condition in conditions} for conditions in (before, now)]
    went = [c for c in before if generate(c.unnest()) not in texts[1]]
    came = [c for c in now if generate(c.unnest()) not in texts[0]]
    for condition in (*went, *came):
        _check(condition)
    conditions = [c for c in now if generate(c.unnest()) in texts[0]]
    if went or came:
        conditions.append(OtherFilter(this=_all(went), expression=_all(came)))
    if conditions:
        query.set("where", exp.Where(this=exp.and_(*conditions, wrap=True, copy=False)))


def _conditions(query: exp.Query) -> list[exp.Expr]:
    if not isinstance(query, exp.Select):
        raise OtherRows("one of the queries is no plain SELECT")
    where = query.args.get("where")
    return conjuncts(where.this) if where else []


def _check(condition: exp.Expr) -> None:
    if condition.find(exp.Query):
        raise OtherRows("a filter that differs has a subquery")
    # What is compared with another table could be what they are joined by.
    if len({column.table for column in condition.find_all(exp.Column)}) > 1:
        raise OtherRows("a filter that differs reads several tables")


def _all(conditions: list[exp.Expr]) -> exp.Expr | None:
    return exp.and_(*conditions, wrap=True, copy=True) if conditions else None


def without_change(condition: exp.Expr | None) -> tuple[list[exp.Expr], OtherFilter | None]:
    """The conditions of a WHERE that stay, and the `OtherFilter` if there is one."""
    if condition is None or condition.find(OtherFilter) is None:
        return [], None
    every = conjuncts(condition)
    return [c for c in every if not isinstance(c, OtherFilter)], next(c for c in every if isinstance(c, OtherFilter))
