"""How a subscription's rows are written: the COPY that gives them, and its framing.

Values become text by the types' own output functions, with the client's settings, inside the query; so one binary COPY
gives DataRow messages in any mix of formats. In another encoding than UTF8 texts are converted there, too.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from catalog.session import SqlError
from engine.stream_tables.plan_inputs import dumps
from engine.subscribe.framing import HEADER, TRAILER, BinaryFramer, Framer, LineFramer, framed, numeric, row
from engine.subscribe.interface import CopyOutput, Output, RowOutput
from engine.subscribe.preparation import ORDER, OutputColumn, Preparation
from sql import literal
from sql.base.text import quote
from sql.changes.change_query import KIND
from sql.operators.captured_changes import AT

TEXTS = frozenset({25, 1042, 1043, 19, 114, 18})
"""The types whose binary form is their text: text, bpchar, varchar, name, json, "char"."""

SMALL = {"enable_mergejoin": "off"}
"""For statements over changes: a merge join is hardly ever best there, and makes planning longer by an eighth."""

NAME = "__pgt_c"
"""How the columns of the query within the COPY are named, with their numbers."""

# The text is a client's: no repetition goes back (they are possessive), and so reading it takes one pass.
_WORD = r"[A-Za-z_][A-Za-z0-9_]*+"
_IDENTIFIER = rf'(?:{_WORD}|"(?:[^"]++|"")++")'
_LIST = rf"\*|\(\s*+\*\s*+\)|\(\s*+{_IDENTIFIER}(?:\s*+,\s*+{_IDENTIFIER})*+\s*+\)"
_VALUE = rf"E'(?:[^'\\]++|''|\\.)*+'|'(?:[^']++|'')*+'|-?[0-9.]++|{_LIST}|{_WORD}"
_OPTION = re.compile(rf"\s*+({_WORD})(?:\s++({_VALUE}))?\s*+(,|\Z)", re.DOTALL | re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class CopyFormat:
    """The options of a client's COPY, each in its own words."""

    options: Mapping[str, str]
    format: str
    header: bool
    quote: bytes

    @staticmethod
    def parse(text: str) -> CopyFormat:
        """Take the options apart, so that nothing but options can be among them. Raises SqlError 42601.

        >>> CopyFormat.parse("FORMAT csv, HEADER, DELIMITER E'\\\\t'").rendered(header=False)
        "format csv, delimiter E'\\\\t'"
        >>> CopyFormat.parse("FORMAT csv) TO PROGRAM 'x'; --")
        Traceback (most recent call last):
        ...
        catalog.session.SqlError: options of COPY are not understood
        """
        options: dict[str, str] = {}
        position = 0
        text = text.rstrip()
        while position < len(text):
            match = _OPTION.match(text, position)
            if match is None or (match[3] == "," and match.end() == len(text)):
                raise SqlError("42601", "options of COPY are not understood")
            if match[1].lower() in options:
                raise SqlError("42601", "conflicting or redundant options")
            options[match[1].lower()] = match[2] or ""
            position = match.end()
        format_ = options.get("format", "text").strip("'\"").lower()
        header = options.get("header", "off").strip("'").lower() not in ("off", "false", "0")
        quote = options.get("quote", "'\"'")
        quote = quote[1:] if quote[:1] in "eE" else quote
        return CopyFormat(options, format_, header, quote[1:-1].replace("''", "'").encode()[-1:])

    def rendered(self, *, header: bool) -> str:
        """As COPY wants them."""
        kept = {name: value for name, value in self.options.items() if header or name != "header"}
        return ", ".join(f"{name} {value}".rstrip() for name, value in kept.items())


