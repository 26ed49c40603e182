"""In which order the tables of a join are taken up from one that has changed."""

from __future__ import annotations

from sqlglot import exp

from sql.base.columns import Column, Field, Source, field
from sql.canonical.dialect import parse
from sql.operators import Scan
from sql.operators.joins.join_graph import JoinGraph
from sql.operators.plan import NOTHING


def scan(number: int, name: str, columns: str, *key: str) -> Scan:
    """A table; its columns are called as they are, and are all integers."""
    described = tuple(Column(column, "integer", not_null=True) for column in columns.split())
    fields: tuple[Field, ...] = tuple(field(c.name, c, (number, c.name)) for c in described)
    return Scan(Source(number, "public", name, described, key), number, fields)


def graph(conditions: str, *scans: Scan) -> JoinGraph:
    """A join of tables under conditions, which are ANDed."""
    where = parse(f"SELECT WHERE {conditions}").find(exp.Where)
    assert where is not None
    return JoinGraph(NOTHING, scans, list(where.this.flatten()) if isinstance(where.this, exp.And) else [where.this])


CUSTOMER = scan(0, "customer", "c_key c_nation c_segment", "c_key")
ORDERS = scan(1, "orders", "o_key o_customer o_date", "o_key")
LINES = scan(2, "lines", "l_order l_part", "l_order", "l_part")
PARTS = scan(3, "parts", "p_key p_type", "p_key")
NATION = scan(4, "nation", "n_key n_region", "n_key")
SUPPLIER = scan(5, "supplier", "s_key s_nation", "s_key")

SALES = "c_key = o_customer AND l_order = o_key AND l_part = p_key"


def test_dimensions_with_conditions_come_before_others() -> None:
    assert graph(f"{SALES} AND p_type = 3", CUSTOMER, ORDERS, LINES, PARTS).order(2) == [3, 1, 0]


def test_table_that_leads_to_a_condition_comes_before_one_that_does_not() -> None:
    assert graph(f"{SALES} AND c_segment = 3", CUSTOMER, ORDERS, LINES, PARTS).order(2) == [1, 0, 3]


def test_lookups_by_key_come_before_tables_with_several_matches() -> None:
    assert graph(SALES, CUSTOMER, ORDERS, LINES, PARTS).order(1) == [0, 2, 3]


def test_rows_determine_those_that_their_columns_refer_to() -> None:
    joined = graph(SALES, CUSTOMER, ORDERS, LINES, PARTS)
    assert joined.reached == [frozenset(), frozenset({0}), frozenset({0, 1, 3}), frozenset()]


def test_tables_that_nothing_links_come_last() -> None:
    assert graph("c_key = o_customer AND p_key > 3", PARTS, CUSTOMER, ORDERS).order(1) == [2, 0]


def test_equality_that_follows_from_two_conditions_is_a_link() -> None:
    joined = graph("c_nation = s_nation AND s_nation = n_key", CUSTOMER, NATION, SUPPLIER)
    assert [(link.sql, link.stated) for link in joined.links({0}, 1)] == [('("n_key" = "c_nation")', False)]
    assert joined.order(0) == [1, 2]


def test_disjunction_over_two_tables_says_something_of_each() -> None:
    joined = graph(
        "c_nation = n_key AND ((c_segment = 1 AND n_region = 2) OR (c_segment = 3 AND n_region = 4))", CUSTOMER, NATION
    )
    own = [condition.sql for condition in joined.conditions if condition.inputs == {1}]
    assert own == ["((n_region = 2) OR (n_region = 4))"]


def test_disjunction_with_an_alternative_that_says_nothing_of_a_table_leaves_it_alone() -> None:
    joined = graph("c_nation = n_key AND (c_segment = 1 OR n_region = 2)", CUSTOMER, NATION)
    assert [condition.inputs for condition in joined.conditions] == [frozenset({0, 1})] * 2
