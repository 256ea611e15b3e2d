"""mailserver.waku.packets: Status and Status Update, against recorded packets and the `rlp` package."""

import math
import struct
from typing import Any

import pytest
import rlp
from hypothesis import example, given
from hypothesis import strategies as st

from mailserver.errors import DecodeError
from mailserver.waku.bloom import EMPTY_BLOOM, FULL_BLOOM, bloom_of
from mailserver.waku.envelope import Topic
from mailserver.waku.packets import MAX_STATUS_OPTIONS, PacketCode, RateLimits, StatusOptions
from tests.properties import settings
from tests.waku.packets import NEWS, PACKETS, RECORDED_STATUSES, SESSIONS, SPORT, WAKU_OFFSET, minimal, u64

each_recorded_status = pytest.mark.parametrize(
    ("payload", "options"), list(RECORDED_STATUSES.values()), ids=list(RECORDED_STATUSES)
)


def double(number: float) -> bytes:
    """A PoW requirement on the wire: the bits of the binary64 as an integer."""
    return struct.pack(">d", number).lstrip(b"\x00")


def status(*pairs: Any) -> bytes:
    """A Status payload of `[key, value]` lists, by the `rlp` package."""
    return bytes(rlp.encode(list(pairs)))


def options_of(key: int, value: Any) -> StatusOptions:
    return StatusOptions.decode(status([minimal(key), value]))


@each_recorded_status
def test_recorded_status_decodes_to_its_options(payload: bytes, options: StatusOptions) -> None:
    assert StatusOptions.decode(payload) == options


@each_recorded_status
def test_recorded_status_encodes_to_the_same_bytes(payload: bytes, options: StatusOptions) -> None:
    assert options.encode() == payload


@each_recorded_status
def test_every_truncation_of_a_recorded_status_is_refused(payload: bytes, options: StatusOptions) -> None:
    for end in range(len(payload)):
        with pytest.raises(DecodeError):
            StatusOptions.decode(payload[:end])
    assert StatusOptions.decode(payload) == options


def test_every_recorded_status_is_known_here() -> None:
    recorded = {
        message["payload"]
        for session in SESSIONS
        for message in session["messages"]
        if message["message_id"] == WAKU_OFFSET + PacketCode.STATUS
    } | {packet["payload"] for packet in PACKETS if packet["code"] == PacketCode.STATUS}

    assert recorded == {payload.hex() for payload, _ in RECORDED_STATUSES.values()}


limits = st.builds(RateLimits, u64, u64, u64)
topics = st.binary(min_size=4, max_size=4).map(Topic)
status_options = st.builds(
    StatusOptions,
    pow_requirement=st.none() | st.floats(min_value=0.0, allow_nan=False, allow_infinity=False),
    bloom=st.none() | st.binary(min_size=64, max_size=64),
    light_node=st.none() | st.booleans(),
    confirmations=st.none() | st.booleans(),
    packet_rate_limits=st.none() | limits,
    topic_interest=st.none() | st.frozensets(topics, max_size=20),
    byte_rate_limits=st.none() | limits,
)


@given(status_options)
@example(StatusOptions())
@settings(max_examples=60)
def test_options_survive_encoding_and_decoding(options: StatusOptions) -> None:
    assert StatusOptions.decode(options.encode()) == options


@given(status_options)
@settings(max_examples=40)
def test_keys_go_out_in_ascending_order(options: StatusOptions) -> None:
    # Deployed clients stop reading at a key that they do not know: what was added last goes last.
    keys = [int.from_bytes(pair[0], "big") for pair in rlp.decode(options.encode())]

    given_keys = [
        key
        for key, value in enumerate(
            (
                options.pow_requirement,
                options.bloom,
                options.light_node,
                options.confirmations,
                options.packet_rate_limits,
                options.topic_interest,
                options.byte_rate_limits,
            )
        )
        if value is not None
    ]
    assert keys == given_keys


