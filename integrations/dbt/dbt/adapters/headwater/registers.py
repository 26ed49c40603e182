"""What has to be done for a register to be as a model says."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dbt_common.exceptions import DbtRuntimeError

_DEFAULTS = {"kind": "balance", "totals_period": "day", "partition_by": "month", "recorder_type": "text"}
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


def same_type(type: str) -> str:
    """The name of a type as it is compared.

    >>> same_type("DECIMAL (18, 4)"), same_type("int")
    ('numeric(18,4)', 'integer')
    """
    base, _, modifier = " ".join(type.lower().split()).partition("(")
    return _ALIASES.get(base.strip(), base.strip()) + ("(" + modifier.replace(" ", "") if modifier else "")


def register_changes(declared: Mapping[str, Any], info: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of `accum.register_alter` by which a register becomes as it is declared; none where it is.

    `declared` has arguments of `accum.register_create`, those that are not given being None or left out; `info` is what
    `accum.register_info` says. Raises DbtRuntimeError for what cannot be altered.

    >>> info = {"kind": "balance", "totals_period": "day", "partition_by": "month", "recorder_type": "text",
    ...         "high_write": False, "dimensions": {"product": "integer"}, "resources": {"quantity": "numeric(18,4)"}}
    >>> register_changes({"name": "stock", "dimensions": {"product": "int", "lot": "text"},
    ...                   "resources": {"quantity": "decimal(18, 4)"}}, info)
    {'add_dimensions': {'lot': 'text'}}
    """
    for setting, default in _DEFAULTS.items():
        wanted = declared.get(setting) or default
        if same_type(str(info[setting])) != same_type(str(wanted)):
            raise _differs(declared, setting, info[setting], wanted)
    high_write = bool(declared.get("high_write"))
    changes = {
        "add_dimensions": _added(declared, "dimensions", info),
        "add_resources": _added(declared, "resources", info),
        "high_write": None if high_write == info["high_write"] else high_write,
    }
    return {argument: value for argument, value in changes.items() if value not in ({}, None)}


def _added(declared: Mapping[str, Any], what: str, info: Mapping[str, Any]) -> dict[str, str]:
    wanted: Mapping[str, str] = declared[what]
    for name, present in info[what].items():
        if same_type(wanted.get(name, "none")) != same_type(present):
            raise _differs(declared, f"{what} {name}", present, wanted.get(name))
    return {name: type for name, type in wanted.items() if name not in info[what]}


def _differs(declared: Mapping[str, Any], what: str, present: object, wanted: object) -> DbtRuntimeError:
    return DbtRuntimeError(
        f'register "{declared["name"]}": {what} is {present} in the database and {wanted} in the model, which cannot be'
        " altered. Declare a register of another name, or drop this one with accum.register_drop()."
    )
