"""The equality list: functions, casts and aggregates whose results on Spark equal PostgreSQL's, value by value.

What is not here is computed by PostgreSQL. Every entry carries examples over the columns of the edge-case table in
`tests/sql/spark/test_render.py`; they are run on PostgreSQL, Apache Spark and Sail, and must agree in every row.
Operators, CASE and the like have rules in `spark.expressions`, their examples are in `OPERATOR_EXAMPLES`.
"""

from __future__ import annotations

from dataclasses import dataclass

from sql.spark.python.calls import call

NUMBER = "number"
"""An argument of any exact number type, which is then also the result's."""

LITERAL = "literal"
"""A non-negative integer literal: other values of the argument are treated differently by the two systems."""


WORDS = "words"
"""A literal text that is not empty."""

POSITIVE = "positive"
"""An integer literal above zero."""

PADDED = frozenset({"octet_length", "bit_length"})
"""Functions to which the trailing blanks of a char(n) matter."""

SEARCHING = frozenset({"strpos", "replace", "starts_with", "split_part"})
"""Functions that compare text, as its collation does."""


@dataclass(frozen=True, slots=True)
class Function:
    """A function: ``arguments`` and ``result`` are PostgreSQL types or NUMBER, LITERAL, WORDS; ``spark`` its rendering.

    A result of type text has the collation of its arguments.
    """

    name: str
    arguments: tuple[str, ...]
    result: str
    spark: str
    examples: tuple[str, ...]


FUNCTIONS: tuple[Function, ...] = (
    Function("length", ("text",), "integer", "char_length({0})", ("length(t)",)),
    Function("char_length", ("text",), "integer", "char_length({0})", ("char_length(t)",)),
    Function("octet_length", ("text",), "integer", "octet_length({0})", ("octet_length(t)",)),
    Function("btrim", ("text",), "text", "trim({0})", ("btrim(t)",)),
    Function("ltrim", ("text",), "text", "ltrim({0})", ("ltrim(t)",)),
    Function("rtrim", ("text",), "text", "rtrim({0})", ("rtrim(t)",)),
    Function("left", ("text", LITERAL), "text", "left({0}, {1})", ('"left"(t, 2)', '"left"(t, 0)')),
    Function("right", ("text", LITERAL), "text", "right({0}, {1})", ('"right"(t, 2)', '"right"(t, 0)')),
    Function(
        "substring",
        ("text", LITERAL),
        "text",
        "substring({0}, greatest({1}, 1))",
        ("SUBSTRING(t FROM 2)", "SUBSTRING(t FROM 0)", "SUBSTRING(c FROM 2)"),
    ),
    Function(
        "substring",
        ("text", LITERAL, LITERAL),
        "text",
        "substring({0}, greatest({1}, 1), greatest({1} + {2} - greatest({1}, 1), 0))",
        (
            "SUBSTRING(t FROM 1 FOR 2)",
            "SUBSTRING(t FROM 0 FOR 2)",
            "SUBSTRING(t FROM 0 FOR 0)",
            "SUBSTRING(c FROM 1 FOR 2)",
        ),
    ),
)

FUNCTIONS += (
    Function(
        "replace", ("text", WORDS, "text"), "text", "replace({0}, {1}, {2})",
        ("replace(t, 'a'::text, 'xy'::text)", "replace(t, '  '::text, ''::text)", "replace(c, 'b'::text, t)"),
    ),
    Function("strpos", ("text", WORDS), "integer", "instr({0}, {1})", ("strpos(t, 'b'::text)", "strpos(c, 'b'::text)")),
    Function(
        "starts_with", ("text", WORDS), "boolean", "startswith({0}, {1})",
        ("starts_with(t, 'a'::text)", "starts_with(t, ' '::text)"),
    ),
    Function("reverse", ("text",), "text", "reverse({0})", ("reverse(t)", "reverse(c)")),
    Function("repeat", ("text", LITERAL), "text", "repeat({0}, {1})", ("repeat(t, 3)", "repeat(t, 0)")),
    Function("md5", ("text",), "text", "md5({0})", ("md5(t)", "md5(c)")),
    Function(
        "split_part", ("text", WORDS, POSITIVE), "text", "split_part({0}, {1}, {2})",
        ("split_part(t, ','::text, 1)", "split_part(t, ','::text, 2)", "split_part(t, 'a'::text, 5)"),
    ),
    Function(
        "lpad", ("text", LITERAL, WORDS), "text", "lpad({0}, {1}, {2})",
        ("lpad(t, 4, 'xy'::text)", "lpad(t, 0, 'é'::text)", "lpad(t, 1, ' '::text)"),
    ),
    Function(
        "rpad", ("text", LITERAL, WORDS), "text", "rpad({0}, {1}, {2})",
        ("rpad(t, 4, 'xy'::text)", "rpad(t, 1, 'x'::text)"),
    ),
    Function("ascii", ("text",), "integer", "ascii({0})", ("ascii(t)",)),
    Function("bit_length", ("text",), "integer", "(octet_length({0}) * 8)", ("bit_length(t)",)),
    Function(
        "btrim", ("text", WORDS), "text", "trim(BOTH {1} FROM {0})",
        ("btrim(t, 'a '::text)", "btrim(t, 'é😀'::text)", "btrim(c, 'ba'::text)"),
    ),
    Function("ltrim", ("text", WORDS), "text", "trim(LEADING {1} FROM {0})", ("ltrim(t, ' a'::text)",)),
    Function("rtrim", ("text", WORDS), "text", "trim(TRAILING {1} FROM {0})", ("rtrim(t, 'cb'::text)",)),
    Function(
        "translate", ("text", WORDS, WORDS), "text", "translate({0}, {1}, {2})",
        ("translate(t, 'ab'::text, 'x'::text)", "translate(t, 'aé'::text, 'yz'::text)"),
    ),
)  # fmt: skip

