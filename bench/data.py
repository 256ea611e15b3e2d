"""What the benchmark sends and stores: random envelopes, over topics, sizes and times of a stated distribution.

Everything but the time comes from a seed. An envelope is put together from its bytes: the codec's general encoder
would take longer than everything else that a million of them need.
"""

import random
from collections.abc import Iterator, Sequence
from enum import Enum
from itertools import accumulate

from mailserver.codec.keccak import keccak256
from mailserver.store.interface import NewEnvelope
from mailserver.waku.envelope import EnvelopeHash, Topic, encode_envelopes, mine

ENVELOPE_BYTES = 561
"""As long as the envelopes of `measurements.md`: a short chat message, padded to 256 bytes and sealed."""

TTL_S = 120
"""Live envelopes are valid for so long. Up to 890 s, one of this size needs no work for a proof of 0.000002."""

SPREAD_S = 2
"""Live envelopes were created within so many seconds before they are sent."""

ROWS_PER_PUT = 1000

_OVERHEAD_BYTES = 26
_DATA_BYTES = ENVELOPE_BYTES - _OVERHEAD_BYTES
_PADDED_TO = 256
_TTL = bytes([TTL_S])
_TOPIC_HEADER = b"\x84"
_FIRST_NONCE = 1 << 56
"""The least nonce of 8 bytes: an envelope is as long as its data says."""


class Distribution(Enum):
    """How envelopes are spread over topics."""

    UNIFORM = "uniform"
    ZIPF = "zipf"
    """The topic of rank r gets a share proportional to 1 / r."""


class Sizes(Enum):
    """How long envelopes are."""

    ONE = "one"
    """ENVELOPE_BYTES."""

    PADDED = "padded"
    """As messages of many lengths are when they are padded (7/WAKU-DATA): 256 bytes and what is around them, or twice
    as much half as often, and so on up to 8,192. The mean is 830 bytes."""

    def choose(self, count: int, rng: random.Random) -> list[int]:
        """Choose the lengths of so many envelopes' data, in bytes."""
        if self is Sizes.ONE:
            return [_DATA_BYTES] * count
        lengths = [_DATA_BYTES + _PADDED_TO * (2**doubled - 2) for doubled in range(6)]
        return rng.choices(lengths, [2.0**-doubled for doubled in range(6)], k=count)


class Topics:
    """Topics and how often each is used: always the same ones for the same count."""

    def __init__(self, count: int, distribution: Distribution) -> None:
        rng = random.Random(count)
        distinct: dict[Topic, None] = {}
        while len(distinct) < count:
            distinct[Topic(rng.randbytes(4))] = None
        self.all = list(distinct)
        self.distribution = distribution
        self._cumulative: list[float] | None = None
        if distribution is Distribution.ZIPF:
            self._cumulative = list(accumulate(1 / rank for rank in range(1, count + 1)))

    def choose(self, count: int, rng: random.Random) -> list[Topic]:
        """Choose the topics of `count` envelopes."""
        return rng.choices(self.all, cum_weights=self._cumulative, k=count)

    def choose_distinct(self, count: int, rng: random.Random) -> frozenset[Topic]:
        """Choose topics to ask for: one that is used twice as often is chosen twice as often."""
        chosen: set[Topic] = set()
        while len(chosen) < min(count, len(self.all)):
            chosen.update(self.choose(1, rng))
        return frozenset(chosen)


def envelope(created: int, topic: Topic, rng: random.Random, mark: bytes = b"", data_bytes: int = _DATA_BYTES) -> bytes:
    """Encode an envelope of random data, with a ttl of TTL_S; its proof of work is chance.

    Args:
        mark: what the data begins with.
        data_bytes: from 256 to 65,000; by default what makes it ENVELOPE_BYTES long.
    """
    return b"".join(
        (
            b"\xf9",
            (data_bytes + _OVERHEAD_BYTES - 3).to_bytes(2, "big"),
            b"\x84",
            (created + TTL_S).to_bytes(4, "big"),
            _TTL,
            _TOPIC_HEADER,
            topic,
            b"\xb9",
            data_bytes.to_bytes(2, "big"),
            mark,
            rng.randbytes(data_bytes - len(mark)),
            b"\x88",
            rng.randrange(_FIRST_NONCE, 1 << 64).to_bytes(8, "big"),
        )
    )


def live_envelopes(
    count: int,
    topics: Topics,
    now: int,
    *,
    min_pow: float,
    rng: random.Random,
    mark: bytes = b"",
    sizes: Sizes = Sizes.ONE,
) -> list[bytes]:
    """Make envelopes to be sent at once to a node that asks for this proof of work; their data begins with `mark`."""
    raws = []
    for topic, data_bytes in zip(topics.choose(count, rng), sizes.choose(count, rng), strict=True):
        created = now - rng.randrange(SPREAD_S)
        if min_pow * (data_bytes + _OVERHEAD_BYTES) * TTL_S <= 1:  # any hash will do
            raws.append(envelope(created, topic, rng, mark, data_bytes))
        else:
            data = mark + rng.randbytes(data_bytes - len(mark))
            raws.append(mine(created + TTL_S, TTL_S, topic, data, target=min_pow, first_nonce=_FIRST_NONCE).raw)
    return raws


def packets(raws: Sequence[bytes], per_packet: int) -> list[bytes]:
    """Encode the payloads of Messages packets with so many envelopes each."""
    return [encode_envelopes(list(raws[at : at + per_packet])) for at in range(0, len(raws), per_packet)]


def history(
    count: int, topics: Topics, *, end: int, span_s: int, rng: random.Random, sizes: Sizes = Sizes.ONE
) -> Iterator[list[NewEnvelope]]:
    """Make rows for the store, created evenly over `span_s` seconds up to `end`, ROWS_PER_PUT at a time."""
    for at in range(0, count, ROWS_PER_PUT):
        chosen = topics.choose(min(ROWS_PER_PUT, count - at), rng)
        lengths = sizes.choose(len(chosen), rng)
        rows = []
        for index, (topic, data_bytes) in enumerate(zip(chosen, lengths, strict=True), at + 1):
            created = end - span_s + index * span_s // count
            raw = envelope(created, topic, rng, data_bytes=data_bytes)
            rows.append(NewEnvelope(created, created, topic, EnvelopeHash(keccak256(raw)), raw))
        yield rows
