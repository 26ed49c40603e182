"""Messages of protocol 3: their type bytes, builders for those the relay makes itself, readers for those it looks at.

Formats: PostgreSQL documentation, chapter "Frontend/Backend Protocol". A built message is complete, with type
and length.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence

HEADER = struct.Struct(">BI")
"""Type byte and length; the length counts itself but not the type byte."""
INT16 = struct.Struct(">H")
INT32 = struct.Struct(">I")

# What a frontend sends.
BIND, CLOSE, DESCRIBE, EXECUTE, FLUSH = b"BCDEH"
FUNCTION_CALL, PARSE, PASSWORD, QUERY, SYNC, TERMINATE = b"FPpQSX"
COPY_DATA, COPY_DONE, COPY_FAIL = b"dcf"

# What a backend sends (COPY_DATA and COPY_DONE too).
AUTHENTICATION, BACKEND_KEY_DATA, NEGOTIATE_VERSION, PARAMETER_STATUS = b"RKvS"
PARSE_COMPLETE, BIND_COMPLETE, CLOSE_COMPLETE = b"123"
ROW_DESCRIPTION, NO_DATA, PARAMETER_DESCRIPTION, DATA_ROW = b"TntD"
COMMAND_COMPLETE, EMPTY_QUERY, PORTAL_SUSPENDED = b"CIs"
COPY_IN, COPY_OUT, COPY_BOTH = b"GHW"
ERROR, NOTICE, NOTIFICATION, READY, FUNCTION_RESULT = b"ENAZV"

ASYNCHRONOUS = frozenset((NOTICE, NOTIFICATION, PARAMETER_STATUS))
"""Messages that may come at any time and answer nothing."""

# Transaction status, the body of ReadyForQuery.
IDLE, IN_TRANSACTION, FAILED = b"ITE"

REQUEST_MADE = "HW001"
"""SQLSTATE of the INFO by which a request function says that the engine has work to do."""
REQUEST_LEFT = "HW002"
"""SQLSTATE of the error by which a commit is refused while a request has not been carried out."""


class ProtocolViolation(Exception):
    """The peer broke the protocol; the connection ends with this message and SQLSTATE 08P01."""

    sqlstate = "08P01"


def message(kind: int, body: bytes = b"") -> bytes:
    """
    >>> message(SYNC)
    b'S\\x00\\x00\\x00\\x04'
    """
    return HEADER.pack(kind, len(body) + 4) + body


def query(sql: bytes) -> bytes:
    return message(QUERY, sql + b"\0")


UNTYPED = INT16.pack(0)
"""Parse's parameter types, all left to the server."""


def parse(name: bytes, sql: bytes, types: bytes = UNTYPED) -> bytes:
    return message(PARSE, name + b"\0" + sql + b"\0" + types)


def bind(
    portal: bytes, statement: bytes, parameters: Sequence[bytes | None] = (), formats: Sequence[int] = ()
) -> bytes:
    """A Bind with all parameters in text format; ``formats`` are those of the results, none for text."""
    parts = [portal, b"\0", statement, b"\0", INT16.pack(0), INT16.pack(len(parameters))]
    for value in parameters:
        if value is None:
            parts.append(b"\xff\xff\xff\xff")
        else:
            parts += (INT32.pack(len(value)), value)
    parts += map(INT16.pack, (len(formats), *formats))
    return message(BIND, b"".join(parts))


def describe_portal(portal: bytes) -> bytes:
    return message(DESCRIBE, b"P" + portal + b"\0")


def describe_statement(name: bytes) -> bytes:
    return message(DESCRIBE, b"S" + name + b"\0")


def execute(portal: bytes) -> bytes:
    return message(EXECUTE, portal + b"\0" + INT32.pack(0))


def close_statement(name: bytes) -> bytes:
    return message(CLOSE, b"S" + name + b"\0")


def close_portal(name: bytes) -> bytes:
    return message(CLOSE, b"P" + name + b"\0")


def ready(status: int) -> bytes:
    return message(READY, bytes((status,)))


FLUSH_MESSAGE = message(FLUSH)
SYNC_MESSAGE = message(SYNC)
TERMINATE_MESSAGE = message(TERMINATE)
COPY_DONE_MESSAGE = message(COPY_DONE)
PARSE_COMPLETE_MESSAGE = message(PARSE_COMPLETE)
BIND_COMPLETE_MESSAGE = message(BIND_COMPLETE)


