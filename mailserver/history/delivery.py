"""Answers history requests: P2P Request -> P2P Messages -> P2P Request Complete (8/WAKU-MAIL).

Every answer ends with a completion, or with an error completion if anything went wrong. A client that hears nothing
would wait for minutes.
"""

import asyncio
import contextlib
import math
from collections import OrderedDict
from dataclasses import dataclass
from typing import Protocol

from mailserver.codec.keys import NodeId, PrivateKey
from mailserver.errors import DecodeError, Rejection, RequestRejected, StoreError
from mailserver.history.requests import RequestRecord
from mailserver.limits.request_quotas import Bill, Requester
from mailserver.live.intake import Clock
from mailserver.mail.completion import NO_ENVELOPE, Completion, CompletionFormat, Failure
from mailserver.mail.packing import TARGET_PACKET_BYTES, max_body_bytes
from mailserver.mail.request import (
    ClearRequest,
    Cursor,
    MailRequest,
    RequestId,
    SealedRequest,
    decode_clear,
    decode_fields,
    decode_request,
    fallback_request_id,
)
from mailserver.metrics.labels import Outcome
from mailserver.metrics.registry import Metrics
from mailserver.store.interface import HistorySource, Page, Payer, Query
from mailserver.waku.envelope import encode_body, packet_bytes
from mailserver.waku.packets import PacketCode
from mailserver.waku.payload import open_asymmetric, open_symmetric

MAX_REQUEST_BYTES = 16 * 1024
"""The longest P2P Request payload. A request with as many topics as there may be takes 8 kB."""

PAGE_WORK = 500_000
"""After this much work of the source, the search by a bloom filter ends with what it has found: a sixth of a second of
one processor. If the source has to look at the envelopes of a day one by one, it looks at some 100,000."""

PAGE_TIME_S = 4.0
"""The search also ends after this time, if many wait for the source: clients give up a request after 10 to 30 s."""

FIND_TIMEOUT_S = 10.0
"""How long the source may search for one page. After that, the request fails."""

MAX_REMEMBERED_REQUESTS = 8192
"""How many requests to our public key are remembered, with the peers that made them; 250 bytes per entry."""

_LIKELY_BYTES = 512
"""How long an envelope is assumed to be before the first of an answer was read."""

_MAX_ROWS = 256
"""Most envelopes that are looked at for one packet. As sealed envelopes have at least 256 bytes, this many fill it.
Without it, a page of tiny envelopes with long ones among them would be looked at to its end for each packet."""


class Client(Protocol):
    """Where an answer is sent to."""

    async def wait_turn(self, size: int) -> None:
        """Wait until a packet of about `size` bytes may be sent: until the client has read enough of those before.

        Raises:
            ConnectionLost: the client is gone.
        """

    def send(self, code: PacketCode, payload: bytes) -> None:
        """Send a packet, after `wait_turn`.

        Raises:
            ConnectionLost: the client is gone.
        """


@dataclass(frozen=True, slots=True)
class DeliverySettings:
    """How requests are read and answered.

    `symmetric_key` opens requests sealed with the shared password, `key` those sealed to our public key. `max_limit`
    bounds the envelopes per request. `min_request_pow` holds for sealed requests only.
    """

    symmetric_key: bytes
    key: PrivateKey
    max_limit: int = 1000
    min_request_pow: float = 0.0
    allow_clear: bool = True
    completion_format: CompletionFormat = CompletionFormat.BYTES


