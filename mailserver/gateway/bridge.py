"""From what clients of Waku v2 send to envelopes of Waku v1 (15/WAKU2-BRIDGE).

A message is sent once, however often clients send it: the index of messages knows those that are stored, and a restart
does not forget them. Its envelope is new: created now, with a ttl and a proof of work of ours. What an envelope cannot
say of its message, the index keeps before the envelope is posted, so that pushes, queries and cursors name the message
by the hash that its sender knows.
"""

import asyncio
import logging
from collections.abc import Callable

from mailserver.client.sealing import TooMuchWork, mine_envelope
from mailserver.errors import ConnectionLost, StoreError
from mailserver.feed_socket.client import FeedClient, PostUnanswered
from mailserver.feed_socket.frames import PostRefusal, Terms
from mailserver.gateway.index.message_store import MessageStore
from mailserver.ids.envelopes import NS, topic_of
from mailserver.ids.waku_message import MessageHash, WakuMessage
from mailserver.limits.buckets import TokenBucket
from mailserver.metrics.gateway import Bridging, GatewayMetrics
from mailserver.store.message_ids import NotIndexedYet
from mailserver.waku.envelope import Envelope, encode_envelope
from mailserver.waku2.codes import LightPushStatus
from mailserver.waku2.lightpush_rules import LightPushRules, LightPushVerdict, verdict

log = logging.getLogger(__name__)

MAX_SENDING = 64
"""How many messages may be on their way at once: each may have its proof of work sought."""

HASHES_PER_SECOND = 500_000.0
"""What one processor computes: a proof of work takes about size * ttl * min_pow hashes."""

WORK_BURST_S = 10.0
"""So many seconds' worth of the work may be done at once."""

MAX_WORK_S = 10.0
"""How long the work for one message may take. js-waku waits that long for an answer."""


NONCE_BYTES = 7
"""How much of its nonce an envelope has from the hash of its message: a nonce has 8 bytes at most."""


