"""`COPY table FROM 'scheme://…'`: a statement of ours, which PostgreSQL gets as one that makes an engine request.

In its place goes a DO block: like COPY it has no parameters and no result, so that Parse and Describe are answered by
PostgreSQL. The completion that the client sees is the engine's, ``COPY n``.
"""

from __future__ import annotations

from itertools import pairwise

from server.protocol.lexer import single
from sql.statements.copy_from_files import SCHEMES

_BEGINS = frozenset(("COPY",))


def as_request(text: bytes, *, backslashes: bool = False, encoding: str = "UTF8") -> bytes | None:
    """The request in the place of a statement, None if it is not a COPY from files that we read.

    >>> as_request(b"copy t from 's3://lake/t.parquet';")
    b"DO $hw0$BEGIN PERFORM pgtrickle._request_copy($hw1$copy t from 's3://lake/t.parquet'$hw1$); END$hw0$"
    >>> as_request(b"copy t from stdin -- from 's3://lake/t.parquet'")
    """
    statement = single(text, _BEGINS, backslashes=backslashes, encoding=encoding)
    if statement is None:
        return None
    sources = (after for word, after in pairwise(statement.words) if word == "FROM" and after.startswith("'"))
    if not any(source[1:].partition("://")[0].lower() in SCHEMES and "://" in source for source in sources):
        return None
    return request_of("pgtrickle._request_copy", text[statement.start : statement.end].rstrip())


def request_of(function: str, statement: bytes) -> bytes:
    """A DO block that gives a statement's text to a function of ours, which makes the request.

    >>> request_of("f", b"say $hw0$")
    b'DO $hw1$BEGIN PERFORM f($hw2$say $hw0$$hw2$); END$hw1$'
    """
    number = 0
    while b"$hw%d$" % number in statement or b"$hw%d$" % (number + 1) in statement:
        number += 1
    outer, inner = b"$hw%d$" % number, b"$hw%d$" % (number + 1)
    call = b"PERFORM " + function.encode() + b"(" + inner + statement + inner + b")"
    return b"DO " + outer + b"BEGIN " + call + b"; END" + outer
