"""Understands SQL: canonical form, operator tree, differentiation, rendering. Pure: text in, plan out, no I/O.

A defining query is compiled in two steps, since only PostgreSQL knows the types of some expressions:

>>> orders = Source(
...     16385, "public", "orders",
...     (Column("id", "integer", not_null=True), Column("region", "text"), Column("amount", "integer")), key=("id",),
... )
>>> parsed = parse_query(
...     "SELECT region, count(*) AS n, sum(amount) AS total FROM public.orders GROUP BY region",
...     [orders],
...     [Column("region", "text"), Column("n", "bigint"), Column("total", "bigint")],
... )
>>> parsed.probes()                      # SELECTs whose output columns the caller describes; here there are none
()
>>> compiled = parsed.compile({})        # probe -> its columns
>>> print(compiled.tree)
Project
  Aggregate(count, sum)
    Project
      Scan(public.orders)
>>> compiled.keyed, [column.name for column in compiled.columns]
(True, ['region', 'n', 'total', '__pgt_count', '__pgt_agg2_count', '__pgt_agg2_sum'])
>>> compiled.strategy
{'count(*)': 'algebraic: count', 'sum(amount)': 'algebraic: sum and count'}
>>> compiled.used_columns
{16385: ('region', 'amount')}
>>> refresh = compiled.refresh_sql('"public"."by_region"', frozenset({16385}))

The refresh is one statement: it takes the frontier as ``$1`` (jsonb) and returns what it did and the new frontier.
"""

from sql.base.columns import Column, Source
from sql.base.text import quote
from sql.base.text import text as literal
from sql.build.topk import TopK, topk
from sql.canonical.constant_keys import without_positions
from sql.canonical.equivalence import same_wording
from sql.canonical.explain_rewrites import rewrites
from sql.canonical.rejected import rejected
from sql.canonical.renamed import Renamed
from sql.canonical.views import View, inlined
from sql.changes.change_query import Followed
from sql.compile.compile import ParsedQuery, opaque_query, parse_query, regenerate
from sql.compile.compiled import PLAN_FORMAT, Compiled, Core
from sql.errors import NotDifferentiable

__all__ = [
    "PLAN_FORMAT",
    "Column",
    "Compiled",
    "Core",
    "Followed",
    "NotDifferentiable",
    "ParsedQuery",
    "Renamed",
    "Source",
    "TopK",
    "View",
    "inlined",
    "literal",
    "opaque_query",
    "parse_query",
    "quote",
    "regenerate",
    "rejected",
    "rewrites",
    "same_wording",
    "topk",
    "without_positions",
]