class Bridge:
    """Sends messages on as envelopes."""

    def __init__(
        self,
        messages: MessageStore,
        feed: FeedClient,
        metrics: GatewayMetrics,
        *,
        network_topic: str,
        ttl: int,
        pow_share: float,
        wall_clock: Callable[[], float],
    ) -> None:
        """Take what messages are sent with.

        Args:
            ttl: of the envelopes, in seconds. pow_share: which share of one processor may be spent on proofs of work;
            0: nothing is sent.
        """
        self._messages = messages
        self._feed = feed
        self._metrics = metrics
        self._network_topic = network_topic
        self._rules = LightPushRules(network_topic)
        self._ttl = ttl
        self._wall_clock = wall_clock
        now = asyncio.get_running_loop().time()
        self._work = TokenBucket(pow_share, pow_share * WORK_BURST_S, now) if pow_share else None
        self._turn = asyncio.Lock()
        self._sending: dict[MessageHash, asyncio.Task[LightPushVerdict]] = {}

    async def send(self, pubsub_topic: str | None, message: WakuMessage | None) -> LightPushVerdict:
        """Send a message on; return once the mailserver has stored it, or why it has not."""
        judged = self._rules.judge(pubsub_topic, message, int(self._wall_clock() * NS))
        if message is None or not judged.is_success:
            self._metrics.bridged[Bridging.REFUSED.value].inc()
            return judged
        name = message.hash(self._network_topic)
        sending = self._sending.get(name)
        if sending is None:
            if self._work is None:
                self._metrics.bridged[Bridging.REFUSED.value].inc()
                return LightPushVerdict(LightPushStatus.SERVICE_UNAVAILABLE, "no messages are sent on here")
            if len(self._sending) >= MAX_SENDING:
                self._metrics.bridged[Bridging.TOO_MANY.value].inc()
                return LightPushVerdict(LightPushStatus.TOO_MANY_REQUESTS, "too many messages are being sent")
            sending = self._sending[name] = asyncio.create_task(self._send(message, name), name="bridge")
            sending.add_done_callback(lambda _: self._sending.pop(name))
        # Whoever gives up does not stop it: somebody else may wait for the same message, or it may be posted already.
        return await asyncio.shield(sending)

    async def stop(self) -> None:
        """Give up what is being sent."""
        sending = [*self._sending.values()]
        for each in sending:
            each.cancel()
        await asyncio.gather(*sending, return_exceptions=True)

    async def _send(self, message: WakuMessage, name: MessageHash) -> LightPushVerdict:
        result, sent = await self._try(message, name)
        self._metrics.bridged[result.value].inc()
        return sent

    async def _try(self, message: WakuMessage, name: MessageHash) -> tuple[Bridging, LightPushVerdict]:
        terms = self._feed.terms
        if terms is None:
            return _failed("the mailserver is not running")
        if terms.network_topic != self._network_topic:
            return _failed("the mailserver has another network topic")
        if (refusal := self._refusal(message, terms)) is not None:
            return _refused(refusal)
        try:
            if await self._messages.is_stored(name):
                return Bridging.KNOWN, verdict(LightPushStatus.OK)
            envelope = await self._envelope(message, name, terms)
            if envelope is None:
                return Bridging.TOO_MANY, LightPushVerdict(
                    LightPushStatus.TOO_MANY_REQUESTS, "too much proof of work is needed"
                )
            return await self._post(envelope, message)
        except NotIndexedYet:
            return _failed("messages are not indexed yet")
        except StoreError as error:
            log.error("message not sent error=%r", str(error))
            return _failed("the message could not be stored")

    def _refusal(self, message: WakuMessage, terms: Terms) -> PostRefusal | None:
        """Why the mailserver would not take any envelope of this message, before work is done for one."""
        topic = topic_of(message.content_topic)
        if terms.topics is not None and topic not in terms.topics:
            return PostRefusal.UNWANTED_TOPIC
        expiry = int(self._wall_clock()) + self._ttl
        shortest = encode_envelope(expiry, self._ttl, topic, message.payload, 0)
        return PostRefusal.OVERSIZE if len(shortest.raw) > terms.max_envelope_bytes else None

    async def _envelope(self, message: WakuMessage, name: MessageHash, terms: Terms) -> Envelope | None:
        """Make the envelope; None if the work for it is not to be had.

        Messages that have the same payload, and are sent in the same second, get envelopes of their own.
        """
        assert self._work is not None
        seconds = len(message.payload) * self._ttl * terms.min_pow / HASHES_PER_SECOND
        now = asyncio.get_running_loop().time()
        if seconds > MAX_WORK_S or self._work.wait(seconds, now) > 0.0:
            return None
        self._work.take(seconds, now)
        try:
            return await mine_envelope(
                message.payload,
                topic_of(message.content_topic),
                ttl=self._ttl,
                min_pow=terms.min_pow,
                now=int(self._wall_clock()),
                limit_s=MAX_WORK_S,
                turn=self._turn,
                first_nonce=int.from_bytes(name[:NONCE_BYTES], "big"),
            )
        except TooMuchWork:
            return None

    async def _post(self, envelope: Envelope, message: WakuMessage) -> tuple[Bridging, LightPushVerdict]:
        await self._messages.keep_original(envelope, message)
        try:
            refusal = await self._feed.post(envelope.raw)
        except (ConnectionLost, PostUnanswered):  # it may be stored: then the index finds its original
            return _failed("the mailserver did not answer")
        if refusal is None:
            return Bridging.SENT, verdict(LightPushStatus.OK)
        if refusal is not PostRefusal.STORE_UNAVAILABLE:  # then it was relayed, and may come back from a peer
            await self._messages.forget_original(envelope.hash())
        return _refused(refusal)


_OURS = frozenset({PostRefusal.STORE_UNAVAILABLE, PostRefusal.TOPIC_LIMIT})
"""Refusals that say nothing against the message: it may be sent again later."""


def _failed(text: str) -> tuple[Bridging, LightPushVerdict]:
    return Bridging.FAILED, LightPushVerdict(LightPushStatus.SERVICE_UNAVAILABLE, text)


def _refused(refusal: PostRefusal) -> tuple[Bridging, LightPushVerdict]:
    if refusal in _OURS:
        return _failed(refusal.text)
    is_too_large = refusal is PostRefusal.OVERSIZE
    status = LightPushStatus.PAYLOAD_TOO_LARGE if is_too_large else LightPushStatus.INVALID_MESSAGE
    return Bridging.REFUSED, LightPushVerdict(status, refusal.text)
