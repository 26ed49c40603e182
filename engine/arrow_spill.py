"""Rows of which nobody knows how many there will be: few are kept in memory, many in a file that is mapped."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable
from itertools import chain
from pathlib import Path

import pyarrow as pa

IN_MEMORY_BYTES = 32 << 20
"""From so many bytes on rows go into a file."""


def gathered(schema: pa.Schema, batches: Iterable[pa.RecordBatch], most: int = IN_MEMORY_BYTES) -> pa.Table:
    """A table of the batches, which all have the schema.

    More than `most` bytes are written to a temporary file (in `TMPDIR`), which the table reads by a mapping: they take
    no memory but what the system has to spare. The file is gone with the table. Raises OSError.
    """
    kept, size, following = [], 0, iter(batches)
    for batch in following:
        kept.append(batch)
        size += batch.nbytes
        if size > most:
            return _mapped(schema, chain(kept, following))
    return pa.Table.from_batches(kept, schema)


def _mapped(schema: pa.Schema, batches: Iterable[pa.RecordBatch]) -> pa.Table:
    with tempfile.TemporaryDirectory(prefix="headwater-rows-") as directory:
        file = str(Path(directory) / "rows.arrow")
        with pa.ipc.new_file(file, schema) as writer:
            for batch in batches:
                writer.write_batch(batch)
        # A mapping keeps a file without a name.
        return pa.ipc.open_file(pa.memory_map(file)).read_all()


__all__ = ["gathered"]
