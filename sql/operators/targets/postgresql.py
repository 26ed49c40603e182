"""PostgreSQL as a target: indexes, hash joins by equality alone, and a planner that moves conditions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from sqlglot import exp

from sql.base.columns import Field
from sql.base.identity import key_hash
from sql.base.text import all_of, any_of, derived, quote, repeated, select, union_all
from sql.canonical.dialect import generate
from sql.operators.targets.restriction import Restriction
from sql.operators.targets.target import Target


@dataclass(frozen=True, slots=True)
class PostgreSQL(Target):
    """``one_statement``: not so where PostgreSQL goes on with what another executor has computed."""

    one_statement: bool = True
    special_numbers: bool = True

    def restricted(
        self,
        query: str,
        columns: Sequence[str],
        only: Restriction,
        nullable: Sequence[str] = (),
        *,
        rare: bool = False,
    ) -> str:
        """See `Target.restricted`.

        PostgreSQL cannot use an index for IS NOT DISTINCT FROM. So rows without a NULL in their key are found by plain
        equality, which reaches the scans; the others by a hash of the key, only if there are any keys with NULLs. What
        is ``rare`` should be quick to plan instead, and a key of computed values has no index: all rows are found by
        hash.
        """
        pairs = only.pairs
        computed = any(c in nullable for c, _ in pairs) and not any(f.origin for _, f in pairs)
        if rare or computed:
            return select(
                [f"r.{c}" for c in columns],
                f"{derived(query, 'r')} JOIN {only.relation} AS k ON {_hash_match(list(pairs))}",
            )
        return _by_index(query, columns, only, nullable)

    def early(self, only: Restriction | None) -> Restriction | None:
        """See `Target.early`: PostgreSQL would apply it after the function."""
        return only

    def fence(self, query: str) -> str:
        """See `Target.fence`: the planner joins nothing with the rows below OFFSET."""
        return f"{query} OFFSET 0"

    def condition(self, condition: exp.Expr) -> str:
        """See `Target.condition`: two values are null-safe equal if their hashes are, see `null_safe_equal`."""
        return generate(condition)

    def copies(self, number: str) -> str:
        """See `Target.copies`."""
        return repeated(number)

    def value(self, query: str) -> str | None:
        """See `Target.value`."""
        return f"({query})"

    def joins_by_contents(self, *, plain: bool) -> bool:
        """See `Target.joins_by_contents`: IS NOT DISTINCT FROM would be a nested loop."""
        return plain

    def same(self, left: str, right: str) -> str:
        """See `Target.same`."""
        return f"{left} = {right}"

    def one_of_each(self, key: str, columns: Sequence[str], rows: str) -> str:
        """See `Target.one_of_each`: only the key need be sorted."""
        return f"SELECT DISTINCT ON ({key}) {', '.join(columns)} FROM {rows}"


POSTGRESQL = PostgreSQL()
"""Where PostgreSQL computes all."""

AFTER_STAGES = PostgreSQL(one_statement=False)
"""Where PostgreSQL goes on with rows that another executor has computed."""


def _by_index(query: str, columns: Sequence[str], only: Restriction, nullable: Sequence[str]) -> str:
    """The rows whose key is in a restriction: those without a NULL in it by equality, the others by a hash."""
    pairs = only.pairs
    plain = [(c, f) for c, f in pairs if f.builtin]
    other = [(c, f) for c, f in pairs if not f.builtin]
    maybe_null = [(c, f) for c, f in plain if c in nullable]
    equal = [f"r.{quote(c)} = k.{quote(f.name)}" for c, f in plain]
    recheck = [_hash_match(other)] if other else []
    output = [f"r.{c}" for c in columns]
    source = f"{derived(query, 'r')} JOIN {only.relation} AS k ON "
    branches = [select(output, source + all_of(equal + recheck))]
    if maybe_null:
        keyed = [f"r.{quote(c)} = k.{quote(f.name)}" for c, f in plain if c not in nullable]
        with_null = any_of([f"k.{quote(f.name)} IS NULL" for _, f in maybe_null])
        exists = select([], f"{only.relation} AS k", where=[with_null])
        branches.append(
            select(
                output,
                source + all_of([*keyed, _hash_match(list(pairs))]),
                where=[with_null, f"EXISTS ({exists})"],
            )
        )
    return union_all(branches)


def _hash_match(pairs: Sequence[tuple[str, Field]]) -> str:
    left = [replace(f, name=c) for c, f in pairs]
    right = [f for _, f in pairs]
    rows = ", ".join(f"r.{quote(f.name)}" for f in left), ", ".join(f"k.{quote(f.name)}" for f in right)
    return (
        f"{key_hash(left, 'r', '0')} = {key_hash(right, 'k', '0')}"
        f" AND pg_catalog.record_eq(ROW({rows[0]}), ROW({rows[1]}))"
    )
