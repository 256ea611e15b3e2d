"""The options of `spark-export`, each with its environment variable, and reading them. No Spark is imported here.

One rule for all: `--driver-memory` is SPARK_EXPORT_DRIVER_MEMORY. A flag overrides the environment, which overrides the
default. An empty variable counts as not set; a variable that no option has is an error. An option that may be repeated
takes a list of words there, quoted as in a shell. Values are checked, but stay strings: a schedule passes them on.
"""

import argparse
import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

from cronsim import CronSim, CronSimError

from mailserver.app.logs import LogFormat
from mailserver.archive.days import parse_day
from mailserver.archive.layout import MAX_PREFIX_DIGITS, PartitionBy
from mailserver.ids.muid import DEFAULT_NETWORK_TOPIC, MAX_NETWORK_TOPIC_BYTES
from spark_export.config import MAX_VERIFY_DAYS, VERIFY_WITHIN_DAYS

ENVIRONMENT_PREFIX = "SPARK_EXPORT_"

MAX_AGE_HOURS = 10_000.0
MAX_RANGE_DAYS = 30
"""History archives are made at least every 30 days (61/STATUS "Requirements")."""

_SWITCH = {"1": True, "true": True, "yes": True, "on": True, "0": False, "false": False, "no": False, "off": False}


@dataclass(frozen=True, slots=True)
class Option:
    """One option; `check` raises ValueError for text that is not a valid value."""

    name: str
    help: str
    metavar: str = ""
    check: Callable[[str], object] | None = None
    default: str | None = None
    required: bool = False
    repeat: bool = False
    switch: bool = False

    @property
    def flag(self) -> str:
        """As it stands on the command line."""
        return "--" + self.name.replace("_", "-")

    @property
    def variable(self) -> str:
        """As it stands in the environment."""
        return ENVIRONMENT_PREFIX + self.name.upper()

    def value(self, text: str) -> str:
        """Return the text, if it is a valid value.

        Raises:
            argparse.ArgumentTypeError: it is not.
        """
        if self.check is not None:
            try:
                self.check(text)
            except ValueError as error:
                raise argparse.ArgumentTypeError(str(error)) from error
        return text

    def from_variable(self, text: str) -> str | list[str] | bool:
        """Return the value that the text of the environment variable means.

        Raises:
            argparse.ArgumentTypeError: it means none.
        """
        if self.switch:
            if text.lower() not in _SWITCH:
                raise argparse.ArgumentTypeError(f"{text!r} is neither true nor false")
            return _SWITCH[text.lower()]
        if not self.repeat:
            return self.value(text)
        try:
            return [self.value(word) for word in shlex.split(text)]
        except ValueError as error:
            raise argparse.ArgumentTypeError(f"{text!r}: {error}") from error

    def add_to(self, parser: argparse.ArgumentParser) -> None:
        """Add the flag to a parser; if it is not given, its value is None."""
        if self.switch:
            parser.add_argument(self.flag, action="store_true", default=None, help=self.help)
        else:
            action = "append" if self.repeat else "store"
            parser.add_argument(self.flag, action=action, type=self.value, metavar=self.metavar, help=self.help)


def next_due(schedule: str, after: float) -> float:
    """When a cron expression is due next, in UTC; both times are Unix seconds.

    Raises:
        ValueError: it is not a cron expression, or never due.
    """
    try:
        return next(CronSim(schedule, datetime.fromtimestamp(after, UTC))).timestamp()
    except CronSimError as error:
        raise ValueError(f"{schedule!r} is not a cron expression: {error}") from error
    except StopIteration as error:
        raise ValueError(f"{schedule!r} is never due") from error


def _one_of(choices: Iterable[str]) -> Callable[[str], None]:
    allowed = list(choices)

    def check(text: str) -> None:
        if text not in allowed:
            raise ValueError(f"{text!r} is not one of {', '.join(allowed)}")

    return check


def _day(text: str) -> None:
    try:
        parse_day(text)
    except ValueError as error:
        raise ValueError(f"{text!r} is not a date, YYYY-MM-DD") from error


def _setting(text: str) -> None:
    name, equals, value = text.partition("=")
    if not (name and equals and value):
        raise ValueError(f"{text!r} is not NAME=VALUE")


