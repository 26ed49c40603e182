"""One aggregate function call: what it is applied to, how it is written, and what its result depends on.

SQL leaves some results open. Here they are not, since a delta takes away the old rows as they were given out:

- An aggregate that depends on the order of its input (``string_agg``, ``array_agg``, ``json_agg``, ``any_value``, any
  user-defined one) reads a group's rows in the order of its ORDER BY and, among peers, of its arguments. The latter
  holds for the stream table itself, too: a refresh in full gives what a differential one gives.
- Of values that are equal and look different (1.0 and 1.00, 'Bob' and 'BOB' of citext) one is *chosen*, wherever
  DISTINCT, min, max or an ordered-set aggregate picks any: the first by its text.
- Sums of floats are added up in the order of the values.

At the root of the tree the last two are left to PostgreSQL, as the old rows are stored.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from sql.base.columns import Field
from sql.base.identity import as_text
from sql.base.text import quote
from sql.operators.ordering import SortKey

EXACT = frozenset({"smallint", "integer", "bigint", "numeric"})
"""Types whose sums do not depend on the order of what is added."""

_COUNTS = frozenset({"count", "regr_count", "rank", "dense_rank", "percent_rank", "cume_dist"})
_EXTREMA = frozenset({"min", "max"})
_BITS = frozenset({"bit_and", "bit_or", "bit_xor", "bool_and", "bool_or", "every"})
_POWERS = frozenset({"stddev", "stddev_pop", "stddev_samp", "var_pop", "var_samp", "variance"})
_SUMS = frozenset({"sum", "avg", "corr", "covar_pop", "covar_samp"}) | _POWERS
_REGRESSIONS = frozenset({f"regr_{name}" for name in ("avgx", "avgy", "intercept", "r2", "slope", "sxx", "sxy", "syy")})
_ANY_ORDER = _COUNTS | _EXTREMA | _BITS | _SUMS | _REGRESSIONS

_BY_VALUE = EXACT | {
    "boolean",
    "bytea",
    "date",
    "double precision",
    "interval",
    "oid",
    "real",
    "text",
    "character",
    "character varying",
    "time without time zone",
    "time with time zone",
    "timestamp without time zone",
    "timestamp with time zone",
    "uuid",
}

Choice = Callable[[Field], str]


@dataclass(frozen=True, slots=True)
class Call:
    """``arguments`` are columns of the input, or constants and expressions over keys as text; none of them is ``*``.

    ``function`` is as in the query (``sum``, ``app.median``). ``within``: `order` is that of WITHIN GROUP, and
    ``arguments`` are the direct ones. ``syntax`` is what JSON_ARRAYAGG says before its closing parenthesis.
    """

    column: Field
    function: str
    arguments: tuple[Field | str, ...] = ()
    filter: Field | None = None
    distinct: bool = False
    order: tuple[SortKey, ...] = ()
    within: bool = False
    variadic: bool = False
    syntax: str | None = None

    @property
    def argument(self) -> Field | None:
        """The only argument, None for ``*``. Only asked of functions of at most one column."""
        return next((a for a in self.arguments if isinstance(a, Field)), None)

    @property
    def columns(self) -> tuple[Field, ...]:
        """The columns it is applied to."""
        columns = [a for a in self.arguments if isinstance(a, Field)]
        return tuple(dict.fromkeys([*columns, *(key.column for key in self.order)]))

    @property
    def picks(self) -> tuple[Field, ...]:
        """The columns of whose equal values one is picked."""
        ordered_set = self.within and self.function not in _COUNTS
        if self.function in _EXTREMA or ordered_set or (self.distinct and self.function not in _COUNTS):
            return tuple(column for column in self.columns if not column.equality_is_identity)
        return ()

    def sql(self, *, reproducible: bool, chosen: Choice = lambda column: quote(column.name)) -> str:
        """The call as PostgreSQL writes it; ``reproducible``: the same rows give the same bits.

        ``chosen`` gives the column to read in place of one of `picks`.
        """
        picked = {column.name: chosen(column) for column in self.picks} if reproducible else {}

        def reference(argument: Field | str) -> str:
            if isinstance(argument, str):
                return argument
            return picked.get(argument.name) or quote(argument.name)

        arguments = [reference(argument) for argument in self.arguments]
        if self.variadic:
            arguments[-1] = f"VARIADIC {arguments[-1]}"
        keys = [reference(key.column) + key.direction for key in self.order]
        if self.within:
            call = f"{self.function}({', '.join(arguments)}) WITHIN GROUP (ORDER BY {', '.join(keys)})"
            return call + self.filter_sql()
        keys += self._tie_break(reproducible=reproducible)
        words = [
            "DISTINCT" if self.distinct else "",
            ", ".join(arguments) or "*",
            f"ORDER BY {', '.join(keys)}" if keys else "",
            self.syntax or "",
        ]
        return f"{self.function}({' '.join(word for word in words if word)}){self.filter_sql()}"

    def _tie_break(self, *, reproducible: bool) -> list[str]:
        """What the rows are ordered by beside the call's own ORDER BY."""
        if self.distinct or self.function in _COUNTS | _EXTREMA | _BITS or not self.arguments:
            # DISTINCT sorts by all arguments.
            return []
        arguments = dict.fromkeys(a for a in self.arguments if isinstance(a, Field))
        if self.function in _ANY_ORDER and (not reproducible or all(a.base_type in EXACT for a in arguments)):
            return []
        given = {key.column.name for key in self.order if key.column.equality_is_identity}
        return [part for a in arguments if a.name not in given for part in by_content(a)] + self._records()

    def _records(self) -> list[str]:
        """The arguments that are rows, as texts."""
        return [f'{a}::text COLLATE "C"' for a in self.arguments if isinstance(a, str) and a.startswith("ROW(")]

    def describe(self) -> str:
        """The call in the words of the query, as far as they are columns."""

        def word(column: Field) -> str:
            return column.origin[1] if column.origin else "expression"

        columns = [word(a) for a in self.arguments if isinstance(a, Field)]
        words = ", ".join(columns) or ("*" if self.function == "count" else "")
        text = f"{self.function}({'DISTINCT ' if self.distinct else ''}{words}"
        order = f"ORDER BY {', '.join(word(key.column) + (' DESC' * key.descending) for key in self.order)}"
        if self.within:
            text += f") WITHIN GROUP ({order})"
        else:
            text += f" {order})" if self.order else ")"
        return text + (" FILTER" if self.filter else "")

    def filter_sql(self, *conditions: str) -> str:
        """The FILTER clause, with further conditions, or nothing."""
        parts = [*([quote(self.filter.name)] if self.filter else []), *conditions]
        return f" FILTER (WHERE {' AND '.join(parts)})" if parts else ""


def by_content(column: Field) -> Sequence[str]:
    """Sort expressions that put different values of a column in an order, equal ones by what they look like.

    >>> by_content(Field("i", "integer")), by_content(Field("n", "numeric", equality_is_identity=False))
    (['"i"'], ['"n"', '(("n")::text COLLATE "C")'])
    """
    name = quote(column.name)
    text = as_text(name, column)
    if column.base_type not in _BY_VALUE:
        return [text]
    return [name] if column.equality_is_identity else [name, text]
