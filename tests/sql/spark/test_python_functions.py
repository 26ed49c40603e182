"""Functions that Spark has in Python give what PostgreSQL gives, or nothing, for values that are drawn at random.

Spark is not needed for that: they are called here. An error is allowed where PostgreSQL has a value, but not often; a
value is not where PostgreSQL has an error.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from random import Random
from typing import Any

import psycopg
import pytest

from sql.spark.python.values import (
    array_values,
    decimal_values,
    float_values,
    interval_changes,
    jsonb_changes,
    range_values,
    regular_values,
    string_values,
)
from tests.sql.spark.generated_values import _document as document
from tests.sql.spark.generated_values import _word as word


@dataclass(frozen=True, slots=True)
class Pair:
    """``sql`` with parameters and ``function`` are to be the same; ``arguments`` are drawn."""

    sql: str
    function: Callable[..., Any]
    arguments: Callable[[Random], Sequence[Any]]
    left: float = 0.05
    """The share of cases that may be left to PostgreSQL."""


class Json(str):
    """A value of jsonb."""


class Numbers(str):
    """A value of integer[]."""


class Span(str):
    """A value of interval."""


class Bounds(str):
    """A value of numrange."""


TYPES = {Json: "jsonb", Numbers: "integer[]", Span: "interval", Bounds: "numrange"}


def _double(random: Random) -> float:
    kind = random.randrange(4)
    if kind == 0:
        return float(struct.unpack("d", struct.pack("Q", random.getrandbits(64)))[0])
    if kind == 1:
        return float(random.choice((-1, 1)) * 2.0 ** random.randrange(-1074, 1024))
    if kind == 2:
        return round(random.uniform(-1e6, 1e6), random.randrange(7))
    return float(random.choice((0.0, -0.0, 1e15, 1e16, 123456789012345678.0, 1e-5, 1e23, 9007199254740993.0, 5e-324)))


def _real(random: Random) -> float:
    bits = random.getrandbits(32) if random.random() < 0.6 else random.randrange(1, 255) << 23
    value = float(struct.unpack("f", struct.pack("I", bits))[0])
    return value if value == value else 1.0


def _numeric(random: Random) -> str:
    digits = random.choice((1, 2, 5, 17, 40))
    text = str(random.randrange(10**digits))
    scale = random.choice((0, 0, 1, 2, 5, 20))
    text = text.rjust(scale + 1, "0")
    return random.choice(("", "-")) + (f"{text[:-scale]}.{text[-scale:]}" if scale else text)


def _above(random: Random) -> str:
    text = _numeric(random).removeprefix("-")
    return random.choice((text, text, "1.0" + text[-3:].replace(".", ""), "0.9" + text[-3:].replace(".", "")))


def _pattern(random: Random, depth: int = 2) -> str:
    """A regular expression over few letters."""
    parts = []
    for _ in range(random.choice((1, 1, 2, 3))):
        kind = random.randrange(9 if depth else 6)
        atom = (
            random.choice("abc")
            if kind < 3
            else (".", "[ab]", "[^a]", r"\d", r"\s", "[[:alpha:]]", r"\.", "é")[random.randrange(8)]
            if kind < 6
            else f"({_pattern(random, depth - 1)})"
            if kind < 8
            else f"(?:{_pattern(random, depth - 1)}|{_pattern(random, depth - 1)})"
        )
        parts.append(atom + random.choice(("", "", "", "*", "+", "?", "{2}", "{1,2}")))
    return "".join(parts)


def _regular(random: Random) -> tuple[str, str]:
    pattern = _pattern(random)
    if random.random() < 0.15:
        pattern = pattern.replace("*", "*?").replace("+", "+?")
    if random.random() < 0.2:
        pattern = random.choice(("^", "")) + pattern + random.choice(("$", ""))
    text = "".join(random.choice("aabbcc1 .é\n") for _ in range(random.randrange(12)))
    return text, pattern


def _item(random: Random) -> str | None:
    return random.choice(("1", "2", "2", "3", "-7", None))


def _array(random: Random) -> str:
    items = [random.choice(("1", "2", "2", "3", "NULL")) for _ in range(random.randrange(5))]
    listed = "{" + ",".join(items) + "}"
    kind = random.randrange(5)
    if kind == 0 and items:
        return Numbers("{" + ",".join([listed] * random.randrange(1, 3)) + "}")
    if kind == 1 and items:
        low = random.randrange(-2, 4)
        return Numbers(f"[{low}:{low + len(items) - 1}]={listed}")
    return Numbers(listed)


def _range(random: Random) -> str:
    if random.random() < 0.1:
        return Bounds("empty")
    low, high = sorted(random.choices(("-1.5", "0", "1", "1.0", "2", "2.50", "3"), k=2), key=float)
    start, end = random.choice((low, low, "")), random.choice((high, high, ""))
    return Bounds(f"{random.choice('[(')}{start},{end}{random.choice('])')}")


def _interval(random: Random) -> str:
    clock = f"{random.choice(('', '-'))}{random.randrange(60):02}:{random.randrange(60):02}:{random.uniform(0, 59):.6f}"
    return Span(
        f"{random.randrange(-50, 50)} mons {random.randrange(-70, 70)} days {random.choice((clock, '00:00:00'))}"
    )


def _json(random: Random) -> str:
    return Json(json.dumps(document(random, 2)))


def _bound(random: Random) -> str:
    return random.choice(("-1.5", "0", "1", "1.0", "2", "2.50", "3"))


def _of_numbers(function: Callable[[str, str, str], Any]) -> Callable[[str, str], Any]:
    return lambda one, other: function(one, other, "number")


def _factor(random: Random) -> float:
    return random.choice((0.5, -1.0, 2.0, 0.1, 3.7, 1 / 3, random.uniform(-10, 10)))


def _shown(function: Callable[..., str]) -> Callable[..., str]:
    return lambda *arguments: interval_changes.shown(function(*arguments))


def _moment(random: Random) -> str:
    moment = datetime(2000, 1, 31) + timedelta(
        days=random.randrange(-9000, 9000), microseconds=random.randrange(10**11)
    )
    return str(moment)


def _micros(text: str) -> int:
    return (datetime.fromisoformat(text) - datetime(1970, 1, 1)) // timedelta(microseconds=1)


def _written_moment(micros: int) -> str:
    text = str(datetime(1970, 1, 1) + timedelta(microseconds=micros))
    return text.rstrip("0") if "." in text else text


def _moved(moment: str, interval: str) -> str:
    return _written_moment(interval_changes.moved(_micros(moment), interval, 1))


def _bin(stride: str, moment: str, origin: str) -> str:
    return _written_moment(interval_changes.bin_of(stride, _micros(moment), _micros(origin)))


def _stride(random: Random) -> str:
    return random.choice(("00:15:00", "1 day", "7 days", "00:00:00.5", "1 mon", "00:00:00"))


def _piece(random: Random) -> str:
    return random.choice(("a", " ", "", "ab", "x"))


def _like(random: Random) -> str:
    return "".join(random.choice(("%", "_", "a", "b", "x", "\\", "\\%", "é")) for _ in range(random.randrange(5)))


def _bytes(random: Random) -> str:
    return "\\x" + random.randbytes(random.choice((0, 1, 3, 60, 200))).hex()


def _form(random: Random) -> str:
    return random.choice(("hex", "base64", "escape"))


_KEYS = "(SELECT array_agg(k) FROM json_array_elements_text(%s::json) k)"


def _of(*draw: Callable[[Random], Any]) -> Callable[[Random], Sequence[Any]]:
    return lambda random: [each(random) for each in draw]


def _number(low: int, high: int) -> Callable[[Random], int]:
    return lambda random: random.randrange(low, high)


def _floats(function: Callable[[float], float]) -> Callable[[float], str]:
    return lambda value: float_values.text(function(value))


def _by_pattern(function: Callable[..., Any], *, groups: bool = False) -> Callable[..., Any]:
    """Of a text and a pattern, whose groups may not matter."""

    def called(text: str, pattern: str) -> Any:
        asked = pattern if groups else regular_values.without_groups(pattern)
        return function(text, asked, False)

    return called


def _replaced(text: str, pattern: str) -> str:
    return regular_values.replaced(text, regular_values.without_groups(pattern), r"<\&>", "g", False)


def _swapped(text: str, pattern: str) -> str:
    return regular_values.replaced(text, pattern, r"<\1>", "g", False)


def _path(random: Random) -> str:
    return json.dumps([random.choice(("a", "b", "0", "1", "-1", "")) for _ in range(random.randrange(1, 3))])


PAIRS: Mapping[str, Pair] = {
    "float text": Pair("%s::float8", float_values.text, _of(_double)),
    "real text": Pair("%s::float8::real", float_values.real_text, _of(_real)),
    "ceil": Pair("ceil(%s::float8)", _floats(float_values.ceiling), _of(_double)),
    "floor": Pair("floor(%s::float8)", _floats(float_values.floor), _of(_double)),
    "trunc": Pair("trunc(%s::float8)", _floats(float_values.truncated), _of(_double)),
    "sign": Pair("sign(%s::float8)", _floats(float_values.sign), _of(_double)),
    "plus": Pair("%s::numeric + %s::numeric", decimal_values.plus, _of(_numeric, _numeric)),
    "minus": Pair("%s::numeric - %s::numeric", decimal_values.minus, _of(_numeric, _numeric)),
    "times": Pair("%s::numeric * %s::numeric", decimal_values.times, _of(_numeric, _numeric)),
    "quotient": Pair("%s::numeric / %s::numeric", decimal_values.quotient, _of(_numeric, _numeric)),
    "div": Pair("div(%s::numeric, %s::numeric)", decimal_values.whole_quotient, _of(_numeric, _numeric)),
    "modulo": Pair("%s::numeric %% %s::numeric", decimal_values.modulo, _of(_numeric, _numeric)),
    "round": Pair("round(%s::numeric, %s)", decimal_values.rounded, _of(_numeric, _number(-3, 9))),
    "cut": Pair("trunc(%s::numeric, %s)", decimal_values.truncated, _of(_numeric, _number(0, 9))),
    "sqrt": Pair("sqrt(%s::numeric)", decimal_values.root, _of(_above)),
    "ln": Pair("ln(%s::numeric)", decimal_values.logarithm, _of(_above)),
    "trim_scale": Pair("trim_scale(%s::numeric)", decimal_values.trimmed, _of(_numeric)),
    "regexp_replace": Pair(r"regexp_replace(%s, %s, '<\&>', 'g')", _replaced, _regular, 0.5),
    "regexp_replace of a group": Pair(r"regexp_replace(%s, %s, '<\1>', 'g')", _swapped, _regular, 0.5),
    "regexp_count": Pair("regexp_count(%s, %s)", _by_pattern(regular_values.count), _regular, 0.5),
    "regexp_instr": Pair("regexp_instr(%s, %s)", _by_pattern(regular_values.place), _regular, 0.5),
    "regexp_substr": Pair("regexp_substr(%s, %s)", _by_pattern(regular_values.whole), _regular, 0.5),
    "regexp_split": Pair("regexp_split_to_array(%s, %s)", _by_pattern(regular_values.split), _regular, 0.5),
    "substring": Pair("substring(%s from %s)", _by_pattern(regular_values.part, groups=True), _regular, 0.7),
    "array element": Pair("(%s::int[])[%s]", array_values.element, _of(_array, _number(-3, 6))),
    "array_length": Pair("array_length(%s::int[], %s)", array_values.size, _of(_array, _number(-1, 4))),
    "array_upper": Pair("array_upper(%s::int[], %s)", array_values.high, _of(_array, _number(-1, 4))),
    "array_append": Pair("array_append(%s::int[], %s::int)", array_values.appended, _of(_array, _item)),
    "array_prepend": Pair("array_prepend(%s::int, %s::int[])", array_values.prepended, _of(_item, _array)),
    "array_cat": Pair("array_cat(%s::int[], %s::int[])", array_values.joined, _of(_array, _array)),
    "array_remove": Pair("array_remove(%s::int[], %s::int)", array_values.without, _of(_array, _item)),
    "array_replace": Pair(
        "array_replace(%s::int[], %s::int, %s::int)", array_values.replaced, _of(_array, _item, _item)
    ),
    "array_position": Pair("array_position(%s::int[], %s::int)", array_values.place, _of(_array, _item)),
    "array_positions": Pair("array_positions(%s::int[], %s::int)", array_values.places, _of(_array, _item)),
    "array_to_string": Pair(
        "array_to_string(%s::int[], ',', %s::text)",
        lambda a, null: array_values.shown(a, ",", null),
        _of(_array, _item),
    ),
    "array part": Pair(
        "(%s::int[])[%s:%s]",
        lambda a, low, high: array_values.part(a, low, high, False, False),
        _of(_array, _number(-3, 5), _number(-3, 6)),
    ),
    "array ANY": Pair("%s::int = ANY (%s::int[])", array_values.has, _of(_item, _array)),
    "array contains": Pair("%s::int[] @> %s::int[]", array_values.contains, _of(_array, _array)),
    "array overlaps": Pair("%s::int[] && %s::int[]", array_values.overlaps, _of(_array, _array)),
    "array of text": Pair("array_append(NULL::text[], %s::text)", lambda w: array_values.appended(None, w), _of(word)),
    "string_to_array": Pair(
        "string_to_array(%s, %s, %s)",
        array_values.split,
        _of(word, lambda r: r.choice(("", " ", "a", None)), lambda r: r.choice(("a", "", None))),
    ),
    "range holds": Pair(
        "%s::numrange @> %s::numeric", lambda r, n: range_values.holds(r, n, "number"), _of(_range, _bound)
    ),
    **{
        f"range {operator}": Pair(
            f"%s::numrange {operator} %s::numrange", _of_numbers(function), _of(_range, _range), 0
        )
        for operator, function in (
            ("@>", range_values.contains),
            ("&&", range_values.overlaps),
            ("<<", range_values.before),
            ("-|-", range_values.beside),
            ("*", range_values.common),
            ("+", range_values.union),
            ("=", range_values.equal),
        )
    },
    "numrange": Pair(
        "numrange(%s::numeric, %s::numeric, %s)",
        lambda low, high, bounds: range_values.made(low, high, bounds, "number", ""),
        _of(_bound, _bound, lambda r: r.choice(("[]", "[)", "(]", "()"))),
    ),
    "int4range": Pair(
        "int4range(%s, %s, %s)",
        lambda low, high, bounds: range_values.made(str(low), str(high), bounds, "whole", "integer"),
        _of(_number(0, 5), _number(0, 5), lambda r: r.choice(("[]", "[)", "(]", "()"))),
    ),
    "interval text": Pair("%s::interval", interval_changes.shown, _of(_interval)),
    "interval times": Pair("%s::interval * %s::float8", _shown(interval_changes.times), _of(_interval, _factor)),
    "interval plus": Pair("%s::interval + %s::interval", _shown(interval_changes.plus), _of(_interval, _interval)),
    "justify_hours": Pair("justify_hours(%s::interval)", _shown(interval_changes.justified_hours), _of(_interval)),
    "justify_days": Pair("justify_days(%s::interval)", _shown(interval_changes.justified_days), _of(_interval)),
    "timestamp plus": Pair("%s::timestamp + %s::interval", _moved, _of(_moment, _interval)),
    "date_bin": Pair("date_bin(%s::interval, %s::timestamp, %s::timestamp)", _bin, _of(_stride, _moment, _moment)),
    "jsonb ||": Pair("%s::jsonb || %s::jsonb", jsonb_changes.joined, _of(_json, _json)),
    "jsonb - key": Pair("%s::jsonb - %s::text", jsonb_changes.without_key, _of(_json, lambda r: r.choice("ab0"))),
    "jsonb - index": Pair("%s::jsonb - %s::int", jsonb_changes.without_index, _of(_json, _number(-3, 4))),
    "jsonb #-": Pair(f"%s::jsonb #- {_KEYS}", jsonb_changes.without_path, _of(_json, _path)),
    "jsonb_set": Pair(
        f"jsonb_set(%s::jsonb, {_KEYS}, %s::jsonb)",
        lambda j, path, new: jsonb_changes.with_path(j, path, new, True),
        _of(_json, _path, _json),
    ),
    "jsonb_strip_nulls": Pair("jsonb_strip_nulls(%s::jsonb)", jsonb_changes.stripped, _of(_json)),
    "jsonb_pretty": Pair("jsonb_pretty(%s::jsonb)", jsonb_changes.pretty, _of(_json)),
    "to_jsonb": Pair("to_jsonb(%s::text)", jsonb_changes.of_text, _of(word)),
    "jsonb <": Pair("%s::jsonb < %s::jsonb", lambda a, b: jsonb_changes.compared(a, b) < 0, _of(_json, _json)),
    "substring by numbers": Pair(
        "substring(%s, %s, %s)", string_values.substring, _of(word, _number(-3, 6), _number(-1, 5))
    ),
    "lpad": Pair("lpad(%s, %s, %s)", string_values.left_padded, _of(word, _number(-1, 9), word)),
    "rpad": Pair("rpad(%s, %s, %s)", string_values.right_padded, _of(word, _number(-1, 9), word)),
    "split_part": Pair("split_part(%s, %s, %s)", string_values.field, _of(word, _piece, _number(-3, 4))),
    "translate": Pair("translate(%s, %s, %s)", string_values.translated, _of(word, word, word)),
    "LIKE": Pair("%s LIKE %s", string_values.like, _of(word, _like), 0.3),
    "quote_literal": Pair("quote_literal(%s)", string_values.literal, _of(word)),
    "left": Pair('"left"(%s, %s)', string_values.left, _of(word, _number(-6, 6))),
    "right": Pair('"right"(%s, %s)', string_values.right, _of(word, _number(-6, 6))),
    "encode": Pair("encode(%s::bytea, %s)", string_values.encoded, _of(_bytes, _form)),
}


@pytest.mark.parametrize("cases", [40, pytest.param(4000, marks=pytest.mark.long)])
def test_functions_in_python_give_what_postgresql_gives(cases: int, dsn: str) -> None:
    found: dict[str, list[str]] = {}
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute("SET timezone = 'UTC'; SET intervalstyle = 'postgres'")
        for name, pair in PAIRS.items():
            if wrong := _compared(connection, pair, Random(name), cases):
                found[name] = wrong[:3]
    assert not found, json.dumps(found, indent=1, ensure_ascii=False)


def _compared(connection: psycopg.Connection[Any], pair: Pair, random: Random, cases: int) -> list[str]:
    """What differs, and whether too much is left to PostgreSQL."""
    wrong, left = [], 0
    for _ in range(cases):
        arguments = _as_postgresql_has(connection, pair.arguments(random))
        expected, failed = _in_postgresql(connection, pair.sql, arguments)
        try:
            given = pair.function(*arguments)
        except (ValueError, ZeroDivisionError, OverflowError):
            left += not failed
            continue
        given = {True: "true", False: "false"}.get(given, given) if isinstance(given, bool) else given
        if failed or expected != (None if given is None else str(given)):
            wrong.append(f"{arguments}: PostgreSQL {'fails' if failed else repr(expected)}, here {given!r}")
    if left > max(pair.left * cases, 2):
        wrong.append(f"{left} of {cases} are left to PostgreSQL")
    return wrong


def _in_postgresql(connection: psycopg.Connection[Any], sql: str, arguments: Sequence[Any]) -> tuple[str | None, bool]:
    try:
        row = connection.execute(f"SELECT ({sql})::text", arguments).fetchone()
    except psycopg.Error:
        return None, True
    assert row is not None
    return row[0], False


def _as_postgresql_has(connection: psycopg.Connection[Any], arguments: Sequence[Any]) -> list[Any]:
    """Arguments as the columns of a table have them."""
    shown = []
    for argument in arguments:
        if type_ := TYPES.get(type(argument)):
            row = connection.execute(f"SELECT %s::{type_}::text", [str(argument)]).fetchone()
            argument = row[0] if row else argument
        shown.append(argument)
    return shown