def _network_topic(text: str) -> None:
    if not 1 <= len(text.encode("utf-8", "surrogateescape")) <= MAX_NETWORK_TOPIC_BYTES:
        raise ValueError(f"{text!r} is not a pubsub topic: it has 1 to {MAX_NETWORK_TOPIC_BYTES} bytes")


def _hours(text: str) -> None:
    try:
        within = 0 < float(text) <= MAX_AGE_HOURS
    except ValueError:
        within = False
    if not within:
        raise ValueError(f"{text!r} is not a number of hours up to {MAX_AGE_HOURS:.0f}")


def _days(text: str) -> None:
    try:
        within = 0 <= float(text) <= MAX_VERIFY_DAYS
    except ValueError:
        within = False
    if not within:
        raise ValueError(f"{text!r} is not a number of days from 0 to {MAX_VERIFY_DAYS:.0f}")


def _range_days(text: str) -> None:
    try:
        within = 0 < float(text) <= MAX_RANGE_DAYS
    except ValueError:
        within = False
    if not within:
        raise ValueError(f"{text!r} is not a number of days above 0, up to {MAX_RANGE_DAYS}")


OFF = "off"


def _schedule_or_off(name: str, what: str, cron: str, *, after: str) -> Option:
    return Option(
        name,
        f'{what}, or "{OFF}" (default: "{cron}", after {after})',
        "CRON",
        lambda text: text == OFF or next_due(text, 0.0),
        default=cron,
    )


STORE = Option(
    "store",
    "store of a mailserver, DIR/mailserver.db or postgresql://USER@HOST/DATABASE; repeat it for several stores, which "
    "share one archive",
    "STORE",
    required=True,
    repeat=True,
)
NETWORK_TOPIC = Option(
    "network_topic",
    "pubsub topic of Waku v2 to which message ids belong, as the mailserver's --network-topic "
    f"(default: {DEFAULT_NETWORK_TOPIC})",
    "TOPIC",
    _network_topic,
    default=DEFAULT_NETWORK_TOPIC,
)
RECORDED_BESIDE = Option(
    "store",
    "a store that this archive is made from: its mailserver is told how the run went, and which rows are no longer "
    "archived; repeat it for several stores",
    "STORE",
    repeat=True,
)
JSON = Option("json", "print JSON", switch=True)
LOG_FORMAT = Option(
    "log_format",
    "format of the log on stderr: text, one line of key=value per event, or json, one object (default: text)",
    "{text,json}",
    _one_of(form.value for form in LogFormat),
    default=LogFormat.TEXT.value,
)
SPARK_OPTIONS = (
    Option("archive", "folder of the archive, or its URL", "PATH", required=True),
    Option("master", "Spark master (default: spark-submit's, or local[*])", "URL"),
    Option("driver_memory", "memory of Spark's JVM on this machine (default: 2g)", "SIZE"),
    Option("conf", "a Spark setting; repeatable", "NAME=VALUE", _setting, repeat=True),
    Option("scratch", "folder for temporary files (default: Spark's spark.local.dir, or the system's /tmp)", "DIR"),
    LOG_FORMAT,
)
VERIFY_OPTIONS = (RECORDED_BESIDE, *SPARK_OPTIONS, JSON)
MERGE_OPTIONS = (*VERIFY_OPTIONS, NETWORK_TOPIC)
ACKNOWLEDGE_OPTIONS = (
    *SPARK_OPTIONS,
    JSON,
    Option(
        "all_is_lost",
        "the whole archive is lost, and its disk is not just unmounted: the next compaction begins a new one there",
        switch=True,
    ),
)
COMPACT_OPTIONS = (
    STORE,
    *SPARK_OPTIONS,
    JSON,
    NETWORK_TOPIC,
    Option("until", "last UTC day to archive, YYYY-MM-DD (default: yesterday)", "DATE", _day),
    Option(
        "verify_within_days",
        "read every file of the archive again within this many days, some files in each run; 0: all in each run "
        f"(default: {VERIFY_WITHIN_DAYS:g})",
        "N",
        _days,
        default=f"{VERIFY_WITHIN_DAYS:g}",
    ),
    Option(
        "keep_open_day",
        "also archive what today has brought so far; later runs complete the day",
        switch=True,
    ),
    Option(
        "partition_by",
        "for a new archive: a directory per topic, or per first digits of the topic (default: depends on the number "
        "of topics)",
        "{topic,topic-prefix}",
        _one_of(by.value for by in PartitionBy),
    ),
    Option(
        "prefix_digits",
        "for a new archive by topic-prefix: the number of hex digits (default: depends on the bytes of a day)",
        "N",
        _one_of(str(digits) for digits in range(1, MAX_PREFIX_DIGITS + 1)),
    ),
)
COMMUNITIES = Option(
    "communities",
    "folder of the communities that we own, DIR/communities, of which history archives are made after each compaction",
    "DIR",
)
RANGE_OPTIONS = (
    Option(
        "settle_hours",
        "hours that a week waits after its end for late envelopes, before history archives of it are made (default: 1)",
        "H",
        _hours,
        default="1",
    ),
    Option(
        "range_days",
        "days that a history archive spans; another number than before makes the whole history anew, in other ranges "
        "(default: 7)",
        "N",
        _range_days,
        default="7",
    ),
)
COMMUNITIES_OPTIONS = (STORE, *SPARK_OPTIONS, JSON, replace(COMMUNITIES, required=True), *RANGE_OPTIONS)
SCHEDULE = Option(
    "schedule",
    'when to compact, a cron expression in UTC (default: "17 3 * * *")',
    "CRON",
    lambda text: next_due(text, 0.0),
    default="17 3 * * *",
)
MERGE_SCHEDULE = _schedule_or_off(
    "merge_schedule", "when to merge the months that are over", "17 3 2 * *", after="that night's compaction"
)
VERIFY_SCHEDULE = _schedule_or_off(
    "verify_schedule", "when to verify the whole archive", "17 3 * * 0", after="Sunday's compaction"
)
MAX_RUN_HOURS = Option(
    "max_run_hours",
    "hours that a run may take; a run that takes longer must be hanging, and the schedule ends it (default: 12)",
    "H",
    _hours,
    default="12",
)
REPORT_OPTIONS = (
    *SPARK_OPTIONS,
    Option("html", "write a page with plots to this file", "FILE"),
    Option("json", "print JSON (default, unless --html is given)", switch=True),
)
NOW_OPTIONS = (*COMPACT_OPTIONS, MAX_RUN_HOURS)
NIGHTLY_OPTIONS = (*NOW_OPTIONS, MERGE_SCHEDULE, VERIFY_SCHEDULE, COMMUNITIES, *RANGE_OPTIONS)
SCHEDULE_OPTIONS = (SCHEDULE, *NIGHTLY_OPTIONS)
LAST_OPTIONS = (
    STORE,
    SCHEDULE,
    MERGE_SCHEDULE,
    VERIFY_SCHEDULE,
    Option(
        "max_age_hours", "how old the last successful run may be, in hours (default: 26)", "H", _hours, default="26"
    ),
    MAX_RUN_HOURS,
    JSON,
    LOG_FORMAT,
)

