"""The commands that need Spark: what they print, and how they explain errors."""

import argparse
import json
import logging
import secrets
import signal
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from types import FrameType
from typing import Any

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from mailserver.app.logs import LogFormat, log_failure
from mailserver.archive.days import parse_day
from mailserver.archive.errors import RecordDamaged
from mailserver.archive.layout import PartitionBy
from mailserver.errors import MailserverError
from mailserver.handoff.last_run import EXIT_DAMAGED
from mailserver.handoff.last_upkeep import Task
from mailserver.units import SECONDS_PER_DAY
from spark_export.acknowledgement import acknowledge
from spark_export.communities import CommunitiesRun, make_archives
from spark_export.community_plan import missing_of
from spark_export.compact import compact
from spark_export.config import CompactConfig
from spark_export.errors import ArchiveDamaged, ExportError
from spark_export.full_disk import full_disk_told
from spark_export.incidents import summary
from spark_export.merge import merge
from spark_export.places import StorePlace, places_of
from spark_export.recording import recorded
from spark_export.report import gather
from spark_export.report_page import as_html
from spark_export.run_report import as_words
from spark_export.scratch import java_options, scratch_folder
from spark_export.session import root_cause, spark_session
from spark_export.upkeep import recorded_upkeep
from spark_export.verify import verify

INTERRUPTED = 130
SECONDS_PER_HOUR = 3600
DAMAGED = EXIT_DAMAGED
"""The run has done its work, and something is wrong with the archive."""


def run(arguments: argparse.Namespace) -> int:
    """Run a command; return its exit code."""
    commands: dict[str, Callable[[argparse.Namespace], None]] = {
        "compact": _compact,
        "merge": _merge,
        "verify": _verify,
        "report": _report,
        "acknowledge": _acknowledge,
        "communities": _communities,
    }
    logging.getLogger("py4j").setLevel(logging.CRITICAL)  # all that it logs, with a trace, it also raises
    signal.signal(signal.SIGTERM, _interrupt)  # like SIGINT: this is how a service is stopped
    try:
        commands[arguments.command](arguments)
        sys.stdout.flush()
    except (MailserverError, OSError, PySparkException, Py4JError, KeyboardInterrupt) as error:
        exit_code, cause = explain(error)
        if not log_failure(cause):
            print(f"spark-export: {cause}", file=sys.stderr)
        return exit_code
    return 0


def explain(error: BaseException) -> tuple[int, str]:
    """Return the exit code that an error leads to, and one line that says what it is."""
    if isinstance(error, KeyboardInterrupt):
        return INTERRUPTED, "interrupted"
    if isinstance(error, (MailserverError, OSError)):
        cause = str(error)
        if isinstance(error, ArchiveDamaged):
            return DAMAGED, cause
        if isinstance(error, RecordDamaged):
            cause += "; run `spark-export compact`, which sets it aside"
    elif isinstance(error, (PySparkException, Py4JError)):
        cause = f"Spark failed: {root_cause(error)}"
    else:  # a fault of our own
        cause = f"{type(error).__name__}: {error}"
    return 1, " ".join(cause.split())


def _interrupt(number: int, frame: FrameType | None) -> None:
    del frame
    signal.signal(number, signal.SIG_IGN)  # what is left to do must not be interrupted again
    logging.getLogger().setLevel(logging.CRITICAL)  # py4j would log it as an error, with its trace
    raise KeyboardInterrupt


def _compact(arguments: argparse.Namespace) -> None:
    config = CompactConfig(
        stores=tuple(places_of(arguments.store)),
        archive=arguments.archive,
        until=None if arguments.until is None else parse_day(arguments.until),
        keep_open_day=bool(arguments.keep_open_day),
        partition_by=None if arguments.partition_by is None else PartitionBy(arguments.partition_by),
        prefix_digits=None if arguments.prefix_digits is None else int(arguments.prefix_digits),
        verify_within_days=float(arguments.verify_within_days),
        network_topic=arguments.network_topic,
    )
    with recorded(config.stores, explain) as recording:
        with _spark(arguments) as spark:
            now = time.time()
            report = compact(spark, config, now=now, run=new_run(now))
            said = report.as_json(time.time())
        recording.succeeded(said, report.archived, report.archive_figures(), damage=report.damage)
    _print(arguments, said, as_words(said))
    _raise_damage(report.damage)


