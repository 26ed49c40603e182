"""Where the error in a defining query is, for a client that has sent the query as a text within another statement."""

from __future__ import annotations

import re

from server.protocol import messages as m

_NAME = r"__pgt_definition_[0-9a-f]{32}"
_ANALYSED = re.compile(rf"PREPARE {_NAME} AS\nWITH query AS \((.*)\n\) SELECT \* FROM query", re.S)
_CREATED = re.compile(rf"CREATE (?:TEMPORARY VIEW |VIEW [^\n]+\.){_NAME} AS\n(.*)\n", re.S)
"""What `pgtrickle._create_view` has PostgreSQL analyse. The query is within it."""


def located(response: bytes) -> bytes:
    """An ErrorResponse of a statement of ours, with the place in the defining query, if it is one of that.

    The fields are those of an error in a statement that a function has run, which clients show below the message.
    """
    fields = m.report_fields(response[5:])
    text, place = fields.get("q", b"").decode("utf-8", "replace"), fields.get("p", b"")
    found = _ANALYSED.fullmatch(text) or _CREATED.fullmatch(text)
    kept = {letter: value for letter, value in fields.items() if letter not in "Ppq"}
    if found is None or not place.isdigit():
        return m.rebuild_report(response[0], kept)
    query = found[1]
    position = int(place) - found.start(1)
    if position > len(query):
        # What follows is our own: the query ends where something should come.
        position = len(query) + 1
        if fields.get("C") == b"42601":
            kept["M"] = b"syntax error at end of input"
    kept |= {"p": str(max(1, position)).encode(), "q": query.encode()}
    return m.rebuild_report(response[0], kept)


__all__ = ["located"]
