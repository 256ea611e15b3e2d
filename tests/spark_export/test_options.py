"""Options of `spark-export`: flags before the environment before defaults, by one rule for all names."""

import argparse
from collections.abc import Sequence
from datetime import UTC, datetime

import pytest

from mailserver.archive.layout import MAX_PREFIX_DIGITS
from spark_export.cli import main
from spark_export.options import (
    LAST_OPTIONS,
    REPORT_OPTIONS,
    SCHEDULE_OPTIONS,
    Option,
    command_line,
    complete,
    next_due,
)

ALL = SCHEDULE_OPTIONS
NEEDED = ["--store", "s.db", "--archive", "a"]


def read(flags: Sequence[str] = (), options: Sequence[Option] = ALL, **environment: str) -> argparse.Namespace:
    """Read options as a command does."""
    parser = argparse.ArgumentParser(prog="test")
    for option in options:
        option.add_to(parser)
    arguments = parser.parse_args(flags)
    complete(parser, arguments, options, {"PATH": "/bin", **environment})
    return arguments


def refused(capsys: pytest.CaptureFixture[str], flags: Sequence[str] = (), **environment: str) -> str:
    with pytest.raises(SystemExit) as caught:
        read(flags, ALL, **environment)
    assert caught.value.code == 2
    return capsys.readouterr().err.splitlines()[-1].removeprefix("test: error: ")


def test_defaults_are_those_of_the_nightly_run() -> None:
    arguments = read(NEEDED)

    assert vars(arguments) == {
        "store": ["s.db"],
        "archive": "a",
        "schedule": "17 3 * * *",
        "merge_schedule": "17 3 2 * *",
        "verify_schedule": "17 3 * * 0",
        "max_run_hours": "12",
        "json": None,
        "master": None,
        "driver_memory": None,
        "conf": None,
        "scratch": None,
        "log_format": "text",
        "network_topic": "/waku/2/rs/1/4",
        "until": None,
        "verify_within_days": "7",
        "keep_open_day": None,
        "partition_by": None,
        "prefix_digits": None,
        "communities": None,
        "settle_hours": "1",
        "range_days": "7",
    }


def test_every_option_is_read_from_the_environment() -> None:
    arguments = read(
        SPARK_EXPORT_STORE="/data/a.db '/data/of two words.db'",
        SPARK_EXPORT_ARCHIVE="s3a://bucket/archive",
        SPARK_EXPORT_SCHEDULE="*/5 * * * *",
        SPARK_EXPORT_MERGE_SCHEDULE="off",
        SPARK_EXPORT_VERIFY_SCHEDULE="1 2 * * 3",
        SPARK_EXPORT_MAX_RUN_HOURS="1.5",
        SPARK_EXPORT_JSON="1",
        SPARK_EXPORT_MASTER="local[1]",
        SPARK_EXPORT_DRIVER_MEMORY="3g",
        SPARK_EXPORT_CONF="spark.jars.packages=a,b spark.x='y z'",
        SPARK_EXPORT_SCRATCH="/scratch",
        SPARK_EXPORT_LOG_FORMAT="json",
        SPARK_EXPORT_NETWORK_TOPIC="/waku/2/rs/1/5",
        SPARK_EXPORT_UNTIL="2026-11-20",
        SPARK_EXPORT_VERIFY_WITHIN_DAYS="0.5",
        SPARK_EXPORT_KEEP_OPEN_DAY="True",
        SPARK_EXPORT_PARTITION_BY="topic-prefix",
        SPARK_EXPORT_PREFIX_DIGITS="2",
        SPARK_EXPORT_COMMUNITIES="/data/communities",
        SPARK_EXPORT_SETTLE_HOURS="0.5",
        SPARK_EXPORT_RANGE_DAYS="0.25",
    )

    assert vars(arguments) == {
        "store": ["/data/a.db", "/data/of two words.db"],
        "archive": "s3a://bucket/archive",
        "schedule": "*/5 * * * *",
        "merge_schedule": "off",
        "verify_schedule": "1 2 * * 3",
        "max_run_hours": "1.5",
        "json": True,
        "master": "local[1]",
        "driver_memory": "3g",
        "conf": ["spark.jars.packages=a,b", "spark.x=y z"],
        "scratch": "/scratch",
        "log_format": "json",
        "network_topic": "/waku/2/rs/1/5",
        "until": "2026-11-20",
        "verify_within_days": "0.5",
        "keep_open_day": True,
        "partition_by": "topic-prefix",
        "prefix_digits": "2",
        "communities": "/data/communities",
        "settle_hours": "0.5",
        "range_days": "0.25",
    }


@pytest.mark.parametrize("option", [*ALL, *REPORT_OPTIONS, *LAST_OPTIONS], ids=lambda option: option.name)
def test_names_follow_one_rule(option: Option) -> None:
    assert option.flag == "--" + option.variable.removeprefix("SPARK_EXPORT_").lower().replace("_", "-")


def test_flags_come_before_the_environment() -> None:
    arguments = read(
        [*NEEDED, "--store", "t.db", "--keep-open-day"],
        SPARK_EXPORT_STORE="other.db",
        SPARK_EXPORT_ARCHIVE="other",
        SPARK_EXPORT_KEEP_OPEN_DAY="false",
    )

    assert (arguments.store, arguments.archive, arguments.keep_open_day) == (["s.db", "t.db"], "a", True)