def _merge(arguments: argparse.Namespace) -> None:
    stores = _recorded_beside(arguments)
    with recorded_upkeep(stores, Task.MERGE, explain), _spark(arguments) as spark:
        now = time.time()
        report = merge(
            spark,
            arguments.archive,
            now=now,
            run=new_run(now),
            stores=stores,
            network_topic=arguments.network_topic,
        )
        said = report.as_json(time.time())
        _print(arguments, said, as_words(said))
        _raise_damage(report.damage)


def _verify(arguments: argparse.Namespace) -> None:
    stores = _recorded_beside(arguments)
    with recorded_upkeep(stores, Task.VERIFY, explain), _spark(arguments) as spark:
        verification = verify(spark, arguments.archive, stores=stores)
        _print(arguments, verification.as_json(), verification.as_words())
        _raise_damage(summary(verification.faults, verification.losses))


def _acknowledge(arguments: argparse.Namespace) -> None:
    with _spark(arguments) as spark:
        acknowledged = acknowledge(spark, arguments.archive, now=time.time(), all_is_lost=bool(arguments.all_is_lost))
    _print(arguments, acknowledged.as_json(), acknowledged.as_words())


def _communities(arguments: argparse.Namespace) -> None:
    stores, communities = tuple(places_of(arguments.store)), Path(arguments.communities)
    with recorded_upkeep(stores, Task.COMMUNITIES, explain), _spark(arguments) as spark:
        now = int(time.time())
        config = CommunitiesRun(
            communities,
            stores,
            arguments.archive,
            settle_s=int(float(arguments.settle_hours) * SECONDS_PER_HOUR),
            period_s=max(1, int(float(arguments.range_days) * SECONDS_PER_DAY)),
            missing=missing_of(stores, communities.parent, now),
        )
        report = make_archives(spark, config, now=now)
        _print(arguments, report.as_json(), report.as_words())
        if report.failures:
            raise ExportError(report.failures)


def _raise_damage(damage: str) -> None:
    if damage:
        raise ArchiveDamaged(damage)


def _recorded_beside(arguments: argparse.Namespace) -> list[StorePlace]:
    return places_of(arguments.store)


def _print(arguments: argparse.Namespace, as_json: Mapping[str, Any], words: Iterable[str]) -> None:
    for line in [json.dumps(as_json, indent=1)] if arguments.json else words:
        print(line)


def _report(arguments: argparse.Namespace) -> None:
    with _spark(arguments) as spark:
        statistics = gather(spark, arguments.archive, time.time())
    if arguments.html is not None:
        Path(arguments.html).write_text(as_html(statistics), encoding="utf-8")
    if arguments.json or arguments.html is None:
        print(json.dumps(statistics.as_json(), indent=1))


def new_run(now: float) -> str:
    """A name for a run that no other has: when it began, and some random digits."""
    return f"{datetime.fromtimestamp(now, UTC):%Y%m%dT%H%M%SZ}-{secrets.token_hex(3)}"


@contextmanager
def _spark(arguments: argparse.Namespace) -> Iterator[SparkSession]:
    settings = dict(setting.split("=", 1) for setting in arguments.conf or [])
    if arguments.driver_memory is not None:
        settings["spark.driver.memory"] = arguments.driver_memory
    with scratch_folder(None if arguments.scratch is None else Path(arguments.scratch)) as scratch:
        if scratch is not None:
            settings["spark.driver.extraJavaOptions"] = java_options(scratch, settings)
        log_format = LogFormat(arguments.log_format)
        with (
            spark_session(arguments.master, settings, progress=sys.stderr.isatty(), log_format=log_format) as spark,
            full_disk_told(spark, arguments.archive),
        ):
            yield spark