def test_options_are_encoded_as_the_specification_says() -> None:
    options = StatusOptions(
        pow_requirement=0.5,
        bloom=bloom_of([NEWS]),
        light_node=True,
        confirmations=False,
        packet_rate_limits=RateLimits(ip=1, peer=0, topic=300),
        topic_interest=frozenset({SPORT, NEWS}),
        byte_rate_limits=RateLimits(ip=7, peer=8, topic=9),
    )

    assert options.encode() == status(
        [b"", bytes.fromhex("3fe0000000000000")],
        [b"\x01", bloom_of([NEWS])],
        [b"\x02", b"\x01"],
        [b"\x03", b""],
        [b"\x04", [b"\x01", b"", b"\x01\x2c"]],
        [b"\x05", [NEWS, SPORT]],
        [b"\x06", [b"\x07", b"\x08", b"\x09"]],
    )


@pytest.mark.parametrize("requirement", [0.0, 5e-324, 0.001, 1.0, 1.7976931348623157e308])
def test_pow_requirement_is_the_bits_of_a_double(requirement: float) -> None:
    assert options_of(0, double(requirement)).pow_requirement == requirement
    assert StatusOptions(pow_requirement=requirement).encode() == status([b"", double(requirement)])


@pytest.mark.parametrize("bloom", [FULL_BLOOM, EMPTY_BLOOM, bloom_of([NEWS])], ids=["full", "empty", "one topic"])
def test_bloom_of_64_bytes_is_taken(bloom: bytes) -> None:
    assert options_of(1, bloom).bloom == bloom


def test_empty_bloom_field_stands_for_the_full_bloom() -> None:
    assert options_of(1, b"").bloom == FULL_BLOOM


def test_options_that_are_not_known_are_let_pass_up_to_a_bound() -> None:
    light = [b"\x02", b"\x01"]
    others = [[minimal(key), b""] for key in range(7, 7 + MAX_STATUS_OPTIONS)]

    assert StatusOptions.decode(status(*others[1:], light)) == StatusOptions(light_node=True)
    with pytest.raises(DecodeError, match="too many options"):
        StatusOptions.decode(status(*others, light))


@pytest.mark.parametrize(("value", "meaning"), [(b"", False), (b"\x01", True)])
def test_booleans_are_zero_and_one(value: bytes, meaning: bool) -> None:
    assert options_of(2, value).light_node is meaning
    assert options_of(3, value).confirmations is meaning


def test_rate_limits_are_three_numbers() -> None:
    largest = 2**64 - 1

    assert options_of(4, [b"\x01", b"", minimal(largest)]).packet_rate_limits == RateLimits(1, 0, largest)
    assert options_of(6, [b"\x02", b"\x03", b"\x04"]).byte_rate_limits == RateLimits(ip=2, peer=3, topic=4)


def test_topic_interest_may_be_empty_and_name_a_topic_twice() -> None:
    assert options_of(5, []).topic_interest == frozenset()
    assert options_of(5, [NEWS, SPORT, NEWS]).topic_interest == frozenset({NEWS, SPORT})


def numbered_topics(count: int) -> list[bytes]:
    return [number.to_bytes(4, "big") for number in range(count)]


def test_topic_interest_holds_at_most_10000_topics() -> None:
    interest = options_of(5, numbered_topics(10_000)).topic_interest

    assert interest == frozenset(numbered_topics(10_000))
    for count in (10_001, 30_000):
        with pytest.raises(DecodeError):
            options_of(5, numbered_topics(count))


