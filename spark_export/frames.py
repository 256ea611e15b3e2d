"""An archive's files as Spark frames."""

from collections import defaultdict
from collections.abc import Sequence
from urllib.parse import unquote

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import LongType, StringType, StructField, StructType

from mailserver.archive.access.places import is_on_s3
from mailserver.archive.archive import Archive
from mailserver.archive.fingerprint import Fingerprint
from mailserver.archive.layout import PERIOD, Layout
from mailserver.archive.manifest import FileRecord
from mailserver.units import SECONDS_PER_DAY
from spark_export.aggregates import aggregates, fingerprint_of
from spark_export.s3_rows import EVERYTHING, FILE, FILE_BYTES, WantedRows, rows_of_files
from spark_export.schema import ENVELOPES
from spark_export.written import Written

_FILE_FIELDS = (StructField(FILE, StringType()), StructField(FILE_BYTES, LongType()))


def file_schema(layout: Layout) -> StructType:
    """What the files hold, followed by the partition columns that Spark adds from their paths."""
    fields = [field for field in ENVELOPES.fields if field.name != layout.column]
    return StructType([*fields, StructField(PERIOD, StringType()), StructField(layout.column, StringType())])


def read_periods(
    spark: SparkSession,
    archive: Archive,
    layout: Layout,
    names: Sequence[str],
    *,
    base: str = "",
    columns: Sequence[str] = (),
    wanted: WantedRows = EVERYTHING,
    ignore_damage: bool = False,
) -> DataFrame:
    """The rows of an archive's files.

    Args:
        names: files, or directories of periods or partitions.
        base: the directory that all of these are below, where its own name is no partition.
        columns: of `file_schema`, FILE, FILE_BYTES; by default all of `file_schema`.
        wanted: what the caller will select. Row groups that cannot have it need not be read.
        ignore_damage: a damaged page is an error. With this, whatever the same task would read after it is left out
            instead.
    """
    known = {field.name: field for field in (*file_schema(layout).fields, *_FILE_FIELDS)}
    schema = StructType([known[name] for name in columns]) if columns else file_schema(layout)
    if is_on_s3(archive.url):
        files = [file for name in names for file in _files_of(archive, name)]
        return rows_of_files(spark, archive.url, layout, files, schema, wanted=wanted, ignore_damage=ignore_damage)
    reader = spark.read.schema(file_schema(layout)).option("basePath", _path(archive, base))
    reader = reader.option("ignoreCorruptFiles", str(ignore_damage).lower())
    reader = reader.option("parquet.page.verify-checksum.enabled", "true")
    frame = reader.parquet(*(_path(archive, name) for name in names))
    hidden = {
        FILE: F.col("_metadata.file_path").alias(FILE),
        FILE_BYTES: F.col("_metadata.file_size").alias(FILE_BYTES),
    }
    return frame.select(*(hidden.get(name, F.col(name)) for name in schema.fieldNames()))


def read_files(spark: SparkSession, archive: Archive, layout: Layout, names: Sequence[str]) -> dict[str, Written]:
    """Read every page of files, or of all files in directories; return what was found of each period.

    Args:
        names: each in the directory of its period or that directory itself.
    """
    frame = read_periods(spark, archive, layout, names, columns=(*ENVELOPES.fieldNames(), FILE, FILE_BYTES))
    found = (
        frame.groupBy(F.floor(F.col("received") / SECONDS_PER_DAY).cast("int").alias("day"), FILE, FILE_BYTES)
        .agg(
            *aggregates(F.length("raw")),
            F.min("created").alias("first"),
            F.max("created").alias("last"),
            *(F.count(name).alias(f"{name}_read") for name in ENVELOPES.fieldNames()),  # so that every column is read
        )
        .collect()
    )
    days: dict[str, dict[int, list[Fingerprint]]] = defaultdict(lambda: defaultdict(list))
    created: dict[str, dict[int, tuple[int, int]]] = defaultdict(dict)
    files: dict[str, dict[str, FileRecord]] = defaultdict(dict)
    for row in found:
        directory, *names = unquote(row[FILE]).split("/")[-3:]
        period, path, day = directory.removeprefix(f"{PERIOD}="), "/".join(names), row["day"]
        days[period][day].append(fingerprint_of(row))
        first, last = created[period].get(day, (row["first"], row["last"]))
        created[period][day] = (min(first, row["first"]), max(last, row["last"]))
        before = files[period].get(path, FileRecord(path, row[FILE_BYTES], 0))
        files[period][path] = FileRecord(path, row[FILE_BYTES], before.rows + row["rows"])
    return {
        period: Written(
            {day: Fingerprint.sum(parts) for day, parts in days[period].items()},
            created[period],
            tuple(sorted(files[period].values(), key=lambda file: file.path)),
        )
        for period in files
    }


def _files_of(archive: Archive, name: str) -> list[str]:
    """The files that a name stands for: itself, or all in the directory."""
    if "=" not in name.rpartition("/")[2]:
        return [name]
    return [f"{name}/{path}" for path in archive.files.sizes(name)]


def _path(archive: Archive, name: str) -> str:
    return f"{archive.url}/{name}" if name else archive.url
