"""What a refresh has changed: captured images of rows, as the one change that the row of each id has undergone."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from engine.mirror.arrow_copy import infinities
from engine.mirror.as_of_sql import CHANGE_ID, WEIGHT, XID

ROW_ID = "__pgt_row_id"
GONE = "__pgt_gone"
"""The column of net changes that says whether the row is there no more."""


class Unpublishable(Exception):
    """A value that the Delta table cannot hold, by its column; the text does not show it."""


def net_changes(images: pa.Table) -> pa.Table:
    """The rows that have come or changed, and the last image of those that have gone, with the column `GONE`.

    `images` have a weight, 1 for a row that came and -1 for one that went, and a `ROW_ID` that one row at a time has.
    """
    images = images.filter(pc.not_equal(images[WEIGHT], 0))
    came, went = (images.filter(pc.equal(images[WEIGHT], weight)) for weight in (1, -1))
    if len(pc.unique(came[ROW_ID])) < came.num_rows or len(pc.unique(went[ROW_ID])) < went.num_rows:
        came, went = _settled(images)
    came, went = _rows(came), _rows(went)
    gone = went.filter(pc.invert(pc.is_in(went[ROW_ID], value_set=came[ROW_ID])))
    return pa.concat_tables([_marked(came, is_gone=False), _marked(gone, is_gone=True)])


def only_adds(images: pa.Table) -> bool:
    """Whether rows have only come."""
    return not pc.any(pc.less(images[WEIGHT], 1)).as_py()


def added(images: pa.Table) -> pa.Table:
    """The rows of images that have only come."""
    return _rows(images)


def _rows(images: pa.Table) -> pa.Table:
    return images.drop_columns([name for name in (XID, CHANGE_ID, WEIGHT) if name in images.column_names])


def _marked(rows: pa.Table, *, is_gone: bool) -> pa.Table:
    return rows.append_column(pa.field(GONE, pa.bool_()), pa.repeat(is_gone, rows.num_rows))


def _settled(images: pa.Table) -> tuple[pa.Table, pa.Table]:
    """What is left of images of which some cancel out: a row that was changed several times."""
    counted: Counter[str] = Counter()
    place: dict[str, int] = {}
    rows = _rows(images)
    for number, (row, weight) in enumerate(zip(rows.to_pylist(), images[WEIGHT].to_pylist(), strict=True)):
        image = _image(row)
        counted[image] += weight
        place[image] = number
    came = [place[image] for image, times in counted.items() if times > 0]
    went = [place[image] for image, times in counted.items() if times < 0]
    return rows.take(pa.array(came, pa.int64())), rows.take(pa.array(went, pa.int64()))


def _image(row: dict[str, Any]) -> str:
    """A text that is the same for rows that are: NaN equals itself, and -0 is not 0."""
    return repr(sorted(row.items()))


def finite(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The batches as they are. Raises Unpublishable at a date or timestamp that is infinite."""
    for batch in batches:
        column = infinite_column(batch)
        if column is not None:
            raise Unpublishable(f'an infinite value in column "{column}"')
        yield batch


def infinite_column(rows: pa.Table | pa.RecordBatch) -> str | None:
    """A column with an infinite date or timestamp, which nobody else could tell from a finite one; None without any."""
    for column in rows.schema:
        if pa.types.is_date(column.type) or pa.types.is_timestamp(column.type):
            values = rows[column.name]
            if any(pc.any(pc.equal(values, end)).as_py() for end in infinities(column.type)):
                return str(column.name)
    return None
