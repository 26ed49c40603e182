"""Texts of operators, read as expressions."""

from __future__ import annotations

from sqlglot import exp

from sql.canonical.written import read


def test_schema_of_a_function_is_left_out_wherever_a_call_stands() -> None:
    text = "SELECT pg_catalog.count(*) FILTER (WHERE x) FROM pg_catalog.generate_series(1, pg_catalog.abs(n)) AS g(n)"
    assert read(text) == read(text.replace("pg_catalog.", ""))
    assert read(text).find(exp.Count) is not None


def test_schema_of_a_relation_and_texts_stay() -> None:
    query = read("SELECT 'pg_catalog.count(' AS t, \"pg_catalog.x\" FROM pg_catalog.pg_class")
    (table,) = query.find_all(exp.Table)
    assert (table.db, table.name) == ("pg_catalog", "pg_class")
    assert [literal.name for literal in query.find_all(exp.Literal)] == ["pg_catalog.count("]
