"""The table of settings, and that nobody else says what a setting's default is."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from catalog.settings import SETTINGS, setting_named

ROOT = Path(__file__).parents[2]
SEEN = re.compile(r"(?:pgtrickle\._(setting|seconds)\(|\('\w+', )'pg_trickle\.(\w+)', '?([\w.]+)'?\)")


def _readers() -> list[tuple[str, str, str]]:
    files = [*ROOT.glob("catalog/pgtrickle/**/*.sql"), *ROOT.glob("engine/**/*.py"), *ROOT.glob("catalog/*.py")]
    return [found for file in files for found in SEEN.findall(file.read_text(encoding="utf-8"))]


def test_whoever_reads_a_setting_has_its_default() -> None:
    wrong = [
        (name, fallback)
        for _, name, fallback in _readers()
        if (setting := setting_named(name)) is None or setting.default != fallback
    ]
    assert wrong == []


def test_a_setting_that_can_be_set_is_read_by_somebody() -> None:
    assert {each.name for each in SETTINGS if not each.fixed} == {name for _, name, _ in _readers()}


def test_every_setting_is_documented_with_its_default() -> None:
    text = (ROOT / "docs" / "configuration.md").read_text(encoding="utf-8")
    documented = dict(re.findall(r"^\| `pg_trickle\.(\w+)` \| `([^`]+)` \|", text, re.MULTILINE))
    assert documented == {each.name: each.default for each in SETTINGS}


@pytest.mark.parametrize(
    ("name", "value", "fault"),
    [
        ("enabled", "YES", None),
        ("enabled", "on\n", 'parameter "pg_trickle.enabled" requires a Boolean value'),
        ("enabled", "of", 'parameter "pg_trickle.enabled" requires a Boolean value'),
        ("refresh_timeout", "1.5e3", None),
        ("refresh_timeout", "nan", 'invalid value for parameter "pg_trickle.refresh_timeout": "nan"'),
        ("max_concurrent_refreshes", "1.5", 'invalid value for parameter "pg_trickle.max_concurrent_refreshes": "1.5"'),
        ("refresh_engine", "Spark", None),
        ("merge_strategy", "merge", 'parameter "pg_trickle.merge_strategy" cannot be set to "merge"'),
        ("merge_strategy", "other", 'invalid value for parameter "pg_trickle.merge_strategy": "other"'),
        ("allow_circular", "0", None),
    ],
)
def test_values(name: str, value: str, fault: str | None) -> None:
    setting = setting_named(name)
    assert setting is not None
    found = setting.fault(value)
    assert (found.message if found is not None else None) == fault
