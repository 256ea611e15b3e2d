"""mailserver.store.engine.page: hashes of what a page has read."""

from pathlib import Path

import pytest

from mailserver.codec.keccak import keccak256
from mailserver.store.interface import Query
from mailserver.store.sqlite.schema import HASH_PREFIX_BYTES
from mailserver.store.sqlite.store import open_store
from mailserver.waku import last_hash
from tests.mailservers import fill, in_order, make_envelopes
from tests.store.engines import EVERYTHING, found
from tests.store.samples import (
    EVER,
    EVERY_BYTE,
    FULL,
    change,
)


async def test_last_envelope_of_a_page_is_hashed_once(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hashed: list[bytes] = []

    def counted(data: bytes) -> bytes:
        hashed.append(data)
        return keccak256(data)

    async with open_store(path) as store:
        await fill(store, make_envelopes(4))
        page = await store.find(EVERYTHING, 3)
        monkeypatch.setattr(last_hash, "keccak256", counted)
        await page.read(2, EVERY_BYTE)
        (last,) = (await page.read(1, EVERY_BYTE)).split()

        assert page.end is not None
        assert page.end[1] == page.last_hash == keccak256(last)
    assert hashed == [last]


async def test_next_page_begins_behind_the_last_envelope_by_its_whole_hash(path: Path) -> None:
    envelopes = in_order(make_envelopes(4))
    last = envelopes[1]
    prefix = last.hash()[:HASH_PREFIX_BYTES]

    async with open_store(path) as store:
        await fill(store, envelopes)
        whole, pruned = await store.find(EVERYTHING, 2), await store.find(EVERYTHING, 2)
        await whole.read(2, EVERY_BYTE)
        change(path, f"DELETE FROM envelopes WHERE hash = x'{prefix.hex()}'")
        await pruned.read(2, EVERY_BYTE)

        assert whole.end == (last.created, last.hash())
        assert pruned.end == (last.created, prefix.ljust(32, b"\x00"))
        for end in (whole.end, pruned.end):
            assert await found(store, Query(*EVER, FULL, end)) == [envelope.raw for envelope in envelopes[2:]]
