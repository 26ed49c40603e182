"""Queries as datasets: what is known of a dataset's columns holds for whoever reads it, and no more."""

from __future__ import annotations

import pytest

from sql import Column, Source
from sql.errors import NotExpressible
from sql.export.dataset import Dataset, SourceView, dataset
from sql.export.source_table import PRESENT, rows_query, spark_columns

ORDERS = Source(
    7, "public", "orders", (Column("id", "integer"), Column("customer", "text"), Column("amount", "numeric(10,2)"))
)
TOTALS = Source(8, "public", "totals", (Column("customer", "text"), Column("v", "numeric", equality_is_identity=False)))
OUTPUT = (Column("customer", "text"), Column("v", "numeric"))


def totals(value: str) -> Dataset:
    query = f"SELECT o.customer, {value} AS v FROM public.orders o GROUP BY o.customer"
    return dataset(query, [ORDERS], OUTPUT, {7: SourceView("`orders`")})


def reader(upstream: Dataset, value: str, type_: str) -> Dataset:
    query = f"SELECT {value} AS v FROM public.totals t"
    return dataset(query, [TOTALS], (Column("v", type_),), {8: upstream.as_source("totals")})


def test_sum_of_a_dataset_is_computed_with_and_shown() -> None:
    upstream = totals("sum(o.amount)")
    assert upstream.columns[1][1].spark == "DECIMAL(20, 2)"
    assert "FROM `totals` AS r0" in reader(upstream, "t.v * 2", "numeric").sql
    assert reader(upstream, "t.v::text", "text").columns[0][1].spark == "STRING"


def test_average_of_a_dataset_is_compared_but_not_shown_as_text() -> None:
    upstream = totals("avg(o.amount)")
    assert "c1s" not in upstream.sql.splitlines()[0]
    assert reader(upstream, "t.v > 3", "boolean").columns[0][1].spark == "BOOLEAN"
    with pytest.raises(NotExpressible):
        reader(upstream, "t.v::text", "text")


def test_functions_that_spark_has_from_headwater_are_refused() -> None:
    with pytest.raises(NotExpressible, match="from Headwater only"):
        totals("sum(o.customer::numeric(8,2))")


def test_numeric_of_a_table_of_postgresql_is_text_as_it_is_in_the_mirror() -> None:
    with pytest.raises(NotExpressible):
        dataset("SELECT t.v * 2 AS v FROM public.totals t", [TOTALS], (Column("v", "numeric"),), {})


@pytest.mark.parametrize("names", [("a b",), ("a", "A"), ("x`y",), ()])
def test_names_that_no_table_of_spark_can_have_are_refused(names: tuple[str, ...]) -> None:
    output = [Column(name, "integer") for name in names]
    items = ", ".join(f'o.id AS "{name}"' for name in names)
    with pytest.raises(NotExpressible):
        dataset(f"SELECT {items} FROM public.orders o", [ORDERS], output, {})


def test_source_of_which_only_the_number_of_rows_matters_has_a_column() -> None:
    assert rows_query(ORDERS, ()) == f'SELECT true AS "{PRESENT}" FROM "public"."orders"'
    assert spark_columns(ORDERS, ()) == [f"`{PRESENT}`"]


def test_null_in_a_select_list_is_text() -> None:
    found = dataset("SELECT NULL::text AS t, NULL AS u FROM public.orders o", [ORDERS], _texts("t", "u"), {})
    assert "CAST(q.c1 AS STRING) AS `u`" in found.sql


def _texts(*names: str) -> list[Column]:
    return [Column(name, "text") for name in names]
