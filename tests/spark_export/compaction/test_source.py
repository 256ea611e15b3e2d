import sqlite3
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.testing import assertSchemaEqual

from mailserver.archive.fingerprint import Fingerprint
from mailserver.ids.muid import DEFAULT_NETWORK_TOPIC as NETWORK
from spark_export import keys, source, tasks
from spark_export.keys import read_keys
from spark_export.pieces import StoreRows
from spark_export.places import address_of
from spark_export.schema import KEYS
from spark_export.source import StoreRange, StoreSource, options_of, ranges_of, read_envelopes, read_totals
from spark_export.store import StoreDay, StoreSnapshot, describe
from tests.spark_export.samples import DAY, NOON, change, envelope, envelopes, put, row_of

HIT = envelope(7)
KEY_HASH = HIT.hash[:16]
RAW = HIT.raw


def read(stores: list[StoreSnapshot], days: list[tuple[StoreDay, ...]], **limits: int) -> list[dict[str, Any]]:
    """What the source yields, partition by partition, without Spark."""
    opened = StoreSource(options_of(stores, days, **limits))
    reader = opened.reader(opened.schema())
    return [row for part in reader.partitions() for batch in reader.read(part) for row in batch.to_pylist()]


def parts_of(*days: StoreDay) -> list[tuple[int, int, int]]:
    opened = StoreSource(options_of([StoreSnapshot(Path("s"), "id", days, 0, 9)], [days]))
    parts = opened.reader(opened.schema()).partitions()
    return [(part.day, part.first_seq, part.last_seq) for part in parts]


@pytest.fixture
def stepped(tmp_path: Path) -> StoreSnapshot:
    """A store whose clock was set back and forth: the ranges of its days overlap."""
    path = put(
        tmp_path / "mailserver.db",
        envelopes(4),
        envelopes(3, day=DAY + 1, first=10),
        envelopes(2, first=20),
        envelopes(2, day=DAY + 2, first=30),
        envelopes(2, day=DAY + 1, first=40),
    )
    return describe(path)


def test_each_day_is_read_by_itself_where_ranges_overlap() -> None:
    parts = parts_of(StoreDay(1, 0, 0, 1, 10), StoreDay(2, 0, 0, 5, 20), StoreDay(3, 0, 0, 30, 30))

    assert parts == [(1, 1, 10), (2, 5, 20), (3, 30, 30)]


def test_long_ranges_are_split(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source, "PARTITION_ROWS", 10)

    parts = parts_of(StoreDay(1, 0, 0, 3, 12), StoreDay(2, 0, 0, 13, 24), StoreDay(3, 0, 0, 40, 50))

    assert parts == [(1, 3, 12), (2, 13, 22), (2, 23, 24), (3, 40, 49), (3, 50, 50)]


def test_no_days_have_no_partitions() -> None:
    assert parts_of() == []


