"""Row hashes equal the reference implementation of xxHash64."""

from __future__ import annotations

from typing import Any

import pytest
import xxhash
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.catalog.conftest import Engine

SEED = 0x517CC1B727220A95
TEXT = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=80)


def expected(data: bytes) -> int:
    unsigned = int(xxhash.xxh64(data, seed=SEED).intdigest())
    return unsigned - 2**64 if unsigned >= 2**63 else unsigned


def test_every_length_up_to_200(engine: Engine) -> None:
    texts = ["".join(chr(33 + (7 * i + n) % 90) for i in range(n)) for n in range(201)]
    got = engine.connection.execute(
        "SELECT pgtrickle.pg_trickle_hash(t) FROM unnest(%s::text[]) WITH ORDINALITY AS u(t, i) ORDER BY i", [texts]
    ).fetchall()
    assert [value for (value,) in got] == [expected(text.encode()) for text in texts]


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(text=TEXT, values=st.lists(st.none() | TEXT, max_size=5))
def test_any_text_and_any_row(engine: Engine, text: str, values: list[str | None]) -> None:
    joined = b"\x1e".join(b"\0NULL\0" if value is None else value.encode() for value in values)
    assert engine.value("SELECT pgtrickle.pg_trickle_hash(%s)", text) == expected(text.encode())
    assert engine.value("SELECT pgtrickle.pg_trickle_hash_multi(%s::text[])", values) == expected(joined)


@pytest.mark.parametrize("function", ["pg_trickle_hash(NULL)", "pg_trickle_hash_multi(NULL)"])
def test_null_has_no_hash(engine: Engine, function: str) -> None:
    assert engine.value(f"SELECT pgtrickle.{function}") is None


def test_null_differs_from_its_name_and_from_empty(engine: Engine) -> None:
    rows: list[Any] = [[None], ["NULL"], [""], ["a", "b"], ["ab"], ["a", None]]
    hashes = {engine.value("SELECT pgtrickle.pg_trickle_hash_multi(%s::text[])", row) for row in rows}
    assert len(hashes) == len(rows)


def test_can_be_used_in_an_index(engine: Engine) -> None:
    engine.connection.execute("CREATE TABLE t (a text); CREATE INDEX ON t (pgtrickle.pg_trickle_hash(a))")
