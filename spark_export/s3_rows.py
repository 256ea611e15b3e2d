"""The rows of files on S3, as a Spark data source. Tasks read them by pyarrow: Spark's own reader has no way there."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from mailserver.archive.errors import ArchiveError
from mailserver.archive.layout import PERIOD, Layout, PartitionBy
from spark_export.parquet_file import damage_named, described, partition_of
from spark_export.source import BATCH_ROWS
from spark_export.task_files import TaskFiles

FILE, FILE_BYTES = "_file", "_file_bytes"
"""Columns that say which file a row is from: its path or URL, and its size."""

STEP_BYTES = 8 * 1024 * 1024
"""About how many bytes of a file are fetched at once."""


@dataclass(frozen=True, slots=True)
class WantedRows:
    """What a reader will select: `topics`, 0x and 8 hex digits each, created at `first` or later, and before `end`.

    Times are Unix seconds. None is no bound.
    """

    topics: Sequence[str] | None = None
    first: int | None = None
    end: int | None = None

    def may_be_in(self, topics: tuple[str, str], created: tuple[int, int]) -> bool:
        """Whether a row group may have any of it, by its first and last topic and its first and last time."""
        return (
            (self.first is None or self.first <= created[1])
            and (self.end is None or created[0] < self.end)
            and (self.topics is None or any(topics[0] <= topic <= topics[1] for topic in self.topics))
        )


EVERYTHING = WantedRows()


def rows_of_files(
    spark: SparkSession,
    url: str,
    layout: Layout,
    names: Sequence[str],
    schema: StructType,
    *,
    wanted: WantedRows = EVERYTHING,
    ignore_damage: bool = False,
) -> DataFrame:
    """The rows of some files.

    Args:
        url: of the archive.
        names: relative to it.
        schema: the columns, of which one or more are in the files. No others are fetched.
        ignore_damage: leave out row groups that cannot be decoded. Without it, that is an error.
    """
    spark.dataSource.register(BucketSource)  # whoever reads an archive has a session of their own
    told = {"url": url, "layout": [layout.by.value, layout.prefix_digits], "names": names, "wanted": asdict(wanted)}
    options = {"files": json.dumps({**told, "ignore_damage": ignore_damage}), "schema": schema.json()}
    return spark.read.format(BucketSource.name()).options(**options).load()


class BucketSource(DataSource):
    """Reads what `rows_of_files` tells it."""

    @classmethod
    def name(cls) -> str:
        """How `spark.read.format` calls it."""
        return "mailserver_archive_on_s3"

    def schema(self) -> StructType:
        """The columns that are wanted."""
        return StructType.fromJson(json.loads(self.options["schema"]))

    def reader(self, schema: StructType) -> "BucketReader":
        """A reader of the columns in `schema`."""
        told = json.loads(self.options["files"])
        by, digits = told["layout"]
        layout, wanted = Layout(PartitionBy(by), digits), WantedRows(**told["wanted"])
        return BucketReader(told["url"], layout, told["names"], schema, wanted, ignore_damage=told["ignore_damage"])


@dataclass(frozen=True, slots=True)
class FileOnS3(InputPartition):
    """A file, by its name in the archive."""

    name: str


class BucketReader(DataSourceReader):
    """Reads a file in each task, on whatever worker."""

    def __init__(
        self,
        url: str,
        layout: Layout,
        names: Sequence[str],
        schema: StructType,
        wanted: WantedRows,
        *,
        ignore_damage: bool,
    ) -> None:
        self._url = url
        self._layout = layout
        self._names = names
        self._schema = schema
        self._wanted = wanted
        self._ignore_damage = ignore_damage

    def partitions(self) -> Sequence[InputPartition]:
        """A partition for each file."""
        return [FileOnS3(name) for name in self._names]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read a file, batch by batch."""
        assert isinstance(partition, FileOnS3)
        columns = to_arrow_schema(self._schema)
        yield from rows_of_file(
            TaskFiles(self._url), partition.name, self._layout, columns, self._wanted, ignore_damage=self._ignore_damage
        )


def rows_of_file(
    archive: TaskFiles,
    name: str,
    layout: Layout,
    columns: pa.Schema,
    wanted: WantedRows,
    *,
    ignore_damage: bool = False,
) -> Iterator[pa.RecordBatch]:
    """The rows of a file, in a folder or on S3, of the row groups that may have what is wanted.

    Raises:
        ArchiveError: it cannot be read, or is damaged, unless that is ignored.
    """
    # What S3 refuses is never ignored: of a file that may be damaged, all is fetched before anything is decoded.
    with pa.BufferReader(archive.read(name)) if ignore_damage else archive.opened(name) as file:
        known = {PERIOD: _period(name), layout.column: partition_of(name), FILE: name, FILE_BYTES: file.size()}
        in_file = [one for one in columns.names if one not in known]
        try:
            with damage_named(name):
                parquet = pq.ParquetFile(file, page_checksum_verification=True)
                in_file = [one for one in in_file if one in parquet.schema_arrow.names]
                steps = _steps(parquet.metadata, layout, name, in_file, wanted, 0 if ignore_damage else STEP_BYTES)
        except ArchiveError:
            if not ignore_damage:
                raise
            return
        for groups in steps:
            try:
                with damage_named(name):
                    for batch in parquet.iter_batches(BATCH_ROWS, groups, in_file, use_threads=False):
                        yield _with_columns(batch, columns, known)
            except ArchiveError:
                if not ignore_damage:
                    raise


def _steps(
    footer: pq.FileMetaData, layout: Layout, name: str, columns: Sequence[str], wanted: WantedRows, step_bytes: int
) -> list[list[int]]:
    """The row groups that may have what is wanted, as many together as have about `step_bytes`."""
    numbers = [number for number, one in enumerate(footer.schema.names) if one in columns]
    steps: list[list[int]] = []
    left = 0
    for group, (_, topics, created) in enumerate(described(footer, layout, name)):
        if not wanted.may_be_in(topics, created):
            continue
        if left <= 0:
            steps.append([])
            left = step_bytes
        steps[-1].append(group)
        left -= sum(footer.row_group(group).column(number).total_compressed_size for number in numbers)
    return steps


def _with_columns(batch: pa.RecordBatch, columns: pa.Schema, known: dict[str, str | int]) -> pa.RecordBatch:
    """The batch, with what is the same in the whole file, and null in columns that an earlier version lacked."""
    arrays = [
        batch.column(field.name).cast(field.type)
        if field.name in batch.schema.names
        else pa.repeat(pa.scalar(known.get(field.name), field.type), batch.num_rows)
        for field in columns
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=columns)


def _period(name: str) -> str:
    """The period in whose directory, or in whose directory of `_damaged`, a file lies."""
    return next(one for one in name.split("/") if one.startswith(f"{PERIOD}=")).partition("=")[2]
