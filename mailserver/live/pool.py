"""Live envelopes, in bundles, which are kept for peers that are slow or connect later.

A bundle stays until all of it has expired. If the pool is full, the subnet with the most bytes in it loses its oldest
envelopes. So a subnet that floods the pool displaces only its own envelopes, however many connections it has.
"""

from bisect import bisect_left
from collections import Counter
from collections.abc import Container, Iterable, Iterator, Sequence

from mailserver.live.feed import LiveEnvelope
from mailserver.mail.packing import cut
from mailserver.waku.bloom import FULL_INTEREST, mask_of
from mailserver.waku.envelope import Topic
from mailserver.waku.packets import PeerSettings

MAX_BUNDLE_BYTES = 64 * 1024
"""A packet of live envelopes is no longer than this, unless one envelope is, so that a slow line carries other packets
in between."""

POOL_BYTES = 16 * 1024 * 1024
"""Memory for all bundles."""

ENVELOPE_OVERHEAD_BYTES = 600
"""What Python needs for an envelope besides its bytes. If it did not count, tiny envelopes would take 30 times as much
memory."""


Losses = Sequence[tuple[int, int]]
"""What a pool has dropped for want of room: numbers of bundles, and how many envelopes of each."""


class Bundle:
    """Envelopes, at least one, that go out together.

    `bytes`: their length. `memory`: how much memory those of each subnet take.
    """

    __slots__ = ("_masks", "bytes", "envelopes", "last_expiry", "memory", "number")

    def __init__(self, envelopes: Sequence[LiveEnvelope], number: int = 0) -> None:
        self.number = number
        self.envelopes = tuple(envelopes)
        self.bytes = sum(len(live.envelope.raw) for live in envelopes)
        self.last_expiry = max(live.envelope.expiry for live in envelopes)
        self.memory: Counter[bytes | None] = Counter()
        for live in envelopes:
            self.memory[live.subnet] += memory_of(live)
        self._masks: dict[Topic, int] | None = None

    def select(self, peer: int, settings: PeerSettings, now: float) -> list[LiveEnvelope]:
        """The envelopes that a peer wants and does not have.

        Args:
            peer: the number of its connection: an envelope never goes back to where it came from.
            now: Unix seconds; nothing expired is relayed.
        """
        interest, min_pow = settings.interest, settings.pow_requirement
        envelopes: Iterable[LiveEnvelope] = self.envelopes
        if interest != FULL_INTEREST:
            wanted = interest.wanted(self._masks_of_topics())
            if not wanted:
                return []
            envelopes = (live for live in envelopes if live.envelope.topic in wanted)
        return [
            live
            for live in envelopes
            if peer not in live.sighting.peers and live.envelope.expiry >= now and (not min_pow or live.pow >= min_pow)
        ]

    def without(self, subnets: Container[bytes | None]) -> "Bundle | None":
        """The same bundle without what these subnets have sent; None if nothing is left."""
        left = [live for live in self.envelopes if live.subnet not in subnets]
        return Bundle(left, self.number) if left else None

    def _masks_of_topics(self) -> dict[Topic, int]:
        """The masks that bloom filters are compared with. Made for the first peer that does not want everything."""
        if self._masks is None:
            self._masks = {topic: mask_of(topic) for topic in {live.envelope.topic for live in self.envelopes}}
        return self._masks


class Pool:
    """The bundles. They are numbered from the first one made."""

    def __init__(self, max_bytes: int = POOL_BYTES) -> None:
        self._max_bytes = max_bytes
        self._bundles: list[Bundle] = []  # in the order of their numbers, some of which are missing
        self.end = 0
        """The number of the next bundle."""

    def __len__(self) -> int:
        """How many bundles there are."""
        return len(self._bundles)

    @property
    def usage(self) -> tuple[int, int]:
        """How many envelopes are in the pool, and their bytes."""
        bundles = self._bundles
        return sum(len(bundle.envelopes) for bundle in bundles), sum(bundle.bytes for bundle in bundles)

    def first(self, position: int) -> Bundle | None:
        """The first bundle from this number on."""
        at = bisect_left(self._bundles, position, key=lambda bundle: bundle.number)
        return self._bundles[at] if at < len(self._bundles) else None

    def add(self, envelopes: Sequence[LiveEnvelope], now: float) -> Losses:
        """Put envelopes into bundles, and then `purge` (`now`: Unix seconds)."""
        for part in cut_envelopes(envelopes, MAX_BUNDLE_BYTES):
            self._bundles.append(Bundle(part, self.end))
            self.end += 1
        return self.purge(now)

    def purge(self, now: float) -> Losses:
        """Drop bundles that have expired, and, if the pool is too large, envelopes of the subnets with the most.

        Return what was dropped of the latter that has not expired.
        """
        self._bundles = [bundle for bundle in self._bundles if bundle.last_expiry >= now]
        memory: Counter[bytes | None] = Counter()
        for bundle in self._bundles:
            memory.update(bundle.memory)
        excess = memory.total() - self._max_bytes
        return self._shed(_fair_losses(memory, excess), now) if excess > 0 else []

    def _shed(self, losses: dict[bytes | None, int], now: float) -> Losses:
        """Drop the oldest envelopes of these subnets: for each, at least this many bytes."""
        kept: list[Bundle] = []
        lost: list[tuple[int, int]] = []
        for bundle in self._bundles:
            losing = losses.keys() & bundle.memory.keys()
            for subnet in losing:
                losses[subnet] -= bundle.memory[subnet]
                if losses[subnet] <= 0:
                    del losses[subnet]
            left = bundle.without(losing) if losing else bundle
            if left is not None:
                kept.append(left)
            if losing:
                dropped = sum(live.subnet in losing and live.envelope.expiry >= now for live in bundle.envelopes)
                lost.append((bundle.number, dropped))
        self._bundles = kept
        return lost


def memory_of(live: LiveEnvelope) -> int:
    """How much memory an envelope takes, in bytes."""
    return len(live.envelope.raw) + ENVELOPE_OVERHEAD_BYTES


def cut_envelopes(envelopes: Sequence[LiveEnvelope], max_bytes: int) -> Iterator[Sequence[LiveEnvelope]]:
    """Cut envelopes into packets of at most `max_bytes`. A longer envelope gets a packet of its own."""
    for packet in cut([len(live.envelope.raw) for live in envelopes], max_bytes):
        yield envelopes[packet.start : packet.stop]


def _fair_losses(memory: Counter[bytes | None], excess: int) -> dict[bytes | None, int]:
    """How many bytes each subnet must lose so that `excess` bytes go, and always from the subnets with the most."""
    largest = memory.most_common()
    rest = excess  # what must still go after the `count` largest are brought down to the size of the next one
    for count, (_, size) in enumerate(largest, start=1):
        following = largest[count][1] if count < len(largest) else 0
        if rest <= count * (size - following):
            level = size - -(-rest // count)
            return {subnet: size - level for subnet, size in largest[:count] if size > level}
        rest -= count * (size - following)
    return dict(largest)
