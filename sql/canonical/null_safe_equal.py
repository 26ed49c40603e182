"""Same: two columns agree, where NULL agrees with NULL, as a condition that PostgreSQL can hash.

``IS NOT DISTINCT FROM`` would be a nested loop over both relations.
"""

from __future__ import annotations

from collections.abc import Callable

from sqlglot import exp

from sql.base.columns import Field


class NullSafeEqual(exp.Expression, exp.Binary, exp.Predicate):
    """``left IS NOT DISTINCT FROM right``, written for a hash join."""


def generate_same(write: Callable[[exp.Expr], str], node: exp.Expr) -> str:
    """The condition as PostgreSQL text: equal hashes find the pairs, the comparison rechecks them."""
    rows = [f"ROW({write(side)})" for side in (node.this, node.expression)]
    hashes = [f"pg_catalog.hash_record_extended({row}, 0)" for row in rows]
    return f"({hashes[0]} = {hashes[1]} AND pg_catalog.record_eq({rows[0]}, {rows[1]}))"


def same(left: Field, right: Field) -> exp.Expr:
    """The condition that two columns agree."""
    sides = [exp.column(exp.to_identifier(f.name, quoted=True)) for f in (left, right)]
    kind = exp.EQ if left.not_null or right.not_null else NullSafeEqual
    return kind(this=sides[0], expression=sides[1])
