"""Topic bloom filters, and what a peer wants: topics or a bloom filter (6/WAKU1 "Bloom Filter", "Topic Interest")."""

from array import array
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Set
from dataclasses import dataclass

from mailserver.errors import DecodeError
from mailserver.waku.envelope import TOPIC_BYTES, Topic

BLOOM_BYTES = 64
FULL_BLOOM = b"\xff" * BLOOM_BYTES
EMPTY_BLOOM = bytes(BLOOM_BYTES)


def bits_of(topic: bytes) -> tuple[int, int, int]:
    """The three bits of a topic, numbered 0 to 511.

    For i in 0..2: n = topic[i], plus 256 when bit i of topic[3] is set. Bit n is bit n % 8, least significant
    first, of byte n // 8.
    """
    high = topic[3]
    return topic[0] + (high & 1) * 256, topic[1] + (high >> 1 & 1) * 256, topic[2] + (high >> 2 & 1) * 256


def bloom_of(topics: Iterable[bytes]) -> bytes:
    """The 64-byte filter that matches these topics."""
    bloom = bytearray(BLOOM_BYTES)
    for topic in topics:
        for bit in bits_of(topic):
            bloom[bit // 8] |= 1 << bit % 8
    return bytes(bloom)


def matches(bloom: bytes, topic: bytes) -> bool:
    """Whether (filter AND topic's bloom) == topic's bloom, as deployed Go clients make a topic's bloom.

    They write each of the three bits over the whole byte in which it lies: where two share a byte, only the later
    one is set. That befalls 1 topic in 21; a filter of theirs for such a topic lacks a bit. So a bit counts here
    only if no later one shares its byte. Filters with all three bits match as ever.
    """
    a, b, c = bits_of(topic)
    a_byte, b_byte, c_byte = a >> 3, b >> 3, c >> 3
    return bool(
        bloom[c_byte] >> (c & 7) & 1
        and (b_byte == c_byte or bloom[b_byte] >> (b & 7) & 1)
        and (a_byte in (b_byte, c_byte) or bloom[a_byte] >> (a & 7) & 1)
    )


class PackedTopics(Set[Topic]):
    """A set of topics: 4 bytes for each, where a frozenset takes 100, and half a microsecond to look one up."""

    __slots__ = ("_numbers",)

    def __init__(self, topics: Iterable[Topic]) -> None:
        self._numbers = array("I", sorted({_number(topic) for topic in topics}))

    def __contains__(self, topic: object) -> bool:
        if not isinstance(topic, bytes) or len(topic) != TOPIC_BYTES:
            return False
        number = _number(topic)
        at = bisect_left(self._numbers, number)
        return at < len(self._numbers) and self._numbers[at] == number

    def __iter__(self) -> Iterator[Topic]:
        return (Topic(number.to_bytes(TOPIC_BYTES, "big")) for number in self._numbers)

    def __len__(self) -> int:
        return len(self._numbers)

    def __hash__(self) -> int:
        return self._hash()

    @property
    def memory_bytes(self) -> int:
        """What it takes, but for some fixed overhead."""
        return self._numbers.itemsize * len(self._numbers)


def _number(topic: bytes) -> int:
    return int.from_bytes(topic, "big")


@dataclass(frozen=True, slots=True)
class Interest:
    """Which envelopes a node wants: those on `topics` if not None, else those that `bloom` matches."""

    topics: Set[Topic] | None = None
    bloom: bytes = FULL_BLOOM

    def wants(self, topic: Topic) -> bool:
        """Whether an envelope of this topic is wanted."""
        if self.topics is not None:
            return topic in self.topics
        return self.bloom == FULL_BLOOM or matches(self.bloom, topic)


FULL_INTEREST = Interest()
"""Everything: what a full node wants."""


def check_bloom(bloom: bytes) -> bytes:
    """Return a bloom filter as 64 bytes; an empty one stands for the full filter.

    Raises:
        DecodeError: any other length.
    """
    if not bloom:
        return FULL_BLOOM
    if len(bloom) != BLOOM_BYTES:
        raise DecodeError("bloom filter has the wrong length", got=len(bloom), limit=BLOOM_BYTES)
    return bloom