# The part of a timestamp or date, its rendering, the digits before and after the point of the numeric it gives.
EXTRACT_PARTS = {
    "year": ("year({0})", 5, 0),
    "quarter": ("quarter({0})", 1, 0),
    "month": ("month({0})", 2, 0),
    "week": ("weekofyear({0})", 2, 0),
    "day": ("day({0})", 2, 0),
    "doy": ("dayofyear({0})", 3, 0),
    "dow": ("(dayofweek({0}) - 1)", 1, 0),
    "isodow": ("((dayofweek({0}) + 5) % 7 + 1)", 1, 0),
    "hour": ("hour({0})", 2, 0),
    "minute": ("minute({0})", 2, 0),
    "second": ("extract(SECOND FROM {0})", 2, 6),
    "milliseconds": ("(extract(SECOND FROM {0}) * 1000)", 5, 3),
    "microseconds": ("(extract(SECOND FROM {0}) * 1000000)", 8, 0),
    "isoyear": ("year(date_add(CAST({0} AS DATE), 3 - (dayofweek({0}) + 5) % 7))", 4, 0),
    "decade": ("(year({0}) div 10)", 3, 0),
    "century": ("((year({0}) + 99) div 100)", 3, 0),
    "millennium": ("((year({0}) + 999) div 1000)", 2, 0),
}
TIME_PARTS = frozenset(("hour", "minute", "second", "milliseconds", "microseconds"))
YEAR_PARTS = frozenset(("year", "isoyear", "decade", "century", "millennium"))
"""Parts that are infinite where the date is, and counted otherwise before the year 1; of infinity others are NULL."""

_OF_YEAR = (
    "CAST(make_date(CASE WHEN year({0}) >= {2} THEN CAST({1} AS INT) WHEN {0} IS NOT NULL"
    " THEN CAST(raise_error('before the year 1') AS INT) END, 1, 1) AS TIMESTAMP_NTZ)"
)
"""The first day of a year, which is {1}, where that of the timestamp is {2} at least."""

# By arithmetic on dates where possible: Sail's own truncation counts nanoseconds, which reach from 1677 to 2262 only.
TRUNCATIONS = {
    "year": "CAST(date_sub(CAST({0} AS DATE), dayofyear({0}) - 1) AS TIMESTAMP_NTZ)",
    "quarter": "CAST(make_date(year({0}), quarter({0}) * 3 - 2, 1) AS TIMESTAMP_NTZ)",
    "month": "CAST(date_sub(CAST({0} AS DATE), day({0}) - 1) AS TIMESTAMP_NTZ)",
    "week": "CAST(date_sub(CAST({0} AS DATE), (dayofweek({0}) + 5) % 7) AS TIMESTAMP_NTZ)",
    "day": "CAST(CAST({0} AS DATE) AS TIMESTAMP_NTZ)",
    "hour": "CAST(date_trunc('HOUR', {0}) AS TIMESTAMP_NTZ)",
    "minute": "CAST(date_trunc('MINUTE', {0}) AS TIMESTAMP_NTZ)",
    "second": "CAST(date_trunc('SECOND', {0}) AS TIMESTAMP_NTZ)",
    "decade": _OF_YEAR.replace("{1}", "year({0}) div 10 * 10").replace("{2}", "10"),
    "century": _OF_YEAR.replace("{1}", "(year({0}) + 99) div 100 * 100 - 99").replace("{2}", "1"),
    "millennium": _OF_YEAR.replace("{1}", "(year({0}) + 999) div 1000 * 1000 - 999").replace("{2}", "1"),
}
"""Units of date_trunc on a timestamp without time zone."""