@dataclass(frozen=True, slots=True)
class Rendering:
    """Writes the rows of one preparation in one way."""

    preparation: Preparation
    output: Output
    copy: CopyFormat | None = None
    _columns: tuple[tuple[str, str], ...] = field(init=False)
    """For each column its type in the COPY and the expression that makes it."""

    def __post_init__(self) -> None:
        if isinstance(self.output, RowOutput) and len(self.output.formats) not in (0, 1, len(self.preparation.output)):
            raise SqlError(
                "08P01",
                f"bind message has {len(self.output.formats)} result formats"
                f" but query has {len(self.preparation.output)} columns",
            )
        columns = tuple(self._column(i, column) for i, column in enumerate(self.preparation.output))
        object.__setattr__(self, "_columns", columns)

    def _is_binary(self, number: int) -> bool:
        if isinstance(self.output, CopyOutput):
            return self.output.binary
        formats = self.output.formats
        return bool(formats) and formats[number if len(formats) > 1 else 0] == 1

    @property
    def _encoding(self) -> str | None:
        """The client's encoding, where values have to be converted to it and COPY does not do it."""
        if self.copy is not None and self.copy.format != "binary":
            return None
        encoding = self.preparation.asked.settings.get("client_encoding", "UTF8")
        return None if encoding.upper().replace("-", "") in ("UTF8", "UNICODE") else encoding

    def _column(self, number: int, column: OutputColumn) -> tuple[str, str]:
        binary = self._is_binary(number)
        value = column.expression
        if not binary and column.output is not None:
            value = f"pg_catalog.textin({column.output}({value}))"
        if self._encoding is not None and (not binary or column.described.oid in TEXTS):
            return "pg_catalog.bytea", f"pg_catalog.convert_to(({value})::pg_catalog.text, {literal(self._encoding)})"
        return (column.type if binary else "pg_catalog.text"), value

    # -- statements -------------------------------------------------------------------------------------------------

    def statement(
        self, query: str, timestamp: int | None, parameters: Mapping[str, object], *, small: bool, header: bool
    ) -> str:
        """The COPY of a query that `sql.Followed` has made, with the rights of the role that the session acts as.

        Without a timestamp each of its rows has its own.
        """
        rows = self._rows(query, timestamp)
        settings = {k: v for k, v in self.preparation.asked.settings.items() if k != "search_path"}
        settings |= SMALL if small else {}
        names = ", ".join(f"'{NAME}{i}'" for i in range(len(self._columns)))
        types = ", ".join(literal(type_) for type_, _ in self._columns)
        called = (
            f"pgtrickle._rows({literal(rows)}, {literal(dumps(dict(parameters)))}, {literal(dumps(settings))},"
            f" ARRAY[{names}], ARRAY[{types}]::pg_catalog.regtype[])"
        )
        declared = ", ".join(f"{NAME}{i} {type_}" for i, (type_, _) in enumerate(self._columns))
        return self._copy(f"SELECT {self._named()} FROM {called} AS r({declared})", header=header)

    def _rows(self, query: str, timestamp: int | None) -> str:
        """The SELECT of the rows of a query in the order in which the client wants them."""
        moment = quote(AT) if timestamp is None else str(timestamp)
        inner = f"(SELECT {moment}::pg_catalog.numeric AS mz_timestamp, s.* FROM ({query}) AS s) AS q"
        expressions = ", ".join(f"{value} AS {NAME}{i}" for i, (_, value) in enumerate(self._columns))
        order = self.preparation.order_by
        if order is None:
            return f"SELECT {expressions} FROM {inner}" + (f" ORDER BY q.{quote(AT)}" if timestamp is None else "")
        # ORDER BY speaks of the columns by their public names, none of which begins as ours.
        kind = "mz_state" if self.preparation.followed.keys else "mz_diff"
        public = ", ".join(
            f"q.{quote(name)} AS {quote(prefix + column.name)}"
            for name, column, prefix in self.preparation.followed.columns
        )
        own = f", q.{quote(AT)}" if timestamp is None else ""
        sorted_ = f"(SELECT {expressions}, q.{KIND} AS {kind}, {public}{own} FROM {inner}) AS {ORDER}"
        chosen = ", ".join(f"{NAME}{i}" for i in range(len(self._columns)))
        first = f"{ORDER}.{quote(AT)}, " if timestamp is None else ""
        return f"SELECT {chosen} FROM {sorted_} ORDER BY {first}{order}"

    def _named(self) -> str:
        names = (quote(column.described.name) for column in self.preparation.output)
        return ", ".join(f"r.{NAME}{i} AS {name}" for i, name in enumerate(names))

    def _copy(self, query: str, *, header: bool) -> str:
        options = "FORMAT binary" if self.copy is None else self.copy.rendered(header=header)
        return f"COPY ({query}) TO STDOUT" + (f" WITH ({options})" if options else "")

    def framer(self, *, header: bool = False) -> Framer:
        """The framer of one such COPY."""
        if self.copy is None:
            return BinaryFramer(b"D")
        if self.copy.format == "binary":
            return BinaryFramer(b"d")
        headers = 1 if header and self.copy.header else 0
        return LineFramer(quotes=self.copy.quote if self.copy.format == "csv" else None, headers=headers)

    # -- what is not in the query -----------------------------------------------------------------------------------

    @property
    def beginning(self) -> bytes:
        """What comes before the first row of a binary COPY."""
        return framed(b"d", HEADER) if self.copy is not None and self.copy.format == "binary" else b""

    @property
    def ending(self) -> bytes:
        """What comes after the last row of a binary COPY."""
        return framed(b"d", TRAILER) if self.copy is not None and self.copy.format == "binary" else b""

    @property
    def heading(self) -> str | None:
        """The COPY that gives a client's header line, and nothing else; None if there is to be none."""
        if self.copy is None or not self.copy.header or self.copy.format == "binary":
            return None
        nothing = ", ".join(
            f"NULL::pg_catalog.text AS {quote(column.described.name)}" for column in self.preparation.output
        )
        return self._copy(f"SELECT {nothing} WHERE false", header=True)

    def progress(self, timestamp: int) -> bytes | str:
        """A progress message, or where lines are to come the COPY that gives it."""
        if self.copy is not None and self.copy.format != "binary":
            nulls = (f"NULL::{type_}" for type_, _ in self._columns[2:])
            first = [f"'{timestamp}'::pg_catalog.text", "'t'::pg_catalog.text"]
            return self._copy(f"SELECT {', '.join([*first, *nulls])}", header=False)
        values: list[bytes | None] = [
            numeric(timestamp) if self._is_binary(0) else str(timestamp).encode(),
            b"\x01" if self._is_binary(1) else b"t",
        ]
        message = row(values + [None] * (len(self._columns) - 2))
        return message if self.copy is None else b"d" + message[1:]


def rendering(preparation: Preparation, output: Output) -> Rendering:
    """How a preparation is written in an output format. Raises SqlError."""
    copy = CopyFormat.parse(output.options) if isinstance(output, CopyOutput) else None
    return Rendering(preparation, output, copy)
