"""Asking a mailserver for history (10/WAKU-USAGE "wakuext_requestMessages").

The mailserver must be a trusted peer. The call does not wait for the answer, but returns the id of the request. The
envelopes of the answer go to the filters that allow peer-to-peer messages. How the request ended is sent to subscribers
as a notification, with the members of the deployed node's signal `mailserver.request.completed`. A bound or `timeout`
of 0 counts as absent, as in deployed nodes. `force`, which deployed clients send, is checked and has no effect.
"""

import secrets
from functools import partial

from mailserver.api.caller import Call
from mailserver.api.dispatch import Method
from mailserver.api.errors import ErrorCode, RpcError
from mailserver.api.keys import KeyStore
from mailserver.api.params import (
    MAX_FLOAT,
    Fields,
    Json,
    encode_hex,
    enode,
    flag,
    hex_bytes,
    identifier,
    list_of,
    number,
    text,
    topic,
    whole,
)
from mailserver.api.sending import SendingMethods
from mailserver.api.work import Works
from mailserver.client.sealing import seal_request
from mailserver.codec.keys import NodeId
from mailserver.live.intake import Clock
from mailserver.mail.completion import NO_ENVELOPE, Completion, Failure
from mailserver.mail.request import CURSOR_BYTES, MAX_REQUEST_TOPICS, UNSEALED_ID, Cursor, MailRequest
from mailserver.peers.completions import ANSWER_TIMEOUT_S, Asker, OutcomeQueue
from mailserver.peers.connected import PeerInfo
from mailserver.peers.node import Node
from mailserver.waku.bloom import Interest
from mailserver.waku.envelope import MAX_U32, Topic

DEFAULT_RANGE_S = 24 * 3600
"""How far back a request without a lower bound goes."""

COMPLETIONS = "completions"
"""The only name that callers can subscribe to."""

SUBSCRIPTION_ID_BYTES = 32
"""Number of random bytes of an id, which is written as lowercase hex digits."""

_REQUEST = (
    "mailServerPeer",
    "from",
    "to",
    "limit",
    "cursor",
    "topic",
    "topics",
    "symKeyID",
    "timeout",
    "force",
)


class HistoryMethods(SendingMethods):
    """Requests to other mailservers."""

    def __init__(self, node: Node, keys: KeyStore, works: Works, *, clock: Clock, request_pow: float) -> None:
        """As for SendingMethods. `request_pow` is the lowest proof of work of a request."""
        super().__init__(node, keys, works, clock=clock)
        self._request_pow = request_pow

    def table(self) -> dict[str, Method]:
        """The methods by name."""
        return {
            "wakuext_requestMessages": Method(self._request_messages, ("request",)),
            "wakuext_subscribe": Method(self._subscribe, ("name",)),
            "wakuext_unsubscribe": Method(self._unsubscribe, ("id",)),
        }

    async def _request_messages(self, params: Fields, call: Call) -> Json:
        fields = params.object("request", _REQUEST)
        node_id = fields.required("mailServerPeer", enode).node_id
        key_id = fields.required("symKeyID", identifier)
        timeout_s = fields.optional("timeout", number(0, MAX_FLOAT), 0.0) or ANSWER_TIMEOUT_S
        now = int(self._clock())
        request = _request(fields, now)
        peer, key = self._mailserver(node_id), self._keys.symmetric(key_id)
        min_pow = max(peer.settings.pow_requirement, self._request_pow)
        with self._works.place() as turn:
            envelope = await seal_request(request, key, min_pow=min_pow, now=now, turn=turn)
        asker = Asker(call.caller, call.answered)
        await self._node.request_history(peer.node_id, envelope, asker=asker, timeout_s=timeout_s)
        return encode_hex(envelope.hash())

    async def _subscribe(self, params: Fields, call: Call) -> Json:
        if params.required("name", text(len(COMPLETIONS))) != COMPLETIONS:
            raise params.wrong("name", f"not {COMPLETIONS!r}, which is the only choice")
        call.caller.check_room()
        subscription = secrets.token_hex(SUBSCRIPTION_ID_BYTES)
        completions = self._node.completions
        outcomes = completions.subscribe()
        call.caller.follow(
            subscription, _notify(outcomes, subscription, call), lambda: completions.unsubscribe(outcomes)
        )
        return subscription

    async def _unsubscribe(self, params: Fields, call: Call) -> Json:
        return call.caller.cancel(params.required("id", identifier))

    def _mailserver(self, node_id: NodeId) -> PeerInfo:
        peer = next((peer for peer in self._node.peers() if peer.node_id == node_id), None)
        if peer is None:
            raise RpcError(ErrorCode.PEER_UNAVAILABLE, "the mailserver is not connected")
        if not peer.is_trusted:
            raise RpcError(ErrorCode.PEER_UNAVAILABLE, "the mailserver is not trusted: call waku_markTrustedPeer")
        return peer


async def _notify(outcomes: OutcomeQueue, subscription: str, call: Call) -> None:
    """Notify a subscriber of how requests end, as fast as it reads, until this is cancelled."""
    await call.answered.wait()
    while True:
        ended = await outcomes.next()
        if ended.asker.who is call.caller:  # the notification must not overtake the answer with the request's id
            await ended.asker.told.wait()
        await call.caller.notify("wakuext_subscription", partial(_notification, subscription, ended.outcome))


def _notification(subscription: str, outcome: Completion | Failure) -> Json:
    if isinstance(outcome, Failure):
        last, cursor, message = NO_ENVELOPE, "", outcome.message
        if outcome.is_pow_too_low:
            message += "; raise the setting request_pow of this node"
    else:
        last, cursor, message = outcome.last_envelope_hash, outcome.cursor.encode().hex() if outcome.cursor else "", ""
    result = {
        "requestID": encode_hex(outcome.request_id),
        "lastEnvelopeHash": encode_hex(last),
        "cursor": cursor,
        "errorMessage": message,
    }
    return {"subscription": subscription, "result": result}


def _request(fields: Fields, now: int) -> MailRequest:
    upper = fields.optional("to", whole(0, MAX_U32), 0) or now
    lower = fields.optional("from", whole(0, MAX_U32), 0) or max(upper - DEFAULT_RANGE_S, 0)
    if lower > upper:
        raise fields.wrong("from", "later than to")
    cursor = fields.maybe("cursor", hex_bytes(CURSOR_BYTES, CURSOR_BYTES, bare=True))  # deployed clients write no 0x
    fields.maybe("force", flag)
    return MailRequest(
        UNSEALED_ID,
        lower=lower,
        upper=upper,
        interest=Interest(topics=frozenset(_topics(fields))),
        limit=fields.optional("limit", whole(0, MAX_U32), 0),
        cursor=None if cursor is None else Cursor.decode(cursor),
    )


def _topics(fields: Fields) -> list[Topic]:
    """`topics`, or the single `topic` that older clients send."""
    topics = fields.maybe("topics", list_of(topic, MAX_REQUEST_TOPICS)) or []
    single = fields.maybe("topic", topic)
    if not topics and single is None:
        raise fields.wrong("topics", "missing")
    return topics or [single] if single is not None else topics
