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


_MUTATORS = frozenset(
    ("append", "appendleft", "pop", "popleft", "clear", "update", "add", "discard", "remove", "setdefault", "extend")
)


def _of_the_protocol(node: ast.expr) -> bool:
    """Whether an expression leads into the state of the wire protocol: `….traffic.x`, `traffic.x[…]`."""
    while isinstance(node, ast.Attribute | ast.Subscript):
        node = node.value
        if (getattr(node, "attr", None) or getattr(node, "id", None)) in ("traffic", "_traffic", "registry"):
            return True
    return False


def _changed(node: ast.AST) -> list[ast.expr]:
    """What a statement or a call changes."""
    if isinstance(node, ast.Assign | ast.Delete):
        targets = [each for target in node.targets for each in ast.walk(target)]
        return [each for each in targets if isinstance(each, ast.Attribute | ast.Subscript)]
    if isinstance(node, ast.AugAssign | ast.AnnAssign):
        return [node.target]
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in _MUTATORS:
        return [node.func.value]
    return []


def test_state_of_the_wire_protocol() -> None:
    """`server/protocol/` alone changes what it knows of a session; the others tell it what has happened."""
    found = [
        f"{path}:{target.lineno}"
        for path in modules()
        if path.parts[0] == "server" and path.parts[1] != "protocol"
        for node in ast.walk(ast.parse((ROOT / path).read_text()))
        for target in _changed(node)
        if _of_the_protocol(target)
    ]
    assert found == []


def test_every_way_to_change_the_state_of_the_wire_protocol_is_seen() -> None:
    ways = (
        "traffic.changed = True",
        "self.traffic.changed |= True",
        "self.a, session.traffic.batch = None, None",
        "traffic.portals[name] = x",
        "del self._traffic.statements[name]",
        "traffic.outstanding.append(batch)",
        "x: bool = traffic.portals.pop(name, None)",
    )
    for way in ways:
        assert any(_of_the_protocol(target) for node in ast.walk(ast.parse(way)) for target in _changed(node)), way
    for way in ("self.traffic = traffic", "changed = traffic.changed", "traffic.parameters.get(name)"):
        assert not any(_of_the_protocol(target) for node in ast.walk(ast.parse(way)) for target in _changed(node)), way