ROUNDED = (
    "(CASE WHEN abs({0}) >= {1} OR {0} = 0 THEN {0} WHEN {0} < 0 THEN - ((abs({0}) + {1}) - {1})"
    " ELSE ({0} + {1}) - {1} END)"
).replace("{1}", f"CAST({1 << 52} AS DOUBLE)")
"""A double precision rounded half to even, zeros with their sign: from 2^52 on there are whole ones only, and what is
added to that is rounded so. (Spark's rint does it; Sail's rounds half away from zero.)"""

# (from, to): rendering. Between numbers the rule is in `spark.expressions`, since it depends on scales.
_WRITTEN = (
    r"(CASE WHEN {0} RLIKE '\\A[+-]?[0-9]+\\z' THEN greatest(CAST({0} AS {1}), NULL)"
    " WHEN {0} IS NOT NULL THEN CAST({2} AS {1}) END)"
)
_NO_NUMBER = "raise_error('invalid input syntax for a number')"

CASTS = {
    **{
        ("text", name): _WRITTEN.replace("{1}", spark).replace("{2}", _NO_NUMBER)
        for name, spark in (("smallint", "SMALLINT"), ("integer", "INT"), ("bigint", "BIGINT"))
    },
    ("text", "boolean"): call("text_boolean", "{0}"),
    ("text", "double precision"): call("text_double", "{0}"),
    ("text", "uuid"): call("text_uuid", "{0}"),
    ("text", "date"): call("text_date", "{0}"),
    ("text", "timestamp without time zone"): call("text_timestamp", "{0}"),
    ("text", "timestamp with time zone"): call("text_timestamptz", "{0}"),
    ("double precision", "text"): call("float_text", "{0}"),
    ("real", "text"): call("real_text", "CAST({0} AS DOUBLE)"),
    ("interval", "text"): call("interval_shown", "{0}"),
    ("jsonb", "text"): "{0}",
    ("jsonb", "boolean"): call("jsonb_boolean", "{0}"),
    ("integer", "boolean"): "({0} <> 0)",
    ("boolean", "text"): "CAST({0} AS STRING)",
    ("boolean", "integer"): "CAST({0} AS INT)",
    ("smallint", "text"): "CAST({0} AS STRING)",
    ("integer", "text"): "CAST({0} AS STRING)",
    ("bigint", "text"): "CAST({0} AS STRING)",
    ("numeric", "text"): "CAST({0} AS STRING)",
    ("smallint", "double precision"): "CAST({0} AS DOUBLE)",
    ("integer", "double precision"): "CAST({0} AS DOUBLE)",
    ("bigint", "double precision"): "CAST({0} AS DOUBLE)",
    ("real", "double precision"): "CAST({0} AS DOUBLE)",
    ("double precision", "real"): (
        "(CASE WHEN abs(CAST({0} AS FLOAT)) = CAST('Infinity' AS FLOAT) AND abs({0}) <> CAST('Infinity' AS DOUBLE)"
        " THEN CAST(raise_error('value out of range: overflow') AS FLOAT)"
        " WHEN CAST({0} AS FLOAT) = CAST(0 AS FLOAT) AND {0} <> 0"
        " THEN CAST(raise_error('value out of range: underflow') AS FLOAT) ELSE CAST({0} AS FLOAT) END)"
    ),
    ("timestamp without time zone", "time without time zone"): call("moment_clock", "{0}"),
    # From text both give the nearest number; Sail divides an integer by a power of ten.
    ("numeric", "double precision"): "CAST(CAST({0} AS STRING) AS DOUBLE)",
    ("double precision", "integer"): f"greatest(CAST({ROUNDED} AS INT), NULL)",
    ("double precision", "smallint"): f"greatest(CAST({ROUNDED} AS SMALLINT), NULL)",
    ("real", "integer"): f"greatest(CAST({ROUNDED.replace('{0}', 'CAST({0} AS DOUBLE)')} AS INT), NULL)",
    ("uuid", "text"): "{0}",
    ("date", "timestamp without time zone"): "CAST({0} AS TIMESTAMP_NTZ)",
    ("timestamp without time zone", "date"): "CAST({0} AS DATE)",
}

