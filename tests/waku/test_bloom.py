"""mailserver.waku.bloom against recorded filters, a published one, and a filter made of 512 booleans."""

import tracemalloc
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from mailserver.errors import DecodeError
from mailserver.waku.bloom import (
    BLOOM_BYTES,
    EMPTY_BLOOM,
    FULL_BLOOM,
    FULL_INTEREST,
    Interest,
    Matcher,
    PackedTopics,
    bits_of,
    bloom_of,
    check_bloom,
    mask_of,
    matches,
)
from mailserver.waku.envelope import Topic
from tests.data import load
from tests.properties import settings

RECORDED = load("envelopes.json")["envelopes"]

NEWS = Topic(b"\x9a\xcb\x04\x42")
SPORT = Topic(b"\xf0\xc5\x34\x1e")

topics = st.binary(min_size=4, max_size=4).map(Topic)


def expected_bits(topic: bytes) -> list[int]:
    """6/WAKU1 "Bloom Filter", word by word: the fourth byte says which of the other three count 256 more."""
    bits = []
    for i in range(3):
        bit = topic[i]
        if topic[3] & 2**i:
            bit += 256
        bits.append(bit)
    return bits


def expected_bloom(topics: list[Topic]) -> bytes:
    flags = [False] * 512
    for topic in topics:
        for bit in expected_bits(topic):
            flags[bit] = True
    return bytes(sum(2**i for i in range(8) if flags[8 * n + i]) for n in range(64))


def meet(left: bytes, right: bytes) -> bytes:
    return bytes(a & b for a, b in zip(left, right, strict=True))


@pytest.mark.parametrize("vector", RECORDED, ids=range(len(RECORDED)))
def test_recorded_topic_has_its_bloom(vector: dict[str, Any]) -> None:
    topic = Topic(bytes.fromhex(vector["topic"]))

    assert bloom_of([topic]).hex() == vector["bloom"]
    assert matches(bytes.fromhex(vector["bloom"]), topic)


def test_published_topic_has_its_bloom() -> None:
    # The topic and the filter in the tests that go-ethereum's whisperv6 and go-waku share (TestBloom).
    bloom = bytes([1]) + bytes(31) + bytes([1]) + bytes(30) + bytes([128])

    assert bloom_of([Topic(b"\x00\x00\xff\x06")]) == bloom


@given(topics)
@example(Topic(b"\x00\x00\x00\x00"))
@example(Topic(b"\xff\xff\xff\xff"))
@example(Topic(b"\x01\x02\x03\x01"))
@example(Topic(b"\x01\x02\x03\x02"))
@example(Topic(b"\x01\x02\x03\x04"))
@example(Topic(b"\x01\x02\x03\xf8"))
@settings(max_examples=50)
def test_bits_of_a_topic_are_those_of_the_specification(topic: Topic) -> None:
    assert list(bits_of(topic)) == expected_bits(topic)


@given(st.lists(topics, max_size=8))
@example([])
@settings(max_examples=50)
def test_bloom_of_topics_is_the_union_of_their_bits(some_topics: list[Topic]) -> None:
    bloom = bloom_of(some_topics)

    assert bloom == expected_bloom(some_topics)
    assert all(matches(bloom, topic) for topic in some_topics)


@given(topics, st.lists(topics, max_size=200))
@settings(max_examples=50)
def test_bloom_matches_where_it_covers_the_bloom_of_the_topic(topic: Topic, others: list[Topic]) -> None:
    bloom = bloom_of(others)
    bloom_of_topic = bloom_of([topic])

    assert matches(bloom, topic) == (meet(bloom, bloom_of_topic) == bloom_of_topic)


