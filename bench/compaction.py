"""Measuring the compaction of a store: in a process of its own for each, since Spark takes one and keeps it.

`python -m bench.compaction STORE ...` is that process: it starts Spark, compacts a store of a few rows, so that the JVM
and the Python workers are warm, and then the store that is measured.
"""

import argparse
import contextlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

import duckdb
from pyspark.sql import SparkSession

from bench.daemon import Usage, usage
from bench.data import Distribution, Topics
from bench.plain_export import export_plainly
from bench.results import Compaction, CompactionFailed, CompactionRun, PlainExport
from bench.store import StoreSpec, prepare_store
from bench.targets import progress
from mailserver.archive.days import day_of
from mailserver.archive.layout import PartitionBy
from mailserver.store.sqlite.schema import STORE_FILE
from spark_export import read_archive
from spark_export.compact import compact
from spark_export.config import CompactConfig
from spark_export.session import spark_session

MASTER = "local[2]"
PARTITIONED_BY = {1: ("topic-prefix", "topic")}
OTHERWISE_BY = ("topic-prefix",)
"""A directory per topic and day: with thirty days that would be 150,000 files, and take an hour."""

WARM_UP_ENVELOPES = 5000

LATER_S = 2 * 86_400
"""The run is made to think that it is so much later: then every day of the store is over."""


def measure_compactions(
    arguments: argparse.Namespace, topics: Topics
) -> tuple[tuple[Compaction, ...], tuple[PlainExport, ...]]:
    """Compact stores of one day and of thirty, by each layout, and let one plain process do the same."""
    compactions, plain_exports = [], []
    with tempfile.TemporaryDirectory(prefix="bench-compaction-") as folder:
        small = prepare_store(Path(folder, "small"), StoreSpec(WARM_UP_ENVELOPES, 10, 1, Distribution.UNIFORM.value))
        for days in arguments.days:
            spec = StoreSpec(arguments.envelopes[-1], arguments.topics, days, arguments.distribution, arguments.sizes)
            progress(f"compaction: preparing {spec.envelopes:,} envelopes of {days} days")
            store = prepare_store(Path(folder, f"{days}-days"), spec)
            for by in PARTITIONED_BY.get(days, OTHERWISE_BY):
                runs = []
                for run in range(arguments.runs):
                    progress(f"compaction: {days} days, by {by}, run {run + 1}")
                    runs.append(
                        _measure_compaction(
                            store.data_dir,
                            small.data_dir,
                            rows=spec.envelopes,
                            end=store.end,
                            partition_by=by,
                            topic="0x" + topics.all[0].hex(),
                        )
                    )
                compactions.append(Compaction(days, by, spec.envelopes, tuple(runs)))
            seconds, size = _measure_plain_export(store.data_dir / STORE_FILE, spec.envelopes)
            plain_exports.append(PlainExport(days, spec.envelopes, seconds, size, store.disk_bytes()))
    return tuple(compactions), tuple(plain_exports)


def _measure_compaction(
    store: Path, small_store: Path, *, rows: int, end: int, partition_by: str, topic: str
) -> CompactionRun:
    """Compact a store in a new process.

    Args:
        small_store: what the process warms up with.
        end: when the last envelope was received, Unix seconds.
        topic: 0x and hex digits, to be read back.
    """
    command = [sys.executable, "-m", "bench.compaction", str(store), str(small_store)]
    command += ["--rows", str(rows), "--end", str(end), "--partition-by", partition_by, "--topic", topic]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise CompactionFailed(f"the compaction ended with {done.returncode}: {done.stderr.strip()[-500:]}")
    return CompactionRun(**json.loads(done.stdout.splitlines()[-1]))


def _measure_plain_export(store: Path, rows: int) -> tuple[float, int]:
    """Seconds and bytes of Parquet that one process takes for the same rows with pyarrow."""
    with tempfile.TemporaryDirectory(prefix="bench-plain-") as folder:
        began = time.perf_counter()
        export_plainly(store, Path(folder), rows)
        return time.perf_counter() - began, sum(file.stat().st_size for file in Path(folder).rglob("*.parquet"))


def main() -> None:
    """Measure once, and print it as JSON."""
    parser = argparse.ArgumentParser()
    parser.add_argument("store", type=Path)
    parser.add_argument("small_store", type=Path)
    parser.add_argument("--rows", type=int, required=True)
    parser.add_argument("--end", type=int, required=True)
    parser.add_argument("--partition-by", required=True)
    parser.add_argument("--topic", required=True)
    arguments = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="bench-archive-"))
    try:
        print(json.dumps(asdict(_measure(arguments, folder))))
    finally:
        shutil.rmtree(folder)


