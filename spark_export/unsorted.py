"""The rows of a piece as they were read, until they are put in order."""

import pyarrow as pa
import pyarrow.compute as pc

from mailserver.archive.errors import ArchiveError
from spark_export.parquet_file import ORDER, ROWS
from spark_export.usual_form import MAX_BYTES, offsets_of

STEP_ROWS = 4000
"""How many envelopes are put in order at once: 2 MB of usual ones."""

_RAW = ROWS.get_field_index("raw")
_OTHERS = ROWS.remove(_RAW)


class Unsorted:
    """Gathers rows, and puts them in order once.

    The envelopes, nearly all of the bytes, are held by themselves. With all columns in one table, Arrow would hold them
    three times to order them: as they came, in one chunk, and in order.
    """

    def __init__(self) -> None:
        self._others: list[pa.RecordBatch] = []
        self._raws: list[pa.Array] = []

    def add(self, rows: pa.RecordBatch) -> None:
        """Add rows: ROWS."""
        self._raws.append(rows.column(_RAW))
        self._others.append(rows.drop_columns(["raw"]))

    def in_order(self) -> pa.Table:
        """All of them by ORDER: ROWS, in one chunk but for the envelopes. They are gone from here afterwards.

        Raises:
            ArchiveError: they have more than MAX_BYTES of envelopes.
        """
        others = pa.Table.from_batches(self._others, _OTHERS).combine_chunks()
        self._others.clear()
        order = pc.sort_indices(others, sort_keys=[(name, "ascending") for name in ORDER])
        others = others.take(order)
        raws = _joined(self._raws)
        self._raws.clear()
        # In steps, for which the memory that was just freed has room: it may not have it for all at once.
        steps = [raws.take(order.slice(at, STEP_ROWS)) for at in range(0, len(order), STEP_ROWS)]
        return others.add_column(_RAW, ROWS.field(_RAW), pa.chunked_array(steps, pa.binary()))


def _joined(parts: list[pa.Array]) -> pa.Array:
    """One column of all envelopes."""
    held = sum(int(offsets[-1] - offsets[0]) for offsets in map(offsets_of, parts))
    if held > MAX_BYTES:
        raise ArchiveError(f"a piece has {held} bytes of envelopes, a task can hold {MAX_BYTES}")
    return pa.concat_arrays(parts) if parts else pa.array([], pa.binary())
