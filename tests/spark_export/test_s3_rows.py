"""spark_export.s3_rows: which row groups a task reads, and what it leaves out. Whole frames are in test_s3.py."""

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql.types import LongType, StringType, StructField, StructType

from mailserver.archive.errors import ArchiveError
from mailserver.archive.layout import Layout, PartitionBy
from spark_export.frames import file_schema
from spark_export.parquet_file import ROWS, encode
from spark_export.s3_rows import EVERYTHING, FILE, FILE_BYTES, BucketReader, FileOnS3, WantedRows
from tests.s3 import FakeS3, fake_s3
from tests.spark_export.samples import CHAT, COLUMNS, DAY, DAY_S, NEWS, envelope, rows_of

pytestmark = pytest.mark.integration

PREFIX, TOPIC = Layout(PartitionBy.TOPIC_PREFIX, 1), Layout(PartitionBy.TOPIC, 0)
NAME = {PREFIX: "date=2024-10-04/topic_prefix=9/part-0", TOPIC: "date=2024-10-04/topic=0x9acb0442/part-0"}
START = DAY * DAY_S
SORTED = rows_of(envelope(at, created=START + at, topic=(CHAT, NEWS)[at // 20], size=5000) for at in range(40))
OF_NEWS = [row for row in SORTED if row["topic"] == f"0x{NEWS.hex()}"]


@pytest.fixture
def s3(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeS3]:
    with fake_s3(monkeypatch) as fake:
        yield fake


def file_of(layout: Layout) -> bytes:
    """A file with a row group for each ten rows."""
    rows = pa.Table.from_pylist(SORTED if layout is PREFIX else OF_NEWS, ROWS)
    return bytes(encode(rows, layout, range(10, rows.num_rows + 1, 10)))


def read(
    s3: FakeS3, layout: Layout, *columns: str, wanted: WantedRows = EVERYTHING, ignore_damage: bool = False
) -> list[dict[str, Any]]:
    """The rows that a task reads of the file."""
    fields = [*file_schema(layout).fields, StructField(FILE, StringType()), StructField(FILE_BYTES, LongType())]
    schema = StructType([field for field in fields if field.name in (columns or ROWS.names)])
    reader = BucketReader(f"s3://{s3.root}", layout, [NAME[layout]], schema, wanted, ignore_damage=ignore_damage)
    (partition,) = reader.partitions()
    assert partition == FileOnS3(NAME[layout])
    return [row for batch in reader.read(partition) for row in batch.to_pylist()]


@pytest.mark.parametrize("layout", [PREFIX, TOPIC], ids=str)
def test_all_rows_are_read_with_what_the_name_says(s3: FakeS3, layout: Layout) -> None:
    content = file_of(layout)
    s3.hold({NAME[layout]: content})

    found = read(s3, layout, *COLUMNS)
    named = read(s3, layout, "created", "date", layout.column, FILE, FILE_BYTES)

    assert sorted(found, key=lambda row: row["created"]) == (SORTED if layout is PREFIX else OF_NEWS)
    assert {tuple(row.values())[1:] for row in named} == {
        ("2024-10-04", layout.value(f"0x{NEWS.hex()}"), NAME[layout], len(content))
    }


def test_columns_that_an_earlier_version_lacked_are_null(s3: FakeS3) -> None:
    before = pa.Table.from_pylist(SORTED, ROWS).drop_columns(["muid", "store", "seq"])
    sink = pa.BufferOutputStream()
    pq.write_table(before, sink, store_schema=False)
    s3.hold({NAME[PREFIX]: sink.getvalue().to_pybytes()})

    found = read(s3, PREFIX, "hash", "store", "seq", "muid")

    assert [row.pop("hash") for row in found] == [row["hash"] for row in SORTED]
    assert found == [{"store": None, "seq": None, "muid": None}] * len(SORTED)


@pytest.mark.parametrize(
    ("wanted", "groups"),
    [
        (WantedRows(topics=[f"0x{NEWS.hex()}"]), range(20, 40)),
        (WantedRows(topics=["0x00000000", "0xffffffff"]), range(0)),
        (WantedRows(first=START + 35), range(30, 40)),
        (WantedRows(end=START + 10), range(10)),
        (WantedRows(topics=[f"0x{NEWS.hex()}"], first=START + 5, end=START + 31), range(20, 40)),
        (WantedRows(first=START + 40), range(0)),
    ],
)
def test_only_row_groups_that_may_have_it_are_read(s3: FakeS3, wanted: WantedRows, groups: range) -> None:
    s3.hold({NAME[PREFIX]: file_of(PREFIX)})

    assert sorted(row["created"] - START for row in read(s3, PREFIX, wanted=wanted)) == [*groups]


def test_columns_that_are_not_asked_for_are_not_fetched(s3: FakeS3) -> None:
    content = file_of(PREFIX)
    s3.hold({NAME[PREFIX]: content})

    read(s3, PREFIX, "created")

    assert s3.fetched[""] < len(content) / 2


def test_damaged_row_group_is_an_error_or_left_out(s3: FakeS3) -> None:
    content = bytearray(file_of(PREFIX))
    start = pq.ParquetFile(pa.BufferReader(bytes(content))).metadata.row_group(1).column(0).data_page_offset
    content[start + 10_000] ^= 0x10
    s3.hold({NAME[PREFIX]: bytes(content)})

    with pytest.raises(ArchiveError, match=f"^{NAME[PREFIX]} cannot be read: "):
        read(s3, PREFIX)
    left = sorted(row["created"] - START for row in read(s3, PREFIX, ignore_damage=True))
    assert left == [*range(10), *range(20, 40)]


def test_file_without_a_footer_is_an_error_or_left_out(s3: FakeS3) -> None:
    s3.hold({NAME[PREFIX]: file_of(PREFIX)[:-1]})

    with pytest.raises(ArchiveError, match=f"^{NAME[PREFIX]} cannot be read: "):
        read(s3, PREFIX)
    assert read(s3, PREFIX, ignore_damage=True) == []


def read_or_refused(s3: FakeS3, after: int) -> str:
    with s3.refusing_after(after):
        try:
            return f"{len(read(s3, PREFIX, ignore_damage=True))} rows"
        except ArchiveError as error:
            return "refused" if "AWS Error ACCESS_DENIED" in str(error) else str(error)


def test_what_s3_refuses_is_no_damage(s3: FakeS3) -> None:
    s3.hold({NAME[PREFIX]: file_of(PREFIX)})

    found = [read_or_refused(s3, after) for after in range(5)]

    assert set(found) == {"refused", "40 rows"}  # and never fewer
    s3.hold({})
    with pytest.raises(ArchiveError, match=f"cannot read {s3.url}/{NAME[PREFIX]}: "):
        read(s3, PREFIX, ignore_damage=True)