@given(topics, st.integers(0, 2))
@settings(max_examples=50)
def test_bloom_without_one_of_the_bits_does_not_match(topic: Topic, which: int) -> None:
    bits = expected_bits(topic)
    bloom = bytearray(FULL_BLOOM)
    bloom[bits[which] // 8] ^= 2 ** (bits[which] % 8)
    overwritten = bits[which] // 8 in [bit // 8 for bit in bits[which + 1 :]] and bits[which] not in bits[which + 1 :]

    assert matches(bytes(bloom), topic) is overwritten


def bloom_of_go_clients(topic: Topic) -> bytes:
    """As deployed clients build it: each bit is written over the byte in which it lies."""
    bloom = bytearray(BLOOM_BYTES)
    for bit in expected_bits(topic):
        bloom[bit // 8] = 1 << bit % 8
    return bytes(bloom)


@given(topics, st.binary(min_size=BLOOM_BYTES, max_size=BLOOM_BYTES))
@example(Topic(bytes.fromhex("991517d9")), bytes(BLOOM_BYTES))
@settings(max_examples=200)
def test_topic_matches_every_filter_that_holds_the_bloom_of_deployed_clients(topic: Topic, noise: bytes) -> None:
    theirs = bloom_of_go_clients(topic)
    joined = bytes(a | b for a, b in zip(theirs, noise, strict=True))

    assert matches(theirs, topic)
    assert matches(joined, topic)
    assert matches(noise, topic) is (meet(noise, theirs) == theirs)


def test_a_topic_whose_bits_share_a_byte_has_fewer_bits_in_deployed_clients_bloom() -> None:
    topic = Topic(bytes.fromhex("991517d9"))

    assert int.from_bytes(bloom_of_go_clients(topic), "big").bit_count() == 2
    assert int.from_bytes(bloom_of([topic]), "big").bit_count() == 3


def test_full_bloom_matches_everything_and_empty_bloom_nothing() -> None:
    assert bytes([255] * 64) == FULL_BLOOM
    assert bytes(64) == EMPTY_BLOOM
    assert matches(FULL_BLOOM, NEWS)
    assert not matches(EMPTY_BLOOM, Topic(bytes(4)))


def test_full_interest_wants_every_topic() -> None:
    assert FULL_INTEREST.wants(NEWS)
    assert FULL_INTEREST.wants(SPORT)


def test_interest_in_topics_wants_these_only() -> None:
    interest = Interest(topics=frozenset({NEWS}))

    assert interest.wants(NEWS)
    assert not interest.wants(SPORT)


def test_interest_in_a_bloom_wants_what_it_matches() -> None:
    interest = Interest(bloom=bloom_of([NEWS]))

    assert interest.wants(NEWS)
    assert not interest.wants(SPORT)


def test_topics_win_over_the_bloom() -> None:
    interest = Interest(topics=frozenset({NEWS}), bloom=bloom_of([SPORT]))

    assert interest.wants(NEWS)
    assert not interest.wants(SPORT)


@pytest.mark.parametrize("interest", [Interest(topics=frozenset()), Interest(bloom=EMPTY_BLOOM)])
def test_interest_in_no_topics_or_a_bloom_of_zeros_wants_nothing(interest: Interest) -> None:
    assert not interest.wants(NEWS)
    assert not interest.wants(Topic(bytes(4)))


def test_absent_bloom_stands_for_the_full_one() -> None:
    assert check_bloom(b"") == FULL_BLOOM


@given(st.binary(min_size=BLOOM_BYTES, max_size=BLOOM_BYTES))
@settings(max_examples=20)
def test_bloom_of_64_bytes_is_taken_as_it_is(bloom: bytes) -> None:
    assert check_bloom(bloom) == bloom


@pytest.mark.parametrize("length", [1, 63, 65, 512])
def test_bloom_of_another_length_is_refused(length: int) -> None:
    with pytest.raises(DecodeError) as refused:
        check_bloom(bytes(length))

    assert (refused.value.got, refused.value.limit) == (length, 64)


# Many topics


@given(st.lists(topics, max_size=30, unique=True), st.lists(topics, max_size=5), st.integers(0, 30))
def test_what_is_wanted_of_many_is_what_is_wanted_of_each(there: list[Topic], others: list[Topic], some: int) -> None:
    masks = {topic: mask_of(topic) for topic in there}
    mine = [*there[:some], *others]
    interests = [Interest(topics=frozenset(mine)), Interest(bloom=bloom_of(mine)), Interest(topics=PackedTopics(mine))]

    for interest in (*interests, FULL_INTEREST):
        assert set(interest.wanted(masks)) == {topic for topic in there if interest.wants(topic)}
        assert set(interest.wanted(masks)) >= set(there[:some])


@given(st.sets(st.binary(min_size=4, max_size=4).map(Topic), max_size=50), st.binary(min_size=4, max_size=4))
def test_packed_topics_are_the_set_of_them(topics: set[Topic], other: bytes) -> None:
    packed = PackedTopics(topics)

    assert set(packed) == topics
    assert len(packed) == len(topics)
    assert all(topic in packed for topic in topics)
    assert (other in packed) == (other in topics)
    assert hash(packed) == hash(PackedTopics(list(topics)))
    assert Interest(topics=packed) == Interest(topics=frozenset(topics))


@pytest.mark.parametrize("other", [b"", b"abc", b"abcde", 7, None])
def test_what_is_no_topic_is_in_no_packed_set(other: object) -> None:
    assert other not in PackedTopics([Topic(b"abcd")])


def test_packed_topics_take_four_bytes_each() -> None:
    numbers = range(100_000)  # so many that what else is allocated meanwhile does not matter

    tracemalloc.start()
    try:
        packed = PackedTopics(Topic(number.to_bytes(4, "big")) for number in numbers)
        taken, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert len(packed) == 100_000
    assert 400_000 <= taken < 500_000


topics_and_blooms = st.tuples(
    st.lists(st.binary(min_size=4, max_size=4) | st.tuples(*[st.sampled_from([0, 1, 7, 8, 9, 255])] * 4).map(bytes)),
    st.lists(st.integers(0, 511)) | st.lists(st.sampled_from([*range(16), *range(256, 272)])),
)


@given(topics_and_blooms)
def test_many_topics_are_matched_as_each_is(given_: tuple[list[bytes], list[int]]) -> None:
    topics, bits = given_
    bloom = sum(1 << bit for bit in set(bits)).to_bytes(BLOOM_BYTES, "little")

    marks = Matcher(bloom).marks(b"".join(topics))

    assert [bool(mark) for mark in marks] == [matches(bloom, topic) for topic in topics]
