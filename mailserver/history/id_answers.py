"""Answers one question about message ids (docs/wakuid.md): a list of ids, envelopes by id, or a comparison.

As with history requests, what it costs is charged to whoever asks, and its work is done in slices between those of
others.
"""

import asyncio
from collections.abc import Awaitable, Callable, Hashable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeVar

from mailserver.history.delivery import FIND_TIMEOUT_S, PAGE_TIME_S, PAGE_WORK
from mailserver.history.id_lists import IdLists, matching_envelopes
from mailserver.history.id_record import IdRecord
from mailserver.history.id_search import AtOnce, Selection
from mailserver.history.opening import Opener
from mailserver.history.sending import MAX_ROWS, Client, EnvelopePackets, Readable, Sent, send_in_turn
from mailserver.ids.muid import Muid
from mailserver.limits.request_quotas import Bill, Requester
from mailserver.live.intake import Clock
from mailserver.mail.packing import max_body_bytes
from mailserver.metrics.registry import Metrics
from mailserver.reconcile.sides import Needed
from mailserver.reconcile.wire import MIN_FRAME_BYTES
from mailserver.store.interface import Payer
from mailserver.store.message_ids import ComparedScope, MessageIds, MetadataRange, StoreBusy
from mailserver.wakuid.answers import Done, Ids, Reconciled, encode_envelopes
from mailserver.wakuid.packets import MAX_FETCHED_IDS, MAX_RECONCILE_BYTES, IdPacketCode, Order, What
from mailserver.wakuid.questions import Fetch, FetchItems, Items, Query, Reconcile

MAX_LISTED_IDS = 100_000
"""The longest page of ids. It leaves in packets of MAX_FETCHED_IDS; of fewer, where fewer were found at once."""

FETCH_WORK = 4 * PAGE_WORK
"""After this much work of the store, ids of a comparison are not looked for any more: two thirds of a second of one
processor. Then 400,000 ids were looked at. The widest ranges of a comparison that all agree on have some 4,000."""

GROUPS_AT_ONCE = 100
"""So many groups of ids are looked for, and sent, at once."""

_PACKET_ROOM = 64
"""What a packet has besides its ids or envelopes, in bytes, or less."""