def _measure(arguments: argparse.Namespace, folder: Path) -> CompactionRun:
    by = PartitionBy(arguments.partition_by)
    later = float(arguments.end + LATER_S)
    began = time.perf_counter()
    with spark_session(MASTER, {}, progress=False) as spark:
        small = CompactConfig((arguments.small_store / STORE_FILE,), str(folder / "small"), partition_by=by)
        compact(spark, small, now=later, run="warm-up")
        start_s = time.perf_counter() - began

        archive = folder / "archive"
        cpu_before = sum(one.cpu_s for one in family_usages())
        began = time.perf_counter()
        report = compact(
            spark,
            CompactConfig((arguments.store / STORE_FILE,), str(archive), partition_by=by),
            now=later,
            run="measured",
        )
        seconds = time.perf_counter() - began
        family = list(family_usages())
        if report.rows != arguments.rows:
            raise CompactionFailed(f"{arguments.rows} rows are in the store, {report.rows} were archived")
        night_rows, night_s = _second_night(spark, arguments, folder / "nights", report.rows)

        question = read_archive(spark, str(archive), topics=[arguments.topic])
        found = question.count()
        began = time.perf_counter()
        found = read_archive(spark, str(archive), topics=[arguments.topic]).count()
        spark_read_s = time.perf_counter() - began
    files = list(archive.glob("date=*/*/*.parquet"))
    return CompactionRun(
        start_s=start_s,
        seconds=seconds,
        cpu_s=sum(one.cpu_s for one in family) - cpu_before,
        peak_bytes=sum(one.peak_bytes for one in family),
        files=len(files),
        file_bytes=sum(file.stat().st_size for file in files),
        envelope_bytes=sum(period["envelope_bytes"] for period in report.periods),
        topic_rows=found,
        spark_read_s=spark_read_s,
        duckdb_read_s=_duckdb_read_s(archive, by, arguments.topic, found),
        night_rows=night_rows,
        night_s=night_s,
    )


def _second_night(
    spark: SparkSession, arguments: argparse.Namespace, archive: Path, all_rows: int
) -> tuple[int, float]:
    """Archive all days but the last, then that one: its rows, and the seconds that these alone took."""
    by, later = PartitionBy(arguments.partition_by), float(arguments.end + LATER_S)
    store = (arguments.store / STORE_FILE,)
    before = CompactConfig(store, str(archive), partition_by=by, until=day_of(arguments.end) - 1)
    first = compact(spark, before, now=later, run="first-night")
    began = time.perf_counter()
    second = compact(spark, CompactConfig(store, str(archive), partition_by=by), now=later, run="second-night")
    seconds = time.perf_counter() - began
    if first.rows + second.rows != all_rows:
        raise CompactionFailed(f"two nights have archived {first.rows} and {second.rows} of {all_rows} rows")
    return second.rows, seconds


def _duckdb_read_s(archive: Path, by: PartitionBy, topic: str, found: int) -> float:
    """The second time that DuckDB reads a topic's envelopes, over the directories as they stand."""
    folder = f"topic={topic}" if by is PartitionBy.TOPIC else f"topic_prefix={topic[2]}"
    question = f"SELECT raw FROM read_parquet('{archive}/date=*/{folder}/*.parquet') WHERE topic = ?"
    with duckdb.connect() as connection:
        connection.execute(question, [topic]).fetchall()
        began = time.perf_counter()
        rows = connection.execute(question, [topic]).fetchall()
        seconds = time.perf_counter() - began
    if len(rows) != found:
        raise CompactionFailed(f"Spark finds {found} envelopes of {topic}, DuckDB {len(rows)}")
    return seconds


def family_usages() -> Iterator[Usage]:
    """What this process and each that it has started have used, but for those that end meanwhile."""
    for pid in _family(os.getpid()):
        with contextlib.suppress(ProcessLookupError, FileNotFoundError):
            yield usage(pid)


def _family(pid: int) -> Iterator[int]:
    """A process and all that it has started."""
    yield pid
    with contextlib.suppress(ProcessLookupError, FileNotFoundError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            for child in (task / "children").read_text(encoding="ascii").split():
                yield from _family(int(child))


if __name__ == "__main__":
    main()