def _report(
    kind: int,
    severity: str,
    sqlstate: str,
    text: str,
    detail: str | None,
    hint: str | None,
    encoding: str,
    position: int | None = None,
) -> bytes:
    fields = [("S", severity), ("V", severity), ("C", sqlstate), ("M", text)]
    if detail:
        fields.append(("D", detail))
    if hint:
        fields.append(("H", hint))
    if position:
        fields.append(("P", str(position)))
    body = b"".join(k.encode() + v.replace("\0", "").encode(encoding, "replace") + b"\0" for k, v in fields)
    return message(kind, body + b"\0")


def error_response(
    sqlstate: str,
    text: str,
    *,
    severity: str = "ERROR",
    detail: str | None = None,
    hint: str | None = None,
    position: int | None = None,
    encoding: str = "utf-8",
) -> bytes:
    """An ErrorResponse; ``severity`` is ERROR or FATAL, ``encoding`` the Python name of the client's encoding.

    ``position`` counts the characters of the statement from 1.
    """
    return _report(ERROR, severity, sqlstate, text, detail, hint, encoding, position)


def notice_response(
    sqlstate: str, text: str, *, severity: str = "WARNING", hint: str | None = None, encoding: str = "utf-8"
) -> bytes:
    return _report(NOTICE, severity, sqlstate, text, None, hint, encoding)


def split(messages: bytes) -> list[bytes]:
    """Whole messages one by one.

    >>> split(FLUSH_MESSAGE + SYNC_MESSAGE) == [FLUSH_MESSAGE, SYNC_MESSAGE]
    True
    """
    found, position = [], 0
    while position < len(messages):
        end = position + 1 + INT32.unpack_from(messages, position + 1)[0]
        found.append(messages[position:end])
        position = end
    return found


def report_fields(body: bytes) -> dict[str, bytes]:
    """The fields of an ErrorResponse's or NoticeResponse's body by their one-letter code.

    >>> report_fields(b"SERROR\\0C42P01\\0\\0")
    {'S': b'ERROR', 'C': b'42P01'}
    """
    return {chr(field[0]): field[1:] for field in body.split(b"\0") if field}


def rebuild_report(kind: int, fields: Mapping[str, bytes]) -> bytes:
    return message(kind, b"".join(k.encode() + v + b"\0" for k, v in fields.items()) + b"\0")


def without(report: bytes, letters: str) -> bytes:
    """An ErrorResponse or NoticeResponse message without the fields of these letters."""
    fields = report_fields(report[5:])
    return rebuild_report(report[0], {letter: text for letter, text in fields.items() if letter not in letters})


def sqlstate_of(body: bytes) -> str:
    """
    >>> sqlstate_of(b"SINFO\\0VINFO\\0CHW001\\0M1\\0\\0")
    'HW001'
    """
    at = 0 if body[:1] == b"C" else body.find(b"\0C") + 1
    return body[at + 1 : body.find(b"\0", at)].decode("ascii", "replace")


def is_debugging(body: bytes) -> bool:
    """Whether a NoticeResponse is a DEBUG message."""
    return b"\0VDEBUG\0" in body


def is_fatal(body: bytes) -> bool:
    """Whether an ErrorResponse ends the session."""
    return b"\0VFATAL\0" in body or b"\0VPANIC\0" in body


def text_at(body: bytes, start: int = 0) -> bytes:
    """The zero-terminated text that begins at ``start``; ProtocolViolation if its end is missing."""
    end = body.find(b"\0", start)
    if end < 0:
        raise ProtocolViolation("invalid string in message")
    return body[start:end]


def int16_at(body: bytes, start: int) -> int:
    """The 16 bits at ``start``; ProtocolViolation if they are missing."""
    if start + 2 > len(body):
        raise ProtocolViolation("insufficient data left in message")
    return int.from_bytes(body[start : start + 2], "big")


def int32_at(body: bytes, start: int) -> int:
    """The 32 bits at ``start``; ProtocolViolation if they are missing."""
    if start + 4 > len(body):
        raise ProtocolViolation("insufficient data left in message")
    return int.from_bytes(body[start : start + 4], "big")
