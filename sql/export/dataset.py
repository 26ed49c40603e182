"""A stream table's query as a dataset of Spark's: rows in columns that have their names, of Spark's types."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from sql.base.columns import Column, Source
from sql.canonical.written import read
from sql.errors import NotExpressible
from sql.spark.from_clause import SourceView
from sql.spark.numbers.exact import MANY_DIGITS
from sql.spark.protocol import Environment
from sql.spark.python.calls import called
from sql.spark.relations import Relation
from sql.spark.render import Renderer, check_types, understood
from sql.spark.types import UNKNOWN, UNNAMEABLE, Display, SparkType
from sql.spark.values import identifier


@dataclass(frozen=True, slots=True)
class Dataset:
    """``sql`` gives the columns in order. ``reads`` are those that it reads of each source, () if only rows count."""

    sql: str
    columns: tuple[tuple[str, SparkType], ...]
    reads: Mapping[int, tuple[str, ...]]

    def as_source(self, name: str) -> SourceView:
        """What others read of it under a name of Spark's.

        PostgreSQL's `numeric` does not say how many digits its values have, and here it is known. Spark keeps no
        display scale: who reads values that have one each can compute with them, but not show them.
        """
        types = {
            column: type_ if type_.display is Display.FIXED else replace(type_, display=Display.LOST)
            for column, type_ in self.columns
            if type_.name == "numeric"
        }
        return SourceView(identifier(name), types)


def dataset(
    query: str,
    sources: Sequence[Source],
    output: Sequence[Column],
    views: Mapping[int, SourceView],
    *,
    environment: Environment | None = None,
    total_orders: bool = True,
) -> Dataset:
    """Render a query (`Compiled.rows_on_spark`) over sources, of which ``views`` says where Spark has them.

    See `render_spark` for the other arguments. Raises NotExpressible.

    >>> orders = Source(7, "public", "orders", (Column("region", "text"), Column("amount", "integer")))
    >>> query = "SELECT o.region, sum(o.amount) AS total FROM public.orders o GROUP BY o.region"
    >>> found = dataset(query, [orders], (Column("region", "text"), Column("total", "bigint")), {7: SourceView("`o`")})
    >>> print(found.sql)
    SELECT q.c0 AS `region`, q.c1 AS `total`
    FROM (SELECT r0.`region` AS c0, sum(CAST(r0.`amount` AS BIGINT)) AS c1 FROM `o` AS r0 GROUP BY r0.`region`) AS q
    """
    check_names([column.name for column in output])
    environment = environment or Environment()
    renderer = Renderer(sources, environment, total_orders=total_orders, views=views)
    relation = renderer.query(understood(read(query), sources, environment), {})
    check_types(output, relation.declared)
    if called(relation.sql):
        raise NotExpressible("what Spark has a function for from Headwater only")
    if MANY_DIGITS in relation.sql:
        # Nobody would compute instead where a value is one.
        raise NotExpressible("numeric without precision")
    reads = {oid: tuple(names) for oid, names in renderer.reads.items()}
    columns = tuple((column.name, type_) for column, (_, type_) in zip(output, relation.columns, strict=True))
    return Dataset(_under_names(relation, columns), columns, reads)


def _under_names(relation: Relation, columns: Sequence[tuple[str, SparkType]]) -> str:
    if any(type_.name == "character" and not type_.precision for _, type_ in columns):
        raise NotExpressible("values of character with different lengths")
    values = [
        f"CAST(q.c{n} AS STRING)" if type_ == UNKNOWN else f"q.c{n}"  # NULL, for instance, which PostgreSQL has as text
        for n, (_, type_) in enumerate(columns)
    ]
    items = [f"{value} AS {identifier(name)}" for value, (name, _) in zip(values, columns, strict=True)]
    return f"SELECT {', '.join(items)}\nFROM ({relation.sql}) AS q"


def check_names(names: Sequence[str]) -> None:
    """Refuse columns that a table of Spark's cannot have. Raises NotExpressible."""
    for name in names:
        if UNNAMEABLE & set(name):
            raise NotExpressible(f'column name "{name}"')
    if len({name.lower() for name in names}) < len(names):
        raise NotExpressible("columns whose names differ in case only")
    if not names:
        raise NotExpressible("a table without columns")


__all__ = ["Dataset", "SourceView", "check_names", "dataset"]