CAST_EXAMPLES = (
    "i4::boolean",
    "i4::text::integer",
    "i8::text::bigint",
    "i2::text::smallint",
    "('+00' || abs(i2 % 9::smallint)::text)::integer",
    "CASE WHEN t ~ '^[0-9]+$'::text THEN t::integer ELSE 0 END",
    "b::text",
    "b::integer",
    "i2::text",
    "i4::text",
    "i8::text",
    "n::text",
    "u::text",
    "i2::double precision",
    "i4::double precision",
    "i8::double precision",
    "r::double precision",
    "d::timestamp without time zone",
    "ts::date",
    "i2::integer",
    "i4::bigint",
    "i4::numeric",
    "i8::numeric",
    "i4::numeric(14,2)",
    "n::numeric(12,1)",
    "n::numeric(12,0)",
    "n::numeric(14,4)",
    "n::integer",
    "n::bigint",
    "(i4 / 70000)::smallint",
    "t::character varying",
    "'12'::integer",
    "'-3.50'::numeric",
    "'2024-02-29'::date",
    "NULL::integer",
    "'a\\b''c'::text",
    "'é€😀'::text",
    "y",
    "j",
    "a",
    "v",
    "free",
    "NULL::jsonb",
    "y = y",
    "free IS NULL",
    "j IS NOT NULL",
    "COALESCE(free, 0::numeric)",
    "CASE WHEN b THEN j END",
    "c::text",
    "(n / 3.0)::text",
    "(n / 3.0)::integer",
    "(n / 3.0)::numeric(12,3)",
    "(CASE WHEN b THEN n ELSE 0::numeric END)::text",
)

