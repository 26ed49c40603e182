"""Transaction control in a transaction that PostgreSQL's client does not know of, because it is the relay's.

There PostgreSQL must say what it says in its own implicit transaction of a batch. It says so by itself when it is asked
once more outside of any transaction: what is refused there (here is how it is asked), and the warning that there was
nothing to end.
"""

from __future__ import annotations

from server.protocol.lexer import Kind, kind_of

WORDS = 5
"""As many as COMMIT WORK AND NO CHAIN has."""

_SAVEPOINTS = {
    "SAVEPOINT": b"SAVEPOINT hw",
    "RELEASE": b"RELEASE SAVEPOINT hw",
    "ROLLBACK": b"ROLLBACK TO SAVEPOINT hw",
}


def refused_outside(words: tuple[str, ...]) -> bytes | None:
    """A command that PostgreSQL refuses outside a transaction block in the words in which it refuses this statement.

    None if it does not refuse the statement.

    >>> refused_outside(("ROLLBACK", "TO", "s")), refused_outside(("END", "AND", "CHAIN"))
    (b'ROLLBACK TO SAVEPOINT hw', b'COMMIT AND CHAIN')
    >>> refused_outside(("COMMIT", "AND", "NO", "CHAIN"))
    """
    kind = kind_of(words)
    if kind is Kind.SAVEPOINT:
        return _SAVEPOINTS[words[0]]
    if kind is Kind.END and ("CHAIN" in words[2:4] and "NO" not in words):
        return _ending(words[0]) + b" AND CHAIN"
    return None


def warned_of_outside(words: tuple[str, ...]) -> bytes | None:
    """A command with which PostgreSQL warns that there is no transaction as it does with this statement.

    None if the statement ends no transaction.

    >>> warned_of_outside(("ABORT",)), warned_of_outside(("END", "WORK")), warned_of_outside(("PREPARE", "TRANSACTION"))
    (b'ROLLBACK', b'COMMIT', b'COMMIT')
    >>> warned_of_outside(("SELECT",))
    """
    if kind_of(words) is Kind.END:
        return _ending(words[0])
    return b"COMMIT" if words[:2] == ("PREPARE", "TRANSACTION") else None


def _ending(verb: str) -> bytes:
    return b"ROLLBACK" if verb in ("ROLLBACK", "ABORT") else b"COMMIT"
