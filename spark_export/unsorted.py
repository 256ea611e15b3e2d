"""The rows of a piece as they were read, until they are put in order."""

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from mailserver.archive.errors import ArchiveError
from spark_export.parquet_file import ORDER, ROWS

MAX_BYTES = 2**31 - 1
"""Arrow counts the bytes of a column so far."""

_RAW = ROWS.get_field_index("raw")
_OTHERS = ROWS.remove(_RAW)


class Unsorted:
    """Gathers rows, and puts them in order once.

    The envelopes, nearly all of the bytes, are held by themselves. To order them, Arrow would first copy them into one
    chunk, and hold them three times.
    """

    def __init__(self) -> None:
        self._others: list[pa.RecordBatch] = []
        self._raws: list[bytes] = []

    def add(self, rows: pa.RecordBatch) -> None:
        """Add rows: ROWS."""
        self._raws += rows.column(_RAW).to_pylist()
        self._others.append(rows.drop_columns(["raw"]))

    def in_order(self) -> pa.Table:
        """All of them by ORDER: ROWS, in one chunk. They are gone from here afterwards.

        Raises:
            ArchiveError: they have more than MAX_BYTES of envelopes.
        """
        others = pa.Table.from_batches(self._others, _OTHERS)
        self._others.clear()
        order = pc.sort_indices(others, sort_keys=[(name, "ascending") for name in ORDER])
        others = others.take(order).combine_chunks()
        raws = list(map(self._raws.__getitem__, order.to_pylist()))
        self._raws.clear()
        return others.add_column(_RAW, ROWS.field(_RAW), _joined(raws))


def _joined(raws: list[bytes]) -> pa.Array:
    """A column of envelopes."""
    offsets = np.zeros(len(raws) + 1, np.int64)
    np.fromiter(map(len, raws), np.int64, len(raws)).cumsum(out=offsets[1:])
    if offsets[-1] > MAX_BYTES:
        raise ArchiveError(f"a piece has {offsets[-1]} bytes of envelopes, a task can hold {MAX_BYTES}")
    buffers = [None, pa.py_buffer(offsets.astype(np.int32)), pa.py_buffer(b"".join(raws))]
    return pa.Array.from_buffers(pa.binary(), len(raws), buffers)
