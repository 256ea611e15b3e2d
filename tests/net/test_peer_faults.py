"""A connection ends when its peer breaks a rule, and tells the peer why."""

import asyncio
from collections.abc import Callable

import pytest

from mailserver.codec import rlp, snappy
from mailserver.errors import ConnectionLost, DisconnectReason
from mailserver.rlpx import p2p
from mailserver.rlpx import session as session_module
from mailserver.rlpx.capabilities import Capability
from mailserver.waku.packets import MAX_RECEIVED_PACKET_BYTES, PacketCode
from tests.net.wires import LIGHT, STATUS, UNKNOWN_CODE, Wires, goodbye, hello, packet, reason_for
from tests.pairs import private_key
from tests.raw_peer import DEPLOYED_STATUS, WAKU, WAKU_OFFSET, Heard, RawPeer
from tests.waiting import DEADLINE_S


def frame_of(body: bytes) -> Callable[[RawPeer], bytes]:
    return lambda raw: raw.frame_of(body)


def garbled(raw: RawPeer) -> bytes:
    frame = bytearray(raw.packet(UNKNOWN_CODE, b"garbled"))
    frame[-1] ^= 1
    return bytes(frame)


def garbled_header(raw: RawPeer) -> bytes:
    frame = bytearray(raw.packet(UNKNOWN_CODE, b"garbled"))
    frame[20] ^= 1
    return bytes(frame)


def oversize_header(raw: RawPeer) -> bytes:
    """The header alone of a frame above every limit: it is refused before any of the rest has come."""
    return raw.frame_of(bytes(3 * 1024 * 1024))[:32]


def snappy_bomb(size: int) -> bytes:
    """A message that announces `size` bytes."""
    varint = bytearray()
    while size >= 0x80:
        varint.append(size & 0x7F | 0x80)
        size >>= 7
    return bytes([WAKU_OFFSET + UNKNOWN_CODE]) + bytes([*varint, size])


FAULTS: dict[str, tuple[Callable[[RawPeer], bytes], DisconnectReason]] = {
    "packet before Status": (packet(PacketCode.P2P_REQUEST, b""), DisconnectReason.SUBPROTOCOL_ERROR),
    "unknown packet before Status": (packet(UNKNOWN_CODE, b""), DisconnectReason.SUBPROTOCOL_ERROR),
    "Status that is no list": (packet(PacketCode.STATUS, b"\x80"), DisconnectReason.SUBPROTOCOL_ERROR),
    "Status that is empty": (packet(PacketCode.STATUS, b""), DisconnectReason.SUBPROTOCOL_ERROR),
    "Status with a bad PoW": (
        packet(PacketCode.STATUS, rlp.encode([[b"", b"\x7f\xf0" + bytes(6)]])),
        DisconnectReason.SUBPROTOCOL_ERROR,
    ),
    "Status as an RLP bomb": (packet(PacketCode.STATUS, b"\xc1" * 100_000), DisconnectReason.SUBPROTOCOL_ERROR),
    "second Hello": (hello, DisconnectReason.PROTOCOL_BREACH),
    "message id of nobody": (lambda raw: raw.frame(WAKU_OFFSET + 128, b""), DisconnectReason.PROTOCOL_BREACH),
    "message id of two bytes": (frame_of(b"\x82\x01\x00"), DisconnectReason.PROTOCOL_BREACH),
    "empty frame": (frame_of(b""), DisconnectReason.PROTOCOL_BREACH),
    "body with a wrong MAC": (garbled, DisconnectReason.PROTOCOL_BREACH),
    "header with a wrong MAC": (garbled_header, DisconnectReason.PROTOCOL_BREACH),
    "bytes that are no frame": (lambda _: bytes(100), DisconnectReason.PROTOCOL_BREACH),
    "header of an oversize frame": (oversize_header, DisconnectReason.PROTOCOL_BREACH),
    "Snappy bomb of 16 MiB": (frame_of(snappy_bomb((16 << 20) + 1)), DisconnectReason.PROTOCOL_BREACH),
    "Snappy bomb of 4 GiB": (frame_of(snappy_bomb((1 << 32) - 1)), DisconnectReason.PROTOCOL_BREACH),
    "Snappy above our own limit": (
        frame_of(bytes([WAKU_OFFSET + UNKNOWN_CODE]) + snappy.compress(bytes(MAX_RECEIVED_PACKET_BYTES + 1))),
        DisconnectReason.PROTOCOL_BREACH,
    ),
    "no Snappy at all": (frame_of(bytes([WAKU_OFFSET])), DisconnectReason.PROTOCOL_BREACH),
    "long ping": (lambda raw: raw.frame(p2p.MessageId.PING, bytes(4096)), DisconnectReason.PROTOCOL_BREACH),
}


@pytest.mark.parametrize("fault", FAULTS)
async def test_fault_right_after_hello_is_told_to_the_peer_by_its_reason(wires: Wires, fault: str) -> None:
    say, reason = FAULTS[fault]

    heard, closed = await reason_for(wires, STATUS, hello, say)

    assert heard is reason
    assert (closed.reason, closed.by_peer) == (reason, False)


