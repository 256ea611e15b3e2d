"""Messages (9/WAKU-RPC): posting, filtering, polling and subscribing.

waku_post departs from the specification where deployed nodes do. If ttl is 0 or absent, it is 50 s. If powTime is
absent, it is 5 s. If powTarget is absent, it is what this node demands. The topic may be absent if the message is
sealed to a public key; it is then 0x00000000.
"""

import asyncio
from functools import partial

from mailserver.api.caller import Call
from mailserver.api.dialects import Dialect
from mailserver.api.dispatch import Method, Result
from mailserver.api.errors import ErrorCode, RpcError
from mailserver.api.filters import MAX_FILTER_TOPICS, Criteria, Filter, Filters, Message
from mailserver.api.keys import KeyStore
from mailserver.api.params import (
    MAX_FLOAT,
    Fields,
    Json,
    encode_hex,
    encode_public_key,
    enode,
    flag,
    hex_bytes,
    identifier,
    list_of,
    number,
    public_key,
    text,
    topic,
    topic_prefix,
    whole,
)
from mailserver.api.sending import SendingMethods
from mailserver.api.work import Works
from mailserver.client.sealing import mine_envelope, seal_to_key, seal_to_node
from mailserver.codec.keys import PrivateKey
from mailserver.live.intake import Clock
from mailserver.peers.node import Node
from mailserver.units import number_text
from mailserver.waku.acceptance import MAX_ENVELOPE_BYTES, Verdict
from mailserver.waku.envelope import MAX_U32, TOPIC_BYTES, Topic

DEFAULT_TTL_S = 50
DEFAULT_POW_TIME_S = 5.0
"""The values of `ttl` and `powTime` if they are absent."""

MAX_POW_TIME_S = 60.0
"""Longest search for a proof of work, whatever `powTime` allows."""

MESSAGES = "messages"
"""The only name that callers can subscribe to."""

_POST = ("symKeyID", "pubKey", "sig", "ttl", "topic", "payload", "padding", "powTime", "powTarget", "targetPeer")
_FILTER = ("symKeyID", "privateKeyID", "sig", "minPow", "topics", "allowP2P")
_NO_TOPIC = Topic(bytes(TOPIC_BYTES))


class PostMethods(SendingMethods):
    """Sending."""

    def __init__(self, node: Node, keys: KeyStore, works: Works, *, dialect: Dialect, clock: Clock) -> None:
        """As for SendingMethods. `dialect` says what waku_post returns."""
        super().__init__(node, keys, works, clock=clock)
        self._dialect = dialect

    def table(self) -> dict[str, Method]:
        """The methods by name."""
        return {"waku_post": Method(self._post, ("message",))}

    async def _post(self, params: Fields, call: Call) -> Json:
        """Seal a message, find its proof of work, and post it, or send it to one peer only."""
        message = params.object("message", _POST)
        ttl = message.optional("ttl", whole(0, MAX_U32), 0) or DEFAULT_TTL_S
        pow_time = message.optional("powTime", number(0, MAX_U32), DEFAULT_POW_TIME_S)
        target = message.maybe("targetPeer", enode)
        min_pow = self._node.requirements.min_pow if target is None else 0.0
        pow_target = message.optional("powTarget", number(0, MAX_FLOAT), min_pow)
        message_topic = message.maybe("topic", topic)
        data = self._seal(message, has_topic=message_topic is not None)
        await asyncio.sleep(0)  # so far a megabyte has taken 10 ms, and judging and storing it takes as long again

        if pow_target < min_pow:
            raise RpcError(
                ErrorCode.REFUSED, f"message rejected, PoW too low: this node demands {number_text(min_pow)}"
            )
        if len(data) > self._node.requirements.max_envelope_bytes:
            raise RpcError(ErrorCode.REFUSED, Verdict.OVERSIZE.value)
        now = int(self._clock())
        if now + ttl > MAX_U32:
            raise message.wrong("ttl", "the envelope would expire after 2106")
        with self._works.place() as turn:
            envelope = await mine_envelope(
                data,
                _NO_TOPIC if message_topic is None else message_topic,
                ttl=ttl,
                min_pow=pow_target,
                now=now,
                limit_s=min(pow_time, MAX_POW_TIME_S),
                turn=turn,
            )
        if len(envelope.raw) > self._node.requirements.max_envelope_bytes:
            raise RpcError(ErrorCode.REFUSED, Verdict.OVERSIZE.value)
        if target is None:
            await self._node.post(envelope)
        else:
            await self._node.send_direct(target.node_id, envelope)
        return encode_hex(envelope.hash()) if self._dialect is Dialect.DEPLOYED else True

    def _seal(self, message: Fields, *, has_topic: bool) -> bytes:
        key_id = message.maybe("symKeyID", identifier)
        recipient = message.maybe("pubKey", public_key)
        payload = message.required("payload", hex_bytes(0, MAX_ENVELOPE_BYTES))
        padding = message.maybe("padding", hex_bytes(1, MAX_ENVELOPE_BYTES))
        signing_key = self._signing_key(message)
        if (key_id is None) == (recipient is None):
            raise message.wrong("symKeyID", "give either this or pubKey, not both")
        if recipient is not None:
            return seal_to_node(payload, recipient, padding=padding, signing_key=signing_key)
        assert key_id is not None
        if not has_topic:
            raise message.wrong("topic", "missing")
        return seal_to_key(payload, self._keys.symmetric(key_id), padding=padding, signing_key=signing_key)

    def _signing_key(self, message: Fields) -> PrivateKey | None:
        key_id = message.maybe("sig", identifier)
        return None if key_id is None else self._keys.pair(key_id)


