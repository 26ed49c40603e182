"""WITH queries. Of those that are read several times: the same operators under other names, computed once."""

from __future__ import annotations

from dataclasses import dataclass, replace

from sqlglot import exp

from sql.build.protocol import Builder, CommonTable, Scope
from sql.build.scope import Relation
from sql.canonical.nodes import all_of
from sql.canonical.row_expressions import named
from sql.operators import Project
from sql.operators.shared_subplan import SharedSubplan


@dataclass(frozen=True, slots=True)
class WithQuery(CommonTable):
    """A WITH query and the WITH queries that it sees itself."""

    query: exp.Expr
    names: tuple[str, ...]
    scope: Scope
    several: bool = False
    """Whether it is read in several places."""

    def relation(self, builder: Builder) -> Relation:
        known = builder.common.get(id(self.query))
        relation = known[1] if known else builder.query(self.query, self.scope)
        if self.several and relation.operator.barrier:
            builder.common[id(self.query)] = self.query, relation
            relation = another(builder, relation)
        names = self.names + tuple(name for name, _ in relation.output[len(self.names) :])
        return Relation(relation.operator, tuple((n, f) for n, (_, f) in zip(names, relation.output, strict=True)))


def references(query: exp.Expr, name: str) -> int:
    """How often a query reads something under a plain name, by and large: another scope may have the name, too.

    >>> from sqlglot import parse_one
    >>> references(parse_one("SELECT 1 FROM a, b.a, (SELECT 1 FROM a AS c) AS d"), "a")
    2
    """
    return sum(not table.db and table.name == name for table in all_of(query, exp.Table))


def another(builder: Builder, relation: Relation) -> Relation:
    """A relation as it is read in one of several places: its columns have names of their own there."""
    fields = tuple(dict.fromkeys(f for _, f in relation.output))
    # A column that is read twice is not the same column: a row of one reference goes with any row of the other.
    renamed = {f.name: replace(f, name=builder.fresh(f.name), origin=None) for f in fields}
    operator = Project(SharedSubplan(relation.operator), tuple(map(named, fields)), tuple(renamed.values()))
    return replace(relation, operator=operator, output=tuple((name, renamed[f.name]) for name, f in relation.output))
