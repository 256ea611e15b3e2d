"""Topic bloom filters, and what a peer wants: topics or a bloom filter (6/WAKU1 "Bloom Filter", "Topic Interest")."""

from array import array
from bisect import bisect_left
from collections.abc import Collection, Iterable, Iterator, Mapping, Set
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


def mask_of(topic: bytes) -> int:
    """The bits that a filter must have to match a topic: bit n as 1 << n.

    A filter matches a topic if (filter AND topic's bloom) == topic's bloom, with the topic's bloom as deployed Go
    clients make it: they write each of the three bits over the whole byte in which it lies. If two bits share a byte,
    only the later one is set. This is so for 1 topic in 21, and their filter for such a topic lacks a bit. So here a
    bit counts only if no later one shares its byte. Filters with all three bits match as well.
    """
    a, b, c = bits_of(topic)
    mask = 1 << c
    if b >> 3 != c >> 3:
        mask |= 1 << b
    if a >> 3 not in (b >> 3, c >> 3):
        mask |= 1 << a
    return mask


def as_integer(bloom: bytes) -> int:
    """A filter as an integer, with its bits as in `mask_of`."""
    return int.from_bytes(bloom, "little")


def matches(bloom: bytes, topic: bytes) -> bool:
    """Whether a filter matches a topic; see `mask_of`."""
    mask = mask_of(topic)
    return as_integer(bloom) & mask == mask


class Matcher:
    """Tells which of many topics a filter matches. It works on whole columns of bytes, so thousands of topics take no
    longer than a hundred calls of `matches`."""

    __slots__ = ("_high", "_low")

    def __init__(self, bloom: bytes) -> None:
        bits = as_integer(bloom)
        self._low, self._high = (bytes(255 * (bits >> half + byte & 1) for byte in range(256)) for half in (0, 256))

    def marks(self, topics: bytes) -> bytes:
        """Return a byte for each topic, which is not 0 if the filter matches it; see `mask_of`.

        Args:
            topics: joined, 4 bytes each.
        """
        count = len(topics) // TOPIC_BYTES
        fourth = topics[3::TOPIC_BYTES]
        second_half = _as_columns(b"\x20" * count)
        # For each of the three bits: whether the filter has it, and in which of its 64 bytes the bit is.
        has: list[int] = []
        place: list[int] = []
        for at, halves in enumerate(_HALVES):
            column, half = topics[at::TOPIC_BYTES], _as_columns(fourth.translate(halves))
            low, high = _as_columns(column.translate(self._low)), _as_columns(column.translate(self._high))
            has.append(low ^ (low ^ high) & half)
            place.append(_as_columns(column.translate(_BYTE_OF_BIT)) | half & second_half)

        def share(one: int, other: int) -> int:
            return _as_columns((place[one] ^ place[other]).to_bytes(count, "little").translate(_IS_ZERO))

        matched = has[2] & (has[1] | share(1, 2)) & (has[0] | share(0, 1) | share(0, 2))
        return matched.to_bytes(count, "little")


def _as_columns(column: bytes) -> int:
    return int.from_bytes(column, "little")


_HALVES = tuple(bytes(255 * (byte >> bit & 1) for byte in range(256)) for bit in range(3))
_BYTE_OF_BIT = bytes(byte >> 3 for byte in range(256))
_IS_ZERO = b"\xff" + bytes(255)


class PackedTopics(Set[Topic]):
    """A set of topics that takes 4 bytes for each, not 100 as a frozenset. Looking one up takes half a microsecond."""

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


def _number(topic: bytes) -> int:
    return int.from_bytes(topic, "big")


@dataclass(frozen=True, slots=True)
class Interest:
    """Which envelopes a node wants: those on `topics` if it is not None, else those that `bloom` matches."""

    topics: Set[Topic] | None = None
    bloom: bytes = FULL_BLOOM

    def wants(self, topic: Topic) -> bool:
        """Whether an envelope of this topic is wanted."""
        if self.topics is not None:
            return topic in self.topics
        return self.bloom == FULL_BLOOM or matches(self.bloom, topic)

    def wanted(self, masks: Mapping[Topic, int]) -> Collection[Topic]:
        """Which of many topics are wanted, given the `mask_of` each."""
        topics = self.topics
        if topics is not None:
            return {topic for topic in masks if topic in topics}
        if self.bloom == FULL_BLOOM:
            return masks
        bits = as_integer(self.bloom)
        return {topic for topic, mask in masks.items() if bits & mask == mask}


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
