"""The pages of the reference that are made of the program itself: a hook of MkDocs.

What a function does is said once, above it in its script; what a setting does, in `catalog.settings`.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

from catalog.descriptions import Routine, commented, routines
from catalog.install import bundled_scripts
from catalog.settings import SETTINGS, Setting
from catalog.systems import SYSTEMS, System


def errors_page() -> str:
    """The page of all errors. A hook of MkDocs is in no package: what stands beside it is loaded by its path."""
    specification = importlib.util.spec_from_file_location("errors", Path(__file__).with_name("errors.py"))
    assert specification is not None and specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    return str(module.page())


INTRODUCTIONS = {
    "pgtrickle": "Stream tables. What differs from pg_trickle, and which test shows each function: "
    "[compatibility](../compatibility.md).",
    "pgque": "Queues; [queues](../queues.md) shows them at work.",
    "accum": "Registers; [registers](../registers.md) shows them at work, and the functions that each register has.",
}


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages."""
    for name, text in (("functions", functions()), ("settings", settings()), ("errors", errors_page())):
        files.append(File.generated(config, f"reference/{name}.md", content=text))
    return files


def functions() -> str:
    """The page of all functions for users."""
    parts = ["# Functions\n\nIn psql, `\\df+ pgtrickle.*` shows the same.\n"]
    for system in SYSTEMS:
        parts.append(f"\n## {system.schema}\n\n{INTRODUCTIONS[system.schema]}\n")
        parts += (_function(one) for one in _for_users(system))
    return "".join(parts)


def settings() -> str:
    """The page of all settings inside PostgreSQL."""
    rows = [
        f"| `{one.full_name}` | {_default(one.default, one.unit)} | {_values(one)} | {_cell(one.description)} |\n"
        for one in sorted(SETTINGS, key=lambda one: one.name)
    ]
    return (
        "# Settings\n\nSet by `SET`, `ALTER ROLE`, `ALTER DATABASE` or `ALTER SYSTEM`; "
        "[configuration](../configuration.md) says when each counts.\n\n"
        "| setting | default | values | |\n|---|---|---|---|\n" + "".join(rows)
    )


def _for_users(system: System) -> Iterator[Routine]:
    scripts = [script.placed(system.schema) for script in bundled_scripts(system).functions]
    found = [*routines(scripts), *commented(scripts)]
    return (one for one in sorted(found, key=lambda one: one.name) if one.result != "trigger")


def _function(one: Routine) -> str:
    parameters = ",\n    ".join(one.parameters)
    written = (
        f"{one.name}(\n    {parameters}\n)" if len(parameters) > 60 else f"{one.name}({', '.join(one.parameters)})"
    )
    result = f" → {one.result}" if one.result else ""
    return f"\n### {one.name.partition('.')[2]}\n\n```\n{written}{result}\n```\n\n{one.description}\n"


def _default(value: str, unit: str) -> str:
    return f"`{value}`{f' {unit}' if unit else ''}" if value else "empty"


def _values(one: Setting) -> str:
    if one.values:
        return ", ".join(f"`{value}`" for value in one.values)
    if one.least is not None and one.most is not None:
        return f"{one.least:.10g} to {one.most:.10g}"
    return one.kind


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")
