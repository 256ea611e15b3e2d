"""mailserver.store.engine.comparison by topics: it reads without a snapshot, and still reports no wrong difference."""

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mailserver.ids.envelopes import envelope_muid
from mailserver.ids.muid import DEFAULT_NETWORK_TOPIC, sync_id
from mailserver.reconcile.sides import Responder, run
from mailserver.reconcile.storage import MemoryStorage
from mailserver.store.engine import comparison, muids, search
from mailserver.store.interface import NewEnvelope
from mailserver.store.retention import END_OF_TIME, Surplus
from mailserver.store.sqlite.schema import STORE_FILE
from mailserver.store.sqlite.store import SqliteStore, open_store
from mailserver.waku.envelope import decode_envelope
from tests.properties import settings
from tests.reconcile.sets import Item, Talk
from tests.store.samples import DAY, NEWS, SPORT, START, UNSHRUNK
from tests.store.sqlite.ids import row
from tests.store.test_comparison import OF_NEWS

FIRST = 60


def some_rows(first: int, count: int) -> list[NewEnvelope]:
    """Rows of two days, in no order; a third is of another topic. What comes later is received later."""
    return [
        row(number, created=START + number * 7919 % (2 * DAY), topic=NEWS if number % 3 else SPORT)
        for number in range(first, first + count)
    ]


def item_of(one: NewEnvelope) -> Item:
    return one.created, sync_id(envelope_muid(DEFAULT_NETWORK_TOPIC, decode_envelope(one.raw)))


class Meanwhile:
    """Changes a store between the statements of a comparison, and notes what was there always, and at any time."""

    def __init__(self, store: SqliteStore, script: Sequence[tuple[str, int]]) -> None:
        self._store = store
        self._left = list(script)
        self._next = FIRST
        self._gone: list[NewEnvelope] = []
        self.present = {one.hash: one for one in some_rows(0, FIRST)}
        self.always, self.ever = self._news(), self._news()

    def _news(self) -> set[Item]:
        return {item_of(one) for one in self.present.values() if one.topic == NEWS}

    async def go_on(self) -> None:
        """Do the next of the changes."""
        if not self._left:
            return
        change, count = self._left.pop(0)
        if change == "put":
            await self._put(some_rows(self._next, count))
            self._next += count
        elif change == "put again":
            await self._put(self._gone[:count])
        else:
            await self._store.prune(Surplus(END_OF_TIME, count))
            there = await self._store.missing([*self.present.values()])
            self._gone += there
            self.present = {key: one for key, one in self.present.items() if one not in there}
        self.always &= self._news()
        self.ever |= self._news()

    async def _put(self, some: Sequence[NewEnvelope]) -> None:
        await self._store.put(some)
        self.present |= {one.hash: one for one in some}


changes = st.lists(st.tuples(st.sampled_from(["put", "put again", "prune"]), st.integers(1, 20)), max_size=12)


@given(script=changes, others=st.sets(st.integers(0, FIRST + 30)))
@settings(max_examples=25, phases=UNSHRUNK)
async def test_each_difference_was_there_at_some_moment(
    tmp_path_factory: pytest.TempPathFactory, script: list[tuple[str, int]], others: set[int]
) -> None:
    theirs = {item_of(one) for number in others for one in some_rows(number, 1) if one.topic == NEWS}
    async with open_store(tmp_path_factory.mktemp("by-topics") / STORE_FILE) as store:
        await store.put(some_rows(0, FIRST))
        meanwhile, read_muids, page = Meanwhile(store, script), muids.read_muids, search.KeySearch.page

        async def read_amid(*args: Any) -> Any:
            await meanwhile.go_on()
            return await read_muids(*args)

        async def search_amid(self: search.KeySearch) -> Any:
            await meanwhile.go_on()
            return await page(self)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(comparison, "IDS_AT_ONCE", 7)
            patch.setattr(comparison, "read_muids", read_amid)
            patch.setattr(search.KeySearch, "page", search_amid)
            held, ours = Talk(), store.message_ids.comparison(OF_NEWS)
            message: bytes | None = await ours.begin()
            while message is not None:
                answer = run(Responder(MemoryStorage(theirs)).respond(message))
                message = await ours.receive(answer, held.learn)

    have, need = {item_id for _, item_id in theirs}, held.need
    always, ever = ({item_id for _, item_id in items} for items in (meanwhile.always, meanwhile.ever))
    assert always - have <= held.have <= ever - have
    assert have - ever <= need <= have - always
