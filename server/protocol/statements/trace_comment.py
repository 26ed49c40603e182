"""The trace that a statement belongs to, as sqlcommenter writes it: in a comment of the statement."""

from __future__ import annotations

import re

NEAR = 4096
"""So many bytes at the end, and at the beginning, of a text are looked at: it can be of any length."""

_TRACEPARENT = re.compile(rb"traceparent='([0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2})'")


def traceparent(text: bytes) -> str | None:
    """The W3C ``traceparent`` in a comment near the end, or else the beginning, of a text; None where there is none.

    >>> traceparent(b"SELECT 1 /*db='x',traceparent='00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01'*/;")
    '00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01'
    >>> traceparent(b"SELECT traceparent='00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01' /* a */") is None
    True
    """
    for part in (text[-NEAR:], text[:NEAR]):
        last = None
        for found in _TRACEPARENT.finditer(part):
            if part.rfind(b"/*", 0, found.start()) > part.rfind(b"*/", 0, found.start()):
                last = found
        if last is not None and part.find(b"*/", last.end()) >= 0:
            return str(last[1], "ascii")
    return None
