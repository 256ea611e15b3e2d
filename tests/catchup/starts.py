"""Starting to catch up, with sources that may not be there."""

from pathlib import Path

import pytest

from mailserver.catchup.catchup import Catchup
from mailserver.codec.keys import Enode
from mailserver.store.sqlite.schema import STORE_FILE
from mailserver.store.sqlite.store import open_store
from tests.catchup.servers import Server, settings_for
from tests.mailservers import Clock
from tests.pairs import private_key


def lines(caplog: pytest.LogCaptureFixture, start: str) -> list[str]:
    return [record.message for record in caplog.records if record.message.startswith(start)]


def nobody(number: int) -> Enode:
    """A source that is never there."""
    return Enode(private_key(f"nobody {number}").public_key, "127.0.0.1", 1)


def asked_since(server: Server) -> int:
    return min(request.lower for request in server.requests)


async def start(folder: Path, *sources: Enode, days: float = 30.0) -> Catchup:
    """What a daemon does first; it is killed before it does more."""
    async with open_store(folder / STORE_FILE) as store:
        catchup = Catchup(store, folder, settings_for(*sources), Clock())
        await catchup.add_missed(days)
    return catchup
