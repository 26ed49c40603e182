"""When two rows are the same: hashes and comparisons of rows in generated SQL.

There are two notions. *Content* is what a reader sees: 1.0 and 1.00 differ. *Grouping* is what GROUP BY, DISTINCT and
a primary key see: 1.0 and 1.00 are one key, and NULL equals NULL.

Comparisons by ``record_eq`` and ``record_image_eq`` find a type's own default operators, whatever the search_path, and
treat NULLs as equal. PostgreSQL can neither hash nor index them, so they only ever recheck beside a hash.
"""

from __future__ import annotations

from collections.abc import Sequence

from .columns import Column, Field, base_type, faithful
from .render import quote

Described = Column | Field

SALT = "coalesce(($1->>'salt')::bigint, 0)"


# Functions that keep all 64 bits of a value: PostgreSQL's own hash of these types folds them to 32, so that among
# 100 000 values two would collide, whatever the salt.
_WIDE = {
    "bigint": "int8send",
    "time without time zone": "time_send",
    "timestamp without time zone": "timestamp_send",
    "timestamp with time zone": "timestamptz_send",
}

# hash_numeric and hashfloat8 answer their seed for 0, and hash_numeric for NaN and infinity, too. Texts of equal
# numbers are made equal instead.
_NORMALISED = {
    "numeric": "pg_catalog.trim_scale({})",
    "real": "({} + 0::real)",
    "double precision": "({} + 0::double precision)",
}

_WELL_HASHED = frozenset(
    {"smallint", "integer", "text", "character", "character varying", "boolean", "uuid", "date", "bytea", "oid"}
    | {"name", "inet", "cidr", "jsonb"}
)


def keyable(field: Described) -> bool:
    """Whether `key_hash` tells different values of a column apart, but for chance.

    >>> keyable(Column("n", "numeric", faithful=False)), keyable(Column("i", "interval", faithful=False))
    (True, False)
    """
    base = base_type(field.type)
    return faithful(field) or base in _NORMALISED or base in _WELL_HASHED or base.endswith(".citext")


def _columns(fields: Sequence[Described], alias: str | None) -> list[str]:
    return [quote(alias, f.name) if alias else quote(f.name) for f in fields]


def _as_text(reference: str) -> str:
    # A non-deterministic collation would hash and group 'a' and 'A' together.
    return f'(({reference})::text COLLATE "C")'


def _hashed(reference: str, field: Described, *, by_content: bool) -> str:
    """What to hash in place of a column."""
    base = base_type(field.type)
    if base in _WIDE:
        return f"pg_catalog.{_WIDE[base]}({reference})"
    if by_content or faithful(field) or not field.hashable:
        well_hashed = field.hashable and faithful(field) and base in _WELL_HASHED
        return reference if well_hashed else _as_text(reference)
    return _as_text(_NORMALISED[base].format(reference)) if base in _NORMALISED else reference


def _hash(parts: Sequence[str], salt: str) -> str:
    return f"pg_catalog.hash_record_extended(ROW({', '.join(parts)}), {salt})"


def content_hash(fields: Sequence[Described], alias: str | None = None, salt: str = SALT) -> str:
    """A 64-bit hash of what the row looks like."""
    references = _columns(fields, alias)
    return _hash([_hashed(r, f, by_content=True) for r, f in zip(references, fields, strict=True)], salt)


def key_hash(fields: Sequence[Described], alias: str | None = None, salt: str = SALT) -> str:
    """A 64-bit hash of a grouping key: equal keys have equal hashes."""
    references = _columns(fields, alias)
    return _hash([_hashed(r, f, by_content=False) for r, f in zip(references, fields, strict=True)], salt)


def same_content(fields: Sequence[Described], left: str, right: str) -> str:
    """Whether two rows look the same."""
    return _compare("record_image_eq", fields, left, right)


def same_key(fields: Sequence[Described], left: str, right: str) -> str:
    """Whether two rows have the same grouping key."""
    return _compare("record_eq", fields, left, right)


def _compare(function: str, fields: Sequence[Described], left: str, right: str) -> str:
    if not fields:
        return "TRUE"
    sides = [_columns(fields, left), _columns(fields, right)]
    if function == "record_eq":
        # Two columns of different collations have none in common. Where equal texts look the same, any will do.
        sides = [
            [f'{c} COLLATE "C"' if _is_text(f) else c for c, f in zip(side, fields, strict=True)] for side in sides
        ]
    return f"pg_catalog.{function}(ROW({', '.join(sides[0])}), ROW({', '.join(sides[1])}))"


def _is_text(field: Described) -> bool:
    return faithful(field) and base_type(field.type) in ("text", "character varying", "character")


def content_groups(fields: Sequence[Described], alias: str | None = None) -> tuple[list[str], list[str]]:
    """Rows grouped by content: the expressions of GROUP BY, and for each column the expression that gives it back."""
    by: list[str] = []
    values: list[str] = []
    for reference, f in zip(_columns(fields, alias), fields, strict=True):
        if f.hashable:
            by.append(reference)
            values.append(reference)
        elif _perhaps_array(f):
            # An element of an array of arrays would not be an array. Text comes back as it was.
            values.append(f"pg_catalog.min({_as_text(reference)})::{f.type}")
        else:
            # Any member will do: all look the same. (any_value() came with PostgreSQL 16.)
            values.append(f"(pg_catalog.array_agg({reference}))[1]")
        if not (f.hashable and faithful(f)):
            by.append(_as_text(reference))
    return by, values


def any_alike(field: Field) -> str:
    """An aggregate that gives one of a group's equal values: the first by what they look like."""
    reference = quote(field.name)
    if _perhaps_array(field):
        return f"pg_catalog.min({_as_text(reference)})::{field.type}"
    return f"(pg_catalog.array_agg({reference} ORDER BY {_as_text(reference)}))[1]"


def _perhaps_array(field: Described) -> bool:
    # A domain can hide one.
    return field.type.endswith("[]") or "." in field.type


def content_partition(fields: Sequence[Described], alias: str | None = None) -> list[str]:
    """Expressions that tell contents apart in a PARTITION BY."""
    return content_groups(fields, alias)[0]
