"""A table of thousands of generated values, and expressions over it that Spark must compute as PostgreSQL does."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from datetime import date, datetime, timedelta
from random import Random
from typing import Any
from uuid import UUID

ROWS = 3000

COLUMNS = (
    "k integer",
    "g integer",
    'w text COLLATE "C"',
    "m integer",
    "free numeric",
    "q numeric(12,3)",
    "d date",
    "ts timestamp",
    "ts2 timestamp",
    "j jsonb",
    "upper_hex text",
    "day_text text",
    "moment_text text",
    "name text",
    "j2 jsonb",
    "tz timestamptz",
    "x float8",
    "ai integer[]",
    "ta text[]",
    "e letter",
    "p pence",
    "iv interval",
    "r int4range",
    "dr daterange",
    "big numeric(60,5)",
    "y bytea",
    "a2 integer[]",
)

_LETTERS = "abcxyzABCXYZ  019_-.,;'\"\\{}\t\né\u00df\u0131\u0130\u0149\u03a3\u03c3\u03c2\u01c5\U0001f600\U00010400"


def _word(random: Random) -> str:
    return "".join(random.choice(_LETTERS) for _ in range(random.choice((0, 1, 2, 3, 5, 12))))


_CASED = [chr(n) for n in range(0x1F000) if chr(n).swapcase() != chr(n)]
"""Whatever Python's Unicode has cases for: ASCII is far more frequent below."""


def _name(random: Random) -> str:
    letters = random.choice((_LETTERS, "abc XYZ_9'", _CASED, _CASED))
    return "".join(random.choice(letters) for _ in range(random.choice((0, 1, 2, 5, 20))))


def _number(random: Random) -> str:
    digits = random.choice((1, 2, 4, 7, 12))
    return f"{random.choice(('', '-'))}{random.randrange(10**digits)}e-3"


def _free(random: Random) -> str:
    """A number with as many digits after the point as it is written with."""
    fraction = "".join(random.choice("0005179") for _ in range(random.choice((0, 0, 1, 2, 2, 4, 10))))
    return f"{random.choice(('', '-'))}{random.randrange(10 ** random.choice((1, 3, 7)))}.{fraction}"


def _float(random: Random) -> str:
    """A floating point number as written, near a tie of rounding now and then."""
    if random.random() < 0.5:
        return f"{random.choice(('', '-'))}{random.randrange(10**4)}.{random.choice(('005', '125', '5', '0049999'))}"
    return repr(random.choice((-1, 1)) * random.random() * 10.0 ** random.randrange(-12, 15))


def _day(random: Random) -> date:
    if random.random() < 0.5:
        return date(2020, 1, 1) + timedelta(days=random.randrange(-1000, 1000))
    return date.fromordinal(random.randrange(1, date.max.toordinal()))


def _moment(random: Random, year: int = 1) -> datetime:
    day = max(datetime.combine(_day(random), datetime.min.time()), datetime(year, 1, 1))
    within = random.choice((0, random.randrange(86400) * 10**6, random.randrange(86400 * 10**6)))
    return day + timedelta(microseconds=within)


def _document(random: Random, depth: int) -> Any:
    """A value of JSON."""
    kind = random.randrange(8 if depth else 5)
    if kind < 5:
        whole = random.choice((0, 1, -7, 10**20, random.randrange(-(10**6), 10**6)))
        return (_word(random), whole, random.choice((1.5, -0.25, 1e300, 1e-7, 100.0)), random.random() < 0.5, None)[
            kind
        ]
    if kind == 5:
        return [_document(random, depth - 1) for _ in range(random.randrange(4))]
    keys = ("a", "b", "a b", "0", "1", "", "\u00e9", _word(random))
    return {key: _document(random, depth - 1) for key in keys if random.random() < 0.5}


def _like(random: Random, document: Any) -> str:
    """A value that is equal to one of JSON, or has something in common with it."""
    text = json.dumps(_part(random, document))
    return re.sub(r"\b([0-9]+\.[0-9])(?=[],} ]|$)", r"\g<1>00", re.sub(r"\b1(?=[],}]|$)", "1.00", text))


