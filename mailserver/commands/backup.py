"""`waku-mailserver backup`: copy the data directory, even while a daemon runs."""

import argparse
import json

from mailserver.commands.output import counted, printable
from mailserver.commands.settings import add_destination, add_settings, config_of, destination_of
from mailserver.commands.terminal import progress_bar
from mailserver.data_dir.backup import Backup, back_up
from mailserver.data_dir.own_store import check_it_is_a_file
from mailserver.store.sqlite.schema import STORE_FILE
from mailserver.units import size_text


def add(parser: argparse.ArgumentParser) -> None:
    """Take the arguments of `backup`."""
    add_settings(parser, only={"data_dir", "store"})
    add_destination(parser)
    parser.add_argument("--json", action="store_true", help="print what was copied as one JSON object")
    parser.set_defaults(command=_back_up)


def _back_up(arguments: argparse.Namespace) -> None:
    config, destination = config_of(arguments), destination_of(arguments)
    check_it_is_a_file(config.store, "back it up by pg_dump or pg_basebackup, and copy nodekey from the data directory")
    with progress_bar(counts_bytes=True) as bar:
        backup = back_up(config.data_dir, destination, lambda done, total: bar(f"copying {STORE_FILE}", done, total))
    print(json.dumps(_as_json(backup)) if arguments.json else _as_text(backup))


def _as_json(backup: Backup) -> dict[str, object]:
    return {
        "folder": str(backup.folder),
        "files": list(backup.files),
        "envelopes": backup.envelopes,
        "bytes": backup.bytes,
    }


def _as_text(backup: Backup) -> str:
    others = ", ".join(backup.files[1:]) or "nothing else"
    envelopes = counted(backup.envelopes, "envelope")
    return printable(f"{backup.folder}: {envelopes}, {size_text(backup.bytes)}, with {others}")
