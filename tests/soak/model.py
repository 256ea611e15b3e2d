"""What was posted, and what the mailserver must say of it. Envelopes are told apart by half of their hash."""

import random
from bisect import bisect_left, bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from bench.data import Topics
from mailserver.codec.keccak import keccak256
from mailserver.waku.envelope import Envelope, Topic, mine

SECONDS_PER_DAY = 86_400
MIN_POW = 0.000002
JITTER_S = 2
"""Envelopes were created within so many seconds before they are posted."""

_HASH_BYTES = 16
_SIZES = ((350, 55), (600, 30), (1_100, 10), (4_000, 4), (20_000, 1))
"""Bytes of data, and of a hundred envelopes how many: chat messages, padded to 256 bytes; the large ones are images."""
_TTLS_S = (900, 1800, 3600)
"""Longer than a step, so that the clock does not outrun relay."""


def key_of(raw: bytes) -> bytes:
    """What tells an envelope, byte for byte, from every other."""
    return keccak256(raw)[:_HASH_BYTES]


def make_envelopes(count: int, topics: Topics, now: int, rng: random.Random) -> list[Envelope]:
    """Live envelopes as people send them."""
    sizes = rng.choices([size for size, _ in _SIZES], [share for _, share in _SIZES], k=count)
    made = []
    for topic, size in zip(topics.choose(count, rng), sizes, strict=True):
        ttl = rng.choice(_TTLS_S)
        expiry = now - rng.randrange(JITTER_S) + ttl
        data = rng.randbytes(size + rng.randrange(-50, 50))
        made.append(mine(expiry, ttl, topic, data, target=MIN_POW, first_nonce=rng.getrandbits(62)))
    return made


@dataclass(frozen=True, slots=True)
class Wrong:
    """What is wrong with an answer: numbers of envelopes."""

    lacking: int
    repeated: int
    foreign: int


class Model:
    """All that was confirmed, and what was sent without an answer."""

    def __init__(self) -> None:
        self.confirmed = 0
        self.by_day: Counter[int] = Counter()
        """Confirmed, by day of reception."""
        self.unsure: set[bytes] = set()
        """Sent when the mailserver was killed: it may have them or not."""
        self.unsure_by_day: Counter[int] = Counter()
        self._created: dict[Topic, list[int]] = defaultdict(list)
        self._keys: dict[Topic, list[bytes]] = defaultdict(list)

    def confirm(self, envelopes: Iterable[Envelope], day: int) -> None:
        """They are on disk."""
        for envelope in sorted(envelopes, key=lambda envelope: envelope.created):
            created, keys = self._created[envelope.topic], self._keys[envelope.topic]
            at = bisect_right(created, envelope.created)
            created.insert(at, envelope.created)
            keys.insert(at, key_of(envelope.raw))
            self.confirmed += 1
            self.by_day[day] += 1

    def doubt(self, envelopes: Iterable[Envelope], day: int) -> None:
        """Nobody knows."""
        keys = {key_of(envelope.raw) for envelope in envelopes}
        self.unsure |= keys
        self.unsure_by_day[day] += len(keys)

    def compare(self, found: Sequence[Envelope], topics: Iterable[Topic], lower: int, upper: int) -> Wrong:
        """Compare an answer with what it should be."""
        should: set[bytes] = set()
        for topic in topics:
            created = self._created[topic]
            should.update(self._keys[topic][bisect_left(created, lower) : bisect_right(created, upper)])
        keys = [key_of(envelope.raw) for envelope in found]
        distinct = set(keys)
        return Wrong(len(should - distinct), len(keys) - len(distinct), len(distinct - should - self.unsure))
