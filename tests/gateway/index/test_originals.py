"""Originals: kept before their envelopes are posted, and found again whatever dies in between."""

import signal
import subprocess
import sys
from pathlib import Path

from mailserver.gateway.index.values import MessagePage
from mailserver.ids.muid import DEFAULT_NETWORK_TOPIC
from mailserver.store.sqlite.schema import STORE_FILE
from mailserver.store.sqlite.store import open_store
from tests.gateway.index.worlds import World, at, bridged, new, opened_messages, original, query_for, stored

MESSAGE = original(1, timestamp=at(0) + 5, meta=b"m" * 64, version=2)
NAME = MESSAGE.hash(DEFAULT_NETWORK_TOPIC)

_GATEWAY = """
import asyncio, os, signal, sys
from pathlib import Path
from mailserver.store.sqlite.store import open_store
from mailserver.store.sqlite.schema import STORE_FILE
from tests.gateway.index.test_originals import MESSAGE
from tests.gateway.index.worlds import bridged, new, opened_messages

async def send() -> None:
    folder = Path(sys.argv[1])
    async with open_store(folder / STORE_FILE) as store, opened_messages(folder) as messages:
        await messages.keep_original(bridged(MESSAGE), MESSAGE)
        if sys.argv[2] == "posted":
            await store.put([new(bridged(MESSAGE))])
        os.kill(os.getpid(), signal.SIGKILL)

asyncio.run(send())
"""


def killed_sender(folder: Path, moment: str) -> None:
    """A gateway keeps an original, and is killed before or after its envelope is stored."""
    ended = subprocess.run([sys.executable, "-c", _GATEWAY, str(folder), moment], check=False)
    assert ended.returncode == -signal.SIGKILL


async def test_original_survives_a_kill_before_its_envelope_is_posted(tmp_path: Path) -> None:
    killed_sender(tmp_path, "kept")

    async with open_store(tmp_path / STORE_FILE) as store, opened_messages(tmp_path) as messages:
        before = await messages.query(query_for())
        was_stored = await messages.is_stored(NAME)
        await store.put([new(bridged(MESSAGE))])
        after = await messages.query(query_for())

    assert before == MessagePage([], None)
    assert not was_stored
    assert after == MessagePage([stored(MESSAGE)], None)


async def test_original_survives_a_kill_before_its_envelope_is_indexed(tmp_path: Path) -> None:
    killed_sender(tmp_path, "posted")

    async with open_store(tmp_path / STORE_FILE), opened_messages(tmp_path) as messages:
        assert await messages.query(query_for()) == MessagePage([stored(MESSAGE)], None)


async def test_original_of_a_refused_envelope_can_be_forgotten(world: World) -> None:
    await world.messages.keep_original(bridged(MESSAGE), MESSAGE)
    await world.messages.forget_original(bridged(MESSAGE).hash())

    assert not await world.messages.is_stored(NAME)


async def test_original_of_an_envelope_that_is_in_the_store_stays(world: World) -> None:
    await world.send(MESSAGE)
    await world.messages.follower.catch_up()

    await world.messages.forget_original(bridged(MESSAGE).hash())
    await world.messages.keep_original(bridged(MESSAGE), original(1, timestamp=at(3)))  # a second time

    assert await world.messages.query(query_for()) == MessagePage([stored(MESSAGE)], None)
    assert await world.messages.is_stored(NAME)


async def test_messages_of_v1_are_known_by_their_hashes_once_they_are_indexed(world: World) -> None:
    await world.put(bridged(MESSAGE))
    (page,) = (await world.messages.query(query_for())).entries

    assert await world.messages.is_stored(page.message_hash)
    assert not await world.messages.is_stored(NAME)
