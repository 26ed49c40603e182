"""`docs/compatibility.md` leaves nothing out of the stream tables' API, and the tests that it names are there."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

from catalog.settings import SETTINGS
from tests.catalog.signatures import arguments, declared_lines

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "compatibility.md").read_text(encoding="utf-8")
CODE = re.compile("`([^`\n]+)`")


def rows(title: str) -> list[list[str]]:
    """The rows of the tables below a heading, each as its cells."""
    section = PAGE.split(f"## {title}\n")[1].split("\n## ")[0]
    return [[cell.strip() for cell in line[1:-1].split(" | ")] for line in section.splitlines() if line[:2] == "| "]


@cache
def defined_in(path: str) -> set[str]:
    """Test functions of a file, those of classes as pytest names them."""
    if not (ROOT / path).is_file():
        return set()
    found = set()
    for node in ast.parse((ROOT / path).read_text(encoding="utf-8")).body:
        if isinstance(node, ast.ClassDef):
            found |= {f"{node.name}::{inner.name}" for inner in node.body if isinstance(inner, ast.FunctionDef)}
        elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            found.add(node.name)
    return found


def test_each_test_that_is_named_exists() -> None:
    named = [code for code in CODE.findall(PAGE) if code.startswith("tests/") and "::" in code]
    assert len(named) > 150
    split = [name.partition("::") for name in named]
    assert sorted({f"{path}::{test}" for path, _, test in split if test not in defined_in(path)}) == []


def test_each_row_names_a_test_or_says_that_it_is_to_come() -> None:
    titles = re.findall(r"^## (.*)$", PAGE, re.MULTILINE)
    without = [row[0] for title in titles for row in rows(title) if not re.match(r"`tests/|test", row[-1])]
    assert without == []


def test_each_function_is_named() -> None:
    first_cells = " ".join(row[0] for row in rows("Functions"))
    declared = {line.partition("(")[0] for line in declared_lines("stream_table_signatures.txt")}
    assert declared - set(re.findall(r"`(\w+)\(", first_cells)) == set()


def test_each_parameter_of_a_stream_table_is_named() -> None:
    described = {code for row in rows("Functions") for code in CODE.findall(row[0])}
    for line in declared_lines("stream_table_signatures.txt"):
        name, _, rest = line.partition("(")
        if name in ("create_stream_table", "alter_stream_table"):
            assert {argument.name for argument in arguments(rest.partition(")")[0])} - described == set()


def test_each_relation_and_column_is_named() -> None:
    columns: dict[str, set[str]] = {}
    for relation, named, *_ in rows("Tables and views"):
        codes = set(CODE.findall(named))
        for other in columns.keys() & codes:
            codes |= columns[other]
        columns[relation.strip("`")] = codes
    for line in declared_lines("stream_table_columns.txt"):
        relation, _, declared = line.removesuffix(")").partition("(")
        assert {column.name for column in arguments(declared)} - columns[relation] == set(), relation


def test_each_setting_is_named_with_its_default() -> None:
    named = {row[0].strip("`"): row[1].strip("`") for row in rows("Settings")}
    assert {setting.full_name: setting.default for setting in SETTINGS}.items() <= named.items()