OPERATOR_EXAMPLES = (
    "i4 / 2 + 1", "i2 / 2::smallint + 1::smallint", "i4 / 3 - i8 / 3", "i8 / 7 * 3::bigint", "- (i4 / 2)",
    "i4 / 3", "i4 / (-3)", "i8 / 3::bigint", "i2 / 7::smallint", "i4 % 7", "i4 % (-7)", "i8 % 10::bigint",
    "n + 1::numeric", "n - n2", "n * n2", "n * 1.5", "- n", "n + i4::numeric",
    "round(n)", "round(n, 1)", "round(n2, 2)",
    "ceil(n)", "floor(n)", "ceiling(n2)",
    "i4 = 0", "i4 <> 1", "i4 < i8", "i2 <= 7", "i8 > 0", "n >= 0.5", "n = n2", "n < i4::numeric", "i4 IS NULL",
    "t IS NOT NULL", "i4 IS DISTINCT FROM 0", "t IS NOT DISTINCT FROM NULL::text", "b IS TRUE", "b IS NOT TRUE",
    "b IS FALSE", "b IS NOT FALSE", "b IS UNKNOWN", "b IS NOT UNKNOWN",
    "b AND i4 > 0", "b OR i4 > 0", "NOT b", "b = (i4 > 0)", "i4 = ANY (ARRAY[0, 1, 7])", "i4 <> ALL (ARRAY[0, 1])",
    "i4 = ANY (ARRAY[0, NULL::integer])", "t = ANY (ARRAY['a'::text, ''::text])", "i4 >= 0 AND i4 <= 10",
    "t = 'a'::text", "t <> ''::text", "t < 'b'::text", "t >= 'Z'::text", "t ~~ 'a%'::text", "t !~~ '%_b%'::text",
    "t || '-'::text", "t || t", "concat(t, 'x'::text, t)", "t || '${env:HOME}'::text",
    "CASE WHEN i4 > 0 THEN 'pos'::text WHEN i4 = 0 THEN 'zero'::text ELSE NULL::text END",
    "CASE i4 WHEN 0 THEN 1 WHEN 7 THEN 2 ELSE 3 END", "COALESCE(i4, 0)", "COALESCE(t, 'none'::text)", "NULLIF(i4, 0)",
    "NULLIF(t, ''::text)", "GREATEST(i4, 3)", "LEAST(i4, i2::integer, 3)", "GREATEST(d, '2000-01-01'::date)",
    "d > '2000-01-01'::date", "d + 30", "d - 400", "d - '2000-01-01'::date", "d = '2024-02-29'::date",
    "ts >= '2013-07-01 12:00:00'::timestamp without time zone",
    "tz < '2013-07-01 12:00:00+00'::timestamp with time zone",
    "tz = tz", "u = '00000000-0000-0000-0000-000000000001'::uuid", "u < 'ffffffff-0000-0000-0000-000000000000'::uuid",
    "f > 0::double precision", "f <> 'NaN'::double precision", "f", "r",
    "c", "c = 'ab'::bpchar",
    "c <> 'ab   '::bpchar", "c < 'b'::bpchar", "c ~~ 'ab%'::text", "c ~~ 'ab'::text", "c || 'x'::text",
    "c = ANY (ARRAY['ab'::bpchar, 'x'::bpchar])", "CASE WHEN b THEN c ELSE 'no'::bpchar END = 'no'::bpchar",
    "n / 3.0", "n / 7::numeric", "i4::numeric / 3::numeric",
    "n / NULLIF(n2, 0::numeric)", "1.0 / NULLIF(n, 0::numeric)",
    "n / 3.0 / 7.00", "0.5 * (n / 3.0) + n2", "n > 0.2 * (n2 / 3.0)", "round(n / 3.0, 2)", "n % NULLIF(n2, 0::numeric)",
    "(i8 % 1000000::bigint)::numeric / 10007::numeric", "CASE WHEN n2 <> 0::numeric THEN n / n2 ELSE NULL::numeric END",
    "CASE WHEN b THEN n ELSE 0::numeric END", "COALESCE(n, 0::numeric)", "COALESCE(n, n2, 1.2345)", "NULLIF(n, 2.5)",
    "(CASE WHEN b THEN n ELSE 0::numeric END) * 2.5", "(CASE WHEN b THEN n ELSE 1.234 END) + n2",
    "- (CASE WHEN b THEN n ELSE 0::numeric END)", "abs(CASE WHEN b THEN n ELSE 0::numeric END)",
    "(CASE WHEN b THEN n ELSE 0::numeric END) > n2", "trunc(n)", "trunc(n, 1)", "trunc(n2, 5)", "abs(i4 / 2)", "abs(n)",
    "n = i4::numeric", "n2 >= i2::numeric",
    "d + '1 mon'::interval > '2000-01-01 00:00:00'::timestamp without time zone",
    "d - '1 year 1 day'::interval = '2023-02-27 00:00:00'::timestamp without time zone",
    "ts + '1 mon 1 day 01:02:03.5'::interval > '2013-08-02 13:02:03.4'::timestamp without time zone",
    "ts - '-1 mon'::interval = '2024-03-29 13:59:59.123456'::timestamp without time zone",
    "tz + '01:00:00'::interval > '2013-07-01 12:30:00+00'::timestamp with time zone",
    "d < ts", "ts >= d", "d = '2024-02-29 00:00:00'::timestamp without time zone",
    "d >= '2020-12-30 12:00:00'::timestamp without time zone",
    "d < ('2020-11-30'::date + '1 mon'::interval)", "t COLLATE \"C\" < 'b'::text",
    "di", "tsi", "tzi", "di + 30", "di - 400", "di = 'infinity'::date", "di <= d", "GREATEST(di, d)", "di < tsi",
    "tsi < 'infinity'::timestamp without time zone", "tzi >= '-infinity'::timestamp with time zone",
    "tsi + '1 mon 1 day 01:02:03.5'::interval", "di - '1 year 1 day'::interval", "tzi - '01:00:00'::interval",
    "EXTRACT(month FROM di)", "EXTRACT(second FROM tsi)", "EXTRACT(dow FROM tsi)",
    "date_trunc('month', tsi)", "date_trunc('hour', tsi)", "di::timestamp without time zone", "tsi::date",
    "e", "e::text", "e = 'it''s \\'::public.letter", "e IS DISTINCT FROM ''::public.letter",
    "COALESCE(e, 'é'::public.letter)", "e = ANY (ARRAY['z'::public.letter, 'é'::public.letter])",
    "CASE WHEN b THEN e ELSE NULL::public.letter END", "p", "p + 1.5", "p > n", "p / 3.0",
    "t ~ 'a'::text", "t !~ '^[ab]+$'::text", "t ~ '^(a|é|.ß)'::text", "t ~ '^.$'::text", "t ~ 'a.b'::text",
    "t ~ '[^a-z]'::text", "t ~ '^ *pad *$'::text", "t ~ '(a|b){2}'::text", r"t ~ '\.|%|\\'::text",
    "t ~ 'w.line$'::text", "t ~ '^x?_b$'::text", "t ~ '😀+x?$'::text",
    "date_part('year'::text, ts)", "date_part('dow'::text, d)",
    "i4 & 6", "i8 & i4::bigint", "i2 | 5::smallint", "i4 # i2::integer", "i8 # '-1'::bigint", "~ i2", "~ i4", "~ i8",
    "i4 << 3", "i8 << 63", "i4 >> 31", "i8 >> 2", "i2 >> 3", "i4 << 0", "to_hex(i4)", "to_hex(i8)",
    "concat_ws(', '::text, t, i4, n)", "concat_ws(t, 'a'::text, NULL::text, t)", "concat(t, i4, n)", "t || i4",
    "n || t", "OVERLAY(t PLACING 'xy'::text FROM 2)", "OVERLAY(t PLACING t FROM 1 FOR 1)",
    "OVERLAY(t PLACING ''::text FROM 3 FOR 0)", "\"left\"(t, '-2'::integer)", "\"right\"(t, '-2'::integer)",
    "\"left\"(c, '-1'::integer)", "\"right\"(c, '-1'::integer)",
    "f + 1::double precision", "f - g", "g * 0.5::double precision", "g / 3::double precision", "- f", "- r", "r + r2",
    "r * r2", "r - f", "r2 / 7::real", "(r2 + g) * 2::double precision - 1::double precision / 3::double precision",
    "r2 * g", "g / 3::double precision + g / 7::double precision > 0.1::double precision", "g * g * g - g",
    "CASE WHEN g <> 0::double precision THEN 1::double precision / g ELSE 0::double precision END",
    "sqrt(CASE WHEN f < 0::double precision THEN NULL::double precision ELSE f END)", "abs(f)", "abs(r)", "round(f)",
    "sign(n)", "sign(n2 - 0.005)", "scale(n)", "scale(n / 3.0)", "num_nulls(i4, t, n)", "num_nonnulls(b, d)",
    "CASE WHEN abs(f) < 1000::double precision THEN f::integer ELSE NULL::integer END",
    "CASE WHEN abs(r) < 1000::real THEN r::integer ELSE NULL::integer END",
    "CASE WHEN abs(f) < 1000::double precision THEN f::smallint ELSE 7::smallint END",
    "make_date(2000 + i2 % 7::smallint, 2, 28)", "make_date(i4 % 9 + 2010, abs(i2 % 12::smallint) + 1, 5)",
    "EXTRACT(epoch FROM ts)", "EXTRACT(epoch FROM d)",
    "d + i2 % 20::smallint", "d - i2 % 20::smallint", "di + 3 * i2 / 3", "d + i4 % 20",
    "GREATEST(7::numeric(3,0), i8::numeric)", "CASE WHEN b THEN 7::numeric(3,0) ELSE i4::numeric END",
    "to_char(di, 'YYYY'::text)", "to_char(tsi, 'DD Mon'::text)", "to_char(ts, 'YYYY'::text)", "j ->> 'b'::text",
    "j -> 0", "j ? 'b'::text",
    "EXTRACT(epoch FROM v)", "EXTRACT(year FROM v)", "EXTRACT(month FROM v)", "EXTRACT(day FROM v)",
    "EXTRACT(hour FROM v)", "EXTRACT(minute FROM v)", "EXTRACT(second FROM v)", "v < '1 mon'::interval", "v = v",
    "age(ts, d::timestamp without time zone)", "ts - d::timestamp without time zone",
    "f::numeric", "r::numeric", "n2::double precision", "di::text", "tsi::text", "tzi::text", "tzi::date",
    "round((CASE WHEN g <> 'NaN'::double precision THEN g ELSE NULL::double precision END)::numeric, 3)",
    "tzi AT TIME ZONE 'UTC'::text", "tsi AT TIME ZONE 'UTC'::text", "isfinite(tzi)", "isfinite(di)", "tzi > di",
    "date_trunc('month'::text, tzi)", "date_trunc('month'::text, di::timestamptz)", "EXTRACT(month FROM tzi)",
    "tzi + '1 mon'::interval", "to_char(tzi, 'YYYY HH24'::text)", "concat(di, ' ', tsi)", "t || b",
    "COALESCE(di, '-infinity'::date)", "CASE WHEN b THEN tsi ELSE 'infinity'::timestamp without time zone END",
)  # fmt: skip

