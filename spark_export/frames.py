"""An archive's files as Spark frames."""

from collections import defaultdict
from collections.abc import Sequence
from urllib.parse import unquote

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StringType, StructField, StructType

from mailserver.archive.fingerprint import Fingerprint
from mailserver.archive.layout import PERIOD, Layout
from mailserver.archive.manifest import FileRecord
from mailserver.units import SECONDS_PER_DAY
from spark_export.aggregates import aggregates, fingerprint_of
from spark_export.schema import ENVELOPES
from spark_export.written import Written


def file_schema(layout: Layout) -> StructType:
    """What the files hold, followed by the partition columns that Spark adds from their paths."""
    fields = [field for field in ENVELOPES.fields if field.name != layout.column]
    return StructType([*fields, StructField(PERIOD, StringType()), StructField(layout.column, StringType())])


def read_periods(
    spark: SparkSession, layout: Layout, base: str, paths: Sequence[str], *, ignore_damage: bool = False
) -> DataFrame:
    """The rows below `paths`, files or directories of periods or partitions, all below `base`.

    A damaged page is an error. With `ignore_damage`, whatever the same task would read after it is left out instead.
    """
    reader = spark.read.schema(file_schema(layout)).option("basePath", base)
    reader = reader.option("ignoreCorruptFiles", str(ignore_damage).lower())
    return reader.option("parquet.page.verify-checksum.enabled", "true").parquet(*paths)


def read_files(spark: SparkSession, layout: Layout, base: str, paths: Sequence[str]) -> dict[str, Written]:
    """Read every page of files, or of all files in directories; return what was found of each period.

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
            *(F.count(name).alias(f"{name}_read") for name in ENVELOPES.fieldNames()),  # so that every column is read
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
