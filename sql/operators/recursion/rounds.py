"""How deep a recursion may go in a statement of a writer: it fails beyond `pg_trickle.ivm_recursive_max_depth`.

The rows of a recursion cannot tell how deep they are: with UNION such a column would make rows different that are
equal. So its rounds are counted, by conditions that mention no row. PostgreSQL looks at such a condition once whenever
it begins with a term: once at the non-recursive one, and in each round at the recursive one.
"""

from __future__ import annotations

from sqlglot import exp

from sql.base.text import derived


def counted(key: str, first: str, term: str) -> tuple[str, str]:
    """The terms of a recursion with their rounds counted, under a key that no other one of the statement has."""
    # Without OFFSET 0 PostgreSQL could bring the condition into the branches of a union.
    begun, next_ = (f"pgtrickle.{name}('{key}')" for name in (_BEGIN, _NEXT))
    return (
        f"SELECT r.* FROM {derived(first, 'r')} WHERE {begun}",
        f"SELECT r.* FROM {derived(f'{term} OFFSET 0', 'r')} WHERE {next_}",
    )


def with_rounds_counted(query: exp.Query, key: str) -> exp.Query:
    """The same for each recursive WITH query of a query."""
    query = query.copy()
    for number, clause in enumerate(query.find_all(exp.CTE)):
        union = clause.this
        if not isinstance(union, exp.Union) or not _reads(union.right, clause.alias):
            continue
        for side, function in (("this", _BEGIN), ("expression", _NEXT)):
            call = exp.Dot(
                this=exp.to_identifier("pgtrickle", quoted=True),
                expression=exp.Anonymous(this=function, expressions=[exp.Literal.string(f"{key}_{number}")]),
            )
            union.set(side, _where(union.args[side], call))
    return query


_BEGIN, _NEXT = "_begin_rounds", "_next_round"


def _reads(query: exp.Expr, name: str) -> bool:
    return any(table.name == name and not table.db for table in query.find_all(exp.Table))


def _where(term: exp.Expr, condition: exp.Expr) -> exp.Expr:
    # SEARCH and CYCLE want the term to be a SELECT that reads the recursion itself.
    if isinstance(term, exp.Select):
        return term.where(condition, copy=False)
    inner = exp.Subquery(this=term.unnest().copy(), alias=exp.TableAlias(this=exp.to_identifier("r", quoted=True)))
    return exp.Select(expressions=[exp.Star()], from_=exp.From(this=inner)).where(condition, copy=False)
