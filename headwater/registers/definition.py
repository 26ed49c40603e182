"""A register, declared as a class whose instances are movements."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from datetime import date, datetime
from typing import Any, ClassVar, Literal, dataclass_transform
from uuid import UUID

from headwater.registers.values import dimension_type, resource_type, same_type

_DIMENSION, _RESOURCE = "dimension", "resource"


class RegisterMismatch(ValueError):
    """The register in the database is another one than the class declares, and cannot be altered to be that."""


def dimension(type: str) -> Any:
    """A dimension of a SQL type: an integer type, `text`, `varchar(n)`, `uuid`, `date` or `boolean`. It may be NULL."""
    return dataclasses.field(metadata={_DIMENSION: dimension_type(type)})


def resource(type: str) -> Any:
    """A resource of a SQL type: `numeric(p,s)` (a Decimal), `integer`, `bigint`, `double precision` or `real`."""
    return dataclasses.field(metadata={_RESOURCE: resource_type(type)})


@dataclass(frozen=True, slots=True)
class Definition:
    """What `register_create` is told; types as they were written."""

    name: str
    dimensions: dict[str, str]
    resources: dict[str, str]
    kind: Literal["balance", "turnover"]
    totals_period: Literal["day", "month", "year"]
    partition_by: Literal["day", "month", "quarter", "year"]
    high_write: bool
    recorder_type: str
    schema: str

    def missing(self, info: dict[str, Any]) -> dict[str, Any]:
        """What `register_alter` has to be told of a register of this name, by what `register_info` says of it.

        Raises RegisterMismatch for what cannot be altered.
        """
        for setting in ("kind", "totals_period", "partition_by"):
            if info[setting] != getattr(self, setting):
                self._differs(setting, info[setting], getattr(self, setting))
        if same_type(info["recorder_type"]) != same_type(self.recorder_type):
            self._differs("recorder_type", info["recorder_type"], self.recorder_type)
        added = {
            "add_dimensions": self._added("dimension", self.dimensions, info["dimensions"]),
            "add_resources": self._added("resource", self.resources, info["resources"]),
            "high_write": None if info["high_write"] == self.high_write else self.high_write,
        }
        return {argument: value for argument, value in added.items() if value not in ({}, None)}

    def _added(self, what: str, declared: dict[str, str], present: dict[str, str]) -> dict[str, str]:
        for name, type in present.items():
            if same_type(declared.get(name, "none")) != same_type(type):
                self._differs(f"{what} {name}", type, declared.get(name))
        return {name: type for name, type in declared.items() if name not in present}

    def _differs(self, what: str, present: object, declared: object) -> None:
        raise RegisterMismatch(
            f"register {self.name}: {what} is {present} in the database, and {declared} in the class"
        )


@dataclass_transform(kw_only_default=True, frozen_default=True, field_specifiers=(dimension, resource))
@dataclass(frozen=True, kw_only=True)
class Register:
    """A subclass is a register, and an instance of it a movement: `class Stock(Register, name="stock"): …`.

    Its attributes are dimensions and resources, in their order: `product: int = dimension("int")`.
    """

    __register__: ClassVar[Definition]

    recorder: str | int | UUID
    """The document that the movement belongs to."""
    period: datetime | date
    """When it counts; a date or a time without a time zone is one of the session's `TimeZone`."""

    def __init_subclass__(
        cls,
        *,
        name: str,
        kind: Literal["balance", "turnover"] = "balance",
        totals_period: Literal["day", "month", "year"] = "day",
        partition_by: Literal["day", "month", "quarter", "year"] = "month",
        high_write: bool = False,
        recorder_type: str = "text",
        schema: str = "accum",
    ):
        """Arguments of the class are those of `accum.register_create`; schema: where the functions are."""
        super().__init_subclass__()
        dataclass(frozen=True, kw_only=True)(cls)
        columns: dict[str, dict[str, str]] = {_DIMENSION: {}, _RESOURCE: {}}
        for field in dataclasses.fields(cls):
            for what in columns.keys() & field.metadata.keys():
                columns[what][field.name] = field.metadata[what]
        cls.__register__ = Definition(
            name=name,
            dimensions=columns[_DIMENSION],
            resources=columns[_RESOURCE],
            kind=kind,
            totals_period=totals_period,
            partition_by=partition_by,
            high_write=high_write,
            recorder_type=recorder_type,
            schema=schema,
        )
