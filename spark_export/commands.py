"""The commands of `spark-export`: arguments, messages, exit codes.

Exit codes: 0 done; 1 it could not be done, one line on stderr says why; 2 wrong usage.
"""

import argparse
import json
import logging
import secrets
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from datetime import UTC, datetime
from pathlib import Path

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from mailserver import __version__
from mailserver.logs import LogFormat, log_failure, set_up_logging
from spark_export.compact import compact
from spark_export.config import MAX_PREFIX_DIGITS, CompactConfig, PartitionBy
from spark_export.days import parse_day
from spark_export.errors import ExportCheckFailed, ExportError
from spark_export.merge import merge
from spark_export.report import as_html, gather
from spark_export.session import root_cause, spark_session
from spark_export.verify import verify

log = logging.getLogger(__name__)


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command; return its exit code."""
    arguments = _parser().parse_args(argv)
    set_up_logging("info", LogFormat(arguments.log_format), "spark_export", all_repeats=True)
    try:
        arguments.command(arguments)
        sys.stdout.flush()
    except (ExportError, OSError) as error:
        return _failed(str(error))
    except (PySparkException, Py4JError) as error:
        return _failed(f"Spark failed: {root_cause(error)}")
    except KeyboardInterrupt:
        return _failed("interrupted")
    return 0


def _failed(cause: str) -> int:
    if not log_failure(cause):
        print(f"spark-export: {cause}", file=sys.stderr)
    return 1


def _compact(arguments: argparse.Namespace) -> None:
    config = CompactConfig(
        stores=tuple(arguments.store),
        archive=arguments.archive,
        until=arguments.until,
        keep_open_day=arguments.keep_open_day,
        partition_by=PartitionBy(arguments.partition_by) if arguments.partition_by else None,
        prefix_digits=arguments.prefix_digits,
    )
    with _spark(arguments) as spark:
        now = time.time()
        report = compact(spark, config, now=now, run=new_run(now))
    print(json.dumps(report.as_json(time.time()), indent=1))


def _merge(arguments: argparse.Namespace) -> None:
    with _spark(arguments) as spark:
        now = time.time()
        report = merge(spark, arguments.archive, now=now, run=new_run(now))
    print(json.dumps(report.as_json(time.time()), indent=1))


def _verify(arguments: argparse.Namespace) -> None:
    with _spark(arguments) as spark:
        verification = verify(spark, arguments.archive)
    print(f"verified periods={verification.periods} rows={verification.rows} faults={len(verification.faults)}")
    if verification.faults:
        period, fault = verification.faults[0]
        raise ExportCheckFailed(period, fault)


def _report(arguments: argparse.Namespace) -> None:
    with _spark(arguments) as spark:
        statistics = gather(spark, arguments.archive)
    if arguments.html is not None:
        arguments.html.write_text(as_html(statistics), encoding="utf-8")
    if arguments.json or arguments.html is None:
        print(json.dumps(statistics.as_json(), indent=1))


def new_run(now: float) -> str:
    """A name for a run that no other has: when it began, and some random digits."""
    return f"{datetime.fromtimestamp(now, UTC):%Y%m%dT%H%M%SZ}-{secrets.token_hex(3)}"


def _spark(arguments: argparse.Namespace) -> AbstractContextManager[SparkSession]:
    settings = dict(arguments.conf)
    if arguments.driver_memory is not None:
        settings["spark.driver.memory"] = arguments.driver_memory
    log_format = LogFormat(arguments.log_format)
    return spark_session(arguments.master, settings, progress=sys.stderr.isatty(), log_format=log_format)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="spark-export", description="The Parquet archive of a Waku v1 mailserver.")
    parser.add_argument("--version", action="version", version=f"%(prog)s {__version__}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    _add_compact(_command(commands, "compact", _compact, "bring an archive up to date with the store, or several"))
    _command(commands, "merge", _merge, "merge the days of each month that is over into larger files")
    _command(commands, "verify", _verify, "read the whole archive and compare it with its records")
    report = _command(commands, "report", _report, "say what is in the archive: days, topics, sizes")
    report.add_argument("--html", type=Path, metavar="FILE", help="write a page with plots there")
    report.add_argument("--json", action="store_true", help="print JSON (default, unless --html is given)")
    return parser


def _command(
    commands: "argparse._SubParsersAction[argparse.ArgumentParser]",
    name: str,
    run: Callable[[argparse.Namespace], None],
    help_text: str,
) -> argparse.ArgumentParser:
    """Add a command, with what all of them take."""
    parser = commands.add_parser(name, help=help_text, description=help_text[0].upper() + help_text[1:] + ".")
    parser.add_argument("--archive", required=True, metavar="PATH", help="directory of the archive, or its URL")
    parser.add_argument("--master", metavar="URL", help="Spark master (default: spark-submit's, or local[*])")
    parser.add_argument("--driver-memory", metavar="SIZE", help="memory of Spark's JVM here (default: 2g)")
    parser.add_argument(
        "--conf", type=_conf, action="append", default=[], metavar="NAME=VALUE", help="a setting of Spark; repeatable"
    )
    parser.add_argument(
        "--log-format",
        choices=[form.value for form in LogFormat],
        default=LogFormat.TEXT.value,
        help="of stderr: text, a line of key=value for each event, or json, an object (default: %(default)s)",
    )
    parser.set_defaults(command=run)
    return parser


def _add_compact(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--store",
        required=True,
        type=Path,
        action="append",
        metavar="FILE",
        help="a mailserver's store, DIR/mailserver.db; repeat it for several, which are merged",
    )
    parser.add_argument(
        "--until", type=_day, metavar="DATE", help="last UTC day to archive, YYYY-MM-DD (default: yesterday)"
    )
    parser.add_argument(
        "--keep-open-day",
        action="store_true",
        help="archive the day that is not over, too, as far as it is; later runs complete it",
    )
    parser.add_argument(
        "--partition-by",
        choices=[by.value for by in PartitionBy],
        help="of a new archive: a directory per topic, or per first digits of it (default: by the number of topics)",
    )
    parser.add_argument(
        "--prefix-digits",
        type=int,
        choices=range(1, MAX_PREFIX_DIGITS + 1),
        help="of a new archive by topic-prefix: how many hex digits (default: by the bytes of a day)",
    )


def _day(text: str) -> int:
    try:
        return parse_day(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text!r} is not a date, YYYY-MM-DD") from error


def _conf(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not (name and equals):
        raise argparse.ArgumentTypeError(f"{text!r} is not NAME=VALUE")
    return name, value
