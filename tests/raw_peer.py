"""A peer by hand, over a real socket: it sends what a test gives it, lawful or not, and returns what it hears.

For the key exchange and the frames it uses `mailserver.rlpx`; it knows no Session and no WakuPeer.
"""

import asyncio
import contextlib
import socket
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from mailserver.codec import rlp, snappy
from mailserver.codec.keys import NodeId, PrivateKey
from mailserver.errors import DisconnectReason
from mailserver.rlpx import p2p
from mailserver.rlpx.capabilities import Capability
from mailserver.rlpx.framing import HEADER_BYTES, MAC_BYTES, FrameDecoder, FrameEncoder, padded
from mailserver.rlpx.handshake import SIZE_PREFIX_BYTES, Initiator, Recipient, Secrets
from mailserver.waku.packets import PacketCode
from tests.data import load
from tests.pairs import entropy, private_key, split_message
from tests.waiting import DEADLINE_S

WAKU = Capability("waku", 1)
WAKU_OFFSET = 0x10

DEPLOYED_STATUS = bytes.fromhex(load("sessions.json")["sessions"][0]["messages"][3]["payload"])
"""The Status of the deployed Go client, as recorded."""


class Heard(NamedTuple):
    """A message; `payload` is inflated."""

    message_id: int
    payload: bytes


class Packet(NamedTuple):
    """A message of the waku capability."""

    code: int
    payload: bytes


class Hangup(Exception):
    """The other side ended the conversation; `reason` is what it said, None if it just went away."""

    def __init__(self, reason: DisconnectReason | None) -> None:
        super().__init__(reason)
        self.reason = reason


def stream_pair() -> tuple[socket.socket, socket.socket]:
    """Two joined sockets, without a port."""
    left, right = socket.socketpair()
    left.setblocking(False)
    right.setblocking(False)
    return left, right


def bound_stream(target: tuple[str, int], source: str) -> socket.socket:
    """A socket to `target` that comes from an address of its own: any of 127.0.0.0/8 is this machine's."""
    connected = socket.create_connection(target, DEADLINE_S, source_address=(source, 0))
    connected.setblocking(False)
    return connected


class RawPeer:
    """One side of a conversation, after the key exchange."""

    def __init__(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, key: PrivateKey, secrets: Secrets
    ) -> None:
        self.reader = reader
        self.writer = writer
        self.key = key
        self.compressed = False
        self._encoder = FrameEncoder(secrets.aes, secrets.mac, secrets.egress_seed)
        self._decoder = FrameDecoder(secrets.aes, secrets.mac, secrets.ingress_seed)

    @classmethod
    async def dial(
        cls, target: socket.socket | tuple[str, int], remote_id: NodeId, *, name: str = "client"
    ) -> "RawPeer":
        """Connect and do the initiator's part of the key exchange."""
        reader, writer = await open_stream(target)
        initiator = Initiator(private_key(name), remote_id, entropy(name))
        writer.write(initiator.auth)
        try:
            ack = await read_handshake_packet(reader)
        except BaseException:
            writer.transport.abort()
            raise
        return cls(reader, writer, private_key(name), initiator.receive_ack(ack))

    @classmethod
    async def accept(cls, end: socket.socket, *, name: str = "server") -> "RawPeer":
        """Do the recipient's part of the key exchange."""
        reader, writer = await open_stream(end)
        ack, secrets = Recipient(private_key(name), entropy(name)).receive_auth(await read_handshake_packet(reader))
        writer.write(ack)
        return cls(reader, writer, private_key(name), secrets)

    def frame(self, message_id: int, payload: bytes) -> bytes:
        """Seal a message; the next frame continues from this one, so it must be sent."""
        data = snappy.compress(payload) if self.compressed else payload
        return self.frame_of(rlp.encode(rlp.encode_uint(message_id)) + data)

    def frame_of(self, body: bytes) -> bytes:
        """Seal a frame body as it is."""
        return self._encoder.encode(body)

    def hello(
        self, *, capabilities: Iterable[Capability] = (WAKU,), version: int = 5, node_id: bytes | None = None
    ) -> bytes:
        """A frame with Hello."""
        node_id = self.key.public_key if node_id is None else node_id
        hello = p2p.Hello(version, "raw/1", tuple(capabilities), 0, NodeId(node_id))
        return self.frame(p2p.MessageId.HELLO, hello.encode())

    def packet(self, code: int, payload: bytes) -> bytes:
        """A frame with a packet of the waku capability."""
        return self.frame(WAKU_OFFSET + code, payload)

    def write(self, *data: bytes) -> None:
        """Send bytes in one go, without waiting for anything; into the void if the other has ended it."""
        if not self.writer.is_closing():
            self.writer.write(b"".join(data))

    def say(self, code: int, payload: bytes) -> None:
        """Send a packet, without waiting for anything."""
        self.write(self.packet(code, payload))

    async def greet(
        self,
        *,
        status: bytes | None = DEPLOYED_STATUS,
        version: int = 5,
        capabilities: Iterable[Capability] = (WAKU,),
    ) -> "RawPeer":
        """Exchange Hello and, unless it is None, Status, as every lawful peer does; return itself."""
        self.write(self.hello(version=version, capabilities=capabilities))
        assert (await self.hear()).message_id == p2p.MessageId.HELLO
        self.compressed = version >= 5
        if status is not None:
            self.say(PacketCode.STATUS, status)
            assert (await self.hear_packet()).code == PacketCode.STATUS
        return self

    async def hear(self) -> Heard:
        """Wait for the next message.

        Raises:
            Hangup: the stream is over, or broken.
        """
        async with asyncio.timeout(DEADLINE_S):
            try:
                header = await self.reader.readexactly(HEADER_BYTES)
                size = self._decoder.decode_header(header, max_body_bytes=1 << 24)
                body = await self.reader.readexactly(padded(size) + MAC_BYTES)
            except (asyncio.IncompleteReadError, ConnectionError) as error:
                raise Hangup(None) from error
        message_id, data = split_message(self._decoder.decode_body(body, size))
        return Heard(message_id, snappy.decompress(data, max_bytes=1 << 24) if self.compressed else data)

    async def hear_packet(self) -> Packet:
        """Wait for the next packet; pings on the way are answered.

        Raises:
            Hangup: a Disconnect came, or the end.
        """
        while True:
            message_id, payload = await self.hear()
            if message_id == p2p.MessageId.DISCONNECT:
                raise Hangup(p2p.decode_disconnect(payload))
            if message_id == p2p.MessageId.PING:
                self.write(self.frame(p2p.MessageId.PONG, p2p.EMPTY_PAYLOAD))
            if message_id >= WAKU_OFFSET:
                return Packet(message_id - WAKU_OFFSET, payload)

    async def hear_packets(self, count: int) -> list[Packet]:
        """Wait for so many packets."""
        return [await self.hear_packet() for _ in range(count)]

    async def hear_confirmation(self) -> list[Packet]:
        """Wait for Message Response and Batch Ack; what is relayed meanwhile is passed over."""
        heard: list[Packet] = []
        while len(heard) < 2:
            packet = await self.hear_packet()
            if packet.code != PacketCode.MESSAGES:
                heard.append(packet)
        return heard

    async def hear_answer(self) -> tuple[list[bytes], bytes]:
        """Wait until a history request is answered; return the payloads of the P2P Messages, and of the completion."""
        messages: list[bytes] = []
        while True:
            code, payload = await self.hear_packet()
            if code == PacketCode.P2P_REQUEST_COMPLETE:
                return messages, payload
            if code == PacketCode.P2P_MESSAGE:
                messages.append(payload)

    async def hear_hangup(self) -> DisconnectReason | None:
        """Pass over everything until the end; return the reason that was said last."""
        try:
            while True:
                await self.hear_packet()
        except Hangup as hangup:
            return hangup.reason

    async def at_end(self) -> bool:
        """Wait until the other side has closed the socket, whatever it still says."""
        return await at_end(self.reader)

    async def close(self) -> None:
        """Go away without a word."""
        await close_stream(self.writer)


