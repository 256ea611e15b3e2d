"""What the benchmark sends and stores: random envelopes of one size, over topics and times of a stated distribution.

Everything but the time comes from a seed. An envelope is put together from its bytes: the codec's general encoder
would take longer than everything else that a million of them need.
"""

import random
from collections.abc import Iterator, Sequence
from enum import Enum
from itertools import accumulate

from mailserver.codec.keccak import keccak256
from mailserver.store.writer import NewEnvelope
from mailserver.waku.envelope import EnvelopeHash, Topic, encode_envelopes, mine

ENVELOPE_BYTES = 561
"""As long as the envelopes of `measurements.md`: a short chat message, padded to 256 bytes and sealed."""

TTL_S = 120
"""Live envelopes are valid for so long. Up to 890 s, one of this size needs no work for a proof of 0.000002."""

SPREAD_S = 2
"""Live envelopes were created within so many seconds before they are sent."""

ROWS_PER_PUT = 1000

_DATA_BYTES = ENVELOPE_BYTES - 26
_LIST_HEADER = b"\xf9" + (ENVELOPE_BYTES - 3).to_bytes(2, "big")
_TTL = bytes([TTL_S])
_TOPIC_HEADER = b"\x84"
_DATA_HEADER = b"\xb9" + _DATA_BYTES.to_bytes(2, "big")
_FIRST_NONCE = 1 << 56
"""The least nonce of 8 bytes: all envelopes are of one length."""


class Distribution(Enum):
    """How envelopes are spread over topics."""

    UNIFORM = "uniform"
    ZIPF = "zipf"
    """The topic of rank r gets a share proportional to 1 / r."""


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


def envelope(created: int, topic: Topic, rng: random.Random, mark: bytes = b"") -> bytes:
    """Encode an envelope of random data, of ENVELOPE_BYTES and with a ttl of TTL_S; its proof of work is chance.

    Args:
        mark: what the data begins with.
    """
    return b"".join(
        (
            _LIST_HEADER,
            b"\x84",
            (created + TTL_S).to_bytes(4, "big"),
            _TTL,
            _TOPIC_HEADER,
            topic,
            _DATA_HEADER,
            mark,
            rng.randbytes(_DATA_BYTES - len(mark)),
            b"\x88",
            rng.randrange(_FIRST_NONCE, 1 << 64).to_bytes(8, "big"),
        )
    )


def live_envelopes(
    count: int, topics: Topics, now: int, *, min_pow: float, rng: random.Random, mark: bytes = b""
) -> list[bytes]:
    """Make envelopes to be sent at once to a node that asks for this proof of work; their data begins with `mark`."""
    chosen = topics.choose(count, rng)
    if min_pow * ENVELOPE_BYTES * TTL_S <= 1:  # any hash will do
        return [envelope(now - rng.randrange(SPREAD_S), topic, rng, mark) for topic in chosen]
    expiries = (now - rng.randrange(SPREAD_S) + TTL_S for _ in chosen)
    datas = (mark + rng.randbytes(_DATA_BYTES - len(mark)) for _ in chosen)
    return [
        mine(expiry, TTL_S, topic, data, target=min_pow, first_nonce=_FIRST_NONCE).raw
        for expiry, topic, data in zip(expiries, chosen, datas, strict=True)
    ]


def packets(raws: Sequence[bytes], per_packet: int) -> list[bytes]:
    """Encode the payloads of Messages packets with so many envelopes each."""
    return [encode_envelopes(list(raws[at : at + per_packet])) for at in range(0, len(raws), per_packet)]


def history(count: int, topics: Topics, *, end: int, span_s: int, rng: random.Random) -> Iterator[list[NewEnvelope]]:
    """Make rows for the store, created evenly over `span_s` seconds up to `end`, ROWS_PER_PUT at a time."""
    for at in range(0, count, ROWS_PER_PUT):
        chosen = topics.choose(min(ROWS_PER_PUT, count - at), rng)
        rows = []
        for index, topic in enumerate(chosen, at + 1):
            created = end - span_s + index * span_s // count
            raw = envelope(created, topic, rng)
            rows.append(NewEnvelope(created, created, topic, EnvelopeHash(keccak256(raw)), raw))
        yield rows