def _part(random: Random, document: Any) -> Any:
    if random.random() < 0.3:
        return document
    if isinstance(document, dict):
        return {key: _part(random, value) for key, value in document.items() if random.random() < 0.6}
    if isinstance(document, list) and document:
        chosen = [_part(random, random.choice(document)) for _ in range(random.randrange(3))]
        return chosen[0] if len(chosen) == 1 and random.random() < 0.3 else chosen
    return document


def _array(random: Random, elements: Sequence[str]) -> str:
    """An array of one dimension, which most often begins at 1."""
    found = [random.choice(elements) for _ in range(random.choice((0, 1, 2, 3, 3, 8)))]
    listed = "{" + ",".join(found) + "}"
    if not found or random.random() < 0.8:
        return listed
    first = random.randrange(-2, 4)
    return f"[{first}:{first + len(found) - 1}]={listed}"


def _quoted(word: str) -> str:
    """An element of an array of text."""
    escaped = word.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def _interval(random: Random) -> str:
    clock = random.choice(("00:00:00", "-01:02:03.5", "36:00:00", "12:30:00.000001"))
    return f"{random.randrange(-30, 30)} mons {random.randrange(-40, 40)} days {clock}"


def _range(random: Random, bounds: Sequence[str]) -> str:
    """A range, whose bounds are drawn in order."""
    if random.random() < 0.05:
        return "empty"
    low, high = sorted(random.sample(range(len(bounds)), 2))
    start = random.choice((bounds[low], bounds[low], bounds[low], ""))
    end = random.choice((bounds[high], bounds[high], bounds[high], ""))
    return f"{random.choice('[(')}{start},{end}{random.choice('])')}"


def _later_columns(random: Random) -> tuple[str, ...]:
    """Values of the columns from `ai` on."""
    digits = random.choice((1, 5, 18, 40, 55))
    days = sorted(str(_day(random)) for _ in range(4))
    return (
        _array(random, ("0", "1", "2", "3", "3", "5", "-7", "NULL", "2147483647")),
        _array(random, ("a", "b", "c", "NULL", '"NULL"', '""', _quoted(_word(random)), _quoted(_word(random)))),
        random.choice(("z", "it's \\", "é", "")),
        f"{random.randrange(-(10**6), 10**6)}e-2",
        _interval(random),
        _range(random, [str(n) for n in range(-6, 12)]),
        _range(random, days if len({*days}) == 4 else ["2020-01-01", "2020-02-03"]),
        f"{random.choice(('', '-'))}{random.randrange(10**digits)}e-5",
        "\\x" + random.randbytes(random.choice((0, 1, 2, 7, 60))).hex(),
        random.choice(("{}", "{1,2}", "{{1,2},{3,NULL}}", "[0:1][2:2]={{7},{8}}", "{{{1},{2}},{{3},{4}}}")),
    )


def rows() -> Iterator[tuple[str | None, ...]]:
    """Values as text, the same each time; one in twelve is NULL."""
    random, other, later = Random(2), Random(3), Random(4)
    for k in range(ROWS):
        values = (
            str(random.randrange(200)),
            _word(random),
            str(random.randrange(-20, 20)),
            _free(random),
            _number(random),
            str(_day(random)),
            str(_moment(random)),
            str(_moment(random)),
            json.dumps(document := _document(random, 3), ensure_ascii=random.random() < 0.5),
            str(UUID(int=random.getrandbits(128))).upper(),
            random.choice((str(_day(random)), "infinity", "-infinity")),
            _moment(random, year=1000).isoformat(random.choice(" T")),
            _name(other),
            _like(other, document),
            f"{_moment(other)}+00",
            _float(other),
            *_later_columns(later),
        )
        yield (str(k), *(None if random.random() < 1 / 12 else value for value in values))


NUMBERS = (
    "9", "99", "000", "9.99", "99.9", "0.00", "990.00", "9,999", "9,999,999.99", "FM999", "FM9.99", "FM990.99",
    "FM0.00", "FM9,999,990.00", "FM999,999,999", "0,000", "9909", "FM9909.90", "9.09", "FM9.90", "FM9.09", "FM.99",
    ".00", "99.", "FM99.", "FM000.009", "9,9,9", "FM90.9", "FM,999", ",999", "FM9,990.0", "99999999990.999",
)  # fmt: skip
"""Formats of numbers."""