class Replay(RawPeer):
    """The deployed Go client as initiator, from its recorded bytes; needs a recipient with the recorded entropy."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, recorded: Any, ack: bytes) -> None:
        secrets = recorded["secrets"]
        aes, mac = bytes.fromhex(secrets["aes_secret"]), bytes.fromhex(secrets["mac_secret"])
        auth = bytes.fromhex(recorded["auth"])
        egress = _xor(mac, bytes.fromhex(recorded["recipient_nonce"])) + auth
        ingress = _xor(mac, bytes.fromhex(secrets["initiator_nonce"])) + ack
        remote_id = PrivateKey(bytes.fromhex(recorded["recipient_private_key"])).public_key
        super().__init__(reader, writer, private_key("unused"), Secrets(remote_id, aes, mac, egress, ingress))
        frames = bytes.fromhex(recorded["initiator_frames"])
        self.frames = _cut_frames(frames, FrameDecoder(aes, mac, egress))

    @classmethod
    async def start(cls, end: socket.socket, recorded: Any) -> "Replay":
        """Send the recorded auth and read the ack."""
        reader, writer = await open_stream(end)
        writer.write(bytes.fromhex(recorded["auth"]))
        return cls(reader, writer, recorded, await read_handshake_packet(reader))


def _cut_frames(stream: bytes, decoder: FrameDecoder) -> list[bytes]:
    frames = []
    while stream:
        size = decoder.decode_header(stream[:HEADER_BYTES], max_body_bytes=1 << 24)
        end = HEADER_BYTES + padded(size) + MAC_BYTES
        decoder.decode_body(stream[HEADER_BYTES:end], size)
        frames.append(stream[:end])
        stream = stream[end:]
    return frames


def _xor(left: bytes, right: bytes) -> bytes:
    return bytes(a ^ b for a, b in zip(left, right, strict=True))


async def open_stream(target: socket.socket | tuple[str, int]) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """A stream over a connected socket, or to an address."""
    async with asyncio.timeout(DEADLINE_S):
        if isinstance(target, socket.socket):
            return await asyncio.open_connection(sock=target)
        return await asyncio.open_connection(*target)


async def close_stream(writer: asyncio.StreamWriter) -> None:
    """Close at once, and wait until it is."""
    writer.transport.abort()
    with contextlib.suppress(ConnectionError):
        await writer.wait_closed()


async def read_handshake_packet(reader: asyncio.StreamReader) -> bytes:
    """Read auth or ack, size prefix included.

    Raises:
        Hangup: the stream ends first.
    """
    async with asyncio.timeout(DEADLINE_S):
        try:
            size = await reader.readexactly(SIZE_PREFIX_BYTES)
            return size + await reader.readexactly(int.from_bytes(size, "big"))
        except (asyncio.IncompleteReadError, ConnectionError) as error:
            raise Hangup(None) from error


async def at_end(reader: asyncio.StreamReader) -> bool:
    """Wait for the end of a stream; True, so that it can be asserted."""
    async with asyncio.timeout(DEADLINE_S):
        try:
            while await reader.read(1 << 16):
                pass
        except ConnectionError:
            pass
    return True


def envelope_list(raws: Sequence[bytes]) -> bytes:
    """The payload of Messages: a list of envelopes."""
    return rlp.encode([rlp.decode(raw) for raw in raws])