# In WHERE, where the two leave out what cannot be true by the least and greatest values of files and their parts.
CONDITION_EXAMPLES = (
    "f = 'NaN'::double precision", "f > 1::double precision", "r > 'Infinity'::real", "r >= '3e38'::real",
    "r::double precision > 0.1::double precision", "f < 'NaN'::double precision", "f = '-0'::double precision",
    "i4 > 6.5", "i2 < 70000", "i4 > '-3000000000'::bigint", "i8 = 1234567890123.0", "i8::text = '01'::text",
    "i4::numeric(14,2) = 7.00", "n > 0.005", "n = ANY (ARRAY[0.005, 0.01])", "n <= 2.505 AND n >= '-0.505'::numeric",
    "n::numeric(12,1) = 1.5", "n::integer = 3", "round(n, 1) = 1.5", "n::text = '.01'::text", "n2::numeric < 1.0451",
    "di = 'infinity'::date", "di > '9999-01-01'::date", "tsi < '0001-01-01 00:00:00'::timestamp without time zone",
    "tzi = '-infinity'::timestamp with time zone", "tsi::date = 'infinity'::date", "ts::date <= '2013-07-01'::date",
    "ts::date = ANY (ARRAY['2013-07-01'::date, '1969-12-31'::date])", "d > '2020-12-30 12:00:00'::timestamp",
    "d::timestamp without time zone <> '2024-02-29 00:00:01'::timestamp without time zone",
    "EXTRACT(year FROM d) = 2020::numeric", "EXTRACT(year FROM ts) >= 2012.5", "EXTRACT(day FROM tsi) > 50::numeric",
    "EXTRACT(month FROM di) <> 2::numeric", "EXTRACT(month FROM di) IS NULL", "EXTRACT(second FROM ts) = 59.999999",
    "date_trunc('month', ts) > '2013-07-02 00:00:00'::timestamp without time zone",
    "t > 'zz'::text", "t ~~ 'a%'::text", "t = ''::text", "c = 'ab'::bpchar", "e::text = 'z'::text",
    "u = '123e4567-e89b-12d3-a456-426614174000'::uuid", "(i4 > 5) = b", "i4 / 2 > 3 AND i4 % 7 <> 0", "length(t) > 3",
)  # fmt: skip

