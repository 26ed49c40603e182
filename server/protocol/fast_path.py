"""The commonest chunks, passed with the least work: one whole batch of a client, one whole answer to it.

Both functions decide on the same facts as ``traffic`` and keep the same notes, but give up, having changed
nothing, as soon as there is anything to think about; the chunk then goes to ``traffic``. They are worth having
because Python's part in a short statement's way is about as long as all system calls for it.
"""

from __future__ import annotations

from server.protocol import messages as m
from server.protocol.keyword_scan import COMMIT_WORDS, CURSOR_WORDS, ELSEWHERE, EVERYWHERE, IN_EVERYWHERE, SCHEMA, sends
from server.protocol.traffic import Traffic

_unpack = m.HEADER.unpack_from
_QUERY, _PARSE, _SYNC, _COMPLETE = m.QUERY, m.PARSE, m.SYNC, m.COMMAND_COMPLETE
_READY_HEADER = m.ready(m.IDLE)[:-1]

# Longest message of a kind that may come before Sync; 0 for what must be looked at. Parse only in a scanned chunk.
_STEPS = [0] * 256
for _kind in b"BDEC":
    _STEPS[_kind] = 10_000
_SCANNED_STEPS = list(_STEPS)
_SCANNED_STEPS[_PARSE] = 1 << 18

# What an answer may consist of, besides the completion of a SELECT or a SET and ReadyForQuery.
_PLAIN = [False] * 256
for _kind in b"D123TntIs":
    _PLAIN[_kind] = True

_IN_PREPARED = (*ELSEWHERE, *CURSOR_WORDS)
_READING_AND_WRITING = (b"select", b"insert", b"update", b"delete", b"with", b"begin", b"commit")


def _goes_on(text: bytes, start: int, length: int) -> bool:
    """Whether there may be another statement behind the first one."""
    end = text.find(b";", start, length)
    return end >= 0 and text[end + 1 : end + 2] != b"\0"


def is_batch(traffic: Traffic, data: bytes) -> bool:
    """Whether a client's chunk is one whole batch that can pass; it is then outstanding."""
    framer = traffic.client
    if framer.size or framer.skip or traffic.batch is not None or traffic.statements or traffic.portals:
        return False
    if len(data) < 5 or traffic.copying:
        return False
    kind, length = _unpack(data)
    if kind in (_QUERY, _PARSE):
        scanned = _scan(traffic, kind, length, data)
    else:  # it runs what has been prepared
        scanned = None if traffic.hidden.possible and traffic.committing else False
    if scanned is None:
        return False
    if length + 1 != len(data) if kind == _QUERY else not _is_extended_batch(traffic, data, scanned):
        return False
    traffic.outstanding.append(data)
    return True


def _scan(traffic: Traffic, kind: int, length: int, data: bytes) -> bool | None:
    """Look at the text of a Query, or of a batch that begins with a Parse. None if it cannot pass.

    True if all of it has been looked at for words of the server's own statements; what reads and writes is none.
    """
    text = data.lower()
    start = 5 if kind == _QUERY else text.find(0, 5) + 1
    scanned = not text.startswith(_READING_AND_WRITING, start) or _goes_on(text, start, length)
    if _may_be_own(text, kind, scanned):
        return None
    if (start > 6 or traffic.hidden.possible) and _commits(traffic, kind, text, start, length):
        return None
    if not traffic.sending:
        traffic.sending = sends(text)
    return scanned


def _may_be_own(text: bytes, kind: int, scanned: bool) -> bool:
    """Whether a text in lower case has words of the server's own statements."""
    if IN_EVERYWHERE in text:
        for word in EVERYWHERE:
            if word in text:
                return True
    if SCHEMA in text:
        return True
    if scanned:
        for word in _IN_PREPARED if kind == _PARSE else ELSEWHERE:
            if word in text:
                return True
    return False


def _may_commit(text: bytes) -> bool:
    """Whether a text in lower case may commit a transaction."""
    return any(word in text for word in COMMIT_WORDS)


def _commits(traffic: Traffic, kind: int, lowered: bytes, start: int, length: int) -> bool:
    """Whether a chunk may prepare a COMMIT with a name, or commit what has not been answered, in the chunk as well."""
    if start > 6 and _may_commit(lowered):
        return True
    if not traffic.hidden.possible:
        return False
    if not (_may_commit(lowered) or (kind == _PARSE and traffic.committing)):
        return False
    if traffic.outstanding:
        return True
    return _goes_on(lowered, start, length) if kind == _QUERY else lowered.count(b"e\0\0\0") > 1


def _is_extended_batch(traffic: Traffic, data: bytes, scanned: bool) -> bool:
    """Whether a chunk consists of messages of the extended protocol that can pass, and one Sync behind them."""
    if traffic.batches.know(data):
        return True
    kind, length = _unpack(data)
    limits = _SCANNED_STEPS if kind == _PARSE else _STEPS
    end = len(data)
    position = parses = 0
    while kind != _SYNC:
        parses += kind == _PARSE
        if not 4 <= length <= limits[kind]:
            return False
        if parses > 1 and kind == _PARSE and data[position + 5 : position + 6] != b"\0":  # it may be one that commits
            return False
        position += length + 1
        if position + 5 > end:
            return False
        kind, length = _unpack(data, position)
    if length != 4 or position + 5 != end:
        return False
    if parses <= 1:
        traffic.batches.learn(data)
    return parses <= 1 or scanned


def _is_plain(data: bytes, last: int) -> bool:
    """Whether a chunk consists of messages that can pass, up to its ReadyForQuery."""
    position = 0
    while position < last:
        kind, length = _unpack(data, position)
        if not _PLAIN[kind] and (kind != _COMPLETE or data[position + 5 : position + 7] != b"SE"):
            return False
        position += length + 1
    return position == last


def is_answer(traffic: Traffic, data: bytes) -> bool:
    """Whether PostgreSQL's chunk is one whole answer that can pass; the oldest batch is then answered."""
    last = len(data) - 6
    if last < 0 or data[last:-1] != _READY_HEADER:
        return False
    framer = traffic.backend
    # Whatever else an earlier chunk of the same answer may have left has been counted as seen.
    if framer.size or framer.skip or traffic.seen or traffic.changed or traffic.portals:
        return False
    if not traffic.answers.know(data):
        if not _is_plain(data, last):
            return False
        traffic.answers.learn(data)
    traffic.status = data[last + 5]
    traffic.rows = False
    traffic.finished += 1
    if traffic.outstanding:
        head = traffic.outstanding[0]
        if head.__class__ is not bytes or head[0] == _PARSE:
            traffic.parsed(failed=False)
        traffic.outstanding.popleft()
    if traffic.sending and traffic.status == m.IDLE:
        traffic.sent()
    return True
