import asyncio
import contextlib
from collections.abc import AsyncIterator

import pytest

from mailserver.torrents.client import TorrentProcess
from tests.community.member.torrents import LOOPBACK


@pytest.fixture
async def processes() -> AsyncIterator[tuple[TorrentProcess, TorrentProcess]]:
    """Of the owner, and of the member."""
    async with contextlib.AsyncExitStack() as stack:
        both = TorrentProcess(LOOPBACK), TorrentProcess(LOOPBACK)
        await asyncio.gather(*map(stack.enter_async_context, both))
        yield both


@pytest.fixture
def owner(processes: tuple[TorrentProcess, TorrentProcess]) -> TorrentProcess:
    return processes[0]


@pytest.fixture
def torrents(processes: tuple[TorrentProcess, TorrentProcess]) -> TorrentProcess:
    return processes[1]
