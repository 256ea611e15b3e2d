"""What peers of a mailserver say to it and hear from it, over socket pairs."""

import contextlib
import sqlite3
from collections.abc import Iterator

from mailserver.codec.keccak import keccak256
from mailserver.mail.completion import Completion, Failure, decode_completion
from mailserver.rlpx import p2p
from mailserver.waku.bloom import EMPTY_BLOOM
from mailserver.waku.envelope import Envelope, decode_envelopes, encode_envelopes
from mailserver.waku.packets import EnvelopeError, MessageResponse, PacketCode, StatusOptions
from tests.mailservers import Mailserver, deployed_fields, sealed_request
from tests.raw_peer import Packet, RawPeer

EMPTY_LIST = b"\xc0"
UNKNOWN_CODE = 99
NOTHING_WANTED = StatusOptions(bloom=EMPTY_BLOOM).encode()


def messages(*envelopes: Envelope) -> bytes:
    """The payload of Messages."""
    return encode_envelopes([envelope.raw for envelope in envelopes])


def confirmation(payload: bytes, *errors: EnvelopeError) -> list[Packet]:
    """What answers a Messages packet: 12, then 11 in the form of deployed nodes."""
    batch_hash = keccak256(payload)
    return [
        Packet(PacketCode.MESSAGE_RESPONSE, MessageResponse(batch_hash, errors).encode()),
        Packet(PacketCode.BATCH_ACKNOWLEDGED, b"\xa0" + batch_hash),
    ]


async def ask(raw: RawPeer, payload: bytes) -> tuple[list[Envelope], Completion | Failure]:
    """Send a request and wait for the answer."""
    raw.say(PacketCode.P2P_REQUEST, payload)
    return await hear_answer(raw)


async def hear_answer(raw: RawPeer) -> tuple[list[Envelope], Completion | Failure]:
    """Wait for the answer to one request."""
    packets, completion = await raw.hear_answer()
    return [envelope for packet in packets for envelope in decode_envelopes(packet)], decode_completion(completion)


async def hear_envelopes(raw: RawPeer, count: int) -> list[Envelope]:
    """Wait for so many live envelopes, in whatever packets, passing over everything else."""
    heard: list[Envelope] = []
    while len(heard) < count:
        packet = await raw.hear_packet()
        if packet.code == PacketCode.MESSAGES:
            heard += decode_envelopes(packet.payload)
    return heard


async def everything(mailserver: Mailserver) -> list[bytes]:
    """All that is stored, as a client of its own is told."""
    raw = await mailserver.dial()
    found: list[Envelope] = []
    cursor = None
    while cursor is not None or not found:
        fields = deployed_fields(upper=0xFFFFFFFF, topics=[], bloom=b"\xff" * 64, cursor=cursor)
        envelopes, outcome = await ask(raw, sealed_request(fields).raw)
        assert isinstance(outcome, Completion)
        found += envelopes
        cursor = outcome.cursor
        if cursor is None:
            break
    return [envelope.raw for envelope in found]


@contextlib.contextmanager
def write_lock(mailserver: Mailserver) -> Iterator[None]:
    """Keep the store from writing, as another process could; reading goes on."""
    connection = sqlite3.connect(mailserver.path, isolation_level=None)
    try:
        connection.execute("BEGIN IMMEDIATE")
        yield
    finally:
        connection.close()


async def heard_by(raw: RawPeer) -> None:
    """Wait until the mailserver has taken in all that the peer has said."""
    raw.write(raw.frame(p2p.MessageId.PING, p2p.EMPTY_PAYLOAD))
    assert (await raw.hear()).message_id == p2p.MessageId.PONG
