"""Writing periods into the staging directory, and reading back what was written."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from urllib.parse import unquote

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StringType, StructField, StructType

from mailserver.archive.fingerprint import Fingerprint
from mailserver.archive.layout import FILE_BYTES, PERIOD, Layout
from mailserver.archive.manifest import FileRecord
from mailserver.units import SECONDS_PER_DAY
from spark_export.aggregates import aggregates, fingerprint_of
from spark_export.schema import ENVELOPES
from spark_export.transform import arranged

TASK_BYTES = 64 * 1024 * 1024
"""About how many bytes of envelopes one task sorts and writes, in memory."""

ROW_GROUP_BYTES = 18 * 1024 * 1024
"""A reader of one topic decodes at least one row group of it; a larger one would save little."""

ROW_OVERHEAD_BYTES = 48
"""What the other columns add to an envelope's own bytes in the file, about."""

BLOOM_BYTES = 16 * 1024
"""Largest bloom filter of a row group: what its hashes take. Of several sizes, the least that does is written."""

_FALSE_POSITIVES = 0.1
_BLOOM_SIZES = 10


@dataclass(frozen=True, slots=True)
class Written:
    """What is found in one period's directory."""

    days: dict[int, Fingerprint]
    created: dict[int, tuple[int, int]]
    files: tuple[FileRecord, ...]


def file_schema(layout: Layout) -> StructType:
    """What the files hold, followed by the partition columns that Spark adds from their paths."""
    fields = [field for field in ENVELOPES.fields if field.name != layout.column]
    return StructType([*fields, StructField(PERIOD, StringType()), StructField(layout.column, StringType())])


def write_staged(envelopes: DataFrame, layout: Layout, path: str, *, rows: int, size: int) -> None:
    """Write ENVELOPES with a period column to `path`, one directory for each period and partition below it.

    Args:
        rows: about how many there are.
        size: about how many bytes of envelopes.
    """
    spark = envelopes.sparkSession
    at_once = spark.sparkContext.defaultParallelism
    tasks = at_once * max(2, -(-size // (at_once * TASK_BYTES)))  # so many that all cores are done at the same time
    row_bytes = max(1, size // max(1, rows)) + ROW_OVERHEAD_BYTES
    writer = (
        arranged(envelopes, layout, tasks)
        .write.partitionBy(PERIOD, layout.column)
        .option("maxRecordsPerFile", max(1, FILE_BYTES // row_bytes))
        .option("parquet.block.size", ROW_GROUP_BYTES)
        .option("parquet.bloom.filter.adaptive.enabled", "true")
        .option("parquet.bloom.filter.max.bytes", BLOOM_BYTES)
        .option("parquet.writer.max-padding", 0)  # else row groups are moved apart, to blocks of HDFS
        # The level that costs least: it finds what little there is in ciphertext, and hex digits.
        .option("compression", "zstd")
        .option("parquet.compression.codec.zstd.level", 1)
    )
    writer = writer.option("parquet.column.statistics.enabled#raw", "false")  # nobody looks for a value of it
    for column in ("raw", "created", "received", "expiry"):  # few values stand twice
        writer = writer.option(f"parquet.enable.dictionary#{column}", "false")
    for column in ("hash", "topic"):
        if column != layout.column:
            writer = (
                writer.option(f"parquet.bloom.filter.enabled#{column}", "true")
                .option(f"parquet.bloom.filter.fpp#{column}", _FALSE_POSITIVES)
                .option(f"parquet.bloom.filter.candidates.number#{column}", _BLOOM_SIZES)
                .option(f"parquet.enable.dictionary#{column}", "false")  # with one, no bloom filter is written
            )
    writer.parquet(path)


def read_periods(
    spark: SparkSession, layout: Layout, base: str, paths: Sequence[str], *, ignore_damage: bool = False
) -> DataFrame:
    """The rows below `paths`, files or directories of periods or partitions, all below `base`.

    A damaged page is an error, or else what a task would read after it is left out.
    """
    reader = spark.read.schema(file_schema(layout)).option("basePath", base)
    reader = reader.option("ignoreCorruptFiles", str(ignore_damage).lower())
    return reader.option("parquet.page.verify-checksum.enabled", "true").parquet(*paths)


def read_back(spark: SparkSession, layout: Layout, base: str, periods: Sequence[str]) -> dict[str, Written]:
    """Read every page in these periods' directories, and say what was found in each."""
    found = read_files(spark, layout, base, [f"{base}/{PERIOD}={period}" for period in periods])
    return {period: found.get(period, Written({}, {}, ())) for period in periods}


def read_files(spark: SparkSession, layout: Layout, base: str, paths: Sequence[str]) -> dict[str, Written]:
    """Read every page of files, or of all in directories, and say what was found of each period.

    Args:
        paths: below `base`, each in the directory of its period or that directory itself.
    """
    frame = read_periods(spark, layout, base, paths)
    found = (
        frame.groupBy(
            F.floor(F.col("received") / SECONDS_PER_DAY).cast("int").alias("day"),
            F.col("_metadata.file_path").alias("file"),
            F.col("_metadata.file_size").alias("file_size"),
        )
        .agg(
            *aggregates(F.length("raw")),
            F.min("created").alias("first"),
            F.max("created").alias("last"),
            *(F.count(name).alias(f"{name}_read") for name in ENVELOPES.fieldNames()),  # else some would not be read
        )
        .collect()
    )
    days: dict[str, dict[int, list[Fingerprint]]] = defaultdict(lambda: defaultdict(list))
    created: dict[str, dict[int, tuple[int, int]]] = defaultdict(dict)
    files: dict[str, dict[str, FileRecord]] = defaultdict(dict)
    for row in found:
        directory, *names = unquote(row["file"]).split("/")[-3:]
        period, path, day = directory.removeprefix(f"{PERIOD}="), "/".join(names), row["day"]
        days[period][day].append(fingerprint_of(row))
        first, last = created[period].get(day, (row["first"], row["last"]))
        created[period][day] = (min(first, row["first"]), max(last, row["last"]))
        before = files[period].get(path, FileRecord(path, row["file_size"], 0))
        files[period][path] = FileRecord(path, row["file_size"], before.rows + row["rows"])
    return {
        period: Written(
            {day: Fingerprint.sum(parts) for day, parts in days[period].items()},
            created[period],
            tuple(sorted(files[period].values(), key=lambda file: file.path)),
        )
        for period in files
    }
