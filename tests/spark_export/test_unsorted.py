"""spark_export.unsorted: rows come out in order, each with its own envelope."""

import random
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pytest

from mailserver.archive.errors import ArchiveError
from spark_export import unsorted
from spark_export.parquet_file import ROWS
from spark_export.unsorted import Unsorted
from tests.spark_export.samples import envelope, envelopes, row_of

STORED = [{**row_of(hit), "store": "a store", "seq": number} for number, hit in enumerate(envelopes(40))]
STORED += [{**row_of(envelope(100 + size, size=size)), "store": None, "seq": None} for size in (0, 1, 300, 70_000)]


def batch(rows: Sequence[dict[str, Any]]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist(list(rows), schema=ROWS)


@pytest.mark.parametrize("size", [1, 7, 1000])
def test_rows_come_out_in_order_whatever_batches_they_came_in(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unsorted, "STEP_ROWS", 10)
    mixed = random.Random(size).sample(STORED, len(STORED))
    gathered = Unsorted()
    for at in range(0, len(mixed), size):
        gathered.add(batch(mixed[at : at + size]))

    rows = gathered.in_order()

    assert rows.schema == ROWS
    assert rows.to_pylist() == sorted(STORED, key=lambda row: (row["topic"], row["created"], row["hash"]))
    assert {name: rows.column(name).num_chunks for name in ROWS.names} == dict.fromkeys(ROWS.names, 1) | {"raw": 5}


def test_a_part_of_a_batch_is_added_by_itself() -> None:
    gathered = Unsorted()
    gathered.add(batch(STORED).slice(5, 3))

    assert sorted(row["seq"] for row in gathered.in_order().to_pylist()) == [5, 6, 7]


def test_rows_are_gone_when_they_were_put_in_order() -> None:
    gathered = Unsorted()
    assert gathered.in_order().num_rows == 0
    gathered.add(batch(STORED[:3]))

    assert gathered.in_order().num_rows == 3
    assert gathered.in_order().num_rows == 0


def test_more_envelopes_than_a_column_can_have_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    held = sum(len(row["raw"]) for row in STORED)
    gathered = Unsorted()
    for limit in (held, held - 1):
        monkeypatch.setattr(unsorted, "MAX_BYTES", limit)
        gathered.add(batch(STORED))
        if limit == held:
            assert gathered.in_order().num_rows == len(STORED)
            continue
        with pytest.raises(ArchiveError, match=rf"has {held} bytes of envelopes, a task can hold {limit}"):
            gathered.in_order()