AGGREGATE_EXAMPLES = (
    "count(*)", "count(i4)", "count(DISTINCT t)", "sum(i2)", "sum(i4)", "sum(i8)", "sum(n)", "sum(DISTINCT i4)",
    "sum(n * n2)", "min(i4)", "max(i8)", "min(n)", "max(t)", "min(d)", "max(ts)", "min(tz)",
    "bool_and(b)", "bool_or(b)", "every(b)",
    "count(*) FILTER (WHERE b)", "sum(i4) FILTER (WHERE (i4 > 0))", "max(i4) FILTER (WHERE (t = 'no such'::text))",
    "count(DISTINCT i4) FILTER (WHERE (i4 > 0))",
    "avg(i2)", "avg(i4)", "avg(n)", "avg(n2) FILTER (WHERE b)", "avg(DISTINCT n)", "avg(i8 % 1000::bigint)",
    "sum(CASE WHEN b THEN n ELSE 0::numeric END)", "avg(CASE WHEN b THEN n ELSE 0::numeric END)",
    "sum(COALESCE(n, 1.2345)) FILTER (WHERE (i4 > 0))", "min(c)", "max(c)", "count(DISTINCT c)",
    "sum(v)", "avg(v)", "sum(v) FILTER (WHERE b)", "count(j)", "count(free)", "count(DISTINCT y)",
    "bit_and(i4)", "bit_or(i8)", "bit_xor(i2)", "bit_or(i4) FILTER (WHERE b)", "bit_and(i8 | 1::bigint)",
    "count(DISTINCT e)", "min(p)", "min(di)", "max(di)", "max(tsi)", "min(tzi)", "count(DISTINCT di)",
    "sum(n) / 3.0", "avg(n) > 1.5", "0.2 * avg(n2)", "sum(n) / NULLIF(count(*), 0)::numeric",
    "string_agg(t, ', '::text ORDER BY b DESC NULLS FIRST, i4 DESC, t)",
    "string_agg(t, ''::text ORDER BY t DESC NULLS LAST) FILTER (WHERE b)",
    "string_agg(c, '\\'::text ORDER BY c)", "string_agg(t, ','::text ORDER BY k, t) FILTER (WHERE k < 0)",
    "string_agg(DISTINCT t, '; '::text)", "string_agg(DISTINCT t, '|'::text ORDER BY t DESC) FILTER (WHERE i4 > 0)",
    "string_agg(DISTINCT c, ''::text ORDER BY c)", "array_agg(DISTINCT t ORDER BY t DESC)", "array_agg(DISTINCT b)",
    "array_agg(DISTINCT i4 ORDER BY i4 DESC NULLS LAST)", "array_agg(DISTINCT n) FILTER (WHERE k < 0)",
    "array_agg(DISTINCT di ORDER BY di NULLS FIRST)", "array_agg(DISTINCT n) FILTER (WHERE n IS NULL)",
    "array_agg(t ORDER BY t)", "array_agg(i4 ORDER BY b, i4 DESC)", "array_agg(n ORDER BY n NULLS FIRST)",
    "array_agg(b ORDER BY b)", "array_agg(u ORDER BY u DESC)", "array_agg(di ORDER BY di)", "array_agg(d ORDER BY d)",
    "array_agg(ts ORDER BY ts)", "array_agg(tsi ORDER BY tsi)", "array_agg(tz ORDER BY tz)",
    "array_agg(tzi ORDER BY tzi DESC)", "array_agg(i8 ORDER BY d, i8) FILTER (WHERE k < 0)",
    "array_agg(i2 ORDER BY k, i2) FILTER (WHERE b)", "array_agg(n2 ORDER BY t, n2 DESC)",
)  # fmt: skip

