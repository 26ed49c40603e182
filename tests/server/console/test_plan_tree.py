"""The plan on a stream table's page says of each operator how changes go through it."""

from __future__ import annotations

import re

from server.console.plan_tree import Relation, rule, tree
from tests.structure.figures import ROOT

NAMES = re.compile(r'return f?"([A-Z][A-Za-z -]*)|else "([A-Z][A-Za-z -]*)"|"([A-Z][a-z ]+)" (?:\+|if)')


def test_every_operator_has_a_rule() -> None:
    names = {"Intersect", "Intersect all", "Except", "Except all"}  # made from the statement's word
    for path in (ROOT / "sql" / "operators").rglob("*.py"):
        for body in re.findall(r"def describe\(self\) -> str:\n((?:        .*\n)+)", path.read_text()):
            names |= {name.strip() for found in NAMES.findall(body) for name in found if name}
    assert len(names) > 25
    assert [name for name in sorted(names) if rule(name) is None] == []


def test_an_operator_costs_what_the_tables_below_it_do() -> None:
    text = "Project\n  Join\n    Scan(public.a)\n    Filter\n      Scan(public.b)\n"
    found = tree(text, {"public.a": Relation(10, 1), "public.b": Relation(200, 0)})
    assert [(each["operator"], each["depth"], each["rows"], each["pending"]) for each in found] == [
        ("Project", 0, 210, 1),
        ("Join", 1, 210, 1),
        ("Scan(public.a)", 2, 10, 1),
        ("Filter", 2, 200, 0),
        ("Scan(public.b)", 3, 200, 0),
    ]


def test_what_is_not_known_is_not_added_up() -> None:
    (join, *_) = tree("Join\n  Scan(public.a)\n  Scan(public.b)", {"public.a": Relation(10, 1)})
    assert (join["rows"], join["pending"]) == (None, None)
