"""`waku-mailserver reindex`: make the message ids of the store anew, for another network topic."""

import argparse
import asyncio
import json

from mailserver.app.config import Config
from mailserver.app.logs import set_up_logging
from mailserver.commands.output import counted
from mailserver.commands.settings import add_settings, config_of
from mailserver.commands.terminal import Bar, progress_bar
from mailserver.data_dir.folder import locked
from mailserver.data_dir.own_store import check_there_is_one, open_own_store
from mailserver.store.message_ids import NotIndexedYet

POLL_S = 0.2
"""How often progress is shown while there is much to index."""


def add(parser: argparse.ArgumentParser) -> None:
    """Take the arguments of `reindex`."""
    parser.add_argument("--json", action="store_true", help="print how many envelopes there are as one JSON object")
    add_settings(parser, only={"data_dir", "store", "network_topic"})
    parser.set_defaults(command=_reindex)


def _reindex(arguments: argparse.Namespace) -> None:
    config = config_of(arguments)
    set_up_logging("warning")
    if not config.store:
        check_there_is_one(config.data_dir)
    with locked(config.data_dir), progress_bar() as bar:
        envelopes = asyncio.run(_index(config, bar))
    if arguments.json:
        print(json.dumps({"envelopes": envelopes, "network_topic": config.network_topic}))
    else:
        print(f"{counted(envelopes, 'envelope')}: message ids belong to {config.network_topic}")


async def _index(config: Config, bar: Bar) -> int:
    """Index everything; return how many envelopes there are."""
    async with open_own_store(config.data_dir, config.network_topic, config.store, reindex=True) as store:
        envelopes = (await store.stats()).envelopes
        while True:
            bar("indexing message ids", envelopes - min(store.unindexed, envelopes), envelopes)
            try:
                await store.message_ids.find([])  # it waits for the index, and has it hurry
            except NotIndexedYet:
                await asyncio.sleep(POLL_S)
            else:
                return envelopes
