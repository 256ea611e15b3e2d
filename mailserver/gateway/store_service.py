"""Answers queries for history (13/WAKU2-STORE, version 3.0.0)."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import replace
from functools import partial

from mailserver.errors import DecodeError, StoreError
from mailserver.gateway.index.message_store import MessageStore
from mailserver.gateway.index.values import TooManyAlike, UnknownCursor
from mailserver.gateway.peer import Peer
from mailserver.gateway.rates import Rates
from mailserver.limits.admission import groups_of
from mailserver.metrics.gateway import ClientProtocol, GatewayMetrics
from mailserver.store.interface import Payer
from mailserver.store.message_ids import NotIndexedYet
from mailserver.waku2.codes import StoreStatus
from mailserver.waku2.fields import request_id_of
from mailserver.waku2.protocols import FRAME_BOUNDS, ProtocolId
from mailserver.waku2.store_query import (
    StoreQueryRequest,
    StoreQueryResponse,
    decode_store_query_request,
)
from mailserver.waku2.store_rules import UNKNOWN_CURSOR, StoreQuery, StoreRefusal, check_query

log = logging.getLogger(__name__)

QUERY_TIMEOUT_S = 10.0
"""How long a query may take, with the wait for others."""

MAX_QUERY_WORK = 3_000_000
"""How much of the store one query reads before its page ends early, if there is anything on it: about a second."""

_TOO_MANY = StoreRefusal(StoreStatus.TOO_MANY_REQUESTS, StoreStatus.TOO_MANY_REQUESTS.text)
_MALFORMED = StoreRefusal(StoreStatus.BAD_REQUEST, StoreStatus.BAD_REQUEST.text)
_UNAVAILABLE = StoreRefusal(StoreStatus.SERVICE_UNAVAILABLE, StoreStatus.SERVICE_UNAVAILABLE.text)

_NOT_INDEXED = StoreRefusal(StoreStatus.SERVICE_UNAVAILABLE, "messages are not indexed yet")


class StoreService:
    """Answers store queries out of the index of messages."""

    max_request_bytes = FRAME_BOUNDS[ProtocolId.STORE_QUERY].to_service

    def __init__(self, messages: MessageStore, rates: Rates, metrics: GatewayMetrics) -> None:
        self._messages = messages
        self._rates = rates
        self._metrics = metrics

    def answer(self, peer: Peer, request: bytes) -> bytes | Callable[[], Awaitable[bytes]]:
        """Answer a query, once it is this client's turn."""
        now = asyncio.get_running_loop().time()
        if (
            peer.is_busy
            or self._rates.owes_work(peer.host, now)
            or not self._rates.take(ClientProtocol.STORE, peer.host, now)
        ):
            return self._encoded(_TOO_MANY.answer(request_id_of(request)))
        try:
            asked = decode_store_query_request(request)
        except DecodeError:
            return self._encoded(_MALFORMED.answer(request_id_of(request)))
        query = check_query(asked)
        if isinstance(query, StoreRefusal):
            return self._encoded(query.answer(asked.request_id))
        return partial(self._answer, peer, asked, query)

    async def _answer(self, peer: Peer, asked: StoreQueryRequest, query: StoreQuery) -> bytes:
        loop = asyncio.get_running_loop()
        began = loop.time()
        answer = await self._find(peer, asked.request_id, query)
        seconds = loop.time() - began
        self._metrics.query_delay.observe(seconds)
        self._metrics.query_messages.inc(len(answer.encoded))
        log.info(
            "store query code=%d messages=%d hashes=%d topics=%d forward=%s cursor=%s data=%s ms=%.1f",
            answer.status_code,
            len(answer.encoded),
            len(query.message_hashes) + len(query.muids),
            len(query.content_topics),
            query.is_forward,
            query.cursor is not None,
            query.include_data,
            seconds * 1000,
        )
        return self._encoded(answer)

    async def _find(self, peer: Peer, request_id: str, query: StoreQuery) -> StoreQueryResponse:
        try:
            async with asyncio.timeout(QUERY_TIMEOUT_S):
                payer = Payer(groups_of(peer.host).address, peer.peer_id, partial(self._charge, peer.host))
                page = await self._messages.query(query, payer=payer, goes_on=_goes_on)
                while page.cursor is not None and not page.entries:  # js-waku ends its walk at an empty page
                    query = replace(query, cursor=page.cursor)
                    page = await self._messages.query(query, payer=payer, goes_on=_goes_on)
        except UnknownCursor:
            return UNKNOWN_CURSOR.answer(request_id)
        except NotIndexedYet:
            return _NOT_INDEXED.answer(request_id)
        except TooManyAlike as error:
            return StoreRefusal(StoreStatus.SERVICE_UNAVAILABLE, str(error)).answer(request_id)
        except (StoreError, TimeoutError) as error:
            log.error("store query failed error=%r", str(error) or type(error).__name__)
            return _UNAVAILABLE.answer(request_id)
        encoded = tuple([entry.encode() for entry in page.entries])
        status = StoreStatus.OK
        return StoreQueryResponse(request_id, status, status.text, pagination_cursor=page.cursor, encoded=encoded)

    def _charge(self, host: str, work: int) -> None:
        self._rates.charge(work, host, asyncio.get_running_loop().time())

    def _encoded(self, answer: StoreQueryResponse) -> bytes:
        self._metrics.requests.labels(ClientProtocol.STORE.value, str(int(answer.status_code))).inc()
        return answer.encode()


def _goes_on(work: int) -> bool:
    return work < MAX_QUERY_WORK
