"""The calls that are made of a register, and how their answers are read."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import date, datetime
from typing import Any
from uuid import UUID

from psycopg import sql

from headwater.calls import Call, Rows, value
from headwater.registers.definition import Definition, Register
from headwater.registers.results import Amounts, Correction, Movement, R, StatementLine
from headwater.registers.values import parsed, reader, written

Dimensions = Mapping[str, object] | None
"""Values by name; what is not named is summed over."""
Moment = datetime | date | None


def _function(
    definition: Definition, name: str, arguments: Mapping[str, object], result: str, read: Callable[[Rows], Any]
) -> Call[Any]:
    """A function of the schema with named arguments; of an argument that is None the default is taken."""
    given = {key: argument for key, argument in arguments.items() if argument is not None}
    statement = sql.SQL("SELECT {} FROM {}({}) AS answer").format(
        sql.SQL(result),
        sql.Identifier(definition.schema, name),
        sql.SQL(", ").join(sql.SQL("{} := %s").format(sql.Identifier(key)) for key in given),
    )
    return Call(statement, list(given.values()), read)


def _nothing(rows: Rows) -> None:
    return None


def _json(of: Mapping[str, object] | Sequence[object] | None) -> str | None:
    return None if of is None else written(of)


# ---------------------------------------------------------------------------------------------------------------------
# The register itself


def create(definition: Definition) -> Call[None]:
    arguments = dataclasses.asdict(definition)
    del arguments["schema"]
    arguments |= {"dimensions": written(definition.dimensions), "resources": written(definition.resources)}
    return _function(definition, "register_create", arguments, "answer", _nothing)


def alter(definition: Definition, changes: Mapping[str, Any]) -> Call[None]:
    written_changes = {key: written(change) if isinstance(change, dict) else change for key, change in changes.items()}
    arguments = {"p_name": definition.name, **written_changes}
    return _function(definition, "register_alter", arguments, "answer", _nothing)


def drop(definition: Definition, force: bool) -> Call[None]:
    return _function(definition, "register_drop", {"p_name": definition.name, "force": force}, "answer", _nothing)


def info(definition: Definition) -> Call[dict[str, Any] | None]:
    """What `register_info` says; None where there is no such register: an error would have ended the transaction."""
    statement = sql.SQL(
        "SELECT CASE WHEN to_regclass(format('%%I.%%I', %s::text, %s::text)) IS NOT NULL THEN {}(%s)::text END"
    ).format(sql.Identifier(definition.schema, "register_info"))
    parameters = (definition.schema, definition.name + "_movements", definition.name)
    return Call(statement, parameters, lambda rows: None if value(rows) is None else parsed(value(rows)))


# ---------------------------------------------------------------------------------------------------------------------
# Writing


def _fields(movement: Register) -> dict[str, object]:
    return {field.name: getattr(movement, field.name) for field in dataclasses.fields(movement)}


def post(definition: Definition, movements: Iterable[Register]) -> Call[int]:
    data = written([_fields(movement) for movement in movements])
    return _function(definition, "register_post", {"p_register": definition.name, "p_data": data}, "answer", value)


def unpost(definition: Definition, recorder: str | int | UUID) -> Call[int]:
    arguments = {"p_register": definition.name, "p_recorder": str(recorder)}
    return _function(definition, "register_unpost", arguments, "answer", value)


def repost(definition: Definition, movements: Sequence[Register]) -> Call[int]:
    """Raises ValueError if the movements are not those of one document."""
    recorders = {movement.recorder for movement in movements}
    if len(recorders) != 1:
        raise ValueError(f"the movements of one document replace it, not of {len(recorders)}; unpost() removes one")
    arguments = {
        "p_register": definition.name,
        "p_recorder": str(recorders.pop()),
        "p_data": written([_fields(movement) for movement in movements]),
    }
    return _function(definition, "register_repost", arguments, "answer", value)


# ---------------------------------------------------------------------------------------------------------------------
# Reading


def balance(definition: Definition, dimensions: Dimensions, at: Moment) -> Call[Amounts]:
    arguments = {"dimensions": _json(dimensions), "at_date": at}
    name = definition.name + "_balance"
    return _function(
        definition, name, arguments, "answer::text", lambda rows: _amounts(definition, parsed(value(rows)))
    )


def turnovers(
    definition: Definition, by: Sequence[str], dimensions: Dimensions, from_date: Moment, to_date: Moment
) -> Call[list[dict[str, Any]]]:
    """One for each group; without groups just one."""
    arguments = {
        "from_date": from_date,
        "to_date": to_date,
        "dimensions": _json(dimensions),
        "group_by": _json(list(by)) if by else None,
    }
    readers = {name: reader(type) for name, type in (definition.dimensions | definition.resources).items()}

    def read(rows: Rows) -> list[dict[str, Any]]:
        groups = [parsed(text) for (text,) in rows]
        return [{name: readers[name](group[name]) for name in (*by, *definition.resources)} for group in groups]

    return _function(definition, definition.name + "_turnover", arguments, "answer::text", read)


def movements(
    register: type[R],
    dimensions: Dimensions,
    recorder: str | int | UUID | None,
    from_date: Moment,
    to_date: Moment,
    corrected: bool,
) -> Call[list[Movement[R]]]:
    definition = register.__register__
    arguments = {
        "p_recorder": None if recorder is None else str(recorder),
        "from_date": from_date,
        "to_date": to_date,
        "dimensions": _json(dimensions),
        "include_audit": corrected or None,  # the documented function of pg_accumulator has no such parameter
    }

    def read(rows: Rows) -> list[Movement[R]]:
        return [_movement(register, parsed(text)) for (text,) in rows]

    return _function(definition, definition.name + "_movements", arguments, "answer::text", read)


def statement(
    definition: Definition, each: str, dimensions: Dimensions, from_date: Moment, to_date: Moment
) -> Call[list[StatementLine]]:
    arguments = {"period": each, "from_date": from_date, "to_date": to_date, "dimensions": _json(dimensions)}

    def read(rows: Rows) -> list[StatementLine]:
        return [
            StatementLine(start, _amounts(definition, parsed(turnover)), _amounts(definition, parsed(balance)))
            for start, turnover, balance in rows
        ]

    columns = "period_start, turnover::text, balance::text"
    return _function(definition, definition.name + "_balance_at_each", arguments, columns, read)


def balances(definition: Definition, dimensions: Dimensions, nonzero: bool) -> Call[list[dict[str, Any]]]:
    """The rows of the balance cache, in the order of the dimensions."""
    given = dimensions or {}
    conditions: list[sql.Composable] = [
        sql.SQL("{} IS NULL" if wanted is None else "{} = %s").format(sql.Identifier(name))
        for name, wanted in given.items()
    ]
    if nonzero:
        moved = (sql.SQL("{} <> 0").format(sql.Identifier(name)) for name in definition.resources)
        conditions.append(sql.SQL("({})").format(sql.SQL(" OR ").join(moved)))
    names = [*definition.dimensions, *definition.resources]
    text = sql.SQL("SELECT {} FROM {} WHERE {} ORDER BY {}").format(
        sql.SQL(", ").join(map(sql.Identifier, names)),
        sql.Identifier(definition.schema, definition.name + "_balance_cache"),
        sql.SQL(" AND ").join(conditions or [sql.SQL("true")]),
        sql.SQL(", ").join(map(sql.Identifier, definition.dimensions)),
    )
    parameters = [wanted for wanted in given.values() if wanted is not None]
    return Call(text, parameters, lambda rows: [dict(zip(names, row, strict=True)) for row in rows])


def _amounts(definition: Definition, found: Mapping[str, Any]) -> Amounts:
    return {name: reader(type)(found[name]) for name, type in definition.resources.items()}


def _movement(register: type[R], row: Mapping[str, Any]) -> Movement[R]:
    definition = register.__register__
    columns = {"recorder": definition.recorder_type, **definition.dimensions, **definition.resources}
    values = {name: reader(type)(row[name]) for name, type in columns.items()}
    correction = None
    if "audit_operation" in row:
        at = datetime.fromisoformat(row["audit_at"])
        correction = Correction(operation=row["audit_operation"], user=row["audit_user"], at=at)
    return Movement(
        id=UUID(row["id"]),
        posted=register(period=datetime.fromisoformat(row["period"]), **values),
        movement_type=row["movement_type"],
        recorded_at=datetime.fromisoformat(row["recorded_at"]),
        correction=correction,
    )
