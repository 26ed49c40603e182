"""SET, RESET, SHOW and ALTER … SET of settings ``pg_trickle.*``, which PostgreSQL does not know.

A value that a setting cannot have is refused as PostgreSQL refuses those of its own: in the statement's place goes a
SELECT that raises the error. SHOW becomes a SELECT, since PostgreSQL shows only what somebody has set. Everything else
is PostgreSQL's own. A name that is no setting is warned about.
"""

from __future__ import annotations

from dataclasses import dataclass

from catalog.settings import PREFIX, Fault, Setting, nearest, setting_named
from server.protocol.lexer import leading, single
from sql.base.text import plain_string

_BEGINS = frozenset(("SET", "RESET", "SHOW", "ALTER"))
SHOWN = b"SHOW"
"""The completion of a SHOW."""


@dataclass(frozen=True, slots=True)
class SettingStatement:
    """What a statement says of one setting. `value` is None where it gives none that can be read here."""

    verb: str
    name: str
    value: str | None = None

    @property
    def setting(self) -> Setting | None:
        return setting_named(self.name)


def parse(words: tuple[str, ...]) -> SettingStatement | None:
    """The statement of these words (`Statement.words`), None if it is not about a setting of ours.

    >>> parse(("SET", "LOCAL", "PG_TRICKLE", ".", "SPARK_TIMEOUT", "=", "-", "5"))
    SettingStatement(verb='SET', name='pg_trickle.spark_timeout', value='-5')
    >>> parse(("ALTER", "ROLE", "SET", "SET", "PG_TRICKLE", ".", "ENABLED", "TO", "'off'")).value
    'off'
    >>> parse(("SET", "PG_TRICKLE", ".", "SPARK_TIMEOUT", "TO", "1", ",", "2")).value
    '1 , 2'
    >>> parse(("SET", "PG_TRICKLE", ".", "SPARK_TIMEOUT", "TO", "E'30'")).value
    >>> parse(("SHOW", "PG_TRICKLE", ".", "ENABLED")).name, parse(("SET", "WORK_MEM", "=", "1"))
    ('pg_trickle.enabled', None)
    """
    at = next(
        (i for i, word in enumerate(words) if word.lower() == PREFIX[:-1] and words[i + 1 : i + 2] == (".",)), None
    )
    if at is None or len(words) < at + 3:
        return None
    before, name, after = words[:at], PREFIX + words[at + 2].lower(), words[at + 3 :]
    if before in (("SHOW",), ("RESET",)):
        return SettingStatement(before[0], name) if not after else None
    if before[:1] == ("ALTER",) and before[-1:] == ("RESET",):
        return SettingStatement("RESET", name)
    sets = before in (("SET",), ("SET", "LOCAL"), ("SET", "SESSION")) or (before[0], before[-1]) == ("ALTER", "SET")
    if not sets or after[:1] not in (("=",), ("TO",)):
        return None
    return SettingStatement("SET", name, _value(after[1:]))


def _value(words: tuple[str, ...]) -> str | None:
    """The value that these words give, None for DEFAULT, FROM CURRENT and what is not read here."""
    if words[:1] in (("-",), ("+",)) and len(words) == 2:
        return "".join(words)
    if "," in words:  # a list of values is one text
        return " ".join(words)
    if len(words) != 1 or words == ("DEFAULT",):
        return None
    (word,) = words
    if word.startswith("'"):
        return word[1:-1].replace("''", "'") if word.endswith("'") and len(word) > 1 else None
    # E'…', U&'…' and $$…$$ are for PostgreSQL to read; what they come to is checked where it is used.
    return None if "'" in word or word.startswith("$") else word.lower()


def _read(text: bytes, backslashes: bool, encoding: str) -> SettingStatement | None:
    if _BEGINS.isdisjoint(leading(text, 1, backslashes=backslashes, encoding=encoding)):
        return None
    statement = single(text, _BEGINS, backslashes=backslashes, encoding=encoding)
    return parse(statement.words) if statement is not None else None


def as_request(text: bytes, *, backslashes: bool = False, encoding: str = "UTF8") -> bytes | None:
    """What PostgreSQL gets in the place of a statement, None if it gets the statement.

    >>> as_request(b"show pg_trickle.enabled")
    b'SELECT pgtrickle.show_setting(\\'pg_trickle.enabled\\') AS "pg_trickle.enabled"'
    >>> as_request(b"set pg_trickle.enabled = off")
    >>> as_request(b"set pg_trickle.max_concurrent_refreshes to 99")[:60]
    b"SELECT pgtrickle._raise('22023', '99 is outside the valid ra"
    """
    found = _read(text, backslashes, encoding)
    setting = found.setting if found is not None else None
    if found is None or setting is None:
        return None
    if found.verb == "SHOW":
        return f"SELECT pgtrickle.show_setting('{setting.full_name}') AS \"{setting.full_name}\"".encode()
    fault = setting.fault(found.value) if found.value is not None else None
    return _raising(fault) if fault is not None else None


def is_shown(text: bytes, *, backslashes: bool = False, encoding: str = "UTF8") -> bool:
    """Whether a SELECT stands in the place of a statement: its completion is `SHOWN`."""
    if leading(text, 1, backslashes=backslashes, encoding=encoding) != ("SHOW",):
        return False
    found = _read(text, backslashes, encoding)
    return found is not None and found.setting is not None


def unknown(text: bytes, *, backslashes: bool = False, encoding: str = "UTF8") -> Fault | None:
    """The warning that a name is no setting, None if it is one.

    >>> unknown(b"set pg_trickle.enable = off").hint
    'Perhaps you meant "pg_trickle.enabled".'
    """
    found = _read(text, backslashes, encoding)
    if found is None or found.setting is not None:
        return None
    meant = nearest(found.name)
    hint = f'Perhaps you meant "{meant}".' if meant else "SELECT name, short_desc FROM pgtrickle.settings"
    return Fault("01000", f'there is no setting "{found.name}"', hint)


def _raising(fault: Fault) -> bytes:
    """A statement that raises an error."""
    texts = (text.replace("\\", "") for text in (fault.sqlstate, fault.message, "", fault.hint))
    return f"SELECT pgtrickle._raise({', '.join(map(plain_string, texts))})".encode("latin-1")
