"""spark_export.totals: what stores say of their days, summed up in tasks."""

from itertools import pairwise
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from mailserver.archive.fingerprint import Fingerprint
from mailserver.store.interface import NewEnvelope
from spark_export import source, totals
from spark_export.errors import ExportError
from spark_export.store import describe
from tests.spark_export.samples import DAY, envelopes, put

pytestmark = pytest.mark.spark


def fingerprint(*some: NewEnvelope) -> Fingerprint:
    checksum = sum(int.from_bytes(each.hash[:8], "big") for each in some) % 2**64
    return Fingerprint(len(some), sum(len(each.raw) for each in some), checksum)


@pytest.mark.parametrize(("range_rows", "task_rows"), [(50_000, 250_000), (2, 3), (2, 1)])
def test_days_of_several_stores_are_summed_up(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, range_rows: int, task_rows: int
) -> None:
    monkeypatch.setattr(source, "PARTITION_ROWS", range_rows)
    monkeypatch.setattr(totals, "TASK_ROWS", task_rows)
    first, later, more = envelopes(4), envelopes(3, day=DAY + 1, first=10), envelopes(2, first=20)
    # The clock of the first was set back: its days overlap.
    one = describe(put(tmp_path / "one.db", first, later, more))
    other = describe(put(tmp_path / "other.db", envelopes(3), later))

    found = totals.totals(spark, [one, other], [one.days, other.days[1:]])

    assert [of_day[:3] for of_day in found] == [
        (0, DAY, fingerprint(*first, *more)),
        (0, DAY + 1, fingerprint(*later)),
        (1, DAY + 1, fingerprint(*later)),
    ]
    for of_day in found:
        batches = of_day.batches
        assert sum(batch.rows for batch in batches) == of_day.fingerprint.rows
        assert sum(batch.bytes for batch in batches) == of_day.fingerprint.bytes
        assert all(one.last_seq < other.first_seq for one, other in pairwise(batches))


def test_no_days_have_no_totals(spark: SparkSession, tmp_path: Path) -> None:
    store = describe(put(tmp_path / "mailserver.db", envelopes(1)))

    assert totals.totals(spark, [store], [()]) == []


def test_store_that_cannot_be_read_is_said(spark: SparkSession, tmp_path: Path) -> None:
    path = put(tmp_path / "mailserver.db", envelopes(1))
    store = describe(path)
    path.unlink()

    with pytest.raises(ExportError, match=r"mailserver\.db"):
        totals.totals(spark, [store], [store.days])
