"""The intake of live envelopes: each is judged, published to the feed, and stored."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from mailserver.errors import MailserverError, StoreError
from mailserver.limits.loop_scheduler import LoopScheduler
from mailserver.limits.packet_rates import RateLimiter
from mailserver.live.feed import Feed, LiveEnvelope
from mailserver.live.seen import Seen, Sighting
from mailserver.metrics.registry import Metrics
from mailserver.store.interface import NewEnvelope, Store
from mailserver.waku.acceptance import Acceptance, Verdict
from mailserver.waku.envelope import Envelope, EnvelopeHash
from mailserver.waku.packets import EnvelopeError, MessageResponse
from mailserver.waku.peer import MessagesReceived

_JUDGED_TOGETHER = 256  # envelopes, which take 2 ms; a packet may hold many more

TIMELY_S = 300
"""An envelope from a peer that was created at most this long ago is timely: it shows that our clock agrees with others.
Most envelopes live for some seconds only."""

SUBNET_OF_OTHERS = b"other mailservers"
"""As from which subnet envelopes count that other mailservers have put into the store. What one of them was flooded
with displaces in our pool only what they have put, and nothing that our peers have sent."""

Clock = Callable[[], float]
"""Returns the current time in Unix seconds."""


class EnvelopeRefused(MailserverError):
    """An envelope of our own is not acceptable; `verdict` says why."""

    def __init__(self, verdict: Verdict) -> None:
        super().__init__(verdict)
        self.verdict = verdict

    def __str__(self) -> str:
        return self.verdict.value


@dataclass(slots=True)
class _Batch:
    """Envelopes that are judged together: from where they came, which are to be stored, and how many are new or known.

    `generation`: the store's, before any was judged. `stored`: how many are not put, as they were stored in that one.
    `sightings` has an entry for each of `to_store`. `timely` counts those of the new ones. Metrics are counted once per
    batch, as there may be 50,000 envelopes a second.
    """

    now: float
    generation: int
    peer: int | None = None
    subnet: bytes | None = None
    is_limited: bool = False
    to_store: list[NewEnvelope] = field(default_factory=list)
    sightings: list[Sighting] = field(default_factory=list)
    stored: int = 0
    new: int = 0
    known: int = 0
    timely: int = 0


class Intake:
    """Takes live envelopes: each is published to the feed once, and stored.

    Relay and disk do not wait for each other. An envelope that could not be stored is relayed all the same. Its sender
    gets no confirmation, sends it again, and then it is stored.
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

    @property
    def generation(self) -> int:
        """The store's (`store.interface.Store`)."""
        return self._store.generation

    async def take(
        self,
        packets: Sequence[MessagesReceived],
        *,
        peer: int,
        subnet: bytes = b"",
        is_limited: bool = True,
    ) -> list[MessageResponse]:
        """Take the acceptable envelopes of some Messages packets; return the confirmations once they are all on disk.

        Args:
            peer: the number of the connection on which they came.
            subnet: the subnet of that connection (`limits.admission.groups_of`).
            is_limited: whether the limits of topics hold for this peer.
        Raises:
            StoreError: some or all of them are not on disk, so none of the packets may be confirmed.
        """
        responses: list[MessageResponse] = []
        batch = _Batch(self._clock(), self.generation, peer, subnet, is_limited and self._limiter.limits_topics)
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
        await self._put(batch, source=peer)
        return responses

    async def take_own(self, envelope: Envelope) -> None:
        """Take an envelope that was made here; return once it is on disk.

        Raises:
            EnvelopeRefused: it is not acceptable; `verdict` says why.
            StoreError: it could not be stored; it is relayed all the same.
        """
        batch = _Batch(self._clock(), self.generation)
        verdict = self._judge(envelope, batch)
        if verdict is not Verdict.ACCEPTED:
            raise EnvelopeRefused(verdict)
        self._count(batch)
        await self._put(batch, source=None)

    async def take_of_others(self, envelopes: Sequence[Envelope], generation: int) -> None:
        """Take envelopes that other mailservers have put into the store. Whatever is not live, or not acceptable here,
        is left out.

        They have been counted, and limited, where they came in. If a peer sends one of them here, it is known.

        Args:
            generation: the store's, before they were read from it.
        """
        new = 0
        for at in range(0, len(envelopes), _JUDGED_TOGETHER):
            await self._scheduler.wait_turn()
            now = self._clock()
            for envelope in envelopes[at : at + _JUDGED_TOGETHER]:
                if self._acceptance.judge(envelope, now) is not Verdict.ACCEPTED:
                    continue
                envelope_hash = envelope.hash()
                sighting = self._seen.get(envelope_hash)
                if sighting is None:
                    new += 1
                    sighting = self._publish(envelope, envelope_hash, now, SUBNET_OF_OTHERS)
                sighting.stored_in = generation
        self._metrics.of_others.inc(new)

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
            # Only new envelopes count for the limits: every peer that relays an envelope sends it to us.
            if batch.is_limited and not self._limiter.take_topic(
                envelope.topic, len(raw), asyncio.get_running_loop().time()
            ):
                self._metrics.rejected[Verdict.TOPIC_LIMIT].inc()
                return Verdict.TOPIC_LIMIT
            batch.new += 1
            self._metrics.sizes.observe(len(raw))
            if peer is not None:
                batch.timely += now - created <= TIMELY_S
            sighting = self._publish(envelope, envelope_hash, now, batch.subnet, is_own=peer is None)
        else:
            batch.known += 1
        if peer is not None:
            sighting.add_peer(peer)
        if sighting.stored_in == batch.generation:
            batch.stored += 1
        else:
            batch.to_store.append(NewEnvelope(int(now), created, envelope.topic, envelope_hash, raw))
            batch.sightings.append(sighting)
        return verdict

    def _publish(
        self, envelope: Envelope, envelope_hash: EnvelopeHash, now: float, subnet: bytes | None, *, is_own: bool = False
    ) -> Sighting:
        """Publish an envelope that is new to us; return what is known of it from now on."""
        sighting = self._seen.add(envelope_hash, envelope.expiry, now)
        ahead = max(envelope.created - int(now), 0)
        self._feed.publish(LiveEnvelope(envelope, envelope_hash, sighting, subnet=subnet, ahead=ahead, is_own=is_own))
        return sighting

    def _count(self, batch: _Batch) -> None:
        self._metrics.new.inc(batch.new)
        self._metrics.timely.inc(batch.timely)
        self._metrics.known.inc(batch.known)

    async def _put(self, batch: _Batch, source: int | None) -> None:
        """Put what is to be stored; return once all of the batch is on disk."""
        if batch.to_store:
            try:
                await self._store.put(batch.to_store, source, is_live=True)
            except StoreError:
                self._metrics.not_stored.inc(len(batch.to_store))
                raise
            self._metrics.stored.inc(len(batch.to_store))
            for sighting in batch.sightings:
                sighting.stored_in = batch.generation
        if batch.stored and self._store.generation != batch.generation:
            raise StoreError("the store may have lost envelopes: send them again")
