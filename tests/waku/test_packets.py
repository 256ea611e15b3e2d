"""mailserver.waku.packets against recorded packets and the `rlp` package."""

import math
import struct
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import rlp
from hypothesis import example, given
from hypothesis import strategies as st

from mailserver.errors import DecodeError
from mailserver.waku.bloom import EMPTY_BLOOM, FULL_BLOOM, Interest, PackedTopics, bloom_of
from mailserver.waku.envelope import EnvelopeHash, Topic
from mailserver.waku.packets import (
    MAX_PACKET_BYTES,
    MAX_RECEIVED_PACKET_BYTES,
    MAX_UNPACKED_TOPICS,
    PACKET_CODE_COUNT,
    EnvelopeError,
    EnvelopeErrorCode,
    MessageResponse,
    PacketCode,
    PeerSettings,
    RateLimits,
    StatusOptions,
    decode_batch_acknowledged,
    encode_batch_acknowledged,
)
from tests.data import load
from tests.properties import settings

WAKU_OFFSET = 0x10
"""Where the message ids of the only capability start."""

SESSIONS = load("sessions.json")["sessions"]
PACKETS = load("packets.json")["packets"]

NEWS = Topic(b"\x9a\xcb\x04\x42")
SPORT = Topic(b"\xf0\xc5\x34\x1e")
HASH = bytes(range(32))
OTHER_HASH = bytes(range(32, 64))

NO_LIMITS = RateLimits(0, 0, 0)
RECORDED_POW = 2e-6


def recorded_status(session: str, sender: str) -> bytes:
    (payload,) = [
        bytes.fromhex(message["payload"])
        for vector in SESSIONS
        if vector["name"] == session
        for message in vector["messages"]
        if message["from"] == sender and message["message_id"] == WAKU_OFFSET + PacketCode.STATUS
    ]
    return payload


def recorded_packet(group: str, code: int) -> bytes:
    (payload,) = [
        bytes.fromhex(packet["payload"]) for packet in PACKETS if (packet["group"], packet["code"]) == (group, code)
    ]
    return payload


RECORDED_STATUSES = {
    "silent client": (
        recorded_status("handshake", "initiator"),
        StatusOptions(
            pow_requirement=RECORDED_POW,
            light_node=False,
            confirmations=False,
            packet_rate_limits=NO_LIMITS,
            byte_rate_limits=NO_LIMITS,
        ),
    ),
    "recorder": (
        recorded_status("handshake", "recipient"),
        StatusOptions(pow_requirement=RECORDED_POW, bloom=FULL_BLOOM, light_node=False, confirmations=True),
    ),
    "light node": (
        recorded_status("light", "initiator"),
        StatusOptions(
            pow_requirement=RECORDED_POW,
            light_node=True,
            confirmations=False,
            packet_rate_limits=NO_LIMITS,
            topic_interest=frozenset({NEWS, SPORT}),
            byte_rate_limits=NO_LIMITS,
        ),
    ),
    "bloom of zeros": (
        recorded_status("v0", "initiator"),
        StatusOptions(
            pow_requirement=RECORDED_POW,
            bloom=EMPTY_BLOOM,
            light_node=False,
            confirmations=False,
            packet_rate_limits=NO_LIMITS,
            byte_rate_limits=NO_LIMITS,
        ),
    ),
    "mailserver": (
        next(
            bytes.fromhex(packet["payload"])
            for packet in PACKETS
            if packet["code"] == PacketCode.STATUS and packet["direction"] == "from server"
        ),
        StatusOptions(
            pow_requirement=RECORDED_POW,
            bloom=FULL_BLOOM,
            light_node=False,
            confirmations=True,
            packet_rate_limits=NO_LIMITS,
            byte_rate_limits=NO_LIMITS,
        ),
    ),
}

each_recorded_status = pytest.mark.parametrize(
    ("payload", "options"), list(RECORDED_STATUSES.values()), ids=list(RECORDED_STATUSES)
)