@pytest.mark.parametrize("empty", ["", "  "])
def test_empty_variable_is_not_set(empty: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert read(NEEDED, SPARK_EXPORT_SCHEDULE=empty, SPARK_EXPORT_CONF=empty).schedule == "17 3 * * *"
    assert refused(capsys, NEEDED[2:], SPARK_EXPORT_STORE=empty).endswith("--store (or SPARK_EXPORT_STORE)")


def test_all_that_is_missing_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert refused(capsys) == (
        "the following arguments are required: --store (or SPARK_EXPORT_STORE), --archive (or SPARK_EXPORT_ARCHIVE)"
    )


def test_unknown_variable_is_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    said = refused(capsys, NEEDED, SPARK_EXPORT_ARCHIV="a")

    assert said == "unknown environment variable SPARK_EXPORT_ARCHIV"


@pytest.mark.parametrize("command", ["acknowledge", "compact", "last"])
def test_help_says_which_options_are_variables(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main([command, "--help"])

    told = " ".join(capsys.readouterr().out.split())
    assert ("Every option but --all-is-lost is also an" in told) == (command == "acknowledge")
    assert "is also an environment variable: --" in told


def test_variable_of_another_command_is_none_of_ours() -> None:
    assert read(["--archive", "a"], REPORT_OPTIONS, SPARK_EXPORT_STORE="s.db", SPARK_EXPORT_JSON="on").json is True


@pytest.mark.parametrize(
    ("name", "text", "cause"),
    [
        ("until", "yesterday", "'yesterday' is not a date, YYYY-MM-DD"),
        ("until", "2026-02-30", "'2026-02-30' is not a date, YYYY-MM-DD"),
        ("partition_by", "moon", "'moon' is not one of topic, topic-prefix"),
        ("prefix_digits", "0", "'0' is not one of 1, 2, 3, 4"),
        ("prefix_digits", str(MAX_PREFIX_DIGITS + 1), "'5' is not one of 1, 2, 3, 4"),
        ("network_topic", "x" * 256, f"'{'x' * 256}' is not a pubsub topic: it has 1 to 255 bytes"),
        ("conf", "novalue", "'novalue' is not NAME=VALUE"),
        ("schedule", "at noon", "'at noon' is not a cron expression"),
        ("schedule", "61 3 * * *", "'61 3 * * *' is not a cron expression: Bad minute"),
        ("schedule", "0 0 30 2 *", "'0 0 30 2 *' is n"),  # no day: refused, or never due
    ],
)
def test_wrong_value_is_named_with_where_it_stands(
    name: str, text: str, cause: str, capsys: pytest.CaptureFixture[str]
) -> None:
    flag, variable = "--" + name.replace("_", "-"), "SPARK_EXPORT_" + name.upper()
    quoted = f'"{text}"' if name == "conf" else text

    assert refused(capsys, [*NEEDED, flag, text]).startswith(f"argument {flag}: {cause}")
    assert refused(capsys, NEEDED, **{variable: quoted}).startswith(f"{variable}: {cause}")


@pytest.mark.parametrize(
    ("variable", "text", "cause"),
    [
        ("SPARK_EXPORT_KEEP_OPEN_DAY", "maybe", "'maybe' is neither true nor false"),
        ("SPARK_EXPORT_STORE", "'a", '"\'a": No closing quotation'),
    ],
)
def test_wrong_text_of_a_variable_is_named(
    variable: str, text: str, cause: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert refused(capsys, NEEDED[2:] if "STORE" in variable else NEEDED, **{variable: text}) == f"{variable}: {cause}"


@pytest.mark.parametrize("hours", ["0", "-1", "nan", "inf", "10001", "long"])
def test_age_is_a_number_of_hours(hours: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        read(["--store", "s.db", "--max-age-hours", hours], LAST_OPTIONS)

    assert f"{hours!r} is not a number of hours up to 10000" in capsys.readouterr().err


def test_command_line_gives_the_same_values() -> None:
    given = read(
        [*NEEDED, "--store=-t.db", "--conf", "a=b=c", "--conf", "d=-e", "--keep-open-day", "--until", "2026-11-20"],
        SPARK_EXPORT_DRIVER_MEMORY="3g",
    )

    line = command_line(given, ALL)

    assert read(line) == given
    assert all(part.startswith("--") for part in line)


def test_switch_that_is_off_is_left_out() -> None:
    given = read(NEEDED, SPARK_EXPORT_KEEP_OPEN_DAY="off")

    assert given.keep_open_day is False
    assert "--keep-open-day" not in command_line(given, ALL)


@pytest.mark.parametrize(
    ("expression", "after", "due"),
    [
        ("17 3 * * *", "2026-11-20T03:16:59", "2026-11-20T03:17:00"),
        ("17 3 * * *", "2026-11-20T03:17:00", "2026-11-21T03:17:00"),
        ("* * * * *", "2026-11-20T23:59:59.5", "2026-11-21T00:00:00"),
        ("0 4 * * SUN", "2026-11-20T00:00:00", "2026-11-22T04:00:00"),
        ("17 3 * * *", "2026-03-29T01:00:00", "2026-03-29T03:17:00"),  # clocks go forward in Europe: UTC's do not
    ],
)
def test_due_times_are_utc(expression: str, after: str, due: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "Europe/Zurich")

    def seconds(text: str) -> float:
        return datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp()

    assert next_due(expression, seconds(after)) == seconds(due)


@pytest.mark.parametrize("days", ["0", "-1", "nan", "31", "long"])
def test_range_is_a_month_at_most(days: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert f"{days!r} is not a number of days above 0, up to 30" in refused(capsys, [*NEEDED, "--range-days", days])
