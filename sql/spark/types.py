"""Types of PostgreSQL that Spark carries exactly, and how they are called there.

A type is carried if its values come back from Spark as the values they were. Where a type has values that Spark has not
(NaN as a numeric, years that its dates do not reach) the mirror finds them when it is written and the query stays on
PostgreSQL. Infinite dates and timestamps have stand-ins (`INFINITE_DAYS`).
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from enum import Enum

from sql.base.columns import ENUM
from sql.errors import NotExpressible
from sql.spark.text.collations import DEFAULT

MAX_PRECISION = 38
"""Digits of Spark's widest decimal."""

INFINITE_DAYS = 1 << 26
"""The day since 1970-01-01, in the year 185707, that stands for the date infinity; the one so many days before it for
-infinity. Timestamps have their midnights. So order, equality and casts between them are right by themselves; nothing
else that is carried lies outside of the years 1 to 9999, nor does any arithmetic lead there."""


class Display(Enum):
    """What is known of the display scale of a numeric's values, the digits that PostgreSQL shows after the point."""

    FIXED = "fixed"
    """Every value has the type's scale."""
    KEPT = "kept"
    """Each value has its own, at most the type's; it is computed beside the value."""
    LOST = "lost"
    """Each value has its own, and nobody knows it: the value may be compared and computed with, but not shown."""


@dataclass(frozen=True, slots=True)
class SparkType:
    """What an expression is in both systems.

    ``name`` is PostgreSQL's, without modifier. Of a numeric, ``precision`` bounds the digits, ``scale`` those after the
    point; of a ``character``, whose values are without their trailing blanks, ``precision`` is the length, 0 if there
    is none. ``ordered`` is false where `<` may differ (text under a collation other than C), ``equatable`` where `=`
    may. ``collation`` is that of text (`sql.spark.text.collations`). ``enum``: its values are labels of the enum of
    that name. ``unknown`` marks a NULL or a literal without a type, ``numeral`` a numeric written as text.
    """

    name: str
    precision: int = 0
    scale: int = 0
    equatable: bool = True
    ordered: bool = True
    groupable: bool = True
    display: Display = Display.FIXED
    enum: bool = False
    collation: str = DEFAULT

    @property
    def is_integer(self) -> bool:
        return self.name in INTEGERS

    @property
    def is_number(self) -> bool:
        return self.is_integer or self.name == "numeric"

    @property
    def is_text(self) -> bool:
        return self.name in ("text", "character")

    @property
    def declared(self) -> str:
        """The type as PostgreSQL is told it.

        >>> SparkType("character", 25).declared, SparkType("numeric", 10, 2).declared
        ('character(25)', 'numeric')
        """
        if self.name == "character":
            return f"character({self.precision})" if self.precision else "bpchar"
        return {"unknown": "text", "numeral": "numeric"}.get(self.name, self.name)

    @property
    def spark(self) -> str:
        """The type's name in Spark SQL.

        >>> SparkType("numeric", 10, 2).spark
        'DECIMAL(10, 2)'
        """
        if self.name == "numeric":
            return f"DECIMAL({self.precision}, {self.scale})"
        return "STRING" if self.enum or self.name.endswith("[]") else _SPARK_NAMES[self.name]

    @property
    def digits(self) -> int:
        """Digits before the point that a value of this number type may have."""
        return INTEGERS[self.name] if self.is_integer else self.precision - self.scale

    def as_numeric(self) -> SparkType:
        """The numeric that PostgreSQL promotes an integer to."""
        return self if self.name == "numeric" else numeric(self.digits, 0)


@dataclass(frozen=True, slots=True)
class Typed:
    """An expression in Spark SQL and its type; ``display`` is the expression of a kept display scale."""

    sql: str
    type: SparkType
    display: str = ""


UNNAMEABLE = frozenset(' ,;{}()\n\t=`."')
"""Characters that no column's name may have in the files that Spark reads and writes."""

INTEGERS = {"smallint": 5, "integer": 10, "bigint": 19}
"""Integer types by rising width, with their decimal digits."""

FLOATS = ("real", "double precision")

_SPARK_NAMES = {
    "boolean": "BOOLEAN",
    "smallint": "SMALLINT",
    "integer": "INT",
    "bigint": "BIGINT",
    "real": "FLOAT",
    "double precision": "DOUBLE",
    "text": "STRING",
    "character": "STRING",
    "numeral": "STRING",
    "uuid": "STRING",
    "date": "DATE",
    "timestamp without time zone": "TIMESTAMP_NTZ",
    "timestamp with time zone": "TIMESTAMP",
}

OPAQUE = frozenset(
    ("jsonb", "json", "interval", "time without time zone", "time with time zone", "inet", "cidr", "macaddr")
)
"""Types that are carried as PostgreSQL's text: their values are passed through, or found to be NULL, no more. So are
arrays of the types that are carried."""

RANGES = {"int4range": "integer", "int8range": "bigint", "numrange": "numeric", "daterange": "date",
          "tsrange": "timestamp without time zone"}  # fmt: skip
"""Ranges, which are carried as text as well, and what their bounds are of."""

IDENTICAL = frozenset(
    ("boolean", "text", "uuid", "date", "timestamp without time zone", "timestamp with time zone", *INTEGERS)
)
"""Of these types equal values look the same, and arrays of them are equal if their texts are."""

_SPARK_NAMES.update(dict.fromkeys((*OPAQUE, *RANGES, "bytea"), "STRING"))

CARRIED = frozenset(_SPARK_NAMES) - {"numeral"} | {"numeric"}
"""The names of PostgreSQL's own types that are carried, without modifier, as `base_type` gives them."""

NUMERAL = SparkType("numeral", equatable=False, ordered=False, groupable=False)
"""A numeric written as text: one without precision, or beyond Spark's decimals. Passed through, too."""


