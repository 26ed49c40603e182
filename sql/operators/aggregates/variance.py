"""Variance and standard deviation from count, sum and sum of squares, to the last digit as PostgreSQL gives them.

Over integers and numerics PostgreSQL keeps N, Σx and Σx² exactly and ends with (``numeric_stddev_internal``)

    variance = (N·Σx² - (Σx)²) / (N·(N - 1))   or N² for the population,

divided as ``/`` divides, and the square root of that at the quotient's display scale. So the same expression gives the
same digits, if both sums have the display scales that PostgreSQL's have.
"""

from __future__ import annotations


def variance(count: str, total: str, squares: str, *, sample: bool) -> str:
    """The variance as an expression; the arguments are expressions, sums are numerics."""
    numerator = f"({count} * {squares} - {total} * {total})"
    divisor = f"({count}::numeric * ({count} - 1))" if sample else f"({count}::numeric * {count})"
    return (
        f"CASE WHEN {count} <= {1 if sample else 0} THEN NULL"
        f" WHEN {total} IN ('NaN'::numeric, 'Infinity'::numeric, '-Infinity'::numeric) THEN 'NaN'::numeric"
        f" WHEN {numerator} <= 0 THEN 0::numeric ELSE {numerator} / {divisor} END"
    )


def deviation(variance: str) -> str:
    """The standard deviation of a variance.

    ``sqrt`` may answer with more digits than the variance has. Rounding what is rounded already can end one unit too
    high: where the middle below the result squares to more than the variance.
    """
    half = "('5e-' || pg_catalog.scale(v.v) + 1)::numeric"
    unit = "('1e-' || pg_catalog.scale(v.v))::numeric"
    root = "SELECT v.v, pg_catalog.round(pg_catalog.sqrt(v.v), pg_catalog.scale(v.v)) AS root"
    return (
        f"(SELECT CASE WHEN v.v = 'NaN'::numeric OR v.v = 0 THEN v.v"
        f" WHEN (v.root - {half}) * (v.root - {half}) > v.v THEN v.root - {unit} ELSE v.root END"
        f" FROM ({root} FROM (SELECT {variance} AS v) AS v) AS v)"
    )
