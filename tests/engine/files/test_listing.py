"""Which files a URI names, and what the options of a lake table say."""

from __future__ import annotations

from pathlib import Path

import pytest

from catalog.session import SqlError
from engine.files.listing import list_files
from engine.foreign_tables.lake_options import lake_table


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    for name in ("a/1.csv", "a/22.csv", "a/_hidden.csv", "b/1.csv", "b/c/1 2.csv", "b/.x/1.csv"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("x")
    return tmp_path


@pytest.mark.parametrize(
    ("pattern", "names"),
    [
        ("a/1.csv", ["a/1.csv"]),
        ("a/?.csv", ["a/1.csv"]),
        ("a/[0-9]*.csv", ["a/1.csv", "a/22.csv"]),
        ("*/1.csv", ["a/1.csv", "b/1.csv"]),
        ("b", ["b/1.csv", "b/c/1%202.csv"]),
        ("b/c/1%202.csv", ["b/c/1%202.csv"]),
    ],
)
def test_wildcards_match_within_one_part_of_the_path(tree: Path, pattern: str, names: list[str]) -> None:
    assert [file.uri for file in list_files(f"file://{tree}/{pattern}")] == [f"file://{tree}/{name}" for name in names]


@pytest.mark.parametrize("pattern", ["a/3.csv", "c", "?/9.csv"])
def test_no_file_is_an_error(tree: Path, pattern: str) -> None:
    with pytest.raises(SqlError) as raised:
        list_files(f"file://{tree}/{pattern}")
    assert raised.value.sqlstate == "58P01"


@pytest.mark.parametrize(
    ("server", "table"),
    [
        ({}, {"path": "x", "format": "csv"}),
        ({"location": "http://host/x"}, {"path": "x", "format": "csv"}),
        ({"location": "/tmp"}, {"path": "x", "format": "csv"}),
        ({"location": "file:///a/../b"}, {"path": "x", "format": "csv"}),
        ({"location": "file:///a", "key": "secret"}, {"path": "x", "format": "csv"}),
        ({"location": "s3://bucket"}, {"path": "x/../../y", "format": "csv"}),
        ({"location": "s3://bucket"}, {"path": "s3://other/x", "format": "csv"}),
        ({"location": "s3://bucket"}, {"path": "x", "format": "parquet", "header": "true"}),
        ({"location": "s3://bucket"}, {"path": "x", "format": "csv", "delimiter": "||"}),
        ({"location": "s3://bucket"}, {"path": "x", "format": "csv", "header": "maybe"}),
    ],
)
def test_options_that_are_wrong_say_what_is_allowed(server: dict[str, str], table: dict[str, str]) -> None:
    with pytest.raises(SqlError) as raised:
        lake_table(server, table)
    assert raised.value.sqlstate == "22023" and raised.value.hint


def test_a_path_that_is_encoded_twice_stays_below_the_location() -> None:
    table = lake_table({"location": "file:///data"}, {"path": "%2e%2e/x", "format": "csv"})
    assert table.uri == "file:///data/%252e%252e/x"