_MUID_BYTES = 53
"""How long the MUID of an envelope is in a packet."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class IdSettings:
    """How questions are answered.

    `max_envelopes`: the longest page of envelopes. `allow_clear`: whether access is granted without an envelope.
    """

    max_envelopes: int = 1000
    allow_clear: bool = True


@dataclass(frozen=True, slots=True)
class IdServices:
    """What all questions are answered with.

    `lists` lists ids; its `ids` finds envelopes by them, and compares them. `since`: from which second of creation on
    the store has pruned nothing.
    """

    lists: IdLists
    since: Callable[[], int]
    opener: Opener
    settings: IdSettings
    clock: Clock
    metrics: Metrics

    @property
    def ids(self) -> MessageIds:
        """What finds envelopes by their ids, and compares ids."""
        return self.lists.ids


class IdAnswer:
    """The answer to one question, and its bill."""

    def __init__(
        self, services: IdServices, client: Client, requester: Requester, max_packet_bytes: int, record: IdRecord
    ) -> None:
        """Begin to answer, which is charged at once."""
        self._services = services
        self._client = client
        self._requester = requester
        self._max_packet_bytes = max_packet_bytes
        self._record = record
        self._began = _now()
        self._bill: Bill = requester.bill(self._began)
        self._payer = Payer(requester.address, requester.node_id, self._charge)

    async def send(self, question: Query | Fetch | FetchItems | Reconcile) -> None:
        """Find the answer, and send all of it.

        Raises:
            ConnectionLost: the client is gone.
            DecodeError: the cursor is none of this order, or the message is none of negentropy.
            StoreError, TooManyIds, RangeTooWide: as in `store.message_ids`.
        """
        match question:
            case Query(what=What.IDS, order=Order.NEWEST_FIRST):
                await self._send_newest_ids(question)
            case Query(what=What.IDS):
                await self._send_arrived_ids(question)
            case Query(order=Order.NEWEST_FIRST):
                await self._send_newest(question)
            case Query():
                await self._send_arrived(question)
            case Fetch(request_id=request_id, muids=muids):
                self._record.asked = len(muids)
                await self._send_named(request_id, muids)
                await send_in_turn(self._client, IdPacketCode.DONE, Done(request_id).encode())
            case FetchItems():
                await self._send_items(question.request_id, question.groups)
            case Reconcile():
                await self._send_reconciled(question)

    def _charge(self, work: int) -> None:
        self._record.work += work
        self._bill.charge_work(work, _now())

    def _goes_on(self, _: int = 0) -> bool:
        return self._record.work < PAGE_WORK and _now() - self._began < PAGE_TIME_S

    def _may_look_on(self, _: int) -> bool:
        """Whether to go on looking for envelopes by their ids."""
        return self._record.work < FETCH_WORK

    def _limit(self, question: Query) -> int:
        longest = MAX_LISTED_IDS if question.what is What.IDS else self._services.settings.max_envelopes
        return min(question.limit or longest, longest)

    @property
    def _ids_per_packet(self) -> int:
        return min(MAX_FETCHED_IDS, max(1, (self._max_packet_bytes - _PACKET_ROOM) // _MUID_BYTES))

    async def _send_newest_ids(self, question: Query) -> None:
        """Send ids, newest first."""
        lists, most = self._services.lists, self._ids_per_packet
        async with lists.newest(_selection(question), self._limit(question), self._payer, self._goes_on, most) as found:
            while not found.is_over:
                await self._client.wait_turn(min(found.left, most) * _MUID_BYTES + _PACKET_ROOM)
                muids = await self._in_time(found.read())
                if muids:
                    self._send_ids(question.request_id, muids)
                del muids  # a client that stalls before the next packet would keep them in memory
        await self._send_done(question, found.cursor, is_all=not found.cursor)

    async def _send_arrived_ids(self, question: Query) -> None:
        """Send ids as they arrived, each packet found when the one before was sent."""
        selection, left = _selection(question), self._limit(question)
        while True:
            most = min(left, self._ids_per_packet)
            await self._client.wait_turn(most * _MUID_BYTES + _PACKET_ROOM)
            found = await self._in_time(self._services.lists.list(selection, most, self._payer, self._goes_on))
            left -= len(found.muids)
            cursor, is_all = found.cursor, found.is_all
            if found.muids:
                self._send_ids(question.request_id, found.muids)
            del found  # a client that stalls before the next packet would keep it in memory
            if is_all or not left or not self._goes_on():
                break
            selection = replace(selection, cursor=cursor)
        await self._send_done(question, cursor, is_all=is_all)

    async def _send_newest(self, question: Query) -> None:
        """Send envelopes, newest first."""
        found = matching_envelopes(
            self._services.lists.source,
            _selection(question),
            self._limit(question),
            self._payer,
            self._goes_on,
            at_once=AtOnce(MAX_ROWS, max_body_bytes(max(1, self._max_packet_bytes - _PACKET_ROOM))),
        )
        while not found.is_over:
            # Wait first: so a client that stalls costs no memory.
            await self._client.wait_turn(self._max_packet_bytes)
            envelopes = await self._in_time(found.read())
            if envelopes:
                self._bill.charge_envelopes(len(envelopes), _now())
                payload = encode_envelopes(question.request_id, b"".join(envelopes))
                self._client.send(IdPacketCode.ENVELOPES, payload)
                self._on_sent(Sent(len(envelopes), len(payload), 0))
                del payload
            del envelopes
        await self._send_done(question, found.cursor, is_all=not found.cursor)

    async def _send_arrived(self, question: Query) -> None:
        """Send envelopes as they arrived."""
        selection, left = _selection(question), self._limit(question)
        while True:
            most = min(left, MAX_ROWS)
            found = await self._in_time(self._services.lists.list(selection, most, self._payer, self._goes_on))
            left -= len(found.muids)
            await self._send_named(question.request_id, found.muids)
            if found.is_all or not left or not self._goes_on():
                break
            selection = replace(selection, cursor=found.cursor)
        await self._send_done(question, found.cursor, is_all=found.is_all)

    async def _send_done(self, question: Query, cursor: bytes, *, is_all: bool) -> None:
        if not is_all:  # the next page does not count as a new request
            self._requester.remember_cursor(followed(question.order, cursor), _now())
        await send_in_turn(self._client, IdPacketCode.DONE, Done(question.request_id, cursor, is_all=is_all).encode())

    def _send_ids(self, request_id: int, muids: Sequence[Muid]) -> None:
        payload = Ids(request_id, muids).encode()
        self._client.send(IdPacketCode.IDS, payload)
        self._record.ids += len(muids)
        self._record.bytes += len(payload)

    async def _send_named(self, request_id: int, muids: Sequence[Muid]) -> None:
        """Send the envelopes that have these MUIDs."""
        found = self._services.ids.find(muids, payer=self._payer, goes_on=self._may_look_on)
        await self._send_envelopes(request_id, await self._in_time(found))

    async def _send_items(self, request_id: int, groups: Sequence[Items]) -> None:
        """Send the envelopes that a comparison has found missing, group after group."""
        self._record.asked = sum(len(group.ids) for group in groups)
        for at in range(0, len(groups), GROUPS_AT_ONCE):
            wanted = [Needed(group.lower, group.upper, [*group.ids]) for group in groups[at : at + GROUPS_AT_ONCE]]
            found = self._services.ids.find_items(wanted, payer=self._payer, goes_on=self._may_look_on)
            await self._send_envelopes(request_id, await self._in_time(found))
        await send_in_turn(self._client, IdPacketCode.DONE, Done(request_id).encode())

    async def _send_envelopes(self, request_id: int, found: Readable) -> None:
        packets = EnvelopePackets(
            self._client,
            IdPacketCode.ENVELOPES,
            partial(encode_envelopes, request_id),
            max(1, self._max_packet_bytes - _PACKET_ROOM),
            self._bill,
            self._on_sent,
        )
        await packets.send_all(found)

    def _on_sent(self, sent: Sent) -> None:
        self._record.envelopes += sent.envelopes
        self._record.archived += sent.archived
        self._record.bytes += sent.bytes

    async def _send_reconciled(self, question: Reconcile) -> None:
        """Answer a message of negentropy."""
        frame_bytes = max(MIN_FRAME_BYTES, min(MAX_RECONCILE_BYTES, self._max_packet_bytes - _PACKET_ROOM))
        scope = ComparedScope(question.lower, question.upper, question.interest)
        comparison = self._services.ids.comparison(scope, frame_bytes=frame_bytes, payer=self._payer)
        # Wait first: so a client that stalls costs no memory.
        await self._client.wait_turn(min(frame_bytes, 2 * len(question.message)))
        message = await comparison.respond(question.message)  # it has bounds of its own: for its turn, and from then on
        payload = Reconciled(question.request_id, message).encode()
        self._client.send(IdPacketCode.RECONCILED, payload)
        self._record.bytes += len(payload)

    async def _in_time(self, finding: Awaitable[T]) -> T:
        """Wait for what is found, but not for ever.

        Raises:
            StoreBusy: it took too long. Hundreds of peers that search for much can bring that about; where the store
                itself hangs, history requests say so.
        """
        try:
            async with asyncio.timeout(FIND_TIMEOUT_S):
                return await finding
        except TimeoutError as error:
            raise StoreBusy(f"nothing found within {FIND_TIMEOUT_S:g} s") from error


def followed(order: Order, cursor: bytes) -> Hashable:
    """A cursor, as the limits of requests remember it: not one of another order, or of another protocol."""
    return order, cursor


def _selection(question: Query) -> Selection:
    metadata = MetadataRange(question.low, question.high)
    return Selection(
        question.lower, question.upper, question.interest, metadata, order=question.order, cursor=question.cursor
    )


def _now() -> float:
    return asyncio.get_running_loop().time()
