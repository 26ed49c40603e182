"""The program's enumerations have the values that the catalog's columns may have."""

from __future__ import annotations

import re
from enum import StrEnum

import pytest

from catalog.session import SqlError
from catalog.values import (
    Action,
    Engine,
    Executor,
    Initiator,
    RefreshMode,
    RefreshStatus,
    RequestKind,
    Status,
    argument,
)
from tests.catalog.conftest import Connect

_CHECK = """
SELECT pg_get_constraintdef(c.oid) FROM pg_constraint c
JOIN pg_attribute a ON a.attrelid = c.conrelid AND c.conkey = ARRAY[a.attnum]
WHERE c.contype = 'c' AND c.conrelid = ('pgtrickle.' || %s)::regclass AND a.attname = %s
"""


def test_enumerations_are_what_the_columns_may_have(connect: Connect) -> None:
    connection = connect()
    columns: dict[tuple[str, str], tuple[type[StrEnum], set[str]]] = {
        ("pgt_definitions", "requested_mode"): (RefreshMode, set()),
        ("pgt_definitions", "refresh_mode"): (RefreshMode, {"AUTO"}),
        ("pgt_definitions", "status"): (Status, set()),
        ("pgt_definitions", "engine"): (Engine, set()),
        ("pgt_refresh_history", "action"): (Action, set()),
        ("pgt_refresh_history", "status"): (RefreshStatus, set()),
        ("pgt_refresh_history", "executor"): (Executor, set()),
        ("pgt_refresh_history", "initiated_by"): (Initiator, set()),
        ("pgt_requests", "kind"): (RequestKind, set()),
    }
    for column, (enumeration, never) in columns.items():
        ((check,),) = connection.execute(_CHECK, column).fetchall()
        assert set(re.findall(r"'(\w+)'", check)) == set(enumeration) - never, column


@pytest.mark.parametrize("text", ["differential", "DIFFERENTIAL", "Differential"])
def test_argument_is_read_in_capitals_or_not(text: str) -> None:
    assert argument(RefreshMode, "refresh mode", text) is RefreshMode.DIFFERENTIAL


def test_argument_without_such_a_value_is_refused() -> None:
    with pytest.raises(SqlError, match='invalid engine "sparks"') as caught:
        argument(Engine, "engine", "sparks")
    assert (caught.value.sqlstate, caught.value.hint) == ("22023", "Valid values are auto, spark, postgres.")