@pytest.mark.parametrize(("partition_rows", "batch_rows"), [(50_000, 4000), (5, 2), (3, 3), (1, 1)])
def test_each_row_is_read_once(
    stepped: StoreSnapshot, monkeypatch: pytest.MonkeyPatch, partition_rows: int, batch_rows: int
) -> None:
    monkeypatch.setattr(source, "PARTITION_ROWS", partition_rows)
    monkeypatch.setattr(source, "BATCH_ROWS", batch_rows)

    rows = read([stepped], [stepped.days])
    assert sorted(row["seq"] for row in rows) == list(range(1, 14))
    assert Counter(row["day"] for row in rows) == {DAY: 6, DAY + 1: 5, DAY + 2: 2}
    assert all(row["received"] // 86_400 == row["day"] for row in rows)


def test_rows_of_days_that_are_not_wanted_are_left_out(stepped: StoreSnapshot) -> None:
    rows = read([stepped], [stepped.days[1:2]])

    assert [row["seq"] for row in rows] == [5, 6, 7, 12, 13]


def test_rows_beyond_the_end_of_their_day_are_left_out(stepped: StoreSnapshot) -> None:
    first, second = stepped.days[0], stepped.days[1]
    days = (StoreDay(first.day, 4, 0, 1, 4), second)  # rows 8 and 9 are of the first day, in the range of the second

    assert sorted(row["seq"] for row in read([stepped], [days])) == [1, 2, 3, 4, 5, 6, 7, 12, 13]


def test_rows_that_came_since_are_left_out(stepped: StoreSnapshot) -> None:
    put(Path(address_of(stepped.place)), envelopes(3, first=50))

    assert len(read([stepped], [stepped.days])) == 13


def test_batches_are_as_small_as_they_should_be(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = describe(put(tmp_path / "mailserver.db", envelopes(13)))
    monkeypatch.setattr(source, "BATCH_ROWS", 5)

    opened = StoreSource(options_of([store], [store.days]))
    reader = opened.reader(opened.schema())
    (part,) = reader.partitions()
    assert [batch.num_rows for batch in reader.read(part)] == [5, 5, 3]
    assert [batch.num_rows for batch, _ in read_envelopes(wanted(store, 1, 13), NETWORK)] == [5, 5, 3]


def test_batches_of_large_envelopes_have_fewer_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = (60, 60, 5_000, 60, 5_000, 20_000, 60, 60)
    hits = [envelope(number, size=size) for number, size in enumerate(sizes)]
    store = describe(put(tmp_path / "mailserver.db", hits))
    monkeypatch.setattr(source, "BATCH_BYTES", 6_000)
    monkeypatch.setattr(source, "BATCH_ROWS", 7)

    read = wanted(store, 1, 8)

    assert [batch[:3] for batch in read.batches] == [(1, 4, 4), (5, 5, 1), (6, 6, 1), (7, 7, 1), (8, 8, 1)]
    assert [batch.bytes for batch in read.batches[1:3]] == [len(hit.raw) for hit in hits[4:6]]
    found = [rows for rows, _ in read_envelopes(read, NETWORK)]
    assert [len(rows) for rows in found] == [4, 1, 1, 1, 1]
    assert [row["raw"] for rows in found for row in rows.to_pylist()] == [hit.raw for hit in hits]


def wanted(store: StoreSnapshot, first: int, last: int, *left_out: int, day: int = DAY) -> StoreRows:
    _, batches = read_totals(address_of(store.place), StoreRange(0, day, first, last))
    return StoreRows(3, store.id, str(store.place), day, tuple(batches), np.array(left_out, np.int64))


def test_envelopes_are_rows_of_the_archive(stepped: StoreSnapshot) -> None:
    rows = [row for batch, _ in read_envelopes(wanted(stepped, 1, 9), NETWORK) for row in batch.to_pylist()]

    of_day = zip(envelopes(4) + envelopes(2, first=20), (1, 2, 3, 4, 8, 9), strict=True)  # that is wanted
    assert rows == [{**row_of(hit), "store": stepped.id, "seq": seq} for hit, seq in of_day]


def test_envelopes_that_are_to_be_left_out_are(stepped: StoreSnapshot, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source, "BATCH_ROWS", 2)

    batches = [batch for batch, _ in read_envelopes(wanted(stepped, 1, 4, 1, 2, 4), NETWORK)]

    (row,) = (row for batch in batches for row in batch.to_pylist())
    assert (row["hash"], row["seq"]) == ("0x" + envelopes(4)[2].hash.hex(), 3)


def test_rows_that_are_no_envelopes_are_told(stepped: StoreSnapshot) -> None:
    change(Path(address_of(stepped.place)), "UPDATE envelopes SET raw = x'00' WHERE seq = 2")

    ((rows, faulty),) = read_envelopes(wanted(stepped, 1, 4), NETWORK)

    assert rows.column("seq").to_pylist() == [1, 3, 4]
    (row,) = faulty
    assert (row.store, row.seq, row.day, row.received, row.raw) == (3, 2, DAY, envelopes(4)[1].received, b"\0")
    assert row.fault.startswith("undecodable")


def test_stores_are_numbered(stepped: StoreSnapshot, tmp_path: Path) -> None:
    other = describe(put(tmp_path / "other" / "mailserver.db", envelopes(2, first=90)))

    rows = read([other, stepped], [other.days, stepped.days[2:]])

    assert [(row["store"], row["seq"]) for row in rows] == [(0, 1), (0, 2), (1, 10), (1, 11)]


def test_keys_are_what_the_columns_say(tmp_path: Path) -> None:
    store = describe(put(tmp_path / "mailserver.db", [HIT]))

    (row,) = read([store], [store.days])

    assert row == {
        "store": 0,
        "seq": 1,
        "day": DAY,
        "received": NOON,
        "created": HIT.created,
        "hash": "0x" + KEY_HASH.hex(),
        "size": len(RAW),
    }


def test_totals_add_up_to_the_fingerprint_of_each_day(stepped: StoreSnapshot, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source, "BATCH_ROWS", 2)

    found: dict[int, Fingerprint] = {}
    for one in ranges_of([[(day.day, day.first_seq, day.last_seq) for day in stepped.days]]):
        total, batches = read_totals(address_of(stepped.place), one)
        found[one.day] = found.get(one.day, Fingerprint()) + total
        assert total.rows == sum(batch.rows for batch in batches)
        assert total.bytes == sum(batch.bytes for batch in batches)

    hits = envelopes(4) + envelopes(2, first=20)
    checksum = sum(int.from_bytes(hit.hash[:8], "big") for hit in hits) % 2**64
    assert found[DAY] == Fingerprint(6, sum(len(hit.raw) for hit in hits), checksum)
    assert {day: part.rows for day, part in found.items()} == {DAY: 6, DAY + 1: 5, DAY + 2: 2}


def test_what_was_created_later_can_be_left_out(stepped: StoreSnapshot) -> None:
    first = envelopes(4)

    rows = read([stepped], [stepped.days], created_until=first[1].created)

    assert [row["created"] for row in rows] == [
        first[0].created,
        first[1].created,
        *(first[0].created, first[1].created),
    ]


@pytest.mark.parametrize("key_hash", [b"", KEY_HASH[:15], HIT.hash, "text"])
def test_hash_of_another_length_is_zeros_in_keys_as_in_totals(tmp_path: Path, key_hash: bytes | str) -> None:
    store = describe(put(tmp_path / "mailserver.db", [HIT, *envelopes(2)]))
    connection = sqlite3.connect(address_of(store.place))
    connection.execute("UPDATE envelopes SET hash = ? WHERE seq = 1", (key_hash,))
    connection.commit()
    connection.close()

    keys = read([store], [store.days])
    totals, _ = read_totals(address_of(store.place), StoreRange(0, DAY, 1, 3))

    assert keys[0]["hash"] == "0x" + bytes(16).hex()
    checksum = sum(int(key["hash"][2:18], 16) for key in keys) % 2**64
    assert totals == Fingerprint(3, sum(key["size"] for key in keys), checksum)


@pytest.mark.spark
def test_spark_reads_the_store(spark: SparkSession, stepped: StoreSnapshot) -> None:
    frame = spark.read.format("mailserver_store").options(**options_of([stepped], [stepped.days])).load()

    assertSchemaEqual(frame.schema, KEYS, ignoreNullable=True)
    found = [row.asDict() for row in frame.collect()]
    assert found == read([stepped], [stepped.days])


@pytest.mark.spark
@pytest.mark.parametrize("few", [0, 1, 3, 4])
def test_few_keys_are_the_same_rows_by_a_shorter_way(spark: SparkSession, stepped: StoreSnapshot, few: int) -> None:
    """Four of them, in two ranges, were created by then."""
    until = envelopes(4)[1].created

    frame = read_keys(spark, [stepped], [stepped.days], until, few=few)

    assertSchemaEqual(frame.schema, KEYS, ignoreNullable=True)
    found = [row.asDict() for row in frame.collect()]
    assert found == read([stepped], [stepped.days], created_until=until)
    assert ("BatchScan" in plan_of(frame)) == (few < 4)


@pytest.mark.spark
def test_driver_has_few_keys_of_each_task_however_many_ranges_there_are(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    days = 4 * spark.sparkContext.defaultParallelism  # each is a range
    store = describe(
        put(tmp_path / "mailserver.db", *(envelopes(2, day=DAY + day, first=2 * day) for day in range(days)))
    )
    received: list[int] = []

    def noted(*arguments: Any, **options: Any) -> list[Any]:
        parts = tasks.in_tasks(*arguments, **options)
        received.extend(sum(batch.num_rows for batch in part) for part in parts if part is not None)
        return parts

    monkeypatch.setattr(keys, "in_tasks", noted)

    frame = read_keys(spark, [store], [store.days], source.END_OF_TIME - 1, few=2)

    assert received == []
    assert frame.count() == 2 * days


@pytest.mark.spark
def test_no_keys_are_few(spark: SparkSession, stepped: StoreSnapshot) -> None:
    frame = read_keys(spark, [stepped], [stepped.days], 0)

    assertSchemaEqual(frame.schema, KEYS, ignoreNullable=True)
    assert frame.isEmpty()
    assert read_keys(spark, [stepped], [()], 0).isEmpty()


def plan_of(frame: DataFrame) -> str:
    """How Spark gets the rows of a frame."""
    return str(frame._jdf.queryExecution().executedPlan())  # noqa: SLF001
