"""The questions about message ids on one connection: who may ask them, and what becomes of each.

Every question ends with its answer, or with Refused. Whoever hears nothing would wait for minutes.
"""

import asyncio
from collections.abc import Hashable

from mailserver.errors import DecodeError, Rejection, RequestRejected, StoreError
from mailserver.history.delivery import admit, check_quota
from mailserver.history.id_answers import MAX_LISTED_IDS, IdAnswer, IdServices, followed
from mailserver.history.id_record import IdRecord
from mailserver.history.sending import Client, send_in_turn
from mailserver.limits.request_quotas import Requester
from mailserver.mail.packing import TARGET_PACKET_BYTES
from mailserver.mail.request import RequestId
from mailserver.metrics.labels import IdRequestKind, Outcome
from mailserver.store.message_ids import NotIndexedYet, RangeTooWide, StoreBusy, TooManyIds
from mailserver.waku.envelope import Envelope
from mailserver.wakuid.access import check_access
from mailserver.wakuid.answers import Refused, Terms
from mailserver.wakuid.packets import MAX_RECONCILE_BYTES, IdPacketCode, What
from mailserver.wakuid.questions import (
    Fetch,
    FetchItems,
    Open,
    Query,
    Question,
    Reconcile,
    decode_question,
    request_id_of,
)

NOT_INDEXED_RETRY_S = 60
"""When to come back if the store still indexes what it has."""

BUSY_RETRY_S = 10
"""When to come back if the store has too much to do for others: who waits for it gives up after as long."""


