"""mailserver.waku.peer: its table of lawful moves, then recorded packets and broken rules."""

import math
import struct
from itertools import pairwise
from typing import Any, NamedTuple

import pytest
import rlp
from Crypto.Hash import keccak
from hypothesis import example, given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from mailserver.errors import DecodeError, DisconnectReason, RemoteProtocolError
from mailserver.waku.bloom import bloom_of
from mailserver.waku.envelope import EnvelopeHash, Topic, decode_envelope
from mailserver.waku.packets import (
    EnvelopeError,
    MessageResponse,
    PacketCode,
    PeerSettings,
    RateLimits,
    StatusOptions,
)
from mailserver.waku.peer import (
    LAWFUL,
    STATUS_TIMEOUT_S,
    BatchAcknowledged,
    Event,
    MessageResponseReceived,
    MessagesReceived,
    P2PMessagesReceived,
    P2PRequestCompleted,
    P2PRequestReceived,
    PacketIgnored,
    PeerState,
    SettingsChanged,
    StatusReceived,
    WakuPeer,
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

ENVELOPE = rlp.encode([b"\x6b\x01\x20\xe3", b"\x32", NEWS, b"data", b"\x07"])
EMPTY_STATUS = b"\xc0"

UNKNOWN_CODES = [2, 10, 13, 21, 23, 0x22, 124, 128, 1000]
"""0x22 among them: 10/WAKU-USAGE's number for Status Update, which is decimal 22 on the wire."""

VALID_PAYLOADS = {
    PacketCode.STATUS: StatusOptions(light_node=True).encode(),
    PacketCode.MESSAGES: rlp.encode([rlp.decode(ENVELOPE)]),
    PacketCode.BATCH_ACKNOWLEDGED: rlp.encode(HASH),
    PacketCode.MESSAGE_RESPONSE: MessageResponse(HASH).encode(),
    PacketCode.STATUS_UPDATE: StatusOptions(confirmations=True).encode(),
    PacketCode.P2P_REQUEST_COMPLETE: rlp.encode(HASH + HASH),
    PacketCode.P2P_REQUEST: ENVELOPE,
    PacketCode.P2P_MESSAGE: rlp.encode([rlp.decode(ENVELOPE)]),
}

EVENT_TYPES: dict[PacketCode, type[Event]] = {
    PacketCode.STATUS: StatusReceived,
    PacketCode.MESSAGES: MessagesReceived,
    PacketCode.BATCH_ACKNOWLEDGED: BatchAcknowledged,
    PacketCode.MESSAGE_RESPONSE: MessageResponseReceived,
    PacketCode.STATUS_UPDATE: SettingsChanged,
    PacketCode.P2P_REQUEST_COMPLETE: P2PRequestCompleted,
    PacketCode.P2P_REQUEST: P2PRequestReceived,
    PacketCode.P2P_MESSAGE: P2PMessagesReceived,
}

PASSED_ON = (PacketCode.P2P_REQUEST, PacketCode.P2P_REQUEST_COMPLETE)
"""Their payloads are mail's business and not decoded here."""

DECODED = [code for code in PacketCode if code not in PASSED_ON]


def keccak256(data: bytes) -> bytes:
    return keccak.new(digest_bits=256, data=data).digest()


def new_peer(*, light_node: bool = False) -> WakuPeer:
    return WakuPeer(light_node=light_node)


def ready_peer() -> WakuPeer:
    peer = new_peer()
    peer.receive_packet(PacketCode.STATUS, EMPTY_STATUS)
    return peer


# The table, without a byte of traffic


def test_table_names_every_packet_and_the_unknown_one() -> None:
    assert set(LAWFUL) == {*PacketCode, None}


def test_status_is_let_in_in_every_state() -> None:
    assert LAWFUL[PacketCode.STATUS] == frozenset(PeerState)


@pytest.mark.parametrize("code", [*(code for code in PacketCode if code is not PacketCode.STATUS), None])
def test_nothing_else_is_let_in_before_status(code: PacketCode | None) -> None:
    assert LAWFUL[code] == frozenset({PeerState.READY})


# The table, lived


def test_peer_starts_before_its_status_with_the_defaults() -> None:
    peer = new_peer()

    assert peer.state is PeerState.AWAIT_STATUS
    assert peer.settings == PeerSettings()


def test_status_is_due_from_when_the_session_is_open_until_it_is_there() -> None:
    peer = new_peer()
    assert peer.next_timer() is None

    peer.opened(100.0)
    assert peer.next_timer() == 100.0 + STATUS_TIMEOUT_S
    peer.handle_timer(100.0 + STATUS_TIMEOUT_S - 0.01)
    peer.receive_packet(PacketCode.STATUS, EMPTY_STATUS)

    assert peer.next_timer() is None
    peer.handle_timer(1000.0)


def test_peer_without_status_is_given_up_when_its_time_is_over() -> None:
    peer = new_peer()
    peer.opened(100.0)

    with pytest.raises(RemoteProtocolError, match="no Status within 5 s") as broken:
        peer.handle_timer(100.0 + STATUS_TIMEOUT_S)

    assert broken.value.reason is DisconnectReason.PING_TIMEOUT
    assert peer.next_timer() is None


def test_time_for_status_stands_still_while_nothing_is_read() -> None:
    peer = new_peer()
    peer.pause_reading(90.0)
    peer.resume_reading(95.0)
    assert peer.next_timer() is None  # the session is not open yet

    peer.opened(100.0)
    peer.pause_reading(101.0)
    assert peer.next_timer() is None
    peer.handle_timer(110.0)
    peer.resume_reading(120.0)

    assert peer.next_timer() == 120.0 + STATUS_TIMEOUT_S - 1.0


@pytest.mark.parametrize("code", [*(code for code in PacketCode if code is not PacketCode.STATUS), *UNKNOWN_CODES])
def test_packet_before_status_ends_the_connection(code: int) -> None:
    peer = new_peer()
    payload = VALID_PAYLOADS.get(PacketCode(code), b"") if code in set(PacketCode) else b""

    with pytest.raises(RemoteProtocolError) as broken:
        peer.receive_packet(code, payload)

    assert broken.value.reason is DisconnectReason.SUBPROTOCOL_ERROR
    assert peer.state is PeerState.AWAIT_STATUS


@pytest.mark.parametrize("code", [code for code in PacketCode if code is not PacketCode.STATUS])
def test_packet_after_status_becomes_its_event(code: PacketCode) -> None:
    event = ready_peer().receive_packet(code, VALID_PAYLOADS[code])

    assert type(event) is EVENT_TYPES[code]


@pytest.mark.parametrize("code", UNKNOWN_CODES)
@pytest.mark.parametrize("payload", [b"", b"\xff\xff", b"\xc0"])
def test_unknown_packet_is_ignored_whatever_it_holds(code: int, payload: bytes) -> None:
    peer = ready_peer()

    assert peer.receive_packet(code, payload) == PacketIgnored(code)
    assert peer.state is PeerState.READY


# Status


def test_status_says_what_holds_for_the_peer() -> None:
    peer = new_peer()
    options = StatusOptions(
        pow_requirement=0.5,
        bloom=bloom_of([NEWS]),
        light_node=True,
        confirmations=True,
        packet_rate_limits=RateLimits(1, 2, 3),
        byte_rate_limits=RateLimits(4, 5, 6),
    )

    event = peer.receive_packet(PacketCode.STATUS, options.encode())

    assert event == StatusReceived(PeerSettings().updated(options))
    assert peer.settings == PeerSettings().updated(options)
    assert peer.settings.light_node
    assert peer.state is PeerState.READY


def test_empty_status_leaves_the_defaults() -> None:
    event = new_peer().receive_packet(PacketCode.STATUS, EMPTY_STATUS)

    assert event == StatusReceived(PeerSettings())


@pytest.mark.parametrize(
    "payload",
    [
        pytest.param(StatusOptions(pow_requirement=9.0, light_node=True).encode(), id="other options"),
        pytest.param(b"\xff not even RLP", id="not even RLP"),
    ],
)
def test_second_status_is_ignored(payload: bytes) -> None:
    peer = ready_peer()

    event = peer.receive_packet(PacketCode.STATUS, payload)

    assert event == PacketIgnored(PacketCode.STATUS)
    assert peer.settings == PeerSettings()
    assert peer.state is PeerState.READY


def test_two_light_nodes_are_of_no_use_to_each_other() -> None:
    peer = new_peer(light_node=True)

    with pytest.raises(RemoteProtocolError) as broken:
        peer.receive_packet(PacketCode.STATUS, StatusOptions(light_node=True).encode())

    assert broken.value.reason is DisconnectReason.USELESS_PEER
    assert peer.state is PeerState.AWAIT_STATUS
    assert peer.settings == PeerSettings()


def test_peer_that_becomes_a_light_node_is_of_no_use_to_another() -> None:
    peer = new_peer(light_node=True)
    peer.receive_packet(PacketCode.STATUS, StatusOptions(confirmations=True).encode())
    before = peer.settings

    with pytest.raises(RemoteProtocolError) as broken:
        peer.receive_packet(PacketCode.STATUS_UPDATE, StatusOptions(light_node=True, pow_requirement=1.0).encode())

    assert broken.value.reason is DisconnectReason.USELESS_PEER
    assert peer.settings == before


def test_peer_may_become_a_light_node_and_a_full_one_again() -> None:
    peer = new_peer()
    peer.receive_packet(PacketCode.STATUS, EMPTY_STATUS)

    seen = []
    for light_node in (True, True, False):
        event = peer.receive_packet(PacketCode.STATUS_UPDATE, StatusOptions(light_node=light_node).encode())
        assert isinstance(event, SettingsChanged)
        seen.append(event.settings.light_node)

    assert seen == [True, True, False]


def test_full_node_may_tell_a_light_one_that_it_still_is_one() -> None:
    peer = new_peer(light_node=True)
    peer.receive_packet(PacketCode.STATUS, EMPTY_STATUS)

    event = peer.receive_packet(PacketCode.STATUS_UPDATE, StatusOptions(light_node=False).encode())

    assert event == SettingsChanged(PeerSettings())


@pytest.mark.parametrize(
    ("we_are_light", "status"),
    [
        (False, StatusOptions(light_node=True)),
        (True, StatusOptions(light_node=False)),
        (True, StatusOptions()),
        (False, StatusOptions()),
    ],
)
def test_one_light_node_is_welcome(we_are_light: bool, status: StatusOptions) -> None:
    event = new_peer(light_node=we_are_light).receive_packet(PacketCode.STATUS, status.encode())

    assert isinstance(event, StatusReceived)


def test_unknown_options_are_ignored() -> None:
    payload = rlp.encode([[b"\x02", b"\x01"], [b"\x63", [b"what is this"]], [b"\x03", b"\x01"]])

    event = new_peer().receive_packet(PacketCode.STATUS, payload)

    assert event == StatusReceived(PeerSettings(light_node=True, confirmations=True))


def test_peer_may_send_its_status_again_after_a_broken_one() -> None:
    peer = new_peer()

    with pytest.raises(RemoteProtocolError):
        peer.receive_packet(PacketCode.STATUS, b"\x80")

    assert peer.state is PeerState.AWAIT_STATUS
    assert isinstance(peer.receive_packet(PacketCode.STATUS, EMPTY_STATUS), StatusReceived)


# Status Update


def test_update_changes_what_it_names() -> None:
    peer = new_peer()
    first = StatusOptions(confirmations=True, topic_interest=frozenset({NEWS}))
    second = StatusOptions(bloom=bloom_of([SPORT]))
    peer.receive_packet(PacketCode.STATUS, first.encode())

    event = peer.receive_packet(PacketCode.STATUS_UPDATE, second.encode())

    assert event == SettingsChanged(peer.settings)
    assert peer.settings == PeerSettings().updated(first).updated(second)
    assert peer.settings.confirmations
    assert not peer.settings.interest.wants(NEWS)


def test_empty_update_changes_nothing() -> None:
    peer = new_peer()
    peer.receive_packet(PacketCode.STATUS, StatusOptions(pow_requirement=0.5, confirmations=True).encode())
    before = peer.settings

    event = peer.receive_packet(PacketCode.STATUS_UPDATE, b"\xc0")

    assert event == SettingsChanged(before)
    assert peer.settings == before


def test_invalid_update_changes_nothing() -> None:
    peer = ready_peer()
    before = peer.settings

    with pytest.raises(RemoteProtocolError):
        peer.receive_packet(PacketCode.STATUS_UPDATE, rlp.encode([[b"\x03", b"\x01"], [b"\x02", b"\x02"]]))

    assert peer.settings == before


# Status Update against a plain model: a dictionary of what was said last. The payloads are made by the `rlp` package.

FULL_BLOOM = b"\xff" * 64


def number(value: int) -> bytes:
    return value.to_bytes((value.bit_length() + 7) // 8, "big")


def bits_of(pow_requirement: float) -> bytes:
    return struct.pack(">d", pow_requirement).lstrip(b"\x00")


u64 = st.integers(0, 2**64 - 1)
limits = st.lists(u64, min_size=3, max_size=4)
"""A fourth number is of a later version, and ignored."""

topic_lists = st.lists(st.binary(min_size=4, max_size=4), max_size=4)

# Of each known key: values on the wire, each with what it means.
VALID_OPTIONS: dict[int, st.SearchStrategy[tuple[Any, object]]] = {
    0: st.floats(0.0, 1000.0).map(abs).map(lambda value: (bits_of(value), value)),
    1: st.one_of(st.binary(min_size=64, max_size=64).map(lambda value: (value, value)), st.just((b"", FULL_BLOOM))),
    2: st.booleans().map(lambda value: (number(value), value)),
    3: st.booleans().map(lambda value: (number(value), value)),
    4: limits.map(lambda value: ([number(limit) for limit in value], tuple(value[:3]))),
    5: topic_lists.map(lambda value: (value, frozenset(value))),
    6: limits.map(lambda value: ([number(limit) for limit in value], tuple(value[:3]))),
}
INVALID_OPTIONS: dict[int, st.SearchStrategy[Any]] = {
    0: st.sampled_from([bits_of(math.nan), bits_of(math.inf), bits_of(-1.0), bits_of(-0.0), b"\x00\x01", bytes(9), []]),
    1: st.sampled_from([bytes(63), bytes(65), b"\x00", []]),
    2: st.sampled_from([b"\x02", b"\x00", b"\x01\x00", []]),
    3: st.sampled_from([b"\x02", b"\x00", b"\x01\x00", []]),
    4: st.sampled_from([b"", [], [b"\x01", b"\x02"], [b"", b"", b"\x00"], [b"", b"", bytes([1] * 9)]]),
    5: st.sampled_from([b"", [b"abc"], [b"abcd", b"abcde"], [[]]]),
    6: st.sampled_from([b"", [], [b"\x01", b"\x02"], [b"", b"", b"\x00"], [b"", b"", bytes([1] * 9)]]),
}
NO_VALUE = object()
"""What an invalid option means."""


class Option(NamedTuple):
    """A pair of a Status, and what is to be made of it: `key` is None where the pair means nothing."""

    pair: list[Any]
    key: int | None
    value: object


def valid_option(key: int) -> st.SearchStrategy[Option]:
    return VALID_OPTIONS[key].map(lambda drawn: Option([number(key), drawn[0]], key, drawn[1]))


def invalid_option(key: int) -> st.SearchStrategy[Option]:
    return INVALID_OPTIONS[key].map(lambda value: Option([number(key), value], key, NO_VALUE))


known_options = st.one_of(*map(valid_option, VALID_OPTIONS))
invalid_options = st.one_of(*map(invalid_option, INVALID_OPTIONS))
unknown_options = st.builds(
    lambda key, value: Option([key, value], None, None),
    st.one_of(st.integers(7, 255).map(number), st.sampled_from([b"\x00", b"\x00\x02", b"\x02\x00", b"light-node"])),
    st.sampled_from([b"", b"\xff" * 70, [], [b"", [b""]]]),
)
status_payloads = st.lists(st.one_of(known_options, known_options, unknown_options), max_size=6)
"""What is valid, unknown options among it."""

any_payloads = st.one_of(
    status_payloads,
    status_payloads,
    st.tuples(status_payloads, invalid_options, status_payloads).map(lambda parts: [*parts[0], parts[1], *parts[2]]),
)


class Model:
    """What holds for a peer: what it said last of each key, and of bloom filter and topics what it said later."""

    def __init__(self, *, we_are_light: bool) -> None:
        self.said: dict[str, object] = {
            "pow_requirement": 0.001,
            "interest": ("bloom", FULL_BLOOM),
            "light_node": False,
            "confirmations": False,
            "packet_rate_limits": (0, 0, 0),
            "byte_rate_limits": (0, 0, 0),
        }
        self._we_are_light = we_are_light

    def take(self, options: list[Option]) -> DisconnectReason | None:
        """Take a whole packet or, if any of it is wrong, nothing; return why it ends the connection."""
        said: dict[str, object] = {}
        bloom, topics = None, None
        for _, key, value in options:
            if value is NO_VALUE:
                return DisconnectReason.SUBPROTOCOL_ERROR
            if key == 1:
                bloom = "bloom", value
            elif key == 5:
                topics = "topics", value
            elif key is not None:
                name = {0: "pow_requirement", 2: "light_node", 3: "confirmations", 4: "packet_rate_limits"}
                said[name.get(key, "byte_rate_limits")] = value
        if topics is not None or bloom is not None:
            said["interest"] = topics or bloom  # 6/WAKU1: topics go before a bloom filter
        said = self.said | said
        if self._we_are_light and said["light_node"]:
            return DisconnectReason.USELESS_PEER
        self.said = said
        return None


def as_said(settings_of_peer: PeerSettings) -> dict[str, object]:
    """Settings as the model writes them."""
    interest = settings_of_peer.interest
    return {
        "pow_requirement": settings_of_peer.pow_requirement,
        "interest": ("bloom", interest.bloom) if interest.topics is None else ("topics", interest.topics),
        "light_node": settings_of_peer.light_node,
        "confirmations": settings_of_peer.confirmations,
        "packet_rate_limits": tuple(settings_of_peer.packet_rate_limits),
        "byte_rate_limits": tuple(settings_of_peer.byte_rate_limits),
    }


@given(we_are_light=st.booleans(), status=any_payloads, updates=st.lists(any_payloads, max_size=8))
@example(we_are_light=False, status=[], updates=[[Option([b"\x01", b""], 1, FULL_BLOOM)]])
@settings(max_examples=200)
def test_any_updates_leave_what_a_plain_model_makes_of_them(
    we_are_light: bool, status: list[Option], updates: list[list[Option]]
) -> None:
    peer = new_peer(light_node=we_are_light)
    model = Model(we_are_light=we_are_light)

    for options in [status, *updates]:
        is_first = peer.state is PeerState.AWAIT_STATUS
        code = PacketCode.STATUS if is_first else PacketCode.STATUS_UPDATE
        payload = rlp.encode([option.pair for option in options])
        expected = model.take(options)
        if expected is None:
            event = peer.receive_packet(code, payload)
            assert event == (StatusReceived if is_first else SettingsChanged)(peer.settings)
        else:
            with pytest.raises(RemoteProtocolError) as broken:
                peer.receive_packet(code, payload)
            assert broken.value.reason is expected
        # The connection ends at the first fault; nothing of it must have taken effect until then.
        assert as_said(peer.settings) == model.said


# Envelopes and confirmations


@pytest.mark.parametrize("envelopes", [[], [ENVELOPE], [ENVELOPE, ENVELOPE]], ids=["none", "one", "one twice"])
def test_messages_come_with_the_hash_that_confirms_them(envelopes: list[bytes]) -> None:
    payload = rlp.encode([rlp.decode(raw) for raw in envelopes])
    peer = ready_peer()

    events = [peer.receive_packet(PacketCode.MESSAGES, payload) for _ in range(2)]

    expected = MessagesReceived([decode_envelope(raw) for raw in envelopes], keccak256(payload))
    assert events == [expected, expected]


def test_recorded_messages_have_the_hash_of_their_recorded_confirmations() -> None:
    (post,) = [session for session in SESSIONS if session["name"] == "post"]
    messages = {
        message["message_id"] - WAKU_OFFSET: bytes.fromhex(message["payload"])
        for message in post["messages"]
        if message["message_id"] > WAKU_OFFSET
    }
    peer = ready_peer()

    received = peer.receive_packet(PacketCode.MESSAGES, messages[PacketCode.MESSAGES])
    response = peer.receive_packet(PacketCode.MESSAGE_RESPONSE, messages[PacketCode.MESSAGE_RESPONSE])
    acknowledged = peer.receive_packet(PacketCode.BATCH_ACKNOWLEDGED, messages[PacketCode.BATCH_ACKNOWLEDGED])

    assert isinstance(received, MessagesReceived)
    assert len(received.envelopes) == 3
    assert {envelope.topic for envelope in received.envelopes} == {NEWS, SPORT}
    assert response == MessageResponseReceived(MessageResponse(received.batch_hash))
    assert acknowledged == BatchAcknowledged(received.batch_hash)


def test_batch_acknowledgement_is_read_in_both_forms() -> None:
    peer = ready_peer()

    deployed = peer.receive_packet(PacketCode.BATCH_ACKNOWLEDGED, rlp.encode(HASH))
    specified = peer.receive_packet(PacketCode.BATCH_ACKNOWLEDGED, rlp.encode([b"\x01", HASH]))

    assert deployed == specified == BatchAcknowledged(HASH)


def test_refused_envelopes_are_told() -> None:
    response = MessageResponse(HASH, (EnvelopeError(EnvelopeHash(HASH), 2, "too old"),))

    event = ready_peer().receive_packet(PacketCode.MESSAGE_RESPONSE, response.encode())

    assert event == MessageResponseReceived(response)


def test_message_response_of_another_version_is_ignored() -> None:
    event = ready_peer().receive_packet(PacketCode.MESSAGE_RESPONSE, rlp.encode([b"\x02", [HASH, []]]))

    assert event == PacketIgnored(PacketCode.MESSAGE_RESPONSE)


def test_p2p_messages_are_told_apart_from_live_ones() -> None:
    event = ready_peer().receive_packet(PacketCode.P2P_MESSAGE, rlp.encode([rlp.decode(ENVELOPE)]))

    assert event == P2PMessagesReceived([decode_envelope(ENVELOPE)])


@pytest.mark.parametrize("payload", [b"", b"\xff\xff", ENVELOPE])
def test_request_and_its_completion_are_passed_on_undecoded(payload: bytes) -> None:
    peer = ready_peer()

    assert peer.receive_packet(PacketCode.P2P_REQUEST, payload) == P2PRequestReceived(payload)
    assert peer.receive_packet(PacketCode.P2P_REQUEST_COMPLETE, payload) == P2PRequestCompleted(payload)


# Recorded traffic


@pytest.mark.parametrize("sender", ["initiator", "recipient"])
@pytest.mark.parametrize("session", SESSIONS, ids=[session["name"] for session in SESSIONS])
def test_recorded_session_is_understood_from_both_ends(session: dict[str, Any], sender: str) -> None:
    peer = new_peer()
    packets = [
        (message["message_id"] - WAKU_OFFSET, bytes.fromhex(message["payload"]))
        for message in session["messages"]
        if message["from"] == sender and message["message_id"] >= WAKU_OFFSET
    ]

    events = [peer.receive_packet(code, payload) for code, payload in packets]

    assert [type(event) for event in events] == [EVENT_TYPES[PacketCode(code)] for code, _ in packets]
    assert packets[0][0] == PacketCode.STATUS


WHOLE_PACKETS = [packet for packet in PACKETS if not packet["payload"].endswith("...")]

# Five packets of packets.json, codes 127 and 1, were recorded truncated: their hex ends in "...".
CUT_PACKETS = [packet for packet in PACKETS if packet["payload"].endswith("...")]


@pytest.mark.parametrize("packet", WHOLE_PACKETS, ids=range(len(WHOLE_PACKETS)))
def test_recorded_packet_is_understood(packet: dict[str, Any]) -> None:
    code = PacketCode(packet["code"])
    peer = new_peer() if code is PacketCode.STATUS else ready_peer()

    event = peer.receive_packet(code, bytes.fromhex(packet["payload"]))

    assert type(event) is EVENT_TYPES[code]


@pytest.mark.parametrize("packet", CUT_PACKETS, ids=range(len(CUT_PACKETS)))
def test_packet_that_was_recorded_truncated_ends_the_connection(packet: dict[str, Any]) -> None:
    payload = bytes.fromhex(packet["payload"].removesuffix("..."))

    with pytest.raises(RemoteProtocolError):
        ready_peer().receive_packet(packet["code"], payload)


def test_five_packets_were_recorded_truncated() -> None:
    assert sorted(packet["code"] for packet in CUT_PACKETS) == [1, 1, 127, 127, 127]


# Payloads that do not decode


@pytest.mark.parametrize("code", DECODED)
def test_every_truncation_of_a_packet_ends_the_connection(code: PacketCode) -> None:
    payload = VALID_PAYLOADS[code]

    for end in range(len(payload)):
        peer = new_peer() if code is PacketCode.STATUS else ready_peer()
        with pytest.raises(RemoteProtocolError) as broken:
            peer.receive_packet(code, payload[:end])
        assert broken.value.reason is DisconnectReason.SUBPROTOCOL_ERROR
        assert isinstance(broken.value.__cause__, DecodeError)
        assert str(broken.value).startswith(code.name)


@pytest.mark.parametrize("payload", [b"", b"\x80", b"\xc1\x80", b"\xc1\xc0", ENVELOPE])
@pytest.mark.parametrize("code", [PacketCode.MESSAGES, PacketCode.P2P_MESSAGE])
def test_messages_that_do_not_decode_are_not_confirmed(code: PacketCode, payload: bytes) -> None:
    with pytest.raises(RemoteProtocolError):
        ready_peer().receive_packet(code, payload)


packets = st.tuples(
    st.one_of(st.sampled_from([*PacketCode]), st.integers(0, 200)),
    st.one_of(st.binary(max_size=60), st.sampled_from([*VALID_PAYLOADS.values()])),
)


@given(st.booleans(), st.lists(packets, max_size=8))
@example(True, [(0, b"\xc2\xc1\x02")])
@settings(max_examples=100)
def test_any_packets_become_events_or_end_the_connection(light_node: bool, received: list[tuple[int, bytes]]) -> None:
    peer = new_peer(light_node=light_node)
    states = [peer.state]

    for code, payload in received:
        try:
            peer.receive_packet(code, payload)
        except RemoteProtocolError:
            break
        states.append(peer.state)

    # Once it is ready it stays so, and nothing but a Status makes it so.
    assert all(before is after or after is PeerState.READY for before, after in pairwise(states))
    assert len(states) == 1 or states[1] is PeerState.READY
    assert len(states) == 1 or received[0][0] == PacketCode.STATUS


# A whole conversation


class Conversation(RuleBasedStateMachine):
    """Packets of every kind in any order, beside the model: what each means, and what holds for the peer after it."""

    @initialize(we_are_light=st.booleans())
    def begin(self, we_are_light: bool) -> None:
        self.peer = new_peer(light_node=we_are_light)
        self.model = Model(we_are_light=we_are_light)
        self.is_ready = False

    def take(self, code: int, payload: bytes, expected: Event | None) -> None:
        """Have a packet taken; None stands for one that breaks a rule."""
        if expected is None or not (self.is_ready or code == PacketCode.STATUS):
            with pytest.raises(RemoteProtocolError) as broken:
                self.peer.receive_packet(code, payload)
            assert broken.value.reason is DisconnectReason.SUBPROTOCOL_ERROR
        else:
            assert self.peer.receive_packet(code, payload) == expected

    @rule(code=st.sampled_from([PacketCode.STATUS, PacketCode.STATUS_UPDATE]), options=any_payloads)
    def settings_come(self, code: PacketCode, options: list[Option]) -> None:
        payload = rlp.encode([option.pair for option in options])
        if self.is_ready and code is PacketCode.STATUS:
            self.take(code, payload, PacketIgnored(code))
            return
        if not self.is_ready and code is PacketCode.STATUS_UPDATE:
            self.take(code, payload, None)
            return
        reason = self.model.take(options)
        if reason is not None:
            with pytest.raises(RemoteProtocolError) as broken:
                self.peer.receive_packet(code, payload)
            assert broken.value.reason is reason
            return
        event = self.peer.receive_packet(code, payload)
        assert event == (SettingsChanged if self.is_ready else StatusReceived)(self.peer.settings)
        self.is_ready = True

    @rule(
        code=st.sampled_from([PacketCode.MESSAGES, PacketCode.P2P_MESSAGE]),
        raws=st.lists(st.sampled_from([ENVELOPE, rlp.encode([b"\x09", b"", SPORT, b"", b""])]), max_size=4),
        damage=st.sampled_from([b"", b"", b"\x00"]),
    )
    def envelopes_come(self, code: PacketCode, raws: list[bytes], damage: bytes) -> None:
        payload = rlp.encode([rlp.decode(raw) for raw in raws]) + damage
        envelopes = [decode_envelope(raw) for raw in raws]
        expected: Event = MessagesReceived(envelopes, keccak256(payload))
        if code is PacketCode.P2P_MESSAGE:
            expected = P2PMessagesReceived(envelopes)
        self.take(code, payload, None if damage else expected)

    @rule(batch_hash=st.binary(min_size=31, max_size=33), as_list=st.booleans())
    def batch_is_acknowledged(self, batch_hash: bytes, as_list: bool) -> None:
        payload = rlp.encode([b"\x01", batch_hash] if as_list else batch_hash)
        expected = BatchAcknowledged(batch_hash) if len(batch_hash) == 32 else None
        self.take(PacketCode.BATCH_ACKNOWLEDGED, payload, expected)

    @rule(version=st.sampled_from([1, 1, 2]), codes=st.lists(st.integers(0, 2**64 - 1), max_size=3))
    def batch_is_answered(self, version: int, codes: list[int]) -> None:
        errors = [[HASH, number(code), b"why"] for code in codes]
        payload = rlp.encode([number(version), [HASH, errors]])
        told = tuple(EnvelopeError(EnvelopeHash(HASH), 1 if code == 21 else code, "why") for code in codes)
        expected: Event = MessageResponseReceived(MessageResponse(HASH, told))
        if version != 1:
            expected = PacketIgnored(PacketCode.MESSAGE_RESPONSE)
        self.take(PacketCode.MESSAGE_RESPONSE, payload, expected)

    @rule(payload=st.binary(max_size=40))
    def what_is_mails_business_is_passed_on(self, payload: bytes) -> None:
        self.take(PacketCode.P2P_REQUEST, payload, P2PRequestReceived(payload))
        self.take(PacketCode.P2P_REQUEST_COMPLETE, payload, P2PRequestCompleted(payload))

    @rule(code=st.sampled_from(UNKNOWN_CODES), payload=st.binary(max_size=40))
    def unknown_packet_comes(self, code: int, payload: bytes) -> None:
        self.take(code, payload, PacketIgnored(code))

    @invariant()
    def state_and_settings_are_those_of_the_model(self) -> None:
        assert self.peer.state is (PeerState.READY if self.is_ready else PeerState.AWAIT_STATUS)
        assert as_said(self.peer.settings) == self.model.said


TestConversation = pytest.mark.slow(Conversation.TestCase)
TestConversation.settings = settings(max_examples=60, stateful_step_count=30)