EXAMPLES: dict[str, tuple[str, ...]] = {
    "jsonb": (
        "j -> 'a'::text",
        "j ->> 'a'::text",
        "j ->> ''::text",
        "j -> w",
        "j ->> m::text",
        "j -> 0",
        "j ->> 1",
        "j -> '-1'::integer",
        "j ->> m",
        "j -> 'a'::text -> 'b'::text ->> 'a'::text",
        "j #> '{a,0}'::text[]",
        "j #>> '{a,b}'::text[]",
        "j #>> ARRAY['a b'::text, '-1'::text]",
        "j #>> '{}'::text[]",
        "j ? 'a'::text",
        "j = j2",
        "j <> (j2 -> 'a'::text)",
        "j IS DISTINCT FROM j2",
        "(j -> 'a'::text) = (j2 -> 'a'::text)",
        "(j -> 'a'::text) IS NOT DISTINCT FROM '1'::jsonb",
        'j = \'{"a": 1.5, "b": []}\'::jsonb',
        "j @> j2",
        "j <@ j2",
        "j @> (j2 -> 'a'::text)",
        "j @> '{\"a\": 100}'::jsonb",
        "j @> '[true]'::jsonb",
        "(j -> 'a'::text) @> '1'::jsonb",
        "(j -> 'b'::text) <@ '[1.0, [], {}, \"x\", null, [0.50], {\"a\": 100}]'::jsonb",
        "jsonb_extract_path_text(j, 'a'::text, '0'::text)",
        "jsonb_extract_path(j, 'b'::text)",
        "j ? w",
        "j ?| ARRAY['a'::text, 'b'::text]",
        "j ?& '{a,b}'::text[]",
        "jsonb_typeof(j)",
        "jsonb_typeof(j -> 'a'::text)",
        "CASE WHEN jsonb_typeof(j -> 'a'::text) = 'number'::text THEN j ->> 'a'::text ELSE 'none'::text END",
        "length(j ->> 'b'::text)",
        "(j ->> 'a'::text) IS NULL",
        "j::text",
        "COALESCE(j -> 'a'::text, '{}'::jsonb) ->> 'b'::text",
        "(CASE WHEN jsonb_typeof(j -> 'a'::text) = 'number'::text THEN j -> 'a'::text ELSE NULL::jsonb END)::numeric",
        "(CASE WHEN jsonb_typeof(j -> 'b'::text) = 'boolean'::text THEN j -> 'b'::text ELSE NULL::jsonb END)::boolean",
        "(CASE WHEN length(j ->> 'a'::text) < 8 AND jsonb_typeof(j -> 'a'::text) = 'number'::text"
        " THEN j -> 'a'::text ELSE '7'::jsonb END)::integer",
        "(CASE WHEN length(j ->> 'a'::text) < 8 AND jsonb_typeof(j -> 'a'::text) = 'number'::text"
        " THEN j ->> 'a'::text ELSE '1e-2'::text END)::numeric(12,1)",
    ),
    "to_char": (
        "to_char(ts, 'YYYY-MM-DD HH24:MI:SS'::text)",
        "to_char(ts, 'FMDay FMDD. FMMonth YYYY, FMHH12:MI am'::text)",
        "to_char(ts, 'DAY|Day|day|MONTH|Month|month|DY Dy dy MON Mon mon'::text)",
        "to_char(ts, 'YYY YY Y IYYY IYY IY I IW ID IDDD WW W Q CC J D DDD'::text)",
        "to_char(ts, 'FMYYYY FMYY FMMM FMDDD FMIW FMWW FMCC FMHH24 FMMI FMSS FMJ FMMS FMUS'::text)",
        "to_char(ts, 'HH HH12 MS US SSSS SSSSS FF1 FF2 FF3 FF4 FF5 FF6 AM PM am pm A.M. p.m.'::text)",
        "to_char(ts, 'yyyy-mm-dd\"T\"hh24:mi:ss.us iyyy-iw q ddd'::text)",
        "to_char(d, 'YYYYMMDD'::text)",
        "to_char(d, 'IYYY\"-W\"IW'::text)",
        "to_char(d, 'Mon DD, YYYY'::text)",
        *(f"to_char(q, '{pattern}'::text)" for pattern in NUMBERS),
        *(f"to_char(m, '{pattern}'::text)" for pattern in NUMBERS[::3]),
        "to_char((q::text || 'e-4'::text)::numeric, 'FM9,990.09999'::text)",
    ),
    "cases": (
        "upper(w)",
        "lower(w)",
        "initcap(w)",
        "upper(name)",
        "lower(name)",
        "initcap(CASE WHEN octet_length(name) = length(name) THEN name ELSE NULL::text END)",
        "upper(lower(name))",
        "upper(COALESCE(name, w))",
        "lower(name || w)",
        "upper(\"left\"(name, 3) || (q::text || 'é'::text))",
        "lower(j ->> 'a'::text)",
        "upper(j ->> w)",
        "name ~~* '%a%'::text",
        "name !~~* '_B%'::text",
        "name ~~* '%É%'::text",
        "w ~~* '%É%'::text",
        "w ~~* 'x%'::text",
        "name ~* 'a[x-z ]|c{2}'::text",
        "name ~* '^[^a-y]'::text",
        "w ~* '(b|Y).?[0-z]$'::text",
        "w !~* 'k'::text",
    ),
    "UTC": (
        "tz AT TIME ZONE 'UTC'::text",
        "ts AT TIME ZONE 'utc'::text",
        "date_trunc('month'::text, d::timestamptz)",
        "date_trunc('week'::text, d::timestamptz)::date",
        "date_trunc('hour'::text, tz)",
        "date_trunc('quarter'::text, tz, 'UTC'::text)",
        "EXTRACT(epoch FROM tz)",
        "EXTRACT(year FROM tz)",
        "EXTRACT(hour FROM tz)",
        "EXTRACT(second FROM tz)",
        "date_part('isodow'::text, tz)",
        "tz::date",
        "tz::timestamp",
        "tz::text",
        "ts::timestamptz",
        "ts::text",
        "d::text",
        "day_text::date::text || w",
        "w || ts",
        "w || (m > 0)",
        "concat(d, w, ts)",
        "to_char(tz, 'YYYY-MM-DD HH24:MI:SS.US'::text)",
        "to_char(d::timestamptz, 'YYYY-MM HH24'::text)",
        "tz + '1 mon 2 days 03:04:05'::interval > '2020-01-01 00:00:00+00'::timestamptz",
        "tz - '1 day'::interval < '2020-01-01 00:00:00+00'::timestamptz",
        "tz > d",
        "ts <= tz",
        "tz = (d + '01:00:00'::interval)",
        "age(d::timestamptz, ts::date::timestamptz)",
        "age(tz, ts::timestamptz)",
        "EXTRACT(day FROM tz - d::timestamptz)",
        "isfinite(d)",
        "isfinite(day_text::date)",
    ),
    "floats": (
        "x::numeric",
        "x::numeric(30,3)",
        "(x / 7::double precision)::numeric",
        "round(x::numeric, 2)",
        "round((x / 3::double precision)::numeric, 4)",
        "round(free, 2)",
        "round(free)",
        "q::double precision",
        "q::double precision / 7::double precision",
        "(q / 3.0)::double precision",
        "(q * 123456789.987654)::double precision",
        "free::double precision",
        "x > q::double precision",
    ),
    "intervals": (
        "ts - '2020-06-15 12:34:56.789'::timestamp",
        "ts - d::timestamp",
        "age(ts, d::timestamp)",
        "age('2020-03-31 10:00:00'::timestamp, ts)",
        "age(ts, ts2)",
        "EXTRACT(epoch FROM ts - ts2)",
        "EXTRACT(day FROM ts - ts2)",
        "EXTRACT(hour FROM ts - ts2)",
        "EXTRACT(minute FROM ts - ts2)",
        "EXTRACT(second FROM ts - ts2)",
        "EXTRACT(epoch FROM age(ts, ts2))",
        "EXTRACT(year FROM age(ts, ts2))",
        "EXTRACT(month FROM age(ts, ts2))",
        "EXTRACT(day FROM age(ts, ts2))",
        "ts - ts2 > '30 days'::interval",
        "age(ts, ts2) <= '1 year 2 mons 3 days 04:05:06'::interval",
        "age(ts, ts2) = ts - ts2",
        "(moment_text || 'Z'::text)::timestamptz - '2001-02-03 04:05:06+00'::timestamptz",
        "to_date(to_char(d, 'DD.MM.YYYY'::text), 'DD.MM.YYYY'::text)",
        "to_date(to_char(d, 'YYYYMMDD'::text), 'YYYYMMDD'::text)",
        "to_timestamp(m::double precision * 98765.4321987::double precision)",
        "to_timestamp((q::text || 'e-3'::text)::double precision)",
    ),
    "numeric": (
        "free",
        "free + 1",
        "free - q",
        "free * 2.50",
        "free * free",
        "- free",
        "abs(free)",
        "sign(free)",
        "scale(free)",
        "round(free, 2)",
        "trunc(free, 1)",
        "ceil(free)",
        "round(free)",
        "free / 7",
        "1000.0 / (abs(free) + 1)",
        "free % 13.7",
        "free > q",
        "free = q",
        "free = ANY (ARRAY[0, 1, 5.50])",
        "free <= 100.5 AND free > '-2.0'::numeric",
        "free::numeric(12,2)",
        "free::integer",
        "free::text",
        "(free + 0.10)::text",
        "CASE WHEN free > 5 THEN free * 3 ELSE q END",
        "(j ->> 'a'::text)::text = free::text",
        "width_bucket(free, 0, 500, 10)",
    ),
    "buckets": (
        "width_bucket(q, 0::numeric, 1000::numeric, 7)",
        "width_bucket(q, 1000.5, '-1000.25'::numeric, 13)",
        "width_bucket(q / 3.0, '-10'::numeric, 10.0, 1 + abs(m))",
        "width_bucket(m::numeric, '-20'::numeric, 20::numeric, 8)",
        "width_bucket(m::numeric, 20::numeric, '-20'::numeric, 40)",
    ),
    "texts": (
        "q::text::numeric(12,1)",
        "(' '::text || (q::text || 'e-2 '::text))::numeric(12,3)",
        "(q::text || 'e+3'::text)::numeric",
        "(q::text || 'e-5'::text)::numeric",
        "(q::text || 'e+7'::text)::double precision",
        "(q::text || 'e-20'::text)::double precision",
        "(m % 2 = 0)::text::boolean",
        '"left"((m % 2 = 0)::text, 2)::boolean',
        "upper_hex::uuid",
        "day_text::date",
        "moment_text::timestamp",
        "(moment_text || '+05:30'::text)::timestamptz",
        "(moment_text || 'Z'::text)::timestamptz",
    ),
}

AGGREGATES = (
    "sum(ts - ts2)",
    "avg(ts - ts2)",
    "avg(age(ts, ts2))",
    "avg(age(ts, ts2)) FILTER (WHERE m > 0)",
    "sum(age(d::timestamp, ts2)) FILTER (WHERE m > 0)",
    "EXTRACT(epoch FROM avg(ts - ts2))",
    "sum(free)",
    "avg(free)",
    "sum(free * 0.25) FILTER (WHERE free > 0)",
    "sum(free) / NULLIF(count(free), 0)",
    "string_agg(w, ','::text ORDER BY m DESC, w)",
    "string_agg(w, ''::text ORDER BY d NULLS FIRST, w DESC) FILTER (WHERE m > 0)",
    "string_agg(DISTINCT w, '|'::text ORDER BY w DESC)",
    "array_agg(w ORDER BY w)",
    "array_agg(q ORDER BY m, q DESC)",
    "array_agg(m ORDER BY ts, m)",
    "array_agg(ts ORDER BY ts DESC NULLS LAST)",
    "array_agg(d ORDER BY q, d)",
    "array_agg(DISTINCT m ORDER BY m DESC)",
    "array_agg(DISTINCT w) FILTER (WHERE d > '2000-01-01'::date)",
)
