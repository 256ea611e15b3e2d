"""`spark-export`: arguments, messages, exit codes. Spark is imported for the commands that need it, and only there.

Exit codes: 0 done; 1 failed, one line on stderr says why; 2 wrong usage; 3 done, but files of the archive are missing
or damaged, or rows that were in it are lost, and one line names them; 130 interrupted.
"""

import argparse
import importlib
import os
import sys
from collections.abc import Sequence

from mailserver import __version__
from mailserver.app.logs import LogFormat, set_up_logging
from spark_export.errors import ExportError

_EXTRA = {"pyspark", "py4j", "pyarrow", "numpy", "cronsim"}


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command; return its exit code."""
    try:
        arguments = _read(argv)
        set_up_logging("info", LogFormat(arguments.log_format), "spark_export", all_repeats=True)
        module, _, function = arguments.run.partition(":")
        return int(getattr(importlib.import_module(module), function)(arguments))
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] not in _EXTRA:
            raise
        print(f"spark-export: {error.name} is not installed: pip install -r requirements-export.lock", file=sys.stderr)
        return 1
    except ExportError as error:  # commands tell of what goes wrong amid their work
        print(f"spark-export: {error}", file=sys.stderr)
        return 1


def _read(argv: Sequence[str] | None) -> argparse.Namespace:
    from spark_export import options  # noqa: PLC0415 - it imports what may not be installed

    spark, service = "spark_export.commands:run", "spark_export.schedule:"
    commands = {
        "compact": (spark, options.COMPACT_OPTIONS, "bring an archive up to date with one store or several"),
        "merge": (spark, options.MERGE_OPTIONS, "merge the days of each past month into larger files"),
        "verify": (spark, options.VERIFY_OPTIONS, "read the whole archive and compare it with its records"),
        "report": (spark, options.REPORT_OPTIONS, "show what is in the archive: days, topics, sizes"),
        "acknowledge": (
            spark,
            options.ACKNOWLEDGE_OPTIONS,
            "acknowledge what the archive has lost, and the rows set aside: they are no longer reported as faults",
        ),
        "communities": (
            spark,
            options.COMMUNITIES_OPTIONS,
            "make the history archives of the communities that we own, of all weeks that are over",
        ),
        "schedule": (
            service + "schedule",
            options.SCHEDULE_OPTIONS,
            "compact, merge and verify on schedules, until SIGTERM or SIGINT; a missed run is made up for at once",
        ),
        "nightly": (
            service + "nightly",
            options.NIGHTLY_OPTIONS,
            "compact, then merge and verify if their schedules say so: for cron and systemd",
        ),
        "now": (service + "now", options.NOW_OPTIONS, "compact once, now, as the schedule does"),
        "last": (
            "spark_export.last_command:last",
            options.LAST_OPTIONS,
            "show how the last run went and when the next one is due; exit code 1 if something is wrong",
        ),
    }
    parser = argparse.ArgumentParser(prog="spark-export", description="The Parquet archive of a Waku v1 mailserver.")
    parser.add_argument("--version", action="version", version=f"%(prog)s {__version__}")
    subparsers = parser.add_subparsers(required=True, metavar="COMMAND", dest="command")
    parsers = {}
    for name, (_, own, help_text) in commands.items():
        flags_only = "".join(f" but {option.flag}" for option in own if option.variable not in options.VARIABLES)
        description = (
            f"{help_text[0].upper()}{help_text[1:]}. Every option{flags_only} is also an environment variable: "
        )
        description += f"{own[0].flag} is {own[0].variable}."
        parsers[name] = subparsers.add_parser(name, help=help_text, description=description)
        for option in own:
            option.add_to(parsers[name])
    arguments = parser.parse_args(argv)
    run, own, _ = commands[arguments.command]
    options.complete(parsers[arguments.command], arguments, own, os.environ)
    arguments.run = run
    return arguments
