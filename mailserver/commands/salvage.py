"""`waku-mailserver salvage`: save what is left of a damaged store."""

import argparse
import asyncio
import json
from dataclasses import asdict
from pathlib import Path

from mailserver.commands.output import counted, printable
from mailserver.commands.settings import add_destination, add_settings, config_of, destination_of
from mailserver.commands.terminal import progress_bar
from mailserver.data_dir.own_store import check_it_is_a_file
from mailserver.data_dir.salvage import ASIDE_FILE, salvage_data_dir
from mailserver.store.sqlite.repair.salvage import SalvageReport


def add(parser: argparse.ArgumentParser) -> None:
    """Take the arguments of `salvage`."""
    add_settings(parser, only={"data_dir", "store"})
    add_destination(parser)
    parser.add_argument("--json", action="store_true", help="print what was saved as one JSON object")
    parser.set_defaults(command=_salvage)


def _salvage(arguments: argparse.Namespace) -> None:
    config, destination = config_of(arguments), destination_of(arguments)
    check_it_is_a_file(config.store, "restore a backup of it")
    with progress_bar() as bar:
        found = asyncio.run(salvage_data_dir(config.data_dir, destination, bar))
    if arguments.json:
        print(json.dumps({"folder": str(destination), **asdict(found)}))
    else:
        print(_as_text(destination, found))


def _as_text(destination: Path, found: SalvageReport) -> str:
    text = f"{destination}: {counted(found.saved, 'envelope')} saved"
    if found.expected is not None:
        text += f" of the {found.expected} that the store has counted"
    lost = [
        counted(count, thing)
        for count, thing in (
            (found.wrong, "wrong row"),
            (found.unreadable, "unreadable row"),
            (found.pages, "unreadable page"),
        )
        if count
    ]
    text += f"; set aside in {ASIDE_FILE}: {', '.join(lost)}" if lost else "; nothing had to be set aside"
    return printable(text)
