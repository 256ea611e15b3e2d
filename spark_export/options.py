"""The options of `spark-export`, each with its environment variable, and reading them. No Spark is imported here.

One rule for all: `--driver-memory` is SPARK_EXPORT_DRIVER_MEMORY. A flag comes before the environment, that before the
default; a variable that is empty is not set; one that no option has is an error. What may be given several times is a
list of words there, quoted as in a shell. Values stay the texts that they are, checked: so a schedule can give them on.
"""

import argparse
import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from cronsim import CronSim, CronSimError

from mailserver.app.logs import LogFormat
from mailserver.archive.days import parse_day
from mailserver.archive.layout import MAX_PREFIX_DIGITS, PartitionBy
from spark_export.config import MAX_VERIFY_DAYS, VERIFY_WITHIN_DAYS

ENVIRONMENT_PREFIX = "SPARK_EXPORT_"

MAX_AGE_HOURS = 10_000.0

_SWITCH = {"1": True, "true": True, "yes": True, "on": True, "0": False, "false": False, "no": False, "off": False}


@dataclass(frozen=True, slots=True)
class Option:
    """One option; `check` raises ValueError for a text that is no value of it."""

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
        """The text, if it is a value of this option.

        Raises:
            argparse.ArgumentTypeError: it is none.
        """
        if self.check is not None:
            try:
                self.check(text)
            except ValueError as error:
                raise argparse.ArgumentTypeError(str(error)) from error
        return text

    def from_variable(self, text: str) -> str | list[str] | bool:
        """The value that the text of the environment variable means.

        Raises:
            argparse.ArgumentTypeError: none.
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
        """Let a parser read the flag; None stands for one that is not given."""
        if self.switch:
            parser.add_argument(self.flag, action="store_true", default=None, help=self.help)
        else:
            action = "append" if self.repeat else "store"
            parser.add_argument(self.flag, action=action, type=self.value, metavar=self.metavar, help=self.help)


def next_due(schedule: str, after: float) -> float:
    """When a cron expression is due next, in UTC; both times are Unix seconds.

    Raises:
        ValueError: it is no cron expression, or never due.
    """
    try:
        return next(CronSim(schedule, datetime.fromtimestamp(after, UTC))).timestamp()
    except CronSimError as error:
        raise ValueError(f"{schedule!r} is no cron expression: {error}") from error
    except StopIteration as error:
        raise ValueError(f"{schedule!r} is never due") from error


def _one_of(choices: Iterable[str]) -> Callable[[str], None]:
    allowed = list(choices)

    def check(text: str) -> None:
        if text not in allowed:
            raise ValueError(f"{text!r} is none of {', '.join(allowed)}")

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
    "a mailserver's store, DIR/mailserver.db; repeat it for several, which are merged",
    "FILE",
    required=True,
    repeat=True,
)
RECORDED_BESIDE = Option(
    "store",
    "a store of this archive: beside it stands how the run went, and what is gone is marked; repeat it for several",
    "FILE",
    repeat=True,
)
JSON = Option("json", "print JSON", switch=True)
LOG_FORMAT = Option(
    "log_format",
    "of stderr: text, a line of key=value for each event, or json, an object (default: text)",
    "{text,json}",
    _one_of(form.value for form in LogFormat),
    default=LogFormat.TEXT.value,
)
SPARK_OPTIONS = (
    Option("archive", "directory of the archive, or its URL", "PATH", required=True),
    Option("master", "Spark master (default: spark-submit's, or local[*])", "URL"),
    Option("driver_memory", "memory of Spark's JVM here (default: 2g)", "SIZE"),
    Option("conf", "a setting of Spark; repeatable", "NAME=VALUE", _setting, repeat=True),
    Option("scratch", "folder for what is on its way (default: Spark's spark.local.dir, or the system's /tmp)", "DIR"),
    LOG_FORMAT,
)
MERGE_OPTIONS = VERIFY_OPTIONS = (RECORDED_BESIDE, *SPARK_OPTIONS, JSON)
ACKNOWLEDGE_OPTIONS = (
    *SPARK_OPTIONS,
    JSON,
    Option(
        "all_is_lost",
        "all of the archive is gone, and not only its disk unmounted: the next compaction begins a new one there",
        switch=True,
    ),
)
COMPACT_OPTIONS = (
    STORE,
    *SPARK_OPTIONS,
    JSON,
    Option("until", "last UTC day to archive, YYYY-MM-DD (default: yesterday)", "DATE", _day),
    Option(
        "verify_within_days",
        "read every file of the archive again within so many days, by turns; 0: in each run "
        f"(default: {VERIFY_WITHIN_DAYS:g})",
        "N",
        _days,
        default=f"{VERIFY_WITHIN_DAYS:g}",
    ),
    Option(
        "keep_open_day",
        "archive the day that is not over, too, as far as it is; later runs complete it",
        switch=True,
    ),
    Option(
        "partition_by",
        "of a new archive: a directory per topic, or per first digits of it (default: by the number of topics)",
        "{topic,topic-prefix}",
        _one_of(by.value for by in PartitionBy),
    ),
    Option(
        "prefix_digits",
        "of a new archive by topic-prefix: how many hex digits (default: by the bytes of a day)",
        "N",
        _one_of(str(digits) for digits in range(1, MAX_PREFIX_DIGITS + 1)),
    ),
)
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
    "how many hours a run may take: then it hangs, and is ended if it was made by a schedule (default: 12)",
    "H",
    _hours,
    default="12",
)
REPORT_OPTIONS = (
    *SPARK_OPTIONS,
    Option("html", "write a page with plots there", "FILE"),
    Option("json", "print JSON (default, unless --html is given)", switch=True),
)
NOW_OPTIONS = (*COMPACT_OPTIONS, MAX_RUN_HOURS)
NIGHTLY_OPTIONS = (*NOW_OPTIONS, MERGE_SCHEDULE, VERIFY_SCHEDULE)
SCHEDULE_OPTIONS = (SCHEDULE, *NIGHTLY_OPTIONS)
LAST_OPTIONS = (
    STORE,
    SCHEDULE,
    MERGE_SCHEDULE,
    VERIFY_SCHEDULE,
    Option("max_age_hours", "how old the last success may be, in hours (default: 26)", "H", _hours, default="26"),
    MAX_RUN_HOURS,
    JSON,
    LOG_FORMAT,
)

VARIABLES = {option.variable for option in (*SCHEDULE_OPTIONS, *REPORT_OPTIONS, *LAST_OPTIONS)}
"""All that are known: what nobody should leave set, as that all is lost, is none."""


def complete(
    parser: argparse.ArgumentParser,
    arguments: argparse.Namespace,
    options: Sequence[Option],
    environment: Mapping[str, str],
) -> None:
    """Fill in from the environment, or by the default, what was not given; end as for wrong usage if it cannot be."""
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