MALFORMED_PACKETS = {
    "Messages that is a string": (PacketCode.MESSAGES, b"\x83abc"),
    "Messages with a truncated envelope": (PacketCode.MESSAGES, b"\xc3\xc5\x01\x01"),
    "Messages as an RLP bomb": (PacketCode.MESSAGES, b"\xf9\xff\xff" + b"\xc0" * 65535),
    "Messages followed by a byte": (PacketCode.MESSAGES, b"\xc0\x00"),
    "P2P Message that is a string": (PacketCode.P2P_MESSAGE, b"\x80"),
    "Message Response that is a string": (PacketCode.MESSAGE_RESPONSE, b"\x80"),
    "Batch Ack of 31 bytes": (PacketCode.BATCH_ACKNOWLEDGED, rlp.encode(bytes(31))),
    "Status Update with a bloom of 63 bytes": (PacketCode.STATUS_UPDATE, rlp.encode([[b"\x01", bytes(63)]])),
}


@pytest.mark.parametrize("what", MALFORMED_PACKETS)
async def test_packet_that_does_not_decode_ends_the_connection_as_a_subprotocol_error(wires: Wires, what: str) -> None:
    heard, closed = await reason_for(
        wires, STATUS, hello, packet(PacketCode.STATUS, DEPLOYED_STATUS), packet(*MALFORMED_PACKETS[what])
    )

    assert heard is DisconnectReason.SUBPROTOCOL_ERROR
    assert not closed.by_peer


async def test_two_light_nodes_are_useless_to_each_other(wires: Wires) -> None:
    heard, _ = await reason_for(wires, LIGHT, hello, packet(PacketCode.STATUS, LIGHT.encode()))

    assert heard is DisconnectReason.USELESS_PEER


async def test_two_of_our_light_nodes_part_and_both_know_why(wires: Wires) -> None:
    dialling, dialled = await wires.join(ours=LIGHT, theirs=LIGHT)

    ends = [await dialling.ended(), await dialled.ended()]

    assert {end.reason for end in ends} == {DisconnectReason.USELESS_PEER}
    with pytest.raises(ConnectionLost):
        await asyncio.wait_for(dialling.connection.ready(), DEADLINE_S)


@pytest.mark.parametrize("capabilities", [(Capability("waku", 0),), (), (Capability("shh", 6), Capability("waku", 2))])
async def test_peer_without_waku_1_is_useless(wires: Wires, capabilities: tuple[Capability, ...]) -> None:
    heard, closed = await reason_for(wires, STATUS, lambda raw: raw.hello(capabilities=capabilities))

    assert heard is DisconnectReason.USELESS_PEER
    assert closed.reason is DisconnectReason.USELESS_PEER


async def test_peer_that_offers_waku_0_as_well_speaks_waku_1(wires: Wires) -> None:
    running, raw = await wires.connect()
    raw.write(raw.hello(capabilities=(Capability("waku", 0), WAKU)))
    await raw.hear()
    raw.compressed = True

    raw.say(PacketCode.STATUS, DEPLOYED_STATUS)

    await asyncio.wait_for(running.connection.ready(), DEADLINE_S)


async def test_hello_with_another_node_id_is_refused(wires: Wires) -> None:
    heard, _ = await reason_for(wires, STATUS, lambda raw: raw.hello(node_id=private_key("another").public_key))

    assert heard is DisconnectReason.UNEXPECTED_IDENTITY


async def test_other_messages_than_hello_are_refused_before_it(wires: Wires) -> None:
    _, raw = await wires.connect()
    await raw.hear()

    raw.write(raw.frame(p2p.MessageId.PING, p2p.EMPTY_PAYLOAD))

    assert await raw.hear_hangup() is DisconnectReason.PROTOCOL_BREACH


async def test_peer_that_is_not_wanted_hears_the_reason_in_place_of_hello(wires: Wires) -> None:
    running, raw = await wires.connect(refuse=lambda _: DisconnectReason.TOO_MANY_PEERS)

    heard = await raw.hear()

    assert heard == Heard(p2p.MessageId.DISCONNECT, p2p.encode_disconnect(DisconnectReason.TOO_MANY_PEERS))
    await raw.close()
    assert (await running.ended()).reason is DisconnectReason.TOO_MANY_PEERS


async def test_goodbye_in_one_write_with_hello_is_taken_as_one(wires: Wires) -> None:
    running, raw = await wires.connect()
    greeting = raw.hello()
    raw.compressed = True

    raw.write(greeting, goodbye(raw))

    closed = await running.ended()
    assert (closed.reason, closed.by_peer) == (DisconnectReason.CLIENT_QUITTING, True)
    assert running.events == []


@pytest.mark.parametrize(
    "garbage", [bytes(1), bytes(500), b"\xff" * 500, b"GET / HTTP/1.1\r\n\r\n" * 40, b"\x04" * 600]
)
async def test_bytes_that_are_no_handshake_end_the_connection_without_an_answer(
    wires: Wires, garbage: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session_module, "HANDSHAKE_TIMEOUT_S", 0.05)
    running, reader, writer = await wires.stranger()

    writer.write(garbage)

    async with asyncio.timeout(DEADLINE_S):
        assert await reader.read() == b""
    writer.close()
    assert (await running.ended()).by_peer is False
