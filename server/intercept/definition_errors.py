"""Where the error in a defining query is, for a client that has sent the query as a text within another statement."""

from __future__ import annotations

from server.protocol import messages as m

_NAME = "__pgt_definition_"
_ANALYSED = ("PREPARE", "\nWITH query AS (", "\n) SELECT * FROM query")
_CREATED = ("CREATE ", " AS\n", "\n")
"""How statements begin that `pgtrickle._create_view` has PostgreSQL analyse, and what is around the query in them."""


def located(response: bytes) -> bytes:
    """An ErrorResponse of a statement of ours, with the place in the defining query, if it is one of that.

    The fields are those of an error in a statement that a function has run, which clients show below the message.
    """
    fields = m.report_fields(response[5:])
    text, place = fields.get("q", b"").decode("utf-8", "replace"), fields.get("p", b"")
    found = _query_in(text, *_ANALYSED) or _query_in(text, *_CREATED)
    kept = {letter: value for letter, value in fields.items() if letter not in "Ppq"}
    if found is None or not place.isdigit():
        return m.rebuild_report(response[0], kept)
    start, query = found
    position = int(place) - start
    if position > len(query):
        # What follows is our own: the query ends where something should come.
        position = len(query) + 1
        if fields.get("C") == b"42601":
            kept["M"] = b"syntax error at end of input"
    kept |= {"p": str(max(1, position)).encode(), "q": query.encode()}
    return m.rebuild_report(response[0], kept)


def _query_in(text: str, begin: str, before: str, behind: str) -> tuple[int, str] | None:
    """Where the query begins in such a statement, and the query; None for another statement.

    >>> _query_in("CREATE VIEW s.__pgt_definition_0 AS\\nSELECT 1\\n", *_CREATED)
    (36, 'SELECT 1')
    """
    head, found, rest = text.partition(before)
    if not found or not head.startswith(begin) or _NAME not in head or not rest.endswith(behind):
        return None
    return len(head) + len(found), rest.removesuffix(behind)
