"""Rules that are written once: nothing else in the program repeats them."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from catalog.pinned_settings import PINNED
from engine.session.pool import SESSION_SETTINGS
from server.intercept.message_stream import PINS
from tests.structure.figures import ROOT, modules


def _calls() -> Iterator[tuple[str, str, list[object]]]:
    """Of each call in the program: the module, the name of what is called, and the arguments that are constants."""
    for path in modules():
        for node in ast.walk(ast.parse((ROOT / path).read_text())):
            if isinstance(node, ast.Call):
                name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
                yield str(path), name, [a.value for a in node.args if isinstance(a, ast.Constant)]


def test_quoting_for_postgresql() -> None:
    """`sql/base/text.py` doubles the quotes of identifiers and of literals."""
    doubling = [path for path, name, given in _calls() if name == "replace" and given in (['"', '""'], ["'", "''"])]
    assert doubling == ["sql/base/text.py"] * 2


def test_backoff() -> None:
    """`engine/session/backoff.py` doubles pauses: no other place raises 2 to a power that it limits."""
    found = [
        str(path)
        for path in modules()
        for node in ast.walk(ast.parse((ROOT / path).read_text()))
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Pow) and isinstance(node.right, ast.Call)
        if isinstance(node.left, ast.Constant) and getattr(node.right.func, "id", "") == "min"
    ]
    assert found == ["engine/session/backoff.py"]


def test_pinned_settings() -> None:
    """`catalog/pinned_settings.py` has the settings that sessions pin. SQL elsewhere names none of their values."""
    values = ("pg_catalog, pg_temp", "ISO, YMD", "'hex'", "'ISO'")
    found = {
        str(path)
        for path in modules()
        for node in ast.walk(ast.parse((ROOT / path).read_text()))
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and any(v in node.value for v in values)
    }
    assert found == {"catalog/pinned_settings.py"}
    assert SESSION_SETTINGS.items() >= PINNED.items()
    assert {**PINS, "DateStyle": PINNED["DateStyle"]}.items() >= PINNED.items()