class IdConversation:
    """The questions of one connection. Access is granted to it for as long as it lasts."""

    def __init__(self, services: IdServices) -> None:
        self._services = services
        self._has_access = False

    async def answer(
        self,
        code: IdPacketCode,
        payload: bytes,
        client: Client,
        requester: Requester,
        *,
        max_packet_bytes: int = TARGET_PACKET_BYTES,
    ) -> None:
        """Answer one question.

        Args:
            code: one of `wakuid.packets.QUESTIONS`.
            requester: the peer that asks, and its quotas.
            max_packet_bytes: the longest packet with more than one id or envelope.
        Raises:
            ConnectionLost: the client is gone. Nothing else is raised: the client is told what has failed.
        """
        record = IdRecord(requester.node_id, _now(), request_id_of(payload))
        try:
            rejected = await self._answer(code, payload, client, requester, max_packet_bytes, record)
            if rejected is None:
                record.outcome = Outcome.DELIVERED
                return
            await send_in_turn(client, IdPacketCode.REFUSED, _refused(record, rejected))
            is_ours = rejected.rejection is Rejection.STORE_UNAVAILABLE
            record.outcome = Outcome.FAILED if is_ours else Outcome.REJECTED
        finally:  # also when the client goes away, and this is cancelled
            record.end(self._services.metrics, _now())

    async def refuse(self, payload: bytes, rejected: RequestRejected, client: Client, requester: Requester) -> None:
        """Refuse a question that is not even decoded. It counts against no limit.

        Raises:
            ConnectionLost: the client is gone.
        """
        record = IdRecord(requester.node_id, _now(), request_id_of(payload), is_counted=False)
        try:
            await send_in_turn(client, IdPacketCode.REFUSED, _refused(record, rejected))
            record.outcome = Outcome.REJECTED
        finally:
            record.end(self._services.metrics, _now())

    async def _answer(
        self,
        code: IdPacketCode,
        payload: bytes,
        client: Client,
        requester: Requester,
        max_packet_bytes: int,
        record: IdRecord,
    ) -> RequestRejected | None:
        """Answer a question; return why it is refused, if it is."""
        try:
            check_quota(requester, may_follow=code is IdPacketCode.QUERY)  # before time is spent on it
            try:
                if code is not IdPacketCode.OPEN and not self._has_access:
                    raise RequestRejected(Rejection.NO_ACCESS)
                question = _decode(code, payload)
                _note(record, question)
                self._check(question, requester)
            except RequestRejected:
                admit(requester, None)  # looking at it took time, so it counts as a request
                raise
            admit(requester, _followed(question))
            if isinstance(question, Open):
                self._has_access = True
                await send_in_turn(client, IdPacketCode.TERMS, self._terms(question))
            else:
                await IdAnswer(self._services, client, requester, max_packet_bytes, record).send(question)
        except RequestRejected as error:
            return error
        except DecodeError as error:
            is_cursor = code is IdPacketCode.QUERY
            return RequestRejected(Rejection.BAD_CURSOR if is_cursor else Rejection.MALFORMED, str(error))
        except NotIndexedYet as error:
            return RequestRejected(Rejection.NOT_INDEXED, str(error), NOT_INDEXED_RETRY_S)
        except TooManyIds as error:
            return RequestRejected(Rejection.TOO_MANY_ITEMS, str(error))
        except StoreBusy as error:  # that is the doing of peers, and no failure
            return RequestRejected(Rejection.RATE_LIMITED, str(error), BUSY_RETRY_S)
        except RangeTooWide:
            return RequestRejected(Rejection.TOO_WIDE)
        except StoreError as error:
            return RequestRejected(Rejection.STORE_UNAVAILABLE, str(error))
        return None

    def _check(self, question: Question, requester: Requester) -> None:
        """Refuse an OPEN that shows nothing, and a question about the ids of another network, or without a range.

        Raises:
            RequestRejected: it is refused.
        """
        settings = self._services.settings
        if isinstance(question, Open):
            if question.envelope is not None:
                self._check_envelope(question.envelope, requester)
            elif not settings.allow_clear:
                raise RequestRejected(Rejection.CLEAR_REFUSED)
            return
        if question.network_topic != self._services.ids.network_topic:
            raise RequestRejected(Rejection.OTHER_NETWORK, question.network_topic)
        if isinstance(question, Query | Reconcile) and question.lower > question.upper:
            raise RequestRejected(Rejection.BAD_RANGE, f"{question.lower} > {question.upper}")

    def _check_envelope(self, envelope: Envelope, requester: Requester) -> None:
        plaintext = self._services.opener.open(RequestId(envelope.hash()), envelope, requester.node_id)
        try:
            check_access(plaintext, requester.node_id)
        except DecodeError as error:
            raise RequestRejected(Rejection.MALFORMED, str(error)) from error

    def _terms(self, question: Open) -> bytes:
        services = self._services
        terms = Terms(
            question.request_id,
            services.ids.network_topic,
            since=services.since(),
            now=int(services.clock()),
            max_ids=MAX_LISTED_IDS,
            max_envelopes=services.settings.max_envelopes,
            max_message_bytes=MAX_RECONCILE_BYTES,
        )
        return terms.encode()


def _decode(code: IdPacketCode, payload: bytes) -> Question:
    try:
        return decode_question(code, payload)
    except DecodeError as error:
        raise RequestRejected(Rejection.MALFORMED, str(error)) from error


def _refused(record: IdRecord, rejected: RequestRejected) -> bytes:
    record.refused(rejected.rejection, str(rejected))
    return Refused(
        record.request_id, rejected.rejection, rejected.message, retry_after_s=rejected.retry_after_s or 0
    ).encode()


def _note(record: IdRecord, question: Question) -> None:
    """Note what a question asks for."""
    match question:
        case Open():
            record.kind = IdRequestKind.OPEN
        case Query(what=What.IDS):
            record.kind = IdRequestKind.LIST
        case Query():
            record.kind = IdRequestKind.ENVELOPES
        case Fetch():
            record.kind = IdRequestKind.FETCH
        case FetchItems():
            record.kind = IdRequestKind.FETCH_ITEMS
        case Reconcile():
            record.kind = IdRequestKind.RECONCILE
    if isinstance(question, Query | Reconcile):
        record.lower, record.upper = question.lower, question.upper
        record.topics = len(question.interest.topics or ())


def _followed(question: Question) -> Hashable | None:
    """The cursor that a question follows."""
    return followed(question.order, question.cursor) if isinstance(question, Query) and question.cursor else None


def _now() -> float:
    return asyncio.get_running_loop().time()
