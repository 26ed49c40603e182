"""Columns: of sources, of queries, and of the relations between operators."""

from __future__ import annotations

from dataclasses import dataclass, replace

WEIGHT = "__pgt_w"

ENUM = "enum"
"""The carrier of enums, whichever it is."""


def base_type(type_: str) -> str:
    """A type without its modifier.

    >>> base_type("timestamp(3) without time zone"), base_type("numeric(10,2)")
    ('timestamp without time zone', 'numeric')
    """
    head, bracket, tail = type_.partition("(")
    return head + tail.partition(")")[2] if bracket else head


@dataclass(frozen=True, slots=True)
class Column:
    """A column as PostgreSQL describes it.

    ``type`` is ``format_type`` text with its modifier. ``hashable``: the type has a default hash operator class.
    ``equality_is_identity``: values that are equal look the same (true of int, date, uuid, text under a
    deterministic collation;
    false of numeric, float, citext, interval, jsonb). ``carrier`` is the base type of a domain, `ENUM` of an enum, and
    empty of others: what the values are outside of PostgreSQL.
    """

    name: str
    type: str
    not_null: bool = False
    hashable: bool = True
    equality_is_identity: bool = True
    carrier: str = ""

    @property
    def stored(self) -> str:
        """The type that the values have outside of PostgreSQL: labels are text."""
        return "text" if self.carrier == ENUM else self.carrier or self.type


@dataclass(frozen=True, slots=True)
class Source:
    """A table the query reads. ``key`` is its primary key, or ()."""

    oid: int
    schema: str
    name: str
    columns: tuple[Column, ...]
    key: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Field:
    """A column of an operator's relation. ``name`` is unique in the operator tree.

    ``origin`` is the scan and source column that the value is copied from unchanged, if it is. ``scale`` is the display
    scale that every value of a numeric column is known to have.
    """

    name: str
    type: str
    not_null: bool = False
    hashable: bool = True
    equality_is_identity: bool = True
    origin: tuple[int, str] | None = None
    scale: int | None = None

    @property
    def base_type(self) -> str:
        """The type without its modifier."""
        return base_type(self.type)

    @property
    def builtin(self) -> bool:
        """Whether the type lives in pg_catalog, so that its operators are found whatever the search_path."""
        return "." not in self.type and '"' not in self.type

    def where_not_null(self) -> Field:
        """The same column where NULLs have been filtered out."""
        return self if self.not_null else replace(self, not_null=True)


def numeric_scale(type_: str) -> int | None:
    """The scale that a type gives to each of its values, None if values may differ.

    >>> numeric_scale("numeric(10,2)"), numeric_scale("numeric"), numeric_scale("integer")
    (2, None, 0)
    """
    if type_ in ("smallint", "integer", "bigint"):
        return 0
    if type_.startswith("numeric(") and type_.endswith(")"):
        scale = int(type_[8:-1].partition(",")[2] or 0)
        return scale if scale >= 0 else 0
    return None


def equality_is_identity(column: Column | Field) -> bool:
    """Whether equal values of a column look the same; so they do in numeric(p,s), all values having one scale."""
    return column.equality_is_identity or (column.type != "numeric" and numeric_scale(column.type) is not None)


def field(name: str, column: Column, origin: tuple[int, str] | None = None) -> Field:
    """The operator column that carries a described column."""
    return Field(
        name,
        column.type,
        column.not_null,
        column.hashable,
        equality_is_identity(column),
        origin,
        numeric_scale(column.type),
    )
