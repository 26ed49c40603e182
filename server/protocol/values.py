"""Values of injected statements: text format, as PostgreSQL writes it, to and from Python.

Only the types of ``catalog.session.Value`` are made; everything else stays text.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Sequence
from typing import Any

from catalog.session import SqlError
from server.protocol.messages import INT32, ProtocolViolation, int16_at, int32_at, text_at

Decoder = Callable[[str], Any]

_CODECS = {
    "UTF8": "utf-8",
    "SQL_ASCII": "utf-8",
    "EUC_JP": "euc_jp",
    "EUC_KR": "euc_kr",
    "EUC_CN": "gb2312",
    "EUC_JIS_2004": "euc_jis_2004",
    "SJIS": "cp932",
    "SHIFT_JIS_2004": "shift_jis_2004",
    "BIG5": "big5",
    "GBK": "gbk",
    "UHC": "cp949",
    "GB18030": "gb18030",
    "JOHAB": "johab",
    "KOI8R": "koi8-r",
    "KOI8U": "koi8-u",
    **{
        f"LATIN{n}": f"iso8859-{part}"
        for n, part in zip(range(1, 11), (1, 2, 3, 4, 9, 10, 13, 14, 15, 16), strict=True)
    },
    **{f"ISO_8859_{n}": f"iso8859-{n}" for n in range(5, 9)},
    **{f"WIN{n}": f"cp{n}" for n in (866, 874, *range(1250, 1259))},
}

UNREADABLE = frozenset({"EUC_TW", "MULE_INTERNAL"})
"""Encodings that Python does not know: `codec` keeps their bytes apart, and no more."""


def codec(client_encoding: str) -> str:
    """Python's name of a PostgreSQL encoding.

    >>> codec("LATIN9"), codec("MULE_INTERNAL")
    ('iso8859-15', 'latin-1')
    """
    return _CODECS.get(client_encoding, "latin-1")


def encode(value: Any, encoding: str = "utf-8") -> bytes | None:
    """
    >>> encode(["a", 'b"', None]), encode(True), encode(1.5)
    (b'{"a","b\\\\"",NULL}', b't', b'1.5')
    """
    if value is None:
        return None
    if isinstance(value, bool):
        return b"t" if value else b"f"
    if isinstance(value, list):
        return ("{" + ",".join(map(_element, value)) + "}").encode(encoding)
    return str(value).encode(encoding)


def _element(value: Any) -> str:
    if value is None:
        return "NULL"
    return '"' + str(value).replace("\\", "\\\\").replace('"', '\\"') + '"'


_ARRAY_ELEMENT = re.compile(r'"((?:[^"\\]++|\\.)*+)"|([^,{}"]++)', re.DOTALL)
_ESCAPED = re.compile(r"\\(.)", re.DOTALL)


def _array(of: Decoder) -> Decoder:
    def decode(text: str) -> list[Any]:
        found = []
        for quoted in _ARRAY_ELEMENT.finditer(text):
            if quoted.group(2) is not None:
                found.append(None if quoted.group(2) == "NULL" else of(quoted.group(2)))
            else:
                found.append(of(_ESCAPED.sub(r"\1", quoted.group(1))))
        return found

    return decode


_DECODERS: dict[int, Decoder] = {16: lambda text: text == "t"}
for _oid in (20, 21, 23, 26):
    _DECODERS[_oid] = int
for _oid in (700, 701):
    _DECODERS[_oid] = float
for _oid in (1005, 1007, 1016, 1028):
    _DECODERS[_oid] = _array(int)
for _oid in (1002, 1003, 1009, 1015):
    _DECODERS[_oid] = _array(str)


def decoders(row_description: bytes) -> list[Decoder]:
    """A decoder for each column of a RowDescription message (whole, with its header)."""
    found = []
    position = 7
    for _ in range(int16_at(row_description, 5)):
        position += len(text_at(row_description, position)) + 1
        found.append(_DECODERS.get(int32_at(row_description, position + 6), str))
        position += 18
    return found


def row(data_row: bytes, columns: Sequence[Decoder], encoding: str = "utf-8") -> tuple[Any, ...]:
    """The values of a DataRow message (whole, with its header). Raises SqlError 22021, ProtocolViolation."""
    result: list[Any] = []
    position = 7
    try:
        for decode in columns:
            (length,) = INT32.unpack_from(data_row, position)
            position += 4
            if length == 0xFFFFFFFF:
                result.append(None)
            else:
                result.append(decode(data_row[position : position + length].decode(encoding)))
                position += length
    except struct.error:
        raise ProtocolViolation("insufficient data left in message") from None
    except UnicodeDecodeError:
        raise SqlError("22021", f"a value is not valid in encoding {encoding}") from None
    return tuple(result)
