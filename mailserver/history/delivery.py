"""Answers history requests: P2P Request -> P2P Messages -> P2P Request Complete (8/WAKU-MAIL).

Every answer ends with a completion, or with an error completion if anything went wrong. A client that hears nothing
would wait for minutes.
"""

import asyncio
import contextlib
import math
from collections.abc import Hashable
from dataclasses import dataclass
from functools import partial

from mailserver.codec import rlp
from mailserver.codec.keys import NodeId, PrivateKey
from mailserver.errors import DecodeError, Rejection, RequestRejected, StoreError
from mailserver.history.opening import Opener
from mailserver.history.requests import RequestRecord
from mailserver.history.sending import Client, EnvelopePackets, Sent, send_in_turn
from mailserver.limits.request_quotas import Requester
from mailserver.live.intake import Clock
from mailserver.mail.completion import NO_ENVELOPE, Completion, CompletionFormat, Failure
from mailserver.mail.packing import TARGET_PACKET_BYTES
from mailserver.mail.request import (
    REQUEST_ID_BYTES,
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
from mailserver.waku.envelope import encode_body
from mailserver.waku.packets import PacketCode

MAX_REQUEST_BYTES = 16 * 1024
"""The longest P2P Request payload. A request with as many topics as there may be takes 8 kB."""

PAGE_WORK = 500_000
"""After this much work of the source, the search by a bloom filter ends with what it has found: a sixth of a second of
one processor. If the source has to look at the envelopes of a day one by one, it looks at some 100,000."""

PAGE_TIME_S = 4.0
"""The search also ends after this time, if many wait for the source: clients give up a request after 10 to 30 s."""

FIND_TIMEOUT_S = 10.0
"""How long the source may search for one page. After that, the request fails."""


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
    """Answers history requests from one source. `opener` opens what is sealed."""

    def __init__(self, source: HistorySource, settings: DeliverySettings, clock: Clock, *, metrics: Metrics) -> None:
        self._source = source
        self._settings = settings
        self._clock = clock
        self._metrics = metrics
        self.opener = Opener(settings.symmetric_key, settings.key, settings.min_request_pow)

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
        record = RequestRecord(requester.node_id, _now(), _request_id_of(payload))
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
            check_quota(requester, may_follow=True)  # before time is spent on it
            try:
                sealed = _decode(payload)
                record.request_id, record.is_clear = sealed.request_id, isinstance(sealed, ClearRequest)
                request = self._read(sealed, requester.node_id)
            except RequestRejected:
                admit(requester, None)  # opening it took time, so it counts as a request
                raise
            admit(requester, request.cursor)
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
        record = RequestRecord(peer, _now(), _request_id_of(payload), is_counted=False)
        record.refused(rejected.rejection, str(rejected))
        try:
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
        plaintext = self.opener.open(request.request_id, request.envelope, asker)
        return decode_fields(request.request_id, plaintext)

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
        packets = EnvelopePackets(
            client, PacketCode.P2P_MESSAGE, encode_body, max_packet_bytes, bill, partial(self._on_sent, record)
        )
        await packets.send_all(page, one_by_one=request.one_per_packet)
        end = page.end
        cursor = None if end is None else Cursor(*end)
        if cursor is not None:
            requester.remember_cursor(cursor, _now())
        return Completion(request.request_id, page.last_hash or NO_ENVELOPE, cursor)

    def _on_sent(self, record: RequestRecord, sent: Sent) -> None:
        record.sent(sent.envelopes, sent.bytes, _now(), archived=sent.archived)
        self._metrics.batch_size.observe(sent.bytes)

    async def _find(self, query: Query, limit: int, payer: Payer) -> Page:
        began = _now()

        def goes_on(work: int) -> bool:
            return work < PAGE_WORK and _now() - began < PAGE_TIME_S

        try:
            async with asyncio.timeout(FIND_TIMEOUT_S):
                return await self._source.find(query, limit, payer=payer, goes_on=goes_on)
        except TimeoutError as error:
            raise StoreError(f"no page found within {FIND_TIMEOUT_S:g} s") from error


def _decode(payload: bytes) -> SealedRequest | ClearRequest:
    if len(payload) > MAX_REQUEST_BYTES:
        raise RequestRejected(Rejection.MALFORMED, f"{len(payload)} bytes")
    try:
        return decode_request(payload)
    except DecodeError as error:
        raise RequestRejected(Rejection.MALFORMED, str(error)) from error


def _request_id_of(payload: bytes) -> RequestId:
    """The id of a request, read without the rest of it: a refusal names it, and is to cost no more than that."""
    with contextlib.suppress(DecodeError):
        _, at, end = rlp.header(payload, 0, len(payload))
        is_list, start, stop = rlp.header(payload, at, end)
        if not is_list and stop - start == REQUEST_ID_BYTES:  # in the clear
            return RequestId(payload[start:stop])
    return fallback_request_id(payload)  # of an envelope, its id is just that


def check_quota(requester: Requester, *, may_follow: bool) -> None:
    """Refuse what is not decoded yet if its sender may ask for nothing now.

    Args:
        may_follow: as in `Requester.wait`.
    Raises:
        RequestRejected: it is too early.
    """
    _refuse_early(requester.wait(_now(), may_follow=may_follow))


def admit(requester: Requester, cursor: Hashable | None) -> None:
    """Let one more page be searched.

    Args:
        cursor: as in `Requester.admit`.
    Raises:
        RequestRejected: it is too early.
    """
    _refuse_early(requester.admit(cursor, _now()))


def _refuse_early(seconds: float) -> None:
    if seconds > 0:
        raise RequestRejected(Rejection.RATE_LIMITED, f"{seconds:.3g} s too early", math.ceil(seconds))


def _now() -> float:
    return asyncio.get_running_loop().time()
