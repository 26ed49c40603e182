"""Keys: equal values have one hash, others have others under most salts, for every type that rows are told apart by."""

from __future__ import annotations

from itertools import combinations

import pytest

from sql.base.columns import Column
from sql.base.identity import key_hash, keyable
from tests.sql.conftest import Workspace
from tests.sql.harness import one

KEYS = {
    "jsonb": [
        *[["1", "1.0", "1.00"], ["[1]", "[1.0]"], ["[[1]]"], ["[[[1]]]"], ["[]"], ["[[]]"], ["{}"], ["[{}]"]],
        *[
            ["null"],
            ["[null]"],
            ["0", "0.0", "-0"],
            ["[0]"],
            ['"1.0"'],
            ['"1.00"'],
            ['["1.0"]'],
            ["10", "1e1"],
            ["100"],
        ],
        *[['{"a": 1}', '{"a":1.0}'], ['{"a": [1]}'], ['{"a": {"a": 1}}'], ['{"a.0": 1}'], ['{"a.00": 1}']],
        *[["1.05"], ["1.5", "1.500"], ["1.0005"], ["-1.5"], ['"\\\\"'], ['"\\".0"'], ['"\\".00"'], ["true"], ["false"]],
        # Its own hash cannot tell elements apart that change places with the 64th after them.
        [f"[1, {'0, ' * 63} 2]"],
        [f"[2, {'0, ' * 63} 1]"],
    ],
    "numeric": [
        ["0", "0.0", "-0"],
        ["NaN"],
        ["Infinity"],
        ["-Infinity"],
        ["1", "1.00"],
        ["10", "1e1"],
        ["0.10", "0.1"],
    ],
    "double precision": [["0", "-0"], ["NaN"], ["Infinity"], ["1"], ["1e-300"]],
    "public.citext": [["a", "A"], ["b"], [""], ["a "]],
    "text": [[""], [" "], ["a"], ["A"]],
    "bigint": [["0"], ["4294967295"], ["-4294967296"], ["4294967296"], ["-1"]],
    "timestamp with time zone": [["epoch"], ["infinity"], ["-infinity"], ["2000-01-01"]],
    "boolean": [["true"], ["false"]],
    "inet": [["10.0.0.1"], ["10.0.0.1/8"], ["::1"]],
}
"""For each type, values: those in one list are equal."""
LOOKS_ALIKE = {"text", "bigint", "timestamp with time zone", "boolean"}
SALTS = 8


@pytest.mark.parametrize("type_", KEYS)
def test_only_equal_keys_have_one_hash(shared_workspace: Workspace, type_: str) -> None:
    column = Column("v", type_, equality_is_identity=type_ in LOOKS_ALIKE)
    assert keyable(column)
    hashed = key_hash([column], "t", "$2::bigint")
    statement = f"SELECT {hashed} FROM (SELECT $1::text::{type_} AS v) AS t"

    def hashes(value: str | None) -> tuple[int, ...]:
        return tuple(one(shared_workspace.connection, statement, value, salt) for salt in range(SALTS))

    found = [{hashes(value) for value in equal} for equal in KEYS[type_]]
    assert [len(equal) for equal in found] == [1] * len(found)
    for (i, one_), (j, other) in combinations(enumerate([*found, {hashes(None)}]), 2):
        same = sum(a == b for a, b in zip(*one_, *other, strict=True))
        assert same <= 1, (KEYS[type_][i], (*KEYS[type_], None)[j])
