"""What one of two stores has and the other lacks, found by comparing their message ids, both in this process.

Most of it is sums that both stores keep (`store.engine.stored_ids`), so it takes about as long as what differs.
"""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from mailserver.codec.keccak import keccak256
from mailserver.errors import DecodeError
from mailserver.ids.envelopes import envelope_muid
from mailserver.ids.muid import Muid, NoId, sync_id
from mailserver.reconcile.sides import Differences, Needed
from mailserver.store.interface import NewEnvelope
from mailserver.store.message_ids import MAX_IDS_TO_FIND, ComparedScope, MessageIds, NotIndexedYet
from mailserver.waku.envelope import MAX_U32, EnvelopeHash, decode_envelope

MAX_DIFFERENCES = MAX_IDS_TO_FIND
"""Of so many different envelopes each is looked at. More are said to be at least so many."""

READ_BYTES = 1024 * 1024
"""How much is read at once of envelopes that differ."""

STALL_S = 60.0
"""An index of message ids that has not come further for so long is not waited for."""

POLL_S = 0.2
"""How often the index is looked at while there is much to index."""

_EVERYTHING = ComparedScope(1, MAX_U32)


class Differing(NamedTuple):
    """An envelope that one store has and the other lacks."""

    muid: Muid
    envelope: NewEnvelope


@dataclass(slots=True)
class OnlyThere:
    """The ids of reconciliation that only one of two stores has, up to MAX_DIFFERENCES of them."""

    ids: dict[bytes, tuple[int, int]] = field(default_factory=dict)
    """Of each, from when to when its envelope was created."""

    other_has_more: bool = False
    """Whether the other store has any that this one lacks."""

    @property
    def is_full(self) -> bool:
        """Whether there may be more."""
        return len(self.ids) >= MAX_DIFFERENCES

    def learn(self, found: Differences) -> None:
        """Take what was found. An id may be found more than once."""
        self.other_has_more |= bool(found.have)
        for lower, upper, ids in found.need:
            for each in ids[: MAX_DIFFERENCES - len(self.ids)]:
                self.ids[each] = min(lower, MAX_U32), min(upper, MAX_U32)  # the last range has no end


async def compare(one: MessageIds, other: MessageIds, show: Callable[[int], None]) -> tuple[list[Differing], OnlyThere]:
    """What the one store has and the other lacks: envelopes, but for those that are gone or damaged; and ids.

    This waits until what is in both is indexed.

    Args:
        show: called from time to time with how many envelopes are not.
    Raises:
        NotIndexedYet: nobody indexes them.
        StoreError: a store cannot be read.
    """
    loop = asyncio.get_running_loop()
    least, deadline = MAX_U32, loop.time() + STALL_S
    while True:
        try:
            found = await only_in(one, other)
            return await envelopes_of(one, found) if found.ids else [], found
        except NotIndexedYet as error:
            show(error.left)
            if error.left < least:
                least, deadline = error.left, loop.time() + STALL_S
            if loop.time() > deadline:
                raise
        await asyncio.sleep(POLL_S)


async def only_in(one: MessageIds, other: MessageIds) -> OnlyThere:
    """Which ids the one store has and the other lacks. What is stored meanwhile may count or not.

    Raises:
        NotIndexedYet: too much is not indexed.
        StoreError: a store cannot be read.
    """
    found = OnlyThere()
    asks, answers = other.comparison(_EVERYTHING), one.comparison(_EVERYTHING)
    message: bytes | None = await asks.begin()
    while message is not None and not found.is_full:
        message = await asks.receive(await answers.respond(message), found.learn)
    return found


async def envelopes_of(ids: MessageIds, found: OnlyThere) -> list[Differing]:
    """The envelopes that have these ids, as they are in the store. Those that are gone, or damaged, are left out.

    Raises:
        NotIndexedYet: too much is not indexed.
        StoreError: the store cannot be read.
    """
    groups: dict[tuple[int, int], list[bytes]] = {}
    for each, created in found.ids.items():
        groups.setdefault(created, []).append(each)
    rows = await ids.find_items([Needed(*created, wanted) for created, wanted in groups.items()])
    items, envelopes = rows.items, list[Differing]()
    while rows.left:
        first = len(items) - rows.left
        raws = await rows.read(rows.left, READ_BYTES)
        at = 0
        for item, size in zip(items[first:], raws.sizes, strict=False):
            envelopes += _checked(ids.network_topic, item, raws.body[at : at + size])
            at += size
    return envelopes


def _checked(network_topic: str, item: bytes, raw: bytes) -> Sequence[Differing]:
    """The envelope, if it has this id."""
    try:
        envelope = decode_envelope(raw)
        muid = envelope_muid(network_topic, envelope)
    except (DecodeError, NoId):
        return ()
    if sync_id(muid) != item:
        return ()
    full_hash = EnvelopeHash(keccak256(raw))
    return (Differing(muid, NewEnvelope(0, envelope.created, envelope.topic, full_hash, raw)),)
