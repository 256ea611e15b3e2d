"""Packets that were recorded, what they mean, and values to make others of."""

from hypothesis import strategies as st

from mailserver.waku.bloom import EMPTY_BLOOM, FULL_BLOOM
from mailserver.waku.envelope import Topic
from mailserver.waku.packets import PacketCode, RateLimits, StatusOptions
from tests.data import load

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


def minimal(number: int) -> bytes:
    return number.to_bytes((number.bit_length() + 7) // 8, "big")


u64 = st.integers(0, 2**64 - 1)