@pytest.mark.parametrize(
    ("key", "value"),
    [
        pytest.param(0, double(math.nan), id="PoW is not a number"),
        pytest.param(0, double(math.inf), id="PoW is infinite"),
        pytest.param(0, double(-math.inf), id="PoW is negative and infinite"),
        pytest.param(0, double(-0.001), id="PoW is negative"),
        pytest.param(0, bytes([1] * 9), id="PoW of 9 bytes"),
        pytest.param(0, b"\x00" + double(0.5), id="PoW with a leading zero"),
        pytest.param(0, [double(0.5)], id="PoW is a list"),
        pytest.param(1, bytes(63), id="bloom of 63 bytes"),
        pytest.param(1, bytes(65), id="bloom of 65 bytes"),
        pytest.param(1, [], id="bloom is a list"),
        pytest.param(2, b"\x02", id="light node is 2"),
        pytest.param(2, b"\x00", id="light node with a leading zero"),
        pytest.param(2, b"\x01\x00", id="light node of 2 bytes"),
        pytest.param(2, [], id="light node is a list"),
        pytest.param(3, b"\x02", id="confirmations are 2"),
        pytest.param(3, b"\xff", id="confirmations are 255"),
        pytest.param(4, [b"\x01", b"\x01"], id="two packet rate limits"),
        pytest.param(4, [], id="no packet rate limits"),
        pytest.param(4, b"\x01\x01\x01", id="packet rate limits are a string"),
        pytest.param(4, [b"\x01", b"\x01", bytes([1] * 9)], id="packet rate limit of 9 bytes"),
        pytest.param(4, [b"\x01", b"\x01", []], id="packet rate limit is a list"),
        pytest.param(5, NEWS, id="topic interest is a string"),
        pytest.param(5, [NEWS[:3]], id="topic of 3 bytes"),
        pytest.param(5, [NEWS, NEWS + b"\x00"], id="topic of 5 bytes"),
        pytest.param(5, [[NEWS]], id="topic is a list"),
        pytest.param(6, [b"\x01"], id="one byte rate limit"),
        pytest.param(6, b"", id="byte rate limits are a string"),
    ],
)
def test_invalid_value_of_a_known_key_is_refused(key: int, value: Any) -> None:
    with pytest.raises(DecodeError):
        options_of(key, value)


@pytest.mark.parametrize("value", [b"", b"text", [], [b"\x01", [b"\x02"]]])
@pytest.mark.parametrize("key", [b"\x07", b"\xff", b"\x01\x00", b"\x00\x02", b"light-node"])
def test_unknown_key_is_ignored_whatever_its_value(key: bytes, value: Any) -> None:
    payload = status([b"\x02", b"\x01"], [key, value], [b"\x03", b"\x01"])

    assert StatusOptions.decode(payload) == StatusOptions(light_node=True, confirmations=True)


def test_elements_after_key_and_value_are_ignored() -> None:
    payload = status([b"\x02", b"\x01", b"more", []])

    assert StatusOptions.decode(payload) == StatusOptions(light_node=True)


def test_keys_may_come_in_any_order() -> None:
    payload = status([b"\x03", b"\x01"], [b"", double(0.5)], [b"\x02", b""])

    assert StatusOptions.decode(payload) == StatusOptions(pow_requirement=0.5, light_node=False, confirmations=True)


def test_last_value_of_a_repeated_key_counts() -> None:
    payload = status([b"\x02", b"\x01"], [b"\x03", b"\x01"], [b"\x02", b""])

    assert StatusOptions.decode(payload) == StatusOptions(light_node=False, confirmations=True)


@pytest.mark.parametrize(
    "payload",
    [
        pytest.param(b"", id="nothing"),
        pytest.param(b"\x80", id="a string"),
        pytest.param(status(b"\x02"), id="a string in place of a pair"),
        pytest.param(status([]), id="an empty pair"),
        pytest.param(status([b"\x02"]), id="a key without a value"),
        pytest.param(status([[b"\x02"], b"\x01"]), id="a list as key"),
        pytest.param(status([b"\x02", b"\x01"]) + b"\xc0", id="bytes behind the list"),
    ],
)
def test_status_that_is_no_list_of_pairs_is_refused(payload: bytes) -> None:
    with pytest.raises(DecodeError):
        StatusOptions.decode(payload)


def test_minus_zero_is_announced_as_the_zero_that_it_is() -> None:
    # Its bits are those of a negative number, which peers of ours refuse.
    assert StatusOptions(pow_requirement=-0.0).encode() == StatusOptions(pow_requirement=0.0).encode()
