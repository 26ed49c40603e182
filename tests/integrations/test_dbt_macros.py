"""What can be said of the packages without dbt: macros are well-formed, no parameter of a stream table is left out."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest
from jinja2 import Environment, nodes
from jinja2.ext import Extension
from jinja2.parser import Parser

from headwater_sqlalchemy.operations import ALTERED, CREATED_WITH
from tests.integrations.dbt_project import ADAPTER

MACROS = ADAPTER / "dbt" / "include" / "headwater" / "macros"
SIGNATURES = Path(__file__).parents[1] / "catalog" / "stream_table_signatures.txt"


class Blocks(Extension):
    """The blocks that dbt adds to Jinja."""

    tags = {"materialization", "test"}  # noqa: RUF012 - as Jinja declares it

    def parse(self, parser: Parser) -> list[nodes.Node]:
        tag = next(parser.stream)
        while parser.stream.current.type != "block_end":
            next(parser.stream)
        return parser.parse_statements((f"name:end{tag.value}",), drop_needle=True)


@pytest.mark.parametrize("path", sorted(MACROS.rglob("*.sql")), ids=lambda path: path.stem)
def test_macros_are_well_formed(path: Path) -> None:
    environment = Environment(extensions=[Blocks, "jinja2.ext.do"])
    defined = environment.parse(path.read_text())
    assert defined.body, "nothing is defined"


def parameters(function: str) -> set[str]:
    line = next(line for line in SIGNATURES.read_text().splitlines() if line.startswith(f"{function}("))
    return set(re.findall(r"[(,] ?(\w+) \w+", line.partition(") ->")[0])) - {"name"}


def fields(name: str) -> set[str]:
    """The fields of a class of the adapter's, which cannot be imported where there is no dbt."""
    tree = ast.parse((ADAPTER / "dbt" / "adapters" / "headwater" / "impl.py").read_text())
    (found,) = (node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == name)
    return {
        node.target.id for node in found.body if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)
    }


def test_each_parameter_of_a_stream_table_can_be_given() -> None:
    creation, alteration = parameters("create_stream_table"), parameters("alter_stream_table")
    assert {"schedule", "engine"} <= creation and {"schedule", "status"} <= alteration
    assert (creation | alteration) - {"query"} <= fields("HeadwaterConfig")
    assert set(CREATED_WITH) == creation - {"query"}
    assert set(ALTERED) == alteration
