"""What sessions of the server set for themselves, whatever the role, the database or a client has set.

The two implementations of `SqlSession` have all of `PINNED` in force, so that a statement means the same in both, and
values come as the same texts.
"""

from __future__ import annotations

from collections.abc import Mapping

PINNED_PATH = "pg_catalog, pg_temp"
"""The search_path of the engine's own statements. Without mention pg_temp would come first, for relations and types."""

VALUES_AS_TEXT = {
    "DateStyle": "ISO, YMD",
    "IntervalStyle": "postgres",
    "extra_float_digits": "1",
    "bytea_output": "hex",
}
"""How values are written, and read."""

PINNED = {
    "search_path": PINNED_PATH,
    **VALUES_AS_TEXT,
    "quote_all_identifiers": "off",
    "standard_conforming_strings": "on",
    "idle_in_transaction_session_timeout": "0",
}
"""By the names that `pg_settings` has. The last one: PostgreSQL waits idle while Spark works."""


def set_local(settings: Mapping[str, str]) -> str:
    """One statement that sets them until the transaction ends. Values have no quotes or backslashes.

    >>> set_local({"search_path": PINNED_PATH})
    "SELECT pg_catalog.set_config('search_path', 'pg_catalog, pg_temp', true)"
    """
    return _set(settings, "true")


def set_in_session(settings: Mapping[str, str]) -> str:
    """As `set_local`, until the session ends.

    >>> set_in_session({"search_path": PINNED_PATH})
    "SELECT pg_catalog.set_config('search_path', 'pg_catalog, pg_temp', false)"
    """
    return _set(settings, "false")


def _set(settings: Mapping[str, str], local: str) -> str:
    return "SELECT " + ", ".join(
        f"pg_catalog.set_config('{name}', '{value}', {local})" for name, value in settings.items()
    )
