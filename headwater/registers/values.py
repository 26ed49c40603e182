"""Values of dimensions, resources and recorders: SQL types, and what they are in Python and in JSON."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from datetime import date
from decimal import Decimal
from typing import Any
from uuid import UUID

import msgspec

Reader = Callable[[Any], Any]

_ALIASES = {
    "int": "integer",
    "int4": "integer",
    "int8": "bigint",
    "int2": "smallint",
    "decimal": "numeric",
    "float4": "real",
    "float8": "double precision",
    "character varying": "varchar",
    "bool": "boolean",
}
_DIMENSIONS: dict[str, Reader] = {
    "integer": int,
    "bigint": int,
    "smallint": int,
    "text": str,
    "varchar": str,
    "uuid": UUID,
    "date": date.fromisoformat,
    "boolean": bool,
}
_RESOURCES: dict[str, Reader] = {
    "numeric": Decimal,
    "integer": int,
    "bigint": int,
    "double precision": float,
    "real": float,
}


def same_type(type: str) -> str:
    """A type's name as it is compared: `INT` and `integer` are one, `numeric(18, 4)` and `decimal(18,4)`, too.

    >>> same_type("DECIMAL (18, 4)")
    'numeric(18,4)'
    """
    base, _, modifier = " ".join(type.lower().split()).partition("(")
    return _ALIASES.get(base.strip(), base.strip()) + ("(" + modifier.replace(" ", "") if modifier else "")


def _base(type: str) -> str:
    return same_type(type).partition("(")[0]


def dimension_type(type: str) -> str:
    """The type, if a dimension can have it. Raises ValueError."""
    return _known(type, _DIMENSIONS, "dimension")


def resource_type(type: str) -> str:
    """The type, if a resource can have it. Raises ValueError."""
    return _known(type, _RESOURCES, "resource")


def _known(type: str, readers: Mapping[str, Reader], what: str) -> str:
    if _base(type) not in readers:
        raise ValueError(f"a {what} cannot be of type {type!r}; it is one of {', '.join(readers)}")
    return type


def reader(type: str) -> Reader:
    """What makes a Python value of the one in JSON; nothing is done to types that only a recorder can have.

    >>> reader("numeric(9,2)")(5), reader("date")("2026-04-18"), reader("text")(None)
    (Decimal('5'), datetime.date(2026, 4, 18), None)
    """
    read = _DIMENSIONS.get(_base(type)) or _RESOURCES.get(_base(type))
    return lambda value: value if value is None or read is None else read(value)


def parsed(text: str) -> Any:
    """JSON of PostgreSQL's, with numbers as they are written."""
    return json.loads(text, parse_float=Decimal)


_encoder = msgspec.json.Encoder(decimal_format="number")


def written(value: Mapping[str, object] | Sequence[object]) -> str:
    """Movements, filters, … as JSON, with exact numbers. Raises ValueError for NaN and infinities, which JSON lacks."""
    _check_finite(value)
    return _encoder.encode(value).decode()


def _check_finite(value: object) -> None:
    if isinstance(value, Mapping):
        for inner in value.values():
            _check_finite(inner)
    elif isinstance(value, list | tuple):
        for inner in value:
            _check_finite(inner)
    elif isinstance(value, float | Decimal) and not math.isfinite(value):
        raise ValueError(f"{value} cannot be posted: nothing could be added to it")
