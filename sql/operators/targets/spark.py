"""Spark as a target: no indexes and no hashes of rows, but hash joins in which NULL equals NULL."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sqlglot import exp

from sql.base.text import all_of, derived, quote, select
from sql.canonical.dialect import generate
from sql.canonical.null_safe_equal import NullSafeEqual
from sql.operators.targets.restriction import Restriction
from sql.operators.targets.target import Target

COPIES = "__pgt_copies"


@dataclass(frozen=True, slots=True)
class Spark(Target):
    """What is written is PostgreSQL's SQL nevertheless, which `sql.spark` renders.

    What its decimals cannot hold, the mirror refuses.
    """

    one_statement: bool = False
    special_numbers: bool = False

    def restricted(
        self,
        query: str,
        columns: Sequence[str],
        only: Restriction,
        nullable: Sequence[str] = (),
        *,
        rare: bool = False,
    ) -> str:
        """See `Target.restricted`."""
        agree = [self.same(f"r.{quote(c)}", f"k.{quote(f.name)}") for c, f in only.pairs]
        source = f"{derived(query, 'r')} JOIN {only.relation} AS k ON {all_of(agree)}"
        return select([f"r.{c}" for c in columns], source)

    def early(self, only: Restriction | None) -> Restriction | None:
        """See `Target.early`: all rows are read anyway."""
        return None

    def fence(self, query: str) -> str:
        """See `Target.fence`: Spark finds its order of joins by itself."""
        return query

    def condition(self, condition: exp.Expr) -> str:
        """See `Target.condition`: two values are null-safe equal as it stands."""
        return generate(condition.transform(_plainly)) if condition.find(NullSafeEqual) else generate(condition)

    def copies(self, number: str) -> str:
        """See `Target.copies`: a call of no function that there is, which `sql.spark` knows."""
        return f"LATERAL {COPIES}({number})"

    def value(self, query: str) -> str | None:
        """See `Target.value`."""
        return None

    def joins_by_contents(self, *, plain: bool) -> bool:
        """See `Target.joins_by_contents`."""
        return True

    def same(self, left: str, right: str) -> str:
        """See `Target.same`."""
        return f"{left} IS NOT DISTINCT FROM {right}"

    def one_of_each(self, key: str, columns: Sequence[str], rows: str) -> str:
        """See `Target.one_of_each`: rows that agree in all columns are one."""
        return f"SELECT DISTINCT {', '.join(columns)} FROM {rows}"


SPARK = Spark()
"""Where Spark computes."""


def _plainly(node: exp.Expr) -> exp.Expr:
    if not isinstance(node, NullSafeEqual):
        return node
    return exp.Paren(this=exp.NullSafeEQ(this=node.this, expression=node.expression))
