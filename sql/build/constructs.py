"""The constructs of a query, each built by one function: the registry that a new construct is added to."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from sqlglot import exp

from sql.build.joins import build_full_join, build_inner_join, build_left_join, build_right_join
from sql.build.protocol import Builder, Scope
from sql.build.scope import FromClause, Relation
from sql.build.select import build_select
from sql.build.set_operations import build_set_operation, build_union, build_values_query
from sql.canonical.from_items import ValuesQuery

QUERIES: Mapping[type, Callable[..., Relation]] = {
    exp.Select: build_select,
    exp.Union: build_union,
    exp.Intersect: build_set_operation,
    exp.Except: build_set_operation,
    ValuesQuery: build_values_query,
}

JOINS: Mapping[str, Callable[[Builder, FromClause, exp.Join, Scope], None]] = {
    "": build_inner_join,
    "INNER": build_inner_join,
    "CROSS": build_inner_join,
    "LEFT": build_left_join,
    "RIGHT": build_right_join,
    "FULL": build_full_join,
}
