"""When two rows are the same: hashes and comparisons of rows in generated SQL.

There are two notions. *Content* is what a reader sees: 1.0 and 1.00 differ. *Grouping* is what GROUP BY, DISTINCT and
a primary key see: 1.0 and 1.00 are one key, and NULL equals NULL.

Comparisons by ``record_eq`` and ``record_image_eq`` find a type's own default operators, whatever the search_path, and
treat NULLs as equal. PostgreSQL can neither hash nor index them, so they only ever recheck beside a hash.
"""

from __future__ import annotations

from collections.abc import Sequence

from sql.base.columns import Column, Field, base_type, equality_is_identity
from sql.base.text import quote

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

# hash_numeric and hashfloat8 answer their seed for 0, and hash_numeric for NaN and infinity, too; jsonb_hash takes 1
# and [1] for the same. Texts of equal values are made equal instead; those of jsonb differ in zeros that end numbers.
_ZEROS = r"""'("(?:[^"\\]|\\.)*")|(\.[0-9]*[1-9])0+(?![0-9])|\.0+(?![0-9])', '\1\2', 'g'"""
_NORMALISED = {
    "jsonb": f"pg_catalog.regexp_replace(({{}})::text, {_ZEROS})",
    "numeric": "pg_catalog.trim_scale({})",
    "real": "({} + 0::real)",
    "double precision": "({} + 0::double precision)",
}

_WELL_HASHED = frozenset(
    {"smallint", "integer", "text", "character", "character varying", "boolean", "uuid", "date", "bytea", "oid"}
    | {"name", "inet", "cidr"}
)


def keyable(field: Described) -> bool:
    """Whether `key_hash` tells different values of a column apart, but for chance.

    >>> keyable(Column("n", "numeric", equality_is_identity=False))
    True
    >>> keyable(Column("i", "interval", equality_is_identity=False))
    False
    """
    base = base_type(field.type)
    return equality_is_identity(field) or base in _NORMALISED or base in _WELL_HASHED or base.endswith(".citext")


def _columns(fields: Sequence[Described], alias: str | None) -> list[str]:
    return [quote(alias, f.name) if alias else quote(f.name) for f in fields]


def as_text(reference: str, field: Described) -> str:
    """A value as it looks: values that look different have different texts, in a deterministic collation.

    A cast from character(n) to text, and perhaps from a domain over it, would lose trailing blanks.

    >>> as_text("x", Column("x", "numeric")), as_text("x", Column("x", "bpchar", equality_is_identity=False))[:50]
    ('((x)::text COLLATE "C")', '(CASE WHEN pg_catalog.num_nulls(x) = 0 THEN pg_cat')
    """
    if not _perhaps_padded(field):
        return f'(({reference})::text COLLATE "C")'
    shown = f"pg_catalog.format('%s'::text, {reference})"
    return f'(CASE WHEN pg_catalog.num_nulls({reference}) = 0 THEN {shown} END COLLATE "C")'


def _perhaps_padded(field: Described) -> bool:
    # Where all values are padded to one length, there is nothing to lose.
    type_ = base_type(field.type)
    return not equality_is_identity(field) and (
        type_ in ("bpchar", "character") or ("." in type_ and not type_.endswith(".citext"))
    )


def _hashed(reference: str, field: Described, *, by_content: bool) -> str:
    """What to hash in place of a column."""
    base = base_type(field.type)
    if base in _WIDE:
        return f"pg_catalog.{_WIDE[base]}({reference})"
    if by_content or equality_is_identity(field) or not field.hashable:
        well_hashed = field.hashable and equality_is_identity(field) and base in _WELL_HASHED
        return reference if well_hashed else as_text(reference, field)
    return as_text(_NORMALISED[base].format(reference), field) if base in _NORMALISED else reference


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
    """Whether two rows look the same.

    Values of some types can look the same and have other bytes: an array keeps the room for NULLs that it once had, a
    NaN the sign that the processor gave it, a row the columns that its type had. Texts decide where the bytes differ.
    """
    sure = [f for f in fields if _one_image(f)]
    unsure = [f for f in fields if not _one_image(f)]
    if not unsure:
        return _compare("record_image_eq", _columns(fields, left), _columns(fields, right))
    images = _compare("record_image_eq", _columns(unsure, left), _columns(unsure, right))
    texts = _compare("record_eq", *([as_text(quote(side, f.name), f) for f in unsure] for side in (left, right)))
    same = f"({images} OR {texts})"
    return f"{same_content(sure, left, right)} AND {same}" if sure else same


def same_key(fields: Sequence[Described], left: str, right: str) -> str:
    """Whether two rows have the same grouping key."""
    # Two columns of different collations have none in common. Where equal texts look the same, any will do.
    sides = [
        [f'{quote(side, f.name)} COLLATE "C"' if _is_text(f) else quote(side, f.name) for f in fields]
        for side in (left, right)
    ]
    return _compare("record_eq", *sides)


def _compare(function: str, left: Sequence[str], right: Sequence[str]) -> str:
    if not left:
        return "TRUE"
    return f"pg_catalog.{function}(ROW({', '.join(left)}), ROW({', '.join(right)}))"


_ONE_IMAGE = frozenset({"numeric", "interval", "bpchar", "character", "json", "jsonb"})


def _one_image(field: Described) -> bool:
    """Whether values of a column that look the same are the same bytes."""
    return base_type(field.type) in _ONE_IMAGE or (equality_is_identity(field) and not _perhaps_array(field))


def _is_text(field: Described) -> bool:
    return equality_is_identity(field) and base_type(field.type) in ("text", "character varying", "character")


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
            values.append(f"pg_catalog.min({as_text(reference, f)})::{f.type}")
        else:
            # Any member will do: all look the same. (any_value() came with PostgreSQL 16.)
            values.append(f"(pg_catalog.array_agg({reference}))[1]")
        if not (f.hashable and equality_is_identity(f)):
            by.append(as_text(reference, f))
    return by, values


def any_alike(field: Field, alias: str | None = None, *, order: str | None = None) -> str:
    """An aggregate that gives one of a group's equal values: the first by what they look like.

    ``order``: a number of 1 or 2 by which they are told apart before.
    """
    reference = quote(alias, field.name) if alias else quote(field.name)
    text = as_text(reference, field)
    if not _perhaps_array(field):
        return f"(pg_catalog.array_agg({reference} ORDER BY {f'{order}, ' * bool(order)}{text}))[1]"
    # An element of an array of arrays would not be an array, and arrays of NULL cannot be put together.
    if order is None:
        return f"pg_catalog.min({text})::{field.type}"
    firsts = [f"pg_catalog.min({text}) FILTER (WHERE {order} = {n})" for n in (1, 2)]
    return f"coalesce({', '.join(firsts)})::{field.type}"


def _perhaps_array(field: Described) -> bool:
    # A domain can hide one.
    return field.type.endswith("[]") or "." in field.type


def content_partition(fields: Sequence[Described], alias: str | None = None) -> list[str]:
    """Expressions that tell contents apart in a PARTITION BY."""
    return content_groups(fields, alias)[0]
