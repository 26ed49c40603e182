"""A job for Spark: views that it makes for itself, and the queries whose rows are wanted."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from engine.mirror.delta_table import ROW_GROUP_ROWS
from engine.mirror.mirror import MirrorVersion
from engine.spark.backends import Session, batches_of, frame_of
from engine.spark.mirror_views import FEW, WHOLE, create_views, no_rows
from engine.spark.python_functions import register
from sql.base.columns import Source
from sql.spark.render import SparkQuery
from sql.spark.stages import SparkStages, SparkView

FEW_ROWS = 4000
FEW_BYTES = 1 << 18
"""A view with so many rows at most is sent to Sail as it is: to write a file and to open it takes longer."""


@dataclass(frozen=True, slots=True)
class SparkJob:
    """``reads`` gives the columns of each source that ``views`` and ``queries`` read; others may be in the mirror.

    ``repeated`` are those of the sources' own views that are worth keeping.
    """

    queries: tuple[SparkQuery, ...]
    reads: Mapping[int, tuple[str, ...]]
    views: tuple[SparkView, ...] = ()
    repeated: tuple[str, ...] = ()

    @property
    def sql(self) -> str:
        """What Spark runs, to be shown. The sources are views of the mirror."""
        made = [f"CREATE TEMPORARY VIEW {view.name} AS {view.sql}" for view in self.views]
        return ";\n".join([*made, *(query.sql for query in self.queries)])

    @classmethod
    def of_query(cls, query: SparkQuery) -> SparkJob:
        """One query."""
        return cls((query,), query.reads)

    @classmethod
    def of_stages(cls, stages: SparkStages) -> SparkJob:
        """The delta of a differential refresh."""
        return cls(stages.stages, stages.reads, stages.views, stages.repeated)

    def computed(
        self,
        spark: Session,
        sources: Mapping[int, Source],
        versions: Sequence[MirrorVersion],
        collect: Callable[[int, SparkQuery, Any], pa.Table],
        *,
        keeps: bool,
    ) -> list[pa.Table]:
        """What `collect` makes of the queries' frames, over these versions of the sources' mirrors.

        Leaves no rows in the session but those of small views: each job makes the views that it reads, and with Spark
        Connect it would take as long to drop them.

        ``keeps`` says whether Spark can keep the rows of a view, as Sail cannot.
        """
        kept = []
        with tempfile.TemporaryDirectory(prefix="headwater-views-") as directory:
            try:
                text = self.sql
                # A delta joins few rows with a table.
                options = FEW if self.views and not keeps else WHOLE
                self._create_source_views(spark, sources, versions, text, options)
                register(spark, text)
                views = [SparkView(name, "", True) for name in self.repeated]
                for view in (*views, *self.views):
                    frame = spark.table(view.name) if view.name in self.repeated else frame_of(spark, view.sql)
                    # What several queries read Spark would compute once for each.
                    if view.repeated and keeps:
                        frame = _kept(frame)
                        kept.append(frame)
                    elif view.repeated:
                        frame = _stored(spark, *batches_of(frame), Path(directory) / f"{view.name}.parquet")
                    if view.name not in self.repeated or not keeps or _is_classic(frame):
                        frame.createOrReplaceTempView(view.name)
                return [collect(n, query, frame_of(spark, query.sql)) for n, query in enumerate(self.queries)]
            finally:
                for frame in reversed(kept):
                    _forget(frame)

    def _create_source_views(
        self,
        spark: Session,
        sources: Mapping[int, Source],
        versions: Sequence[MirrorVersion],
        text: str,
        options: Mapping[str, str],
    ) -> None:
        for version in versions:
            if (names := self.reads.get(version.source)) is not None:
                create_views(spark, sources[version.source], names, version, text, options)


def _kept(frame: Any) -> Any:
    """The frame whose rows Spark keeps once it has computed them."""
    if _is_classic(frame):
        # Not the cache: Spark looks there after it has put each view's query in place of its name, and those of the
        # views in it, until a delta of a few joins is a plan of a million nodes.
        return frame.localCheckpoint(eager=False)
    # Spark Connect recognises the query in others, by whatever name. Views of a checkpoint cannot be made.
    return frame.cache()


def _stored(spark: Session, schema: pa.Schema, batches: Iterable[pa.RecordBatch], file: Path) -> Any:
    """A frame of rows that are kept in a file, or by Sail with the view's query if they are few."""
    filled = (batch for batch in batches if batch.num_rows)
    begun: list[pa.RecordBatch] = []
    few = True
    while few and (batch := next(filled, None)) is not None:
        begun.append(batch)
        few = sum(each.num_rows for each in begun) <= FEW_ROWS and sum(each.nbytes for each in begun) <= FEW_BYTES
    if not begun:
        from pyspark.sql.pandas.types import from_arrow_type

        types = {field.name: from_arrow_type(field.type).simpleString() for field in schema}
        return frame_of(spark, no_rows(types))
    if few:
        from pyspark.sql.connect.dataframe import DataFrame
        from pyspark.sql.connect.plan import LocalRelation

        return DataFrame(LocalRelation(pa.Table.from_batches(begun, schema)), spark)
    # To gather dictionaries takes longer than all the rest, and what is read once or twice is not worth it.
    with pq.ParquetWriter(file, schema, use_dictionary=False) as writer:
        for rows in _row_groups(chain(begun, filled)):
            writer.write_table(pa.Table.from_batches(rows, schema))
    return spark.read.parquet(str(file))


def _row_groups(batches: Iterable[pa.RecordBatch]) -> Iterator[list[pa.RecordBatch]]:
    """Batches that come one after the other, as many together as a part of a file is to have rows."""
    gathered: list[pa.RecordBatch] = []
    for batch in batches:
        gathered.append(batch)
        if sum(each.num_rows for each in gathered) >= ROW_GROUP_ROWS:
            yield gathered
            gathered = []
    if gathered:
        yield gathered


def _is_classic(frame: Any) -> bool:
    """Whether a frame is one of Spark's own, in a JVM beside the server, and not one of Spark Connect."""
    return hasattr(frame, "_jdf")


def _forget(frame: Any) -> None:
    """Give up the rows that Spark has kept of a view."""
    if _is_classic(frame):
        frame._jdf.logicalPlan().rdd().unpersist(False)
    else:
        frame.unpersist()


__all__ = ["SparkJob"]
