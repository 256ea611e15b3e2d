"""mailserver.waku.peer: packets of many envelopes, which are decoded part by part."""

import pytest

from mailserver.errors import DisconnectReason, RemoteProtocolError
from mailserver.waku.envelope import MAX_ENVELOPES_PER_PACKET, PART_ENVELOPES, encode_envelopes
from mailserver.waku.packets import PacketCode
from mailserver.waku.peer import ENVELOPE_CODES, WakuPeer
from tests.mailservers import make_envelope

EMPTY = b"\xc0"
TINY = make_envelope(1, data_bytes=1).raw


def peer_of(*statuses: bytes) -> WakuPeer:
    """A peer from which these have come."""
    peer = WakuPeer(light_node=False)
    for status in statuses:
        peer.receive_packet(PacketCode.STATUS, status)
    return peer


@pytest.mark.parametrize("code", sorted(ENVELOPE_CODES))
def test_large_packet_is_read_to_the_event_of_any_packet(code: PacketCode) -> None:
    payload = encode_envelopes([make_envelope(number).raw for number in range(PART_ENVELOPES + 1)])
    packet = peer_of(EMPTY).receive_large_packet(code, payload)

    envelopes = packet.read() + packet.read()

    assert packet.read() == []
    assert packet.event(envelopes) == peer_of(EMPTY).receive_packet(code, payload)


def test_large_packet_before_status_ends_the_connection() -> None:
    with pytest.raises(RemoteProtocolError, match="before Status"):
        peer_of().receive_large_packet(PacketCode.MESSAGES, EMPTY)


@pytest.mark.parametrize("payload", [b"\x80", b"\xc1\x00", encode_envelopes([TINY] * (MAX_ENVELOPES_PER_PACKET + 1))])
def test_large_packet_that_does_not_decode_ends_the_connection(payload: bytes) -> None:
    with pytest.raises(RemoteProtocolError, match="MESSAGES: ") as raised:  # noqa: PT012 - at whichever part
        packet = peer_of(EMPTY).receive_large_packet(PacketCode.MESSAGES, payload)
        while packet.read():
            pass
    assert raised.value.reason is DisconnectReason.SUBPROTOCOL_ERROR
