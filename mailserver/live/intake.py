"""Received envelope -> judged -> handed to the feed, stored -> reported: what a mailserver takes in."""

import asyncio
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from mailserver.errors import MailserverError, StoreError
from mailserver.limits.loop_scheduler import LoopScheduler
from mailserver.limits.packet_rates import RateLimiter
from mailserver.live.feed import Feed, LiveEnvelope
from mailserver.live.seen import Seen, Sighting
from mailserver.metrics.registry import Metrics
from mailserver.store.interface import NewEnvelope, Store
from mailserver.waku.acceptance import Acceptance, Verdict
from mailserver.waku.envelope import Envelope
from mailserver.waku.packets import EnvelopeError, MessageResponse
from mailserver.waku.peer import MessagesReceived

_JUDGED_TOGETHER = 256  # envelopes: they take 2 ms, and a packet may hold many more

TIMELY_S = 300
"""An envelope of a peer that was created so long ago at most agrees with our clock: most are sent for some seconds."""

Clock = Callable[[], float]
"""Returns the present in Unix seconds."""


class EnvelopeRefused(MailserverError):
    """An envelope of our own is not acceptable; `verdict` says why."""

    def __init__(self, verdict: Verdict) -> None:
        super().__init__(verdict)
        self.verdict = verdict

    def __str__(self) -> str:
        return self.verdict.value


@dataclass(slots=True)
class _Batch:
    """Some envelopes that are judged together: how they came, and what was taken of them.

    `sightings` are those of `to_store`, one for one. How many are new and known is counted together, for there may be
    50,000 envelopes a second. `timely`: of the new ones.
    """

    now: float
    peer: int | None = None
    subnet: bytes | None = None
    is_limited: bool = False
    to_store: list[NewEnvelope] = field(default_factory=list)
    sightings: list[Sighting] = field(default_factory=list)
    new: int = 0
    known: int = 0
    timely: int = 0


class Intake:
    """Takes live envelopes: each is handed to the feed once, and into the store.

    Relay does not wait for the disk, nor the disk for relay: an envelope that could not be stored is relayed all the
    same, and stored when its sender, who got no confirmation, sends it again.
    """

    def __init__(
        self,
        store: Store,
        acceptance: Acceptance,
        clock: Clock,
        *,
        feed: Feed,
        limiter: RateLimiter,
        metrics: Metrics,
    ) -> None:
        self._store = store
        self._acceptance = acceptance
        self._clock = clock
        self._feed = feed
        self._limiter = limiter
        self._metrics = metrics
        self._seen = Seen()
        self._scheduler = LoopScheduler()

    async def take(
        self,
        packets: Sequence[MessagesReceived],
        *,
        peer: int,
        subnet: bytes = b"",
        is_limited: bool = True,
    ) -> list[MessageResponse]:
        """Take what is acceptable of some Messages packets; return their confirmations once all of that is on disk.

        Args:
            peer: the number of the connection that they came by.
            subnet: where that comes from (`limits.admission.groups_of`).
            is_limited: whether the limits of topics hold for this peer.
        Raises:
            StoreError: it is not on disk, or not all: no packet must be confirmed.
        """
        responses: list[MessageResponse] = []
        batch = _Batch(self._clock(), peer, subnet, is_limited and self._limiter.limits_topics)
        left = _JUDGED_TOGETHER
        for packet in packets:
            errors: list[EnvelopeError] = []
            for envelope in packet.envelopes:
                if not left:
                    await self._scheduler.wait_turn()  # long packets of all peers take turns
                    left = _JUDGED_TOGETHER
                    batch.now = self._clock()
                left -= 1
                verdict = self._judge(envelope, batch)
                if verdict is not Verdict.ACCEPTED and verdict.code is not None:
                    errors.append(EnvelopeError(envelope.hash(), verdict.code, verdict.value))
            responses.append(MessageResponse(packet.batch_hash, tuple(errors)))
        self._metrics.received.inc(sum(len(packet.envelopes) for packet in packets))
        self._count(batch)
        await self._put(batch.to_store, batch.sightings, source=peer)
        return responses

    async def take_own(self, envelope: Envelope) -> None:
        """Take an envelope that was made here; return once it is on disk.

        Raises:
            EnvelopeRefused: no node would take it.
            StoreError: it is not on disk; it is relayed all the same.
        """
        batch = _Batch(self._clock())
        verdict = self._judge(envelope, batch)
        if verdict is not Verdict.ACCEPTED:
            raise EnvelopeRefused(verdict)
        self._count(batch)
        await self._put(batch.to_store, batch.sightings, source=None)

    def _judge(self, envelope: Envelope, batch: _Batch) -> Verdict:
        now, peer = batch.now, batch.peer
        verdict = self._acceptance.judge(envelope, now)
        if verdict is not Verdict.ACCEPTED:
            self._metrics.rejected[verdict].inc()
            return verdict
        raw = envelope.raw
        envelope_hash = envelope.hash()
        created = envelope.expiry - envelope.ttl
        sighting = self._seen.get(envelope_hash)
        if sighting is None:
            # Only what is new counts: every peer that relays an envelope sends it.
            if batch.is_limited and not self._limiter.take_topic(
                envelope.topic, len(raw), asyncio.get_running_loop().time()
            ):
                self._metrics.rejected[Verdict.TOPIC_LIMIT].inc()
                return Verdict.TOPIC_LIMIT
            batch.new += 1
            self._metrics.sizes.observe(len(raw))
            sighting = self._seen.add(envelope_hash, envelope.expiry, now)
            if peer is not None:
                batch.timely += now - created <= TIMELY_S
            ahead = max(created - int(now), 0)
            live = LiveEnvelope(
                envelope, envelope_hash, sighting, subnet=batch.subnet, ahead=ahead, is_own=peer is None
            )
            self._feed.publish(live)
        else:
            batch.known += 1
        if peer is not None:
            sighting.add_peer(peer)
        if not sighting.is_stored:
            batch.to_store.append(NewEnvelope(int(now), created, envelope.topic, envelope_hash, raw))
            batch.sightings.append(sighting)
        return verdict

    def _count(self, batch: _Batch) -> None:
        self._metrics.new.inc(batch.new)
        self._metrics.timely.inc(batch.timely)
        self._metrics.known.inc(batch.known)

    async def _put(self, to_store: Sequence[NewEnvelope], sightings: Iterable[Sighting], source: int | None) -> None:
        if not to_store:
            return
        try:
            await self._store.put(to_store, source)
        except StoreError:
            self._metrics.not_stored.inc(len(to_store))
            raise
        self._metrics.stored.inc(len(to_store))
        for sighting in sightings:
            sighting.is_stored = True
