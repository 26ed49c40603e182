"""The function that tells PostgreSQL of the settings of `catalog.settings`."""

from __future__ import annotations

from psycopg.sql import Literal

from catalog.pinned_settings import PINNED_PATH
from catalog.settings import SETTINGS, Setting


def settings_function() -> str:
    """The function `pgtrickle._known_settings`, which tells PostgreSQL of them."""
    rows = ",\n        ".join(_row(setting) for setting in SETTINGS)
    return f"""-- The settings: this text is made from catalog/settings.py.
CREATE OR REPLACE FUNCTION pgtrickle._known_settings()
RETURNS TABLE (name text, vartype text, boot_val text, min_val float8, max_val float8, enumvals text[], unit text,
               short_desc text, fixed text, pattern text)
LANGUAGE sql IMMUTABLE SET search_path = {PINNED_PATH} AS $$
    VALUES
        {rows}
$$;
"""


def _row(setting: Setting) -> str:
    values = ", ".join(_literal(value) for value in setting.values)
    pattern = f"^({setting.pattern})$" if setting.pattern else ""
    texts = (_literal(text) for text in (setting.description, setting.fixed, pattern))
    limits = (
        f"{limit:.17g}::float8" if limit is not None else "NULL::float8" for limit in (setting.least, setting.most)
    )
    columns = [
        _literal(setting.full_name),
        _literal(setting.kind),
        _literal(setting.default),
        *limits,
        f"ARRAY[{values}]::text[]" if values else "NULL::text[]",
        _literal(setting.unit),
        *texts,
    ]
    return f"({', '.join(columns)})"


def _literal(text: str) -> str:
    return Literal(text).as_string()