class Delivery:
    """Answers history requests from one source."""

    def __init__(self, source: HistorySource, settings: DeliverySettings, clock: Clock, *, metrics: Metrics) -> None:
        self._source = source
        self._settings = settings
        self._clock = clock
        self._metrics = metrics
        self._askers: OrderedDict[RequestId, NodeId] = OrderedDict()

    async def answer(
        self,
        payload: bytes,
        client: Client,
        requester: Requester,
        *,
        max_packet_bytes: int = TARGET_PACKET_BYTES,
    ) -> Completion | Failure:
        """Answer one P2P Request; return how it ended.

        Args:
            requester: the peer that asks, and its quotas.
            max_packet_bytes: the longest packet with more than one envelope.
        Raises:
            ConnectionLost: the client is gone. Nothing else is raised: the client is told what has failed.
        """
        record = RequestRecord(requester.node_id, _now(), fallback_request_id(payload))
        try:
            outcome, ending = await self._answer(payload, client, requester, max_packet_bytes, record)
            await send_in_turn(client, PacketCode.P2P_REQUEST_COMPLETE, self._encode(outcome))
            record.outcome = ending
        finally:  # also when the client goes away, and this is cancelled
            record.end(self._metrics, _now())
        return outcome

    async def _answer(
        self,
        payload: bytes,
        client: Client,
        requester: Requester,
        max_packet_bytes: int,
        record: RequestRecord,
    ) -> tuple[Completion | Failure, Outcome]:
        try:
            try:
                sealed = _decode(payload)
                record.request_id, record.is_clear = sealed.request_id, isinstance(sealed, ClearRequest)
                request = self._read(sealed, requester.node_id)
            except RequestRejected:
                _admit(requester, None)  # opening it took time, so it counts as a request
                raise
            _admit(requester, request.cursor)
            return await self._deliver(request, client, requester, max_packet_bytes, record), Outcome.DELIVERED
        except RequestRejected as error:
            record.refused(error.rejection, str(error))
            return Failure(record.request_id, error.message), Outcome.REJECTED
        except StoreError as error:
            record.refused(Rejection.STORE_UNAVAILABLE, str(error))
            return Failure(record.request_id, Rejection.STORE_UNAVAILABLE.value), Outcome.FAILED

    async def refuse(self, payload: bytes, rejected: RequestRejected, client: Client, peer: NodeId) -> None:
        """Answer a request that is not even opened with an error. It counts against no limit.

        Raises:
            ConnectionLost: the client is gone.
        """
        record = RequestRecord(peer, _now(), fallback_request_id(payload), is_counted=False)
        record.refused(rejected.rejection, str(rejected))
        try:
            with contextlib.suppress(RequestRejected):
                record.request_id = _decode(payload).request_id
            failure = Failure(record.request_id, rejected.message)
            await send_in_turn(client, PacketCode.P2P_REQUEST_COMPLETE, failure.encode())
            record.outcome = Outcome.REJECTED
        finally:
            record.end(self._metrics, _now())

    def _encode(self, outcome: Completion | Failure) -> bytes:
        if isinstance(outcome, Failure):
            return outcome.encode()
        return outcome.encode(self._settings.completion_format)

    def _read(self, request: SealedRequest | ClearRequest, asker: NodeId) -> MailRequest:
        settings = self._settings
        if isinstance(request, ClearRequest):
            if not settings.allow_clear:
                raise RequestRejected(Rejection.CLEAR_REFUSED)
            return decode_clear(request)
        if request.envelope.pow() < settings.min_request_pow:
            raise RequestRejected(Rejection.POW_TOO_LOW)
        return decode_fields(request.request_id, self._open(request, asker))

    def _open(self, request: SealedRequest, asker: NodeId) -> bytes:
        data = request.envelope.data
        try:
            return open_symmetric(data, self._settings.symmetric_key).payload
        except DecodeError:
            pass  # not sealed with the password; perhaps to our public key
        try:
            opened = open_asymmetric(data, self._settings.key).payload
        except DecodeError as error:
            raise RequestRejected(Rejection.UNDECRYPTABLE, str(error)) from error
        self._check_asker(request, asker)
        return opened

    def _check_asker(self, request: SealedRequest, asker: NodeId) -> None:
        """Refuse a request to our public key that another peer has made before.

        A peer that captured the request cannot read it, but would learn from the answer what it asks for. Requests that
        are sealed with the password need no such check: every peer that knows the password can read them anyway. Old
        requests are answered, as by deployed mailservers: the clocks of phones are wrong.
        """
        if self._askers.setdefault(request.request_id, asker) != asker:
            raise RequestRejected(Rejection.REPLAYED)
        if len(self._askers) > MAX_REMEMBERED_REQUESTS:
            self._askers.popitem(last=False)

    async def _deliver(
        self,
        request: MailRequest,
        client: Client,
        requester: Requester,
        max_packet_bytes: int,
        record: RequestRecord,
    ) -> Completion:
        lower, upper = request.bounds(int(self._clock()))
        limit = min(request.limit or self._settings.max_limit, self._settings.max_limit)
        record.asks(request, lower=lower, upper=upper, limit=limit)
        bill = requester.bill(_now())

        def charge(work: int) -> None:
            record.work += work
            bill.charge_work(work, _now())

        payer = Payer(requester.address, requester.node_id, charge)
        page = await self._find(Query(lower, upper, request.interest, request.cursor), limit, payer)
        record.found_at = _now()
        record.is_early = page.ended_early
        await self._send_all(page, request, client, max_packet_bytes, record, bill)
        end = page.end
        cursor = None if end is None else Cursor(*end)
        if cursor is not None:
            requester.remember_cursor(cursor, _now())
        return Completion(request.request_id, page.last_hash or NO_ENVELOPE, cursor)

    async def _find(self, query: Query, limit: int, payer: Payer) -> Page:
        began = _now()

        def goes_on(work: int) -> bool:
            return work < PAGE_WORK and _now() - began < PAGE_TIME_S

        try:
            async with asyncio.timeout(FIND_TIMEOUT_S):
                return await self._source.find(query, limit, payer=payer, goes_on=goes_on)
        except TimeoutError as error:
            raise StoreError(f"no page found within {FIND_TIMEOUT_S:g} s") from error

    async def _send_all(
        self,
        page: Page,
        request: MailRequest,
        client: Client,
        max_packet_bytes: int,
        record: RequestRecord,
        bill: Bill,
    ) -> None:
        """Send what was found, packet by packet."""
        max_bytes = max_body_bytes(max_packet_bytes)
        mean = _LIKELY_BYTES
        while page.left:
            # As many as will fit if they are as long as those of the packet before.
            count = 1 if request.one_per_packet else min(max_bytes // mean + 1, _MAX_ROWS, page.left)
            # Wait first, then read envelopes and send them at once: so a client that stalls costs no memory.
            await client.wait_turn(min(packet_bytes(count * mean), max_packet_bytes))
            raws = await page.read(count, max_bytes)
            bill.charge_envelopes(len(raws.sizes), _now())
            if raws.body:
                payload = encode_body(raws.body)
                client.send(PacketCode.P2P_MESSAGE, payload)
                count = len(raws.sizes) - raws.sizes.count(0)
                mean = len(raws.body) // count
                record.sent(count, len(payload), _now(), archived=raws.archived)
                self._metrics.batch_size.observe(len(payload))
            del raws


def _decode(payload: bytes) -> SealedRequest | ClearRequest:
    if len(payload) > MAX_REQUEST_BYTES:
        raise RequestRejected(Rejection.MALFORMED, f"{len(payload)} bytes")
    try:
        return decode_request(payload)
    except DecodeError as error:
        raise RequestRejected(Rejection.MALFORMED, str(error)) from error


def _admit(requester: Requester, cursor: Cursor | None) -> None:
    seconds = requester.admit(cursor, _now())
    if seconds > 0:
        raise RequestRejected(Rejection.RATE_LIMITED, f"{seconds:.3g} s too early", math.ceil(seconds))


async def send_in_turn(client: Client, code: PacketCode, payload: bytes) -> None:
    """Wait until a packet may be sent, and send it.

    Raises:
        ConnectionLost: the client is gone.
    """
    await client.wait_turn(len(payload))
    client.send(code, payload)


def _now() -> float:
    return asyncio.get_running_loop().time()
