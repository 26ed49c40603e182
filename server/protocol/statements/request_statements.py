"""CREATE and DROP SOURCE, and ALTER … SET | RESET (RETAIN HISTORY …): PostgreSQL gets them as engine requests.

Like COPY from files (``uri_copy``) they have no parameters and no result. The text is read by the engine
(``source_and_history``), which also says what is wrong with it.
"""

from __future__ import annotations

from itertools import pairwise

from server.protocol.lexer import leading, single
from server.protocol.statements.uri_copy import request_of

_BEGINS = frozenset(("CREATE", "DROP", "ALTER"))


def is_own(words: tuple[str, ...]) -> bool:
    """Whether a statement of these words (`Statement.words`) is one of these.

    >>> is_own(("DROP", "SOURCE", "COUNTER")), is_own(("CREATE", "TABLE", "SOURCE"))
    (True, False)
    >>> is_own(("ALTER", "TABLE", "T", "SET", "(", "RETAIN", "HISTORY", "FOR", "'1h'", ")"))
    True
    """
    if words[:2] in (("CREATE", "SOURCE"), ("DROP", "SOURCE")):
        return True
    return words[:1] == ("ALTER",) and ("RETAIN", "HISTORY") in pairwise(words)


def as_request(text: bytes, *, backslashes: bool = False, encoding: str = "UTF8") -> bytes | None:
    """The request in the place of a statement, None if it is not ours.

    >>> as_request(b"drop source counter;")
    b'DO $hw0$BEGIN PERFORM pgtrickle._request_statement($hw1$drop source counter$hw1$); END$hw0$'
    """
    words = leading(text, 2, backslashes=backslashes, encoding=encoding)
    if words[:1] != ("ALTER",) and not is_own(words):
        return None
    statement = single(text, _BEGINS, backslashes=backslashes, encoding=encoding)
    if statement is None or not is_own(statement.words):
        return None
    return request_of("pgtrickle._request_statement", text[statement.start : statement.end].rstrip())
