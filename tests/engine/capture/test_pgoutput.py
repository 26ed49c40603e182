"""Messages of pgoutput, byte by byte, and where their rows go."""

from __future__ import annotations

from struct import pack

import pytest

from engine.capture.wal.delivery import Target, Unfit
from engine.capture.wal.pgoutput import UNCHANGED, Change, Commit, Relation, Truncate, parse


def row(*values: bytes | str | None) -> bytes:
    """A tuple as pgoutput sends it; "u" stands for a large value that was not changed."""
    fields = [
        b"n" if value is None else b"u" if isinstance(value, str) else b"t" + pack(">I", len(value)) + value
        for value in values
    ]
    return pack(">H", len(fields)) + b"".join(fields)


def test_inserted_row_has_texts_and_nulls() -> None:
    message = parse(b"I" + pack(">I", 16385) + b"N" + row(b"1", None, b""))
    assert message == Change(16385, None, [b"1", None, b""])


def test_update_with_all_of_the_old_row() -> None:
    message = parse(b"U" + pack(">I", 16385) + b"O" + row(b"1", b"large") + b"N" + row(b"2", "u"))
    assert message == Change(16385, [b"1", b"large"], [b"2", UNCHANGED])


@pytest.mark.parametrize("old", [b"", b"K" + row(b"1", None)])
def test_update_without_all_of_the_old_row_is_incomplete(old: bytes) -> None:
    message = parse(b"U" + pack(">I", 16385) + old + b"N" + row(b"2", b"v"))
    assert isinstance(message, Change)
    assert message.incomplete


def test_deleted_row_of_which_the_key_is_left_is_incomplete() -> None:
    assert parse(b"D" + pack(">I", 7) + b"K" + row(b"1")) == Change(7, [b"1"], None, incomplete=True)
    assert parse(b"D" + pack(">I", 7) + b"O" + row(b"1")) == Change(7, [b"1"], None)


def test_relation_names_columns_types_and_identity() -> None:
    columns = b"\x01id\0" + pack(">Ii", 23, -1) + b"\x00v\0" + pack(">Ii", 1043, 9)
    message = parse(b"R" + pack(">I", 16385) + b"public\0orders\0f" + pack(">H", 2) + columns)
    assert message == Relation(16385, True, (("id", 23, -1), ("v", 1043, 9)))


def test_ends_and_truncations() -> None:
    assert parse(b"C\0" + pack(">QQq", 10, 20, 0)) == Commit(20)
    assert parse(b"T" + pack(">IB", 2, 1) + pack(">II", 5, 6)) == Truncate((5, 6))
    assert parse(b"Y" + b"anything") is None
    with pytest.raises(ValueError, match="message of kind"):
        parse(b"?")


def test_columns_are_found_by_name_and_must_have_their_type() -> None:
    target = Target(7, (("v", frozenset({1043}), 9), ("id", frozenset({23, 16400}), None)))
    assert target.places(Relation(7, True, (("id", 16400, -1), ("x", 25, -1), ("v", 1043, 9)))) == [2, 0]
    for columns in (
        (("id", 23, -1),),  # v was dropped
        (("id", 20, -1), ("v", 1043, 9)),  # id was retyped
        (("id", 23, -1), ("v", 1043, 14)),  # v was made longer
    ):
        with pytest.raises(Unfit, match="has changed"):
            target.places(Relation(7, True, columns))
