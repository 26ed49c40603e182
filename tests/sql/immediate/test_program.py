"""What the trigger functions of IMMEDIATE mode do, and what they leave out."""

from __future__ import annotations

import re

import pytest

from sql import Column, Source, jobs
from sql.immediate import Lock, Program

T = Source(
    1,
    "public",
    "t",
    (
        Column("id", "integer", not_null=True),
        Column("g", "integer"),
        Column("v", "integer"),
        Column("at", "timestamp with time zone"),
    ),
    ("id",),
)
U = Source(2, "public", "u", (Column("g", "integer", not_null=True), Column("name", "text")), ("g",))
JOIN = "SELECT t.id, t.v, u.name FROM (public.t JOIN public.u ON ((u.g = t.g)))"
OFTEN = """SELECT t.g AS id, t.v, u.name FROM (public.t JOIN public.u ON ((u.g = t.g)))
GROUP BY t.g, t.v, u.name HAVING (count(*) > 1)"""
OUTPUT = (Column("id", "integer"), Column("v", "integer"), Column("name", "text"))


def program(query: str, output: tuple[Column, ...] = OUTPUT) -> Program:
    return jobs.immediate(jobs.Query(query, output, (T, U)), "public.st", 7, 0)


def body(made: Program, source: Source) -> str:
    return next(part.body for part in made.sources if part.oid == source.oid)


def test_sources_that_a_statement_has_not_changed_drop_out() -> None:
    made = program(OFTEN)
    assert "__pgt_delta_1" in body(made, T) and "__pgt_delta_2" not in body(made, T)
    assert "__pgt_delta_2" in body(made, U) and "__pgt_delta_1" not in body(made, U)
    assert "__pgt_delta_1" in made.left and "__pgt_delta_2" in made.left


def test_rows_whose_key_is_the_sources_go_without_a_join() -> None:
    statements = re.findall(r"^DELETE FROM public.st AS s [^;]*;", body(program(JOIN), T), re.MULTILINE)
    assert len(statements) == 2  # of few rows, and of many
    assert not any('"public"."u"' in statement for statement in statements)
    by_the_other = re.findall(r"^DELETE FROM public.st AS s [^;]*;", body(program(JOIN), U), re.MULTILINE)
    assert all('"public"."t"' in statement for statement in by_the_other) and by_the_other


def test_partitions_are_computed_as_they_are_now_and_not_as_they_were() -> None:
    rank = "rank() OVER (PARTITION BY t.g ORDER BY t.v)"
    made = body(program(f"SELECT t.id, {rank} AS v FROM public.t", (OUTPUT[0], Column("v", "bigint"))), T)
    statements = [line for line in made.splitlines() if "rank()" in line]
    assert len(statements) == 6  # of few rows, and of many, by three events
    assert all(statement.count("rank()") == 1 for statement in statements)


def test_the_lock_is_taken_by_the_trigger_that_counts() -> None:
    whole, rows = program(JOIN), program("SELECT t.id, t.v FROM public.t WHERE (t.v > 1)", OUTPUT[:2])
    assert (whole.lock, rows.lock) == (Lock.WHOLE, Lock.ROWS)
    assert "pgtrickle.begun_7" in whole.hold and "SET holder" in whole.hold
    assert "pgtrickle.begun_7" not in rows.hold and "SET holder" not in rows.hold


@pytest.mark.parametrize(
    ("columns", "formats"),
    [
        ("t.id, t.v", False),
        ("t.id, (t.v)::text AS v", True),
        ("t.id, t.at AS v", False),
        ("t.id, (t.at)::date AS v", True),
        ("t.id, to_char(t.at, 'YYYY'::text) AS v", True),
        ("t.id, (t.at + '1 day'::interval) AS v", True),
        ("t.id, (t.v || 'x'::text) AS v", True),
    ],
)
def test_settings_are_pinned_where_they_have_a_part(columns: str, formats: bool) -> None:
    output = (OUTPUT[0], Column("v", "text"))
    assert program(f"SELECT {columns} FROM public.t", output).formats is formats


def test_settings_of_the_planner_are_pinned_where_many_tables_are_joined() -> None:
    joined = " JOIN ".join(["public.t", *(f"public.u u{n} ON ((u{n}.g = t.g))" for n in range(4))])
    assert not program(JOIN).many
    assert program(f"SELECT t.id, t.v FROM ({joined})", OUTPUT[:2]).many
