"""The errors that the program raises, as they stand in its text: SQLSTATE and message, with `…` for what differs."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path

import psycopg

ROOT = Path(__file__).parents[2]
ERRORS = {"SqlError", "Refused", "SyntaxFault"}
"""What is raised with a SQLSTATE and a message, in this order."""
OWN = {
    "HW001": "a request, which the server carries out: no client sees it",
    "HW002": "the same, of an answer",
    "HW003": "changes that cannot be applied, so that all rows are computed: no client sees it",
    "HW005": "the same, of a definition",
}
_IN_SQL = re.compile(
    r"ERRCODE = '(\w{5})',\s+MESSAGE = (?:(?:pg_catalog\.)?format\()?'((?:[^']|'')*+)'"
    r"|RAISE EXCEPTION '((?:[^']|'')*+)'[^;]*?ERRCODE = '(\w{5})'"
    r"|_raise\('(\w{5})',\s+(?:format\()?'((?:[^']|'')*+)'"
)
_PLACES = re.compile(r"%(?:\d+\$)?[IsL]|%")


def errors() -> Mapping[str, set[str]]:
    """The messages of each SQLSTATE."""
    found: dict[str, set[str]] = defaultdict(set)
    for folder in ("server", "engine", "catalog", "sql"):
        for path in (ROOT / folder).rglob("*.py"):
            for sqlstate, message in _in_python(ast.parse(path.read_text())):
                found[sqlstate].add(message)
        for path in (ROOT / folder).rglob("*.sql"):
            for groups in _IN_SQL.findall(path.read_text()):
                sqlstate, message = groups[0] or groups[3] or groups[4], groups[1] or groups[2] or groups[5]
                found[sqlstate].add(_PLACES.sub("…", message.replace("''", "'")))
    return {sqlstate: found[sqlstate] for sqlstate in sorted(found) if sqlstate not in OWN}


def _in_python(tree: ast.Module) -> Iterator[tuple[str, str]]:
    for node in ast.walk(tree):
        if not (isinstance(node, ast.Call) and len(node.args) > 1 and getattr(node.func, "id", "") in ERRORS):
            continue
        sqlstate, message = node.args[:2]
        if isinstance(sqlstate, ast.Constant) and (text := _template(message)):
            yield str(sqlstate.value), text


def _template(node: ast.expr) -> str:
    """The text of a string, of an f-string with `…` for what is put in; empty for anything else."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.JoinedStr):
        return "".join(str(part.value) if isinstance(part, ast.Constant) else "…" for part in node.values)
    return ""


def page() -> str:
    """The page of all errors."""
    parts = [
        "# Errors\n\nWhat is raised here and not by PostgreSQL itself, by SQLSTATE; `…` stands for what differs. "
        "Most have a detail or a hint. "
        "What to do about what one sees: [operation](../operation.md#when-something-is-wrong).\n"
    ]
    for sqlstate, messages in errors().items():
        parts.append(f"\n## {sqlstate} {_condition(sqlstate)}\n\n")
        parts += (f"- {_shown(message)}\n" for message in sorted(messages))
    return "".join(parts)


def _condition(sqlstate: str) -> str:
    """PostgreSQL's name of a condition, as in its Appendix A."""
    try:
        name = psycopg.errors.lookup(sqlstate).__name__.rstrip("_")
    except KeyError:
        return ""
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower()


def _shown(message: str) -> str:
    return re.sub(r"([\\`*_{}\[\]<>|])", r"\\\1", message.replace("\n", " "))