# PostgreSQL raises an error for these; Spark must not give a value.
ERROR_EXAMPLES = (
    "i4 + 2147483647", "i8 * 2::bigint", "i2 + 32767::smallint", "i8 + i8", "i8 - (- 9223372036854775807)", "i4 * i4",
    "i2 * i2", "- i2", "- i4", "- i8", "abs(i2)", "abs(i4)", "abs(i8)", "i4 / 0", "i4 % 0", "i8 / (-1)::bigint",
    "i8::integer", "i4::smallint", "(n * 1000)::numeric(10,2)", "n / (n2 - n2)", "n % (n2 - n2)",
    "f * 10::double precision", "f * f", "f / 1000::double precision", "1::double precision / f", "f / g", "r * r",
    "r / 1000::real", "r + r", "f * 10::double precision > 5::double precision", "f + f",
    "t::boolean", "t::date", "t::numeric(5,2)", "t::numeric", "t::uuid", "t::double precision", "j::integer",
    "j::numeric", "j::boolean", "jsonb_array_length(j)", "t::timestamp without time zone",
    "(n::text || 'e9'::text)::numeric(9,2)",
    "to_timestamp(f)", "free::integer",
    "t::integer", "t::bigint", "(i8::text || '0')::bigint", "(' ' || t)::smallint",
    "f::integer", "f::smallint", "r::integer", "sqrt(f)", "make_date(i4, 2, 3)", "make_date(2023, 2, 29 + i4 * 0)",
    "make_date(2023, i2::integer, 1)", "make_date(2023, 1, i2::integer)",
    "di - '2000-01-01'::date", "'2000-01-01'::date - di", "di - '2000-01-01'::date > 5",
    "i4 + 2147483647 > 5", "i8 * 2::bigint = 4", "i2 + 32767::smallint <= 5", "i4 / (-1) > 5", "i8::integer > 5",
    "i8::integer = ANY (ARRAY[1, 7])", "n::smallint = 5", "(n * 1000)::numeric(10,2) > 5::numeric",
)  # fmt: skip

# What PostgreSQL computes and Spark's decimals are too short for: an error, or PostgreSQL's result.
LONG_EXAMPLES = (
    "free + 1::numeric",
    "free > 5::numeric",
    "free::text",
    "to_date(t, 'YYYY-MM-DD'::text)",
    "t::numeric",
    "to_char(free, '9.99'::text)",
    "tsi - '2000-01-01 00:00:00'::timestamp without time zone",
    "age(tsi, ts)",
    "i8::numeric * i8::numeric * i8::numeric",
    "i8::numeric * 10000000000000000000.5 * n",
    "n / 0.00000000000001",
    "i8::numeric / 3.0",
    "i8::numeric + 0.00000000000000000000001 * n",
    "(i8::numeric * i8::numeric) > (n * n2)",
    "n / 99999999999999.99",
    "(i8::numeric * i8::numeric) % 7::numeric",
    "EXTRACT(year FROM di)",
    "EXTRACT(year FROM di) > 2000::numeric",
    "EXTRACT(epoch FROM di)",
    "EXTRACT(epoch FROM tsi)",
    "d + i4",
    "d - i4",
    "di + i4",
    "EXTRACT(year FROM (d - 800))",
    "EXTRACT(isoyear FROM (d - 999999))",
    "EXTRACT(century FROM (ts - '3 years'::interval))",
    "EXTRACT(millennium FROM tsi) < 3::numeric",
)
LONG_AGGREGATES = (
    "sum(free)",
    "avg(free)",
    "avg(i8)",
    "sum(i8::numeric * i8::numeric)",
    "sum(i8::numeric * i8::numeric * 3.5)",
    "avg(n / 3.0)",
)
