"""A table of thousands of generated values, and expressions over it that Spark must compute as PostgreSQL does."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import date, datetime, timedelta
from random import Random

ROWS = 3000

COLUMNS = (
    "k integer",
    "g integer",
    'w text COLLATE "C"',
    "m integer",
    "q numeric(12,3)",
    "d date",
    "ts timestamp",
)

_LETTERS = "abcxyzABCXYZ  019_-.,;'\"\\{}\t\né\u00df\u0131\u0130\u0149\u03a3\u03c3\u03c2\u01c5\U0001f600\U00010400"


def _word(random: Random) -> str:
    return "".join(random.choice(_LETTERS) for _ in range(random.choice((0, 1, 2, 3, 5, 12))))


def _number(random: Random) -> str:
    digits = random.choice((1, 2, 4, 7, 12))
    return f"{random.choice(('', '-'))}{random.randrange(10**digits)}e-3"


def _day(random: Random) -> date:
    if random.random() < 0.5:
        return date(2020, 1, 1) + timedelta(days=random.randrange(-1000, 1000))
    return date.fromordinal(random.randrange(1, date.max.toordinal()))


def _moment(random: Random) -> datetime:
    day = datetime.combine(_day(random), datetime.min.time())
    within = random.choice((0, random.randrange(86400) * 10**6, random.randrange(86400 * 10**6)))
    return day + timedelta(microseconds=within)


def rows() -> Iterator[tuple[str | None, ...]]:
    """Values as text, the same each time; one in twelve is NULL."""
    random = Random(2)
    for k in range(ROWS):
        values = (
            str(random.randrange(200)),
            _word(random),
            str(random.randrange(-20, 20)),
            _number(random),
            str(_day(random)),
            str(_moment(random)),
        )
        yield (str(k), *(None if random.random() < 1 / 12 else value for value in values))


EXAMPLES: dict[str, tuple[str, ...]] = {}

AGGREGATES = (
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