def minimal(number: int) -> bytes:
    return number.to_bytes((number.bit_length() + 7) // 8, "big")


def double(number: float) -> bytes:
    """A PoW requirement on the wire: the bits of the binary64 as an integer."""
    return struct.pack(">d", number).lstrip(b"\x00")


def status(*pairs: Any) -> bytes:
    """A Status payload of `[key, value]` lists, by the `rlp` package."""
    return bytes(rlp.encode(list(pairs)))


def options_of(key: int, value: Any) -> StatusOptions:
    return StatusOptions.decode(status([minimal(key), value]))


# Numbers of the specification


def test_packet_codes_are_those_of_the_specification() -> None:
    # 22 is decimal on the wire, though 10/WAKU-USAGE writes 0x22.
    assert {code.name: code.value for code in PacketCode} == {
        "STATUS": 0,
        "MESSAGES": 1,
        "BATCH_ACKNOWLEDGED": 11,
        "MESSAGE_RESPONSE": 12,
        "STATUS_UPDATE": 22,
        "P2P_REQUEST_COMPLETE": 125,
        "P2P_REQUEST": 126,
        "P2P_MESSAGE": 127,
    }
    assert PACKET_CODE_COUNT == 128


def test_packets_that_we_send_are_no_longer_than_deployed_clients_take() -> None:
    assert MAX_PACKET_BYTES == 1024 * 1024
    assert MAX_RECEIVED_PACKET_BYTES >= 1_500_000


# Status and Status Update


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


u64 = st.integers(0, 2**64 - 1)
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


# What holds for a peer


def test_empty_status_means_the_defaults() -> None:
    settings_of_peer = PeerSettings().updated(StatusOptions.decode(b"\xc0"))

    assert settings_of_peer == PeerSettings(
        pow_requirement=0.001,
        interest=Interest(topics=None, bloom=FULL_BLOOM),
        light_node=False,
        confirmations=False,
        packet_rate_limits=NO_LIMITS,
        byte_rate_limits=NO_LIMITS,
    )


FULL_SETTINGS = PeerSettings(
    pow_requirement=0.25,
    interest=Interest(topics=frozenset({NEWS})),
    light_node=True,
    confirmations=True,
    packet_rate_limits=RateLimits(1, 2, 3),
    byte_rate_limits=RateLimits(4, 5, 6),
)


def test_empty_update_changes_nothing() -> None:
    assert FULL_SETTINGS.updated(StatusOptions()) == FULL_SETTINGS


@pytest.mark.parametrize(
    ("options", "changed"),
    [
        (StatusOptions(pow_requirement=0.0), {"pow_requirement": 0.0}),
        (StatusOptions(light_node=False), {"light_node": False}),
        (StatusOptions(confirmations=False), {"confirmations": False}),
        (StatusOptions(packet_rate_limits=NO_LIMITS), {"packet_rate_limits": NO_LIMITS}),
        (StatusOptions(byte_rate_limits=NO_LIMITS), {"byte_rate_limits": NO_LIMITS}),
        (StatusOptions(topic_interest=frozenset()), {"interest": Interest(topics=frozenset())}),
        (StatusOptions(bloom=EMPTY_BLOOM), {"interest": Interest(bloom=EMPTY_BLOOM)}),
    ],
    ids=["pow", "light node", "confirmations", "packet limits", "byte limits", "topics", "bloom"],
)
def test_update_changes_what_it_names_and_nothing_else(options: StatusOptions, changed: dict[str, Any]) -> None:
    assert FULL_SETTINGS.updated(options) == replace(FULL_SETTINGS, **changed)


def test_update_with_a_bloom_alone_discards_the_topics() -> None:
    before = PeerSettings().updated(StatusOptions(topic_interest=frozenset({NEWS})))

    after = before.updated(StatusOptions(bloom=bloom_of([SPORT])))

    assert (before.interest.wants(NEWS), before.interest.wants(SPORT)) == (True, False)
    assert (after.interest.wants(NEWS), after.interest.wants(SPORT)) == (False, True)
    assert after.interest == Interest(bloom=bloom_of([SPORT]))


def test_update_with_topics_alone_discards_the_bloom() -> None:
    before = PeerSettings().updated(StatusOptions(bloom=bloom_of([SPORT])))

    after = before.updated(StatusOptions(topic_interest=frozenset({NEWS})))

    assert (before.interest.wants(NEWS), before.interest.wants(SPORT)) == (False, True)
    assert (after.interest.wants(NEWS), after.interest.wants(SPORT)) == (True, False)
    assert after.interest == Interest(topics=frozenset({NEWS}))


def test_topics_win_over_a_bloom_in_the_same_packet() -> None:
    both = StatusOptions(bloom=FULL_BLOOM, topic_interest=frozenset({NEWS}))

    interest = PeerSettings().updated(both).interest

    assert interest.wants(NEWS)
    assert not interest.wants(SPORT)


@pytest.mark.parametrize("options", [StatusOptions(bloom=EMPTY_BLOOM), StatusOptions(topic_interest=frozenset())])
def test_bloom_of_zeros_or_no_topics_want_nothing(options: StatusOptions) -> None:
    assert not PeerSettings().updated(options).interest.wants(NEWS)


def test_light_node_that_has_not_subscribed_yet_wants_everything_until_an_update() -> None:
    silent = PeerSettings().updated(StatusOptions(light_node=True))

    subscribed = silent.updated(StatusOptions(topic_interest=frozenset({NEWS})))

    assert silent.interest.wants(SPORT)
    assert not subscribed.interest.wants(SPORT)
    assert subscribed.light_node


# What is new in a Status: what a Status Update says

interests = st.one_of(
    st.binary(min_size=64, max_size=64).map(lambda bloom: {"bloom": bloom}),
    st.sampled_from([FULL_BLOOM, EMPTY_BLOOM]).map(lambda bloom: {"bloom": bloom}),
    st.frozensets(st.sampled_from([NEWS, SPORT]), max_size=2).map(lambda topics: {"topic_interest": topics}),
)
announcements = st.builds(
    lambda interest, **numbers: StatusOptions(**interest, **numbers),
    interests,
    pow_requirement=st.sampled_from([0.0, 0.25, 0.5]),
    light_node=st.booleans(),
    confirmations=st.booleans(),
    packet_rate_limits=st.sampled_from([NO_LIMITS, RateLimits(1, 2, 3)]),
    byte_rate_limits=st.sampled_from([NO_LIMITS, RateLimits(4, 5, 6)]),
)
"""What a node announces of itself: every number, and either a bloom filter or topics."""

OURS = StatusOptions(
    pow_requirement=0.25,
    bloom=FULL_BLOOM,
    light_node=False,
    confirmations=True,
    packet_rate_limits=NO_LIMITS,
    byte_rate_limits=NO_LIMITS,
)


def test_nothing_is_new_where_nothing_has_changed() -> None:
    assert OURS.since(replace(OURS)) == StatusOptions()


@pytest.mark.parametrize(
    "changed",
    [
        {"pow_requirement": 0.5},
        {"pow_requirement": 0.0},
        {"bloom": EMPTY_BLOOM},
        {"light_node": True},
        {"confirmations": False},
        {"packet_rate_limits": RateLimits(0, 0, 1)},
        {"byte_rate_limits": RateLimits(1, 0, 0)},
    ],
    ids=lambda changed: next(iter(changed)),
)
def test_what_has_changed_is_new_and_nothing_else(changed: dict[str, Any]) -> None:
    assert replace(OURS, **changed).since(OURS) == StatusOptions(**changed)


@pytest.mark.parametrize("topics", [frozenset(), frozenset({NEWS})])
def test_topics_in_place_of_a_bloom_are_new_and_so_is_the_bloom_in_their_place(topics: frozenset[Topic]) -> None:
    with_topics = replace(OURS, bloom=None, topic_interest=topics)

    assert with_topics.since(OURS) == StatusOptions(topic_interest=topics)
    assert OURS.since(with_topics) == StatusOptions(bloom=FULL_BLOOM)


def test_everything_is_new_to_who_has_heard_nothing() -> None:
    assert OURS.since(StatusOptions()) == OURS


@given(st.lists(announcements, min_size=1, max_size=6))
@settings(max_examples=200)
def test_peer_that_follows_our_updates_ends_with_what_we_announce_now(announced: list[StatusOptions]) -> None:
    first, *later = announced
    heard = PeerSettings().updated(StatusOptions.decode(first.encode()))

    said = first
    for now in later:
        update = now.since(said)
        heard = heard.updated(StatusOptions.decode(update.encode()))
        said = now

        # A peer that connects now hears all of it at once, and ends with the same.
        assert heard == PeerSettings().updated(StatusOptions.decode(now.encode()))


@given(announcements, announcements)
@settings(max_examples=100)
def test_update_names_no_key_that_has_not_changed(before: StatusOptions, now: StatusOptions) -> None:
    update = now.since(before)

    for name in StatusOptions.__slots__:
        if getattr(before, name) == getattr(now, name):
            assert getattr(update, name) is None


def test_minus_zero_is_announced_as_the_zero_that_it_is() -> None:
    # Its bits are those of a negative number, which peers of ours refuse.
    assert StatusOptions(pow_requirement=-0.0).encode() == StatusOptions(pow_requirement=0.0).encode()


# Message Response


def test_recorded_message_response_survives_decoding_and_encoding() -> None:
    payload = recorded_packet("confirmations", PacketCode.MESSAGE_RESPONSE)
    batch_hash = recorded_packet("confirmations", PacketCode.BATCH_ACKNOWLEDGED)[1:]

    response = MessageResponse.decode(payload)

    assert response == MessageResponse(batch_hash)
    assert MessageResponse(batch_hash).encode() == payload


envelope_errors = st.builds(
    EnvelopeError,
    st.binary(min_size=32, max_size=32).map(EnvelopeHash),
    u64.filter(lambda code: code != 21),
    st.text("a \xe9\u20ac", max_size=20),
)


@given(st.binary(min_size=32, max_size=32), st.lists(envelope_errors, max_size=5).map(tuple))
@settings(max_examples=40)
def test_message_response_survives_encoding_and_decoding(batch_hash: bytes, errors: tuple[EnvelopeError, ...]) -> None:
    response = MessageResponse(batch_hash, errors)

    encoded = response.encode()

    assert MessageResponse.decode(encoded) == response
    assert encoded == rlp.encode(
        [
            b"\x01",
            [batch_hash, [[error.hash, minimal(error.code), error.description.encode()] for error in errors]],
        ]
    )


@pytest.mark.parametrize(("sent", "meaning"), [(1, 1), (2, 2), (21, 1), (0, 0), (20, 20), (22, 22)])
def test_code_of_deployed_nodes_is_read_as_a_wrong_clock(sent: int, meaning: int) -> None:
    payload = rlp.encode([b"\x01", [HASH, [[OTHER_HASH, minimal(sent), b"why"]]]])

    response = MessageResponse.decode(payload)

    assert response == MessageResponse(HASH, (EnvelopeError(EnvelopeHash(OTHER_HASH), meaning, "why"),))


def test_error_codes_that_we_send_are_one_and_two() -> None:
    assert (EnvelopeErrorCode.TIME_SYNC, EnvelopeErrorCode.INVALID) == (1, 2)


def test_additional_elements_of_a_message_response_are_ignored() -> None:
    payload = rlp.encode([b"\x01", [HASH, [[OTHER_HASH, b"\x02", b"why", b"more"]], [b"more"]], b"more"])

    response = MessageResponse.decode(payload)

    assert response == MessageResponse(HASH, (EnvelopeError(EnvelopeHash(OTHER_HASH), 2, "why"),))


def test_description_that_is_not_utf8_is_read_with_replacements() -> None:
    payload = rlp.encode([b"\x01", [HASH, [[OTHER_HASH, b"\x02", b"caf\xe9"]]]])

    response = MessageResponse.decode(payload)

    assert response is not None
    assert [error.description for error in response.errors] == ["caf\N{REPLACEMENT CHARACTER}"]


@pytest.mark.parametrize("version", [0, 2, 255, 2**64 - 1])
def test_message_response_of_another_version_is_not_read(version: int) -> None:
    assert MessageResponse.decode(rlp.encode([minimal(version), b"what it means then"])) is None


@pytest.mark.parametrize(
    "payload",
    [
        pytest.param(b"", id="nothing"),
        pytest.param(b"\x01", id="a string"),
        pytest.param(b"\xc0", id="an empty list"),
        pytest.param(rlp.encode([b"\x01"]), id="a version alone"),
        pytest.param(rlp.encode([[], [HASH, []]]), id="a list as version"),
        pytest.param(rlp.encode([bytes([1] * 9), [HASH, []]]), id="a version of 9 bytes"),
        pytest.param(rlp.encode([b"\x00\x01", [HASH, []]]), id="a version with a leading zero"),
        pytest.param(rlp.encode([b"\x01", HASH]), id="no list of hash and errors"),
        pytest.param(rlp.encode([b"\x01", []]), id="neither hash nor errors"),
        pytest.param(rlp.encode([b"\x01", [HASH]]), id="no errors"),
        pytest.param(rlp.encode([b"\x01", [HASH, b""]]), id="errors are a string"),
        pytest.param(rlp.encode([b"\x01", [HASH[:31], []]]), id="a hash of 31 bytes"),
        pytest.param(rlp.encode([b"\x01", [[HASH], []]]), id="a list as hash"),
        pytest.param(rlp.encode([b"\x01", [HASH, [b"error"]]]), id="an error is a string"),
        pytest.param(rlp.encode([b"\x01", [HASH, [[HASH, b"\x01"]]]]), id="an error without description"),
        pytest.param(
            rlp.encode([b"\x01", [HASH, [[HASH + b"\x00", b"\x01", b""]]]]), id="an envelope hash of 33 bytes"
        ),
        pytest.param(rlp.encode([b"\x01", [HASH, [[HASH, bytes([1] * 9), b""]]]]), id="an error code of 9 bytes"),
        pytest.param(rlp.encode([b"\x01", [HASH, [[HASH, b"\x01", []]]]]), id="a list as description"),
        pytest.param(rlp.encode([b"\x01", [HASH, []]]) + b"\x00", id="bytes behind the list"),
    ],
)
def test_message_response_of_another_form_is_refused(payload: bytes) -> None:
    with pytest.raises(DecodeError):
        MessageResponse.decode(payload)


# Batch Acknowledged


def test_recorded_batch_acknowledgement_survives_decoding_and_encoding() -> None:
    payload = recorded_packet("confirmations", PacketCode.BATCH_ACKNOWLEDGED)

    batch_hash = decode_batch_acknowledged(payload)

    assert payload == b"\xa0" + batch_hash
    assert encode_batch_acknowledged(batch_hash) == payload


def test_batch_acknowledgement_of_the_specification_is_a_list() -> None:
    assert decode_batch_acknowledged(rlp.encode([b"\x01", HASH])) == HASH


def test_additional_elements_of_a_batch_acknowledgement_are_ignored() -> None:
    assert decode_batch_acknowledged(rlp.encode([b"\x01", HASH, b"more"])) == HASH


@given(st.binary(min_size=32, max_size=32))
@settings(max_examples=20)
def test_batch_hash_survives_encoding_and_decoding(batch_hash: bytes) -> None:
    assert encode_batch_acknowledged(batch_hash) == rlp.encode(batch_hash)
    assert decode_batch_acknowledged(encode_batch_acknowledged(batch_hash)) == batch_hash


@pytest.mark.parametrize(
    "payload",
    [
        pytest.param(b"", id="nothing"),
        pytest.param(b"\xc0", id="an empty list"),
        pytest.param(rlp.encode(HASH[:31]), id="a hash of 31 bytes"),
        pytest.param(rlp.encode(HASH + b"\x00"), id="a hash of 33 bytes"),
        pytest.param(HASH, id="a hash without its header"),
        pytest.param(rlp.encode([b"\x01", HASH[:31]]), id="a hash of 31 bytes in a list"),
        pytest.param(rlp.encode([b"\x01", [HASH]]), id="a list in the list"),
        pytest.param(rlp.encode([b"\x01"]), id="a version alone"),
        pytest.param(rlp.encode(HASH) + b"\x00", id="bytes behind the hash"),
    ],
)
def test_batch_acknowledgement_of_another_form_is_refused(payload: bytes) -> None:
    with pytest.raises(DecodeError):
        decode_batch_acknowledged(payload)


# Anything at all

DECODERS: list[Callable[[bytes], object]] = [
    StatusOptions.decode,
    MessageResponse.decode,
    decode_batch_acknowledged,
]

WITH_ERRORS = MessageResponse(HASH, (EnvelopeError(EnvelopeHash(OTHER_HASH), 2, "too old"),)).encode()

each_decoder = pytest.mark.parametrize("decode", DECODERS, ids=["status", "message response", "batch acknowledged"])


@pytest.mark.parametrize(
    ("decode", "payload"),
    [
        (MessageResponse.decode, recorded_packet("confirmations", PacketCode.MESSAGE_RESPONSE)),
        (MessageResponse.decode, WITH_ERRORS),
        (decode_batch_acknowledged, recorded_packet("confirmations", PacketCode.BATCH_ACKNOWLEDGED)),
        (decode_batch_acknowledged, rlp.encode([b"\x01", HASH])),
    ],
    ids=["response", "response with errors", "deployed acknowledgement", "specified acknowledgement"],
)
def test_every_truncation_of_a_confirmation_is_refused(decode: Callable[[bytes], object], payload: bytes) -> None:
    for end in range(len(payload)):
        with pytest.raises(DecodeError):
            decode(payload[:end])
    assert decode(payload) is not None


nested: st.SearchStrategy[Any] = st.recursive(
    st.binary(max_size=8) | st.sampled_from([b"", b"\x00", b"\x01", HASH, NEWS, FULL_BLOOM]),
    lambda inner: st.lists(inner, max_size=4),
    max_leaves=12,
)


def decodes_or_is_refused(decode: Callable[[bytes], object], payload: bytes) -> bool:
    """Whether it decodes; any error but DecodeError goes through and fails the test."""
    try:
        decode(payload)
    except DecodeError:
        return False
    return True


@each_decoder
@given(payload=st.binary(max_size=80) | nested.map(rlp.encode))
@settings(max_examples=60)
def test_any_bytes_decode_or_are_refused(decode: Callable[[bytes], object], payload: bytes) -> None:
    accepted = decodes_or_is_refused(decode, payload)

    # Whatever is accepted is canonical RLP and fills the payload.
    assert not accepted or rlp.encode(rlp.decode(payload)) == payload


@each_decoder
@given(at=st.integers(0, 30), value=st.integers(0, 255))
@settings(max_examples=60)
def test_any_changed_byte_decodes_or_is_refused(decode: Callable[[bytes], object], at: int, value: int) -> None:
    for payload in (RECORDED_STATUSES["light node"][0], WITH_ERRORS, b"\xa0" + HASH):
        changed = payload[:at] + bytes([value]) + payload[at + 1 :]

        accepted = decodes_or_is_refused(decode, changed)

        assert not accepted or rlp.encode(rlp.decode(changed)) == changed


def test_many_topics_of_a_peer_are_packed_and_mean_the_same() -> None:
    topics = frozenset(Topic(number.to_bytes(4, "big")) for number in range(MAX_UNPACKED_TOPICS + 1))

    settings = PeerSettings().updated(StatusOptions(topic_interest=topics))

    assert isinstance(settings.interest.topics, PackedTopics)
    assert settings == PeerSettings(interest=Interest(topics=topics))
