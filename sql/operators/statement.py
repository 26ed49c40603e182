"""A statement in the making: its common table expressions, their names, and what it takes for granted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from sqlglot import exp

from sql.base.text import derived, quote, select
from sql.canonical.written import read
from sql.errors import NotDifferentiable
from sql.operators.targets.postgresql import AFTER_STAGES, POSTGRESQL
from sql.operators.targets.spark import SPARK
from sql.operators.targets.target import Target

MOST = 1_000_000
"""The length of a statement up to which a query is maintained from changes. Those of TPC-H take 50 000 at most."""


Types = tuple[tuple[str, str], ...]
"""The columns of a staging table in order, each with the type that PostgreSQL wants, "" for whatever it is."""


def staged_rows(staging: str, types: Types) -> str:
    """The rows of a staging table with PostgreSQL's own types: another executor knows no varchar(n), for instance.

    >>> staged_rows("pg_temp.staging", (("n", "numeric(4,2)"), ("count", "")))
    'SELECT s."n"::numeric(4,2) AS "n", s."count" FROM pg_temp.staging AS s'
    """
    columns = [f"s.{quote(name)}" + (f"::{type_} AS {quote(name)}" if type_ else "") for name, type_ in types]
    return select(columns, f"{staging} AS s")


@dataclass(frozen=True, slots=True)
class Stage:
    """A relation that another executor computes; PostgreSQL finds its rows in a staging table."""

    name: str
    query: exp.Expr
    types: Types


@dataclass(frozen=True, slots=True)
class StagedText:
    """A statement over staging tables whose names are not known yet.

    ``ctes`` are its common table expressions, those over staging tables being given by name and types.
    """

    ctes: tuple[str | tuple[str, Types], ...]
    final: str

    def over(self, stagings: Sequence[str]) -> str:
        """The statement over these staging tables (quoted names), in the order of the stages."""
        tables = iter(stagings)
        ctes = [
            cte if isinstance(cte, str) else _cte(cte[0], staged_rows(next(tables), cte[1]), materialized=True)
            for cte in self.ctes
        ]
        return _with(ctes, self.final)


@dataclass(slots=True)
class Statement:
    """Collects the common table expressions of one statement, in order."""

    most: int | None = None
    """The length from which on it is given up: what is too long is not written down to its end."""
    ctes: list[str] = field(default_factory=list)
    violations: list[str] = field(default_factory=list)
    """Conditions each of which is true where a precondition of the statement does not hold."""
    memory: dict[str, str] = field(default_factory=dict)
    """By their names, expressions of what the next refresh is to find in ``$1->'memory'``."""
    _length: int = 0
    _names: int = 0

    @property
    def target(self) -> Target:
        """What is written now is for it."""
        return POSTGRESQL

    def fresh(self, prefix: str) -> str:
        """A name nothing else in the statement has."""
        self._names += 1
        return f"__pgt_{prefix}_{self._names}"

    def cte(self, name: str, query: str, *, materialized: bool | None = True) -> str:
        """Add a common table expression and return its quoted name; ``materialized``: None if it is read once."""
        quoted = quote(name)
        self._longer(query)
        self.ctes.append(_cte(name, query, materialized=materialized))
        return quoted

    def stage(self, name: str, query: str, types: Mapping[str, str]) -> str:
        """Add a relation that is all PostgreSQL needs to know of the query so far, and return its quoted name.

        ``types`` are its columns, with PostgreSQL's types where they are known.
        """
        return self.cte(name, query)

    def staged(self, name: str, query: str, types: Mapping[str, str]) -> str:
        """The same as a query, which needs no name where PostgreSQL computes it."""
        return query

    def violated(self, condition: str) -> None:
        """Note a condition that is true where a precondition of the statement does not hold."""
        self.violations.append(condition)

    def modification(self, name: str, statement: str) -> str:
        """Add a data-modifying common table expression and return its quoted name."""
        quoted = quote(name)
        self._longer(statement)
        self.ctes.append(f"{quoted} AS ({statement})")
        return quoted

    def _longer(self, text: str) -> None:
        self._length += len(text)
        if self.most is not None and self._length > self.most:
            raise NotDifferentiable(
                "a query of this complexity",
                "Use refresh_mode => 'FULL', or stream tables of its parts.",
                f"Its changes take a statement of more than {self.most / 1e6:.0f} MB, for whose plan PostgreSQL would"
                " need gigabytes.",
            )

    def text(self, final: str) -> str:
        """The whole statement. Raises NotDifferentiable if it is too long."""
        self._longer(final)
        return _with(self.ctes, final)


def _cte(name: str, query: str, *, materialized: bool | None) -> str:
    how = {True: "MATERIALIZED ", False: "NOT MATERIALIZED ", None: ""}[materialized]
    return f"{quote(name)} AS {how}({query})"


def _with(ctes: Sequence[str], final: str) -> str:
    return f"WITH {', '.join(ctes)} {final}" if ctes else final


@dataclass(slots=True)
class StagedStatement(Statement):
    """A statement that Spark begins: up to the first `stage` its common table expressions are ``views`` of Spark's.

    Spark finds the sources' net deltas in relations. From the first stage on PostgreSQL goes on. What is Spark's is
    kept as expressions. Raises NotExpressible for what cannot be read as one.
    """

    views: list[tuple[str, exp.Expr]] = field(default_factory=list)
    stages: list[Stage] = field(default_factory=list)
    _places: list[int] = field(default_factory=list)
    """How many common table expressions stand before that of each stage."""

    @property
    def target(self) -> Target:
        return AFTER_STAGES if self.stages else SPARK

    def cte(self, name: str, query: str, *, materialized: bool | None = True) -> str:
        if self.stages:
            return Statement.cte(self, name, query, materialized=materialized)
        self.views.append((name, read(query)))
        return quote(name)

    def stage(self, name: str, query: str, types: Mapping[str, str]) -> str:
        stage = Stage(name, read(query), tuple(types.items()))
        self.stages.append(stage)
        self._places.append(len(self.ctes))
        return quote(name)

    def staged(self, name: str, query: str, types: Mapping[str, str]) -> str:
        if types:
            return select(["*"], self.stage(name, query, types))
        # A staging table has at least one column.
        return select([], self.stage(name, select(["1::bigint AS n"], derived(query, "k")), {"n": "bigint"}))

    def violated(self, condition: str) -> None:
        """What Spark computes has no preconditions."""

    def applied(self, final: str) -> StagedText:
        """What PostgreSQL executes when the stages are computed."""
        ctes: list[str | tuple[str, Types]] = [*self.ctes]
        for stage, place in reversed([*zip(self.stages, self._places, strict=True)]):
            ctes.insert(place, (stage.name, stage.types))
        return StagedText(tuple(ctes), final)
