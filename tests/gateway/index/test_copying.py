"""mailserver.gateway.index.copying: with a copy of the store, originals are found as their senders know them."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from mailserver.errors import StoreError
from mailserver.gateway.index.copying import copy_originals
from mailserver.gateway.index.schema import INDEX_FILE
from mailserver.store.sqlite.backup import snapshot
from mailserver.store.sqlite.schema import STORE_FILE
from mailserver.store.sqlite.store import open_store
from mailserver.waku.envelope_rows import read_fields
from tests.gateway.index.worlds import (
    World,
    at,
    bridged,
    envelope,
    opened_messages,
    opened_world,
    original,
    query_for,
    stored,
)

SENT = original(1, timestamp=at(3) + 7, meta=b"meta")
ON_ITS_WAY = original(2, timestamp=at(4), version=0)


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    """A store in a file, which `backup` copies, and what follows it."""
    async with opened_world(tmp_path) as opened:
        yield opened


async def test_copy_has_every_original_and_the_rest_is_made_anew(world: World, tmp_path: Path) -> None:
    await world.put(envelope(1))
    await world.send(SENT)
    await world.messages.query(query_for())  # all are indexed
    await world.messages.keep_original(bridged(ON_ITS_WAY), ON_ITS_WAY)
    before = await world.messages.query(query_for())
    copy = tmp_path / "copy"
    copy.mkdir()

    with snapshot(world.folder / STORE_FILE) as store:
        store.copy(copy / STORE_FILE, lambda done, total: None)
    assert copy_originals(world.folder / INDEX_FILE, copy / INDEX_FILE) == 2

    async with open_store(copy / STORE_FILE), opened_messages(copy) as messages:
        page = await messages.query(query_for())
        each = bridged(ON_ITS_WAY)
        (fields,) = read_fields(each.raw, [len(each.raw)])
        assert fields is not None
        (found,) = await messages.messages_of([(fields, each.hash())])
    assert page == before
    assert stored(SENT) in page.entries
    assert found is not None
    assert found.encoded == ON_ITS_WAY.encode()
    assert await world.messages.query(query_for()) == before, "the source is as it was"


async def test_without_originals_nothing_is_made(world: World, tmp_path: Path) -> None:
    await world.put(envelope(1))
    assert (await world.messages.query(query_for())).entries

    assert copy_originals(world.folder / INDEX_FILE, tmp_path / "copy.db") == 0
    assert copy_originals(tmp_path / "none.db", tmp_path / "copy.db") == 0
    assert not (tmp_path / "copy.db").exists()
    assert not (tmp_path / "none.db").exists()


async def test_index_that_is_just_being_made_has_none(tmp_path: Path) -> None:
    (tmp_path / INDEX_FILE).touch()

    assert copy_originals(tmp_path / INDEX_FILE, tmp_path / "copy.db") == 0


async def test_damaged_or_foreign_index_is_told(tmp_path: Path) -> None:
    (tmp_path / INDEX_FILE).write_bytes(b"no database" * 1000)

    with pytest.raises(StoreError, match="cannot use the index of messages"):
        copy_originals(tmp_path / INDEX_FILE, tmp_path / "copy.db")
    assert not (tmp_path / "copy.db").exists()


async def test_what_is_in_the_way_of_the_copy_is_left(world: World, tmp_path: Path) -> None:
    await world.send(SENT)
    (tmp_path / "folder").mkdir()

    with pytest.raises(StoreError, match="cannot use the index of messages"):
        copy_originals(world.folder / INDEX_FILE, tmp_path / "folder")
