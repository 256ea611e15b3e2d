"""spark_export.written: what is said of rows that were read back."""

import pyarrow as pa
import pytest

from mailserver.archive.fingerprint import Fingerprint
from mailserver.archive.manifest import FileRecord
from spark_export.parquet_file import ROWS
from spark_export.written import Written, contents, together
from tests.spark_export.samples import DAY, envelopes, row_of

ONE, TWO = envelopes(5), envelopes(3, day=DAY + 1, first=100)


def test_rows_are_counted_by_day_of_reception() -> None:
    rows = pa.Table.from_pylist([row_of(hit) for hit in [*ONE[:2], *TWO, *ONE[2:]]], ROWS)

    days, created = contents(rows.slice(0, 8))

    assert days == {
        day: Fingerprint(
            len(hits),
            sum(len(hit.raw) for hit in hits),
            sum(int.from_bytes(hit.hash[:8], "big") for hit in hits) % 2**64,
        )
        for day, hits in ((DAY, ONE), (DAY + 1, TWO))
    }
    assert created == {
        day: (min(hit.created for hit in hits), max(hit.created for hit in hits))
        for day, hits in ((DAY, ONE), (DAY + 1, TWO))
    }


def test_part_of_a_table_is_told_by_itself() -> None:
    rows = pa.Table.from_pylist([row_of(hit) for hit in ONE], ROWS)

    assert contents(rows.slice(2, 2)) == contents(pa.Table.from_pylist([row_of(hit) for hit in ONE[2:4]], ROWS))


def test_hash_of_another_length_is_refused() -> None:
    rows = pa.Table.from_pylist([{**row_of(ONE[0]), "hash": "0x12"}], ROWS)

    with pytest.raises(ValueError, match="66 characters"):
        contents(rows)


def test_parts_add_up() -> None:
    one = Written(
        {1: Fingerprint(1, 10, 100), 2: Fingerprint(1, 1, 1)}, {1: (5, 6), 2: (0, 0)}, (FileRecord("b", 1, 2),)
    )
    two = Written({1: Fingerprint(2, 20, 2**64 - 1)}, {1: (4, 5)}, (FileRecord("a", 1, 2),))

    assert together([one, two]) == Written(
        {1: Fingerprint(3, 30, 99), 2: Fingerprint(1, 1, 1)},
        {1: (4, 6), 2: (0, 0)},
        (FileRecord("a", 1, 2), FileRecord("b", 1, 2)),
    )
    assert together([]) == Written({}, {}, ())