def is_numeral(type_: SparkType) -> bool:
    """Whether a type is that of numerics written as text; of one that is declared the digits are known."""
    return type_.name == "numeral"


BOOLEAN = SparkType("boolean")
SMALLINT = SparkType("smallint")
INTEGER = SparkType("integer")
BIGINT = SparkType("bigint")
TEXT = SparkType("text")
DATE = SparkType("date")
TIMESTAMP = SparkType("timestamp without time zone")
TIMESTAMPTZ = SparkType("timestamp with time zone")
UNKNOWN = SparkType("unknown")

_ALIASES = {
    "bpchar": "character",
    "character varying": "text",
    "varchar": "text",
    "int2": "smallint",
    "int4": "integer",
    "int8": "bigint",
    "bool": "boolean",
    "float4": "real",
    "float8": "double precision",
}


MIN_DIGITS = 8
"""Digits before the point that a type keeps, however many there are after it."""


def numeric(digits: int, scale: int, display: Display = Display.FIXED) -> SparkType:
    """A numeric with so many digits before the point and `scale` after it, as far as Spark's widest decimal reaches.

    Values beyond are an error when they are met. Raises NotExpressible if there is hardly room before the point.

    >>> numeric(40, 6).spark
    'DECIMAL(38, 6)'
    """
    if scale + min(digits, MIN_DIGITS) > MAX_PRECISION:
        raise NotExpressible(f"numeric with {scale} digits after the point")
    return SparkType("numeric", max(min(digits + scale, MAX_PRECISION), 1), scale, display=display)


def column_type(
    declared: str,
    *,
    equality_is_identity: bool = True,
    binary_order: bool = False,
    collation: str = DEFAULT,
    carrier: str = "",
) -> SparkType:
    """The type of a column from its `format_type` text. Raises NotExpressible if the type is not carried exactly.

    ``carrier`` is that of the column (`Column.carrier`). ``equality_is_identity``: `=` implies the same bytes
    (text under a deterministic collation). ``binary_order``: its ``collation`` compares UTF-8 bytes.

    >>> column_type("numeric(12,2)").spark, column_type("character(25)").precision
    ('DECIMAL(12, 2)', 25)
    >>> column_type("jsonb").spark, column_type("integer[]").spark, column_type("jsonb").equatable
    ('STRING', 'STRING', False)
    >>> column_type("integer[]").equatable, column_type("numeric[]").equatable
    (True, False)
    >>> column_type("money")
    Traceback (most recent call last):
    sql.errors.NotExpressible: type money
    """
    if carrier == ENUM:
        return SparkType(declared, ordered=False, enum=True)
    declared = carrier or declared
    if declared.endswith("[]"):
        element = column_type(declared.removesuffix("[]"))
        same = element.name in IDENTICAL and (equality_is_identity or not element.is_text)
        return SparkType(declared, equatable=same, ordered=False, groupable=same)
    result = _by_name(declared)
    if not result.is_text:
        return result
    return replace(
        result,
        equatable=equality_is_identity,
        ordered=equality_is_identity and binary_order,
        groupable=equality_is_identity,
        collation=collation,
    )


def _by_name(declared: str) -> SparkType:
    """A type of PostgreSQL's own that is no array."""
    found = re.fullmatch(r"([a-z0-9 ]+?)(?:\((\d+)(?:,(-?\d+))?\))?( with(?:out)? time zone)?", declared)
    if found is None:
        raise NotExpressible(f"type {declared}")
    name = found[1] + (found[4] or "")
    name = _ALIASES.get(name, name)
    if name == "numeric":
        return _numeric(int(found[2] or 0), int(found[3] or 0))
    if (name in OPAQUE or name in RANGES) and not found[2]:
        return SparkType(name, equatable=False, ordered=False, groupable=False)
    if name not in _SPARK_NAMES or name in ("numeral", *OPAQUE, *RANGES):
        raise NotExpressible(f"type {declared}")
    if name in FLOATS:
        # Minus zero equals zero, but looks different: which of them stands for a group is chance.
        return SparkType(name, groupable=False)
    return SparkType(name, int(found[2] or 0) if name == "character" else 0)


def _numeric(precision: int, scale: int) -> SparkType:
    if not 0 <= scale <= precision:
        return NUMERAL
    type_ = SparkType("numeric", precision, scale) if 0 < precision <= MAX_PRECISION else NUMERAL
    return type_ if type_ != NUMERAL else replace(NUMERAL, precision=precision, scale=scale)


def base_type(declared: str) -> str:
    """A type without its modifier, as PostgreSQL would print it.

    >>> base_type("timestamp(3) without time zone"), base_type("character varying(20)")
    ('timestamp without time zone', 'text')
    """
    name = re.sub(r"\([^)]*\)", "", declared)
    return _ALIASES.get(name, name)


def sqlglot_type(declared: str) -> str:
    """PostgreSQL's name of a type from the name that sqlglot writes.

    >>> sqlglot_type("TIMESTAMPTZ"), sqlglot_type("DECIMAL(10, 2)")
    ('timestamp with time zone', 'numeric(10,2)')
    """
    head, bracket, rest = declared.lower().partition("(")
    name = _SQLGLOT_NAMES.get(head.strip(), head.strip())
    if bracket and "time zone" in name:
        raise NotExpressible(f"type {declared.lower()}")
    return name + (bracket + rest).replace(" ", "")


_SQLGLOT_NAMES = {
    "int": "integer",
    "decimal": "numeric",
    "timestamp": "timestamp without time zone",
    "timestamptz": "timestamp with time zone",
    "time": "time without time zone",
    "varchar": "character varying",
    "double": "double precision",
    "char": "character",
}