class FilterMethods:
    """Receiving."""

    def __init__(self, keys: KeyStore, filters: Filters) -> None:
        self._keys = keys
        self._filters = filters

    def table(self) -> dict[str, Method]:
        """The methods by name."""
        return {
            "waku_newMessageFilter": Method(self._new_message_filter, ("filter",)),
            "waku_getFilterMessages": Method(self._get_filter_messages, ("id",)),
            "waku_deleteMessageFilter": Method(self._delete_message_filter, ("id",)),
            "waku_subscribe": Method(self._subscribe, ("name", "filter")),
            "waku_unsubscribe": Method(self._unsubscribe, ("id",)),
        }

    async def _new_message_filter(self, params: Fields, call: Call) -> Json:
        return self._filters.install(self._criteria(params)).id

    async def _get_filter_messages(self, params: Fields, call: Call) -> Result:
        return map(_shown, self._filters.get(params.required("id", identifier)).take())

    async def _delete_message_filter(self, params: Fields, call: Call) -> Json:
        filter_ = self._filters.get(params.required("id", identifier))  # not that of a subscription
        return self._filters.uninstall(filter_.id)

    async def _subscribe(self, params: Fields, call: Call) -> Json:
        if params.required("name", text(len(MESSAGES))) != MESSAGES:
            raise params.wrong("name", f"not {MESSAGES!r}, which is the only choice")
        criteria = self._criteria(params)
        call.caller.check_room()
        filter_ = self._filters.install(criteria, expires=False)
        call.caller.follow(filter_.id, _follow(filter_, call), lambda: self._filters.uninstall(filter_.id))
        return filter_.id

    async def _unsubscribe(self, params: Fields, call: Call) -> Json:
        return call.caller.cancel(params.required("id", identifier))

    def _criteria(self, params: Fields) -> Criteria:
        fields = params.object("filter", _FILTER)
        key_id = fields.maybe("symKeyID", identifier)
        private_key_id = fields.maybe("privateKeyID", identifier)
        topics = fields.maybe("topics", list_of(topic_prefix, MAX_FILTER_TOPICS)) or []
        signer = fields.maybe("sig", public_key)
        min_pow = fields.optional("minPow", number(0, MAX_FLOAT), 0.0)
        allow_p2p = fields.optional("allowP2P", flag, default=False)
        if (key_id is None) == (private_key_id is None):
            raise fields.wrong("symKeyID", "give either this or privateKeyID, not both")
        if key_id is not None and not topics:
            raise fields.wrong("topics", "missing")
        return Criteria(
            symmetric_key=None if key_id is None else self._keys.symmetric(key_id),
            private_key=None if private_key_id is None else self._keys.pair(private_key_id),
            signer=signer,
            min_pow=min_pow,
            topics=tuple(topics),
            allow_p2p=allow_p2p,
        )


async def _follow(filter_: Filter, call: Call) -> None:
    """Notify a subscriber of what its filter takes, as fast as it reads, until the filter is gone."""
    await call.answered.wait()
    while messages := await filter_.next():
        for message in messages:
            await call.caller.notify("waku_subscription", partial(_notification, filter_.id, message))


def _notification(subscription: str, message: Message) -> Json:
    return {"subscription": subscription, "result": _shown(message)}


def _shown(message: Message) -> Json:
    """A message in the form of 9/WAKU-RPC."""
    envelope, opened = message.envelope, message.opened
    return {
        "sig": None if opened.signer is None else encode_public_key(opened.signer),
        "recipientPublicKey": None if message.recipient is None else encode_public_key(message.recipient),
        "ttl": envelope.ttl,
        "timestamp": envelope.created,
        "topic": encode_hex(envelope.topic),
        "payload": encode_hex(opened.payload),
        "padding": encode_hex(opened.padding),
        "pow": message.pow,
        "hash": encode_hex(message.hash),
    }