VARIABLES = {option.variable for option in (*SCHEDULE_OPTIONS, *REPORT_OPTIONS, *LAST_OPTIONS)}
"""All variables that are known. `--all-is-lost` has none: nobody should leave it set."""


def complete(
    parser: argparse.ArgumentParser,
    arguments: argparse.Namespace,
    options: Sequence[Option],
    environment: Mapping[str, str],
) -> None:
    """Fill in what was not given, from the environment or the default; exit as for wrong usage if that fails."""
    unknown = sorted(name for name in environment if name.startswith(ENVIRONMENT_PREFIX) and name not in VARIABLES)
    if unknown:
        parser.error(f"unknown environment variable {unknown[0]}")
    missing = []
    for option in options:
        if getattr(arguments, option.name) is not None:
            continue
        text = environment.get(option.variable, "").strip()
        value: Any = option.default
        if text:
            try:
                value = option.from_variable(text)
            except argparse.ArgumentTypeError as error:
                parser.error(f"{option.variable}: {error}")
        if value is None and option.required:
            missing.append(f"{option.flag} (or {option.variable})")
        setattr(arguments, option.name, value)
    if missing:
        parser.error(f"the following arguments are required: {', '.join(missing)}")


def command_line(arguments: argparse.Namespace, options: Iterable[Option]) -> list[str]:
    """The flags that give another process the same values."""
    line = []
    for option in options:
        match getattr(arguments, option.name):
            case None | False:
                pass
            case True:
                line.append(option.flag)
            case list(values):
                line += [f"{option.flag}={value}" for value in values]
            case value:
                line.append(f"{option.flag}={value}")
    return line
