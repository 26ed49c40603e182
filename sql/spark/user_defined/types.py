"""Types that users define, as Spark sees them: a domain is what it is based on, an enum is its labels.

Labels are equal where the enum's values are; their order is another, so that what depends on it stays on PostgreSQL.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import ClassVar

from sqlglot import exp

from sql.base.columns import ENUM, Source
from sql.spark.protocol import Environment
from sql.spark.types import INTEGER, SparkType, Typed


class Label(exp.Expression, exp.Func):
    """A label of an enum, or NULL; ``to`` is a literal with the enum's name, as PostgreSQL writes it."""

    arg_types: ClassVar[dict[str, bool]] = {"this": True, "to": True}
    _sql_names: ClassVar[list[str]] = ["ENUM_LABEL"]


class JsonbAgg(exp.Expression, exp.AggFunc):
    """`jsonb_agg`, which the parser knows as any function."""

    arg_types: ClassVar[dict[str, bool]] = {"this": True}


class Picked(exp.Expression, exp.AggFunc):
    """One of a group's equal values of a key."""

    arg_types: ClassVar[dict[str, bool]] = {"this": True}


def carriers(sources: Iterable[Source]) -> dict[str, str]:
    """What the types that users define are carried as, by their names, of all columns of sources."""
    return {column.type: column.carrier for source in sources for column in source.columns if column.carrier}


def carried(query: exp.Expr, types: Mapping[str, str]) -> exp.Expr:
    """The query without casts to such types, where they only say what a literal or NULL is. Changes its argument.

    A value that becomes one of a domain would have to be checked: such a cast stays, and is refused by its name.

    >>> import sqlglot
    >>> print(carried(sqlglot.parse_one("SELECT x = 'sad'::public.mood", read="postgres"), {"public.mood": "enum"}))
    SELECT x = ENUM_LABEL('sad', 'public.mood')
    >>> print(carried(sqlglot.parse_one("SELECT NULL::public.cents", read="postgres"), {"public.cents": "bigint"}))
    SELECT CAST(NULL AS BIGINT)
    """
    for cast in list(query.find_all(exp.Cast)) if types else ():
        replaced = _carried(cast, types)
        if replaced is not None:
            cast.replace(replaced)
    return query


def _carried(cast: exp.Cast, types: Mapping[str, str]) -> exp.Expr | None:
    if cast.to.this is not exp.DataType.Type.USERDEFINED:
        return None
    name = cast.to.sql("postgres")
    carrier, value = types.get(name), cast.this.unnest()
    if carrier == ENUM and (isinstance(value, exp.Null) or (isinstance(value, exp.Literal) and value.is_string)):
        return Label(this=value.copy(), to=exp.Literal.string(name))
    if carrier is not None and isinstance(value, exp.Null):
        return exp.Cast(this=exp.Null(), to=exp.DataType.build(carrier, dialect="postgres"))
    return None


def place_of(value: Typed, environment: Environment) -> Typed:
    """The place of a label in the order of its enum. Raises NotExpressible."""
    labels = environment.labels(value.type.name)
    whens = " ".join(f"WHEN {_string(label)} THEN {n}" for n, label in enumerate(labels))
    return Typed(f"CAST(CASE {value.sql} {whens} END AS INT)", INTEGER)


def label_at(place: str, type_: SparkType, environment: Environment) -> Typed:
    """The label at a place. Raises NotExpressible."""
    labels = environment.labels(type_.name)
    whens = " ".join(f"WHEN {n} THEN {_string(label)}" for n, label in enumerate(labels))
    return Typed(f"(CASE {place} {whens} END)", type_)


def _string(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"
