"""mailserver.gateway.transport, over sockets on the loopback interface."""

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from websockets.asyncio.client import ClientConnection
from websockets.asyncio.client import connect as connect_websocket
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.frames import CloseCode, Frame, Opcode

from mailserver.gateway import transport as transport_module
from mailserver.gateway.transport import (
    MAX_FRAME_BYTES,
    MAX_REQUEST_BYTES,
    WRITE_HIGH_BYTES,
    Transport,
    WebSocketTransport,
)
from mailserver.gateway.turns import MAX_ITERATION_S, GatewayTurns
from tests.faults import wires
from tests.gateway.clients import HOST
from tests.waiting import DEADLINE_S, turns, until

pytestmark = pytest.mark.integration

MORE_THAN_THE_KERNEL_TAKES = 8 * 1024 * 1024
UPGRADE = (
    b"GET / HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
    b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n"
)


@dataclass
class Noted:
    """A receiver that notes what it is told."""

    transport: Transport
    told: list[str] = field(default_factory=list)
    data: bytearray = field(default_factory=bytearray)
    on_each_piece: Callable[[], None] = lambda: None

    def on_open(self) -> None:
        self.told.append("open")

    def on_data(self, data: bytes) -> None:
        self.data += data
        self.on_each_piece()

    def on_eof(self) -> None:
        self.told.append("eof")

    def on_writable(self) -> None:
        self.told.append("writable")

    def on_fault(self, error: Exception) -> None:
        self.told.append(repr(error))

    def on_lost(self) -> None:
        self.told.append("lost")


class Server:
    """Accepts sockets of both kinds, and notes what they tell."""

    def __init__(self) -> None:
        self.noted: list[Noted] = []
        self.refuses = False
        self.forwarded: list[tuple[str, str]] = []
        self.says: str | None = "192.0.2.1"
        self.raws: list[Raw] = []
        self.now = 0.0
        self.turns = GatewayTurns(lambda: self.now)

    def accept(self, transport: Transport) -> Noted | None:
        if self.refuses:
            return None
        self.noted.append(Noted(transport))
        return self.noted[-1]

    def forward(self, host: str, text: str) -> str | None:
        self.forwarded.append((host, text))
        return self.says

    async def listen(self) -> None:
        loop = asyncio.get_running_loop()
        self.servers = [
            await loop.create_server(lambda: Transport(self.accept, self.turns), HOST, 0),
            await loop.create_server(lambda: WebSocketTransport(self.accept, self.turns, self.forward), HOST, 0),
        ]
        self.port, self.websocket_port = (server.sockets[0].getsockname()[1] for server in self.servers)

    async def raw(self, port: int, host: str = HOST) -> "Raw":
        """A client."""
        self.raws.append(Raw(*await asyncio.open_connection(host, port, limit=4096)))
        return self.raws[-1]

    async def one(self, after: int = 0) -> Noted:
        """The socket that was accepted last, once it is open and so many were accepted before."""
        await until(lambda: len(self.noted) > after and "open" in self.noted[-1].told)
        return self.noted[-1]

    async def tcp(self) -> "tuple[Raw, Noted]":
        before = len(self.noted)
        return await self.raw(self.port), await self.one(before)

    async def upgraded(self) -> "tuple[Raw, Noted]":
        """A WebSocket whose frames are made by hand."""
        before = len(self.noted)
        raw = await self.raw(self.websocket_port)
        raw.say(UPGRADE + b"\r\n")
        assert (await raw.line()).startswith(b"HTTP/1.1 101 ")
        while await raw.line() != b"\r\n":
            pass
        return raw, await self.one(before)


class Raw:
    """A client that writes bytes by hand."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    def say(self, data: bytes) -> None:
        self.writer.write(data)

    def say_frames(self, *frames: Frame) -> None:
        self.say(b"".join(frame.serialize(mask=True) for frame in frames))

    async def line(self) -> bytes:
        async with asyncio.timeout(DEADLINE_S):
            return await self.reader.readline()

    async def all(self) -> bytes:
        """All that comes until the end."""
        data = b""
        with contextlib.suppress(ConnectionResetError):
            async with asyncio.timeout(DEADLINE_S):
                while piece := await self.reader.read(1 << 16):
                    data += piece
        return data


@pytest.fixture
async def server() -> AsyncIterator[Server]:
    server = Server()
    await server.listen()
    yield server
    for each in server.servers:
        each.close()
    for raw in server.raws:
        raw.writer.transport.abort()
        with contextlib.suppress(ConnectionError):
            await raw.writer.wait_closed()
    for noted in server.noted:
        noted.transport.abort()
    await until(lambda: all(noted.told[-1:] == ["lost"] for noted in server.noted))


@contextlib.asynccontextmanager
async def web_socket(server: Server, **settings: object) -> AsyncIterator[tuple[ClientConnection, Noted]]:
    url = f"ws://{HOST}:{server.websocket_port}"
    async with connect_websocket(url, max_size=None, proxy=None, **settings) as client:  # type: ignore[arg-type]
        yield client, await server.one()


# TCP.


async def test_socket_tells_where_it_comes_from_and_what_has_come(server: Server) -> None:
    raw, noted = await server.tcp()
    port = raw.writer.get_extra_info("sockname")[1]

    raw.say(b"hello")
    await until(lambda: noted.data == b"hello")

    transport = noted.transport
    assert (transport.kind, transport.host, transport.peer) == ("tcp", HOST, (HOST, port))
    assert transport.address == f"{HOST}:{port}"
    assert (transport.received_bytes, transport.received_frames, transport.held_bytes) == (5, 0, 0)


async def test_address_of_ipv6_is_written_in_brackets(server: Server) -> None:
    listener = await asyncio.get_running_loop().create_server(lambda: Transport(server.accept, server.turns), "::1", 0)
    port = listener.sockets[0].getsockname()[1]
    raw = await server.raw(port, "::1")
    noted = await server.one()

    assert noted.transport.host == "::1"
    assert noted.transport.address == f"[::1]:{raw.writer.get_extra_info('sockname')[1]}"

    listener.close()


async def test_chunks_are_sent_in_order(server: Server) -> None:
    raw, noted = await server.tcp()

    noted.transport.write([b"one"])
    noted.transport.write([b"two", b"three"])
    noted.transport.write([])
    noted.transport.close()

    assert await raw.all() == b"onetwothree"
    assert noted.transport.sent_bytes == 11


async def test_refused_socket_is_closed_at_once(server: Server) -> None:
    server.refuses = True

    for port in (server.port, server.websocket_port):
        raw = await server.raw(port)
        raw.say(UPGRADE + b"\r\n")
        assert await raw.all() == b""

    assert server.noted == []


async def test_end_of_one_side_is_told_and_the_other_may_still_send(server: Server) -> None:
    raw, noted = await server.tcp()

    raw.writer.write_eof()
    await until(lambda: "eof" in noted.told)
    noted.transport.write([b"late"])
    noted.transport.close()

    assert await raw.all() == b"late"
    await until(lambda: noted.told == ["open", "eof", "lost"])


async def test_client_that_does_not_read_fills_the_transport_until_it_reads(server: Server) -> None:
    raw, noted = await server.tcp()
    transport = noted.transport

    transport.write([bytes(MORE_THAN_THE_KERNEL_TAKES)])
    assert noted.transport.is_full
    assert transport.queued_bytes > WRITE_HIGH_BYTES
    assert transport.written_bytes == MORE_THAN_THE_KERNEL_TAKES - transport.queued_bytes

    await raw.reader.readexactly(MORE_THAN_THE_KERNEL_TAKES)
    await until(lambda: "writable" in noted.told)

    assert not transport.is_full
    assert transport.written_bytes == MORE_THAN_THE_KERNEL_TAKES


async def test_what_comes_while_reading_is_paused_stays_with_the_kernel(server: Server) -> None:
    raw, noted = await server.tcp()
    noted.transport.pause_reading()
    raw.say(b"hello")
    other, other_noted = await server.tcp()
    other.say(b"x")
    await until(lambda: other_noted.data == b"x")
    before = bytes(noted.data)

    noted.transport.resume_reading()
    await until(lambda: noted.data == b"hello")

    assert before == b""


async def test_what_comes_when_others_took_all_the_time_waits_for_a_later_turn(server: Server) -> None:
    raw, noted = await server.tcp()
    other, other_noted = await server.tcp()

    def take_time() -> None:
        server.now += MAX_ITERATION_S

    noted.on_each_piece = other_noted.on_each_piece = take_time
    pieces = [b"%d" % (number % 10) * (100 - number) for number in range(100)]  # each smaller than the one before it
    for piece in pieces:
        raw.say(piece)
        other.say(piece)
        await turns(1)
    await until(lambda: len(noted.data) == len(other_noted.data) == sum(map(len, pieces)))

    assert noted.data == other_noted.data == b"".join(pieces)


@pytest.mark.parametrize("kind", ["tcp", "websocket"])
async def test_fault_of_ours_ends_one_socket_and_no_other(server: Server, kind: str) -> None:
    def fail() -> None:
        raise KeyError("a bug")

    other, other_noted = await server.tcp()
    raw, noted = await (server.tcp() if kind == "tcp" else server.upgraded())
    noted.on_each_piece = fail

    raw.say_frames(Frame(Opcode.BINARY, b"hello"))
    await until(lambda: noted.told == ["open", "KeyError('a bug')", "lost"])

    other.say(b"!")
    await until(lambda: other_noted.data == b"!")


@pytest.mark.parametrize("kind", ["tcp", "websocket"])
async def test_after_the_end_nothing_raises_and_nothing_is_told(server: Server, kind: str) -> None:
    _, noted = await (server.tcp() if kind == "tcp" else server.upgraded())
    noted.transport.abort()
    await until(lambda: noted.told[-1] == "lost")
    told = noted.told[:]

    transport = noted.transport
    transport.resume_reading()
    transport.pause_reading()
    transport.write([b"late"])
    transport.close()
    transport.abort()
    await turns()

    assert transport.queued_bytes == 0
    assert noted.told == told


async def test_closing_twice_is_closing_once(server: Server) -> None:
    raw, noted = await server.tcp()

    noted.transport.close()
    noted.transport.close()

    assert await raw.all() == b""
    await until(lambda: noted.told == ["open", "lost"])


@pytest.mark.parametrize("kind", ["tcp", "websocket"])
async def test_closing_socket_of_a_client_that_does_not_read_is_gone_after_a_while(
    server: Server, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transport_module, "LINGER_S", 0.1)
    _, noted = await (server.tcp() if kind == "tcp" else server.upgraded())
    noted.transport.write([bytes(MORE_THAN_THE_KERNEL_TAKES)])

    noted.transport.close()
    await turns()

    assert noted.told == ["open"]
    await until(lambda: noted.told == ["open", "lost"])


async def test_kernel_that_knows_no_bound_of_what_is_not_sent_yet_is_used_without(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(socket, "TCP_NOTSENT_LOWAT", 9999)

    raw, noted = await server.tcp()
    noted.transport.write([b"hello"])

    assert await raw.reader.readexactly(5) == b"hello"


async def test_kernel_asks_clients_of_both_kinds_whether_they_are_still_there(server: Server) -> None:
    for _, noted in (await server.tcp(), await server.upgraded()):
        tcp = noted.transport._transport.get_extra_info("socket")  # noqa: SLF001 - nothing else tells
        assert tcp.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
        options = socket.TCP_KEEPIDLE, socket.TCP_KEEPINTVL, socket.TCP_KEEPCNT, socket.TCP_USER_TIMEOUT
        assert [tcp.getsockopt(socket.IPPROTO_TCP, option) for option in options] == [90, 15, 3, 135_000]


@pytest.mark.parametrize("sent", [[], [b"unanswered"]], ids=["silence", "something sent"])
async def test_client_that_vanishes_without_a_word_gives_its_place_back(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sent: list[bytes]
) -> None:
    for name, value in {"AFTER_S": 1, "EVERY_S": 1, "PROBES": 1}.items():
        monkeypatch.setattr(transport_module, f"KEEPALIVE_{name}", value)
    monkeypatch.setattr(transport_module, "UNACKNOWLEDGED_MS", 2000)
    wires.require()
    loop = asyncio.get_running_loop()
    with wires.network(tmp_path, 2, 7) as hosts, hosts[1].socket() as listening, hosts[2].socket() as client:
        listening.bind((hosts[1].address, 0))
        listener = await loop.create_server(lambda: Transport(server.accept, server.turns), sock=listening)
        await loop.sock_connect(client, listener.sockets[0].getsockname())
        noted = await server.one()
        listener.close()

        hosts.everywhere(wires.CUT)
        noted.transport.write(sent)

        await until(lambda: noted.told == ["open", "lost"])


async def test_socket_without_an_address_is_nobodys() -> None:
    ours, theirs = socket.socketpair()
    server = Server()
    loop = asyncio.get_running_loop()
    await loop.create_connection(lambda: Transport(server.accept, server.turns), sock=ours)
    noted = await server.one()

    assert (noted.transport.host, noted.transport.address) == ("", "?")

    theirs.close()
    await until(lambda: "eof" in noted.told)
    noted.transport.abort()
    await until(lambda: noted.told[-1] == "lost")


# WebSocket.


async def test_binary_messages_are_pieces_of_one_stream(server: Server) -> None:
    async with web_socket(server) as (client, noted):
        await client.send(b"one")
        await client.send([b"two", b"three"])  # in fragments
        await until(lambda: noted.data == b"onetwothree")
        noted.transport.write([b"a", b"b"])

        assert await client.recv() == b"ab"
        assert noted.transport.kind == "websocket"
        assert noted.transport.received_frames == 4  # an empty one ends the fragments


async def test_frame_that_comes_in_pieces_is_kept_until_it_is_whole(server: Server) -> None:
    raw, noted = await server.upgraded()
    frame = Frame(Opcode.BINARY, b"x" * 1000).serialize(mask=True)

    raw.say(frame[:500])
    await until(lambda: noted.transport.held_bytes > 0)
    held = noted.transport.held_bytes
    raw.say(frame[500:])
    await until(lambda: noted.data == b"x" * 1000)

    assert held <= 500
    assert noted.transport.held_bytes == 0


async def test_ping_is_answered(server: Server) -> None:
    async with web_socket(server) as (client, noted):
        async with asyncio.timeout(DEADLINE_S):
            await (await client.ping(b"12345"))

        assert noted.transport.received_frames == 1
        assert noted.data == b""


async def test_client_that_does_not_read_is_owed_no_pong(server: Server) -> None:
    raw, noted = await server.upgraded()
    noted.transport.write([bytes(MORE_THAN_THE_KERNEL_TAKES)])
    queued = noted.transport.queued_bytes

    raw.say_frames(*[Frame(Opcode.PING, bytes(125))] * 100)
    await until(lambda: noted.transport.received_frames == 100)

    assert noted.transport.queued_bytes <= queued


async def test_client_that_closes_gets_its_close_back(server: Server) -> None:
    async with web_socket(server) as (client, noted):
        await client.close(CloseCode.NORMAL_CLOSURE)
        await until(lambda: noted.told[-1] == "lost")

        assert client.close_code == CloseCode.NORMAL_CLOSURE


async def test_when_we_close_the_client_is_told_why(server: Server) -> None:
    async with web_socket(server) as (client, noted):
        noted.transport.write([b"last"])
        noted.transport.close()

        assert await client.recv() == b"last"
        with pytest.raises(ConnectionClosed):
            await client.recv()
        assert client.close_code == CloseCode.GOING_AWAY


async def test_text_is_refused(server: Server) -> None:
    async with web_socket(server) as (client, noted):
        await client.send("hello")
        with pytest.raises(ConnectionClosed):
            await client.recv()

        assert client.close_code == CloseCode.UNSUPPORTED_DATA
        assert noted.data == b""
        await until(lambda: noted.told[-1] == "lost")


async def test_frame_that_is_too_long_is_refused_at_its_header(server: Server) -> None:
    raw, noted = await server.upgraded()

    raw.say(Frame(Opcode.BINARY, bytes(MAX_FRAME_BYTES + 1)).serialize(mask=True)[:14])
    said = await raw.all()

    assert said[2:4] == CloseCode.MESSAGE_TOO_BIG.to_bytes(2)
    assert noted.data == b""


async def test_longest_frame_is_taken(server: Server) -> None:
    raw, noted = await server.upgraded()

    raw.say_frames(Frame(Opcode.BINARY, bytes(MAX_FRAME_BYTES)))

    await until(lambda: len(noted.data) == MAX_FRAME_BYTES)


@pytest.mark.parametrize(
    "frame",
    [
        Frame(Opcode.BINARY, b"not masked").serialize(mask=False),
        Frame(Opcode.CONT, b"of nothing").serialize(mask=True),
        b"\xff\x80\x00\x00\x00\x00",  # reserved bits
        Frame(Opcode.BINARY, b"1", fin=False).serialize(mask=True) + Frame(Opcode.BINARY, b"2").serialize(mask=True),
    ],
    ids=["not masked", "continues nothing", "reserved bits", "not continued"],  # masks are random: no part of a name
)
async def test_frame_against_the_rules_ends_the_socket(server: Server, frame: bytes) -> None:
    raw, noted = await server.upgraded()

    raw.say(frame)
    said = await raw.all()

    assert said[2:4] == CloseCode.PROTOCOL_ERROR.to_bytes(2)
    await until(lambda: noted.told[-1] == "lost")


async def test_half_closed_web_socket_is_over(server: Server) -> None:
    raw, noted = await server.upgraded()

    raw.writer.write_eof()

    assert await raw.all() == b""
    await until(lambda: noted.told == ["open", "eof", "lost"])


async def test_what_comes_behind_a_close_is_not_told(server: Server) -> None:
    raw, noted = await server.upgraded()

    raw.say_frames(Frame(Opcode.BINARY, b"before"), Frame(Opcode.CLOSE, b""), Frame(Opcode.BINARY, b"behind"))
    await raw.all()
    await until(lambda: noted.told[-1] == "lost")

    assert noted.data == b"before"


async def test_pieces_behind_the_one_that_made_the_receiver_abort_do_no_harm(server: Server) -> None:
    raw, noted = await server.upgraded()
    noted.on_each_piece = noted.transport.abort

    raw.say_frames(*[Frame(Opcode.BINARY, b"x")] * 10)
    await raw.all()

    await until(lambda: noted.told == ["open", "lost"])


# The request for a WebSocket.


@pytest.mark.parametrize(
    ("request_bytes", "status"),
    [
        (b"GET / HTTP/1.1\r\nHost: a\r\n\r\n", b"426"),
        (UPGRADE.replace(b"GET", b"POST") + b"\r\n", b"405"),
        (UPGRADE.replace(b": 13", b": 12") + b"\r\n", b"400"),
        (UPGRADE + b"X: " + b"x" * 9000 + b"\r\n\r\n", b"431"),
    ],
)
async def test_request_for_anything_else_gets_its_status(server: Server, request_bytes: bytes, status: bytes) -> None:
    raw = await server.raw(server.websocket_port)

    raw.say(request_bytes)
    said = await raw.all()

    assert said.split(b" ")[1] == status
    await until(lambda: server.noted[-1].told == ["lost"])


async def test_garbage_instead_of_a_request_gets_nothing(server: Server) -> None:
    raw = await server.raw(server.websocket_port)

    raw.say(b"\x13/multistream/1.0.0\n\r\n\r\n")

    assert await raw.all() == b""
    await until(lambda: server.noted[-1].told == ["lost"])


async def test_request_with_too_many_headers_is_cut_off(server: Server) -> None:
    raw = await server.raw(server.websocket_port)

    raw.say(UPGRADE + b"X: %s\r\n" % (b"x" * 4000) * (MAX_REQUEST_BYTES // 4000 + 1))

    assert await raw.all() == b""
    await until(lambda: server.noted[-1].told == ["lost"])


async def test_request_may_come_byte_by_byte(server: Server) -> None:
    raw = await server.raw(server.websocket_port)

    for byte in UPGRADE + b"\r\n":
        raw.say(bytes([byte]))
        await raw.writer.drain()
        await asyncio.sleep(0)

    assert (await raw.line()).startswith(b"HTTP/1.1 101 ")
    await server.one()


async def test_frames_behind_the_request_are_taken(server: Server) -> None:
    raw = await server.raw(server.websocket_port)

    raw.say(UPGRADE + b"\r\n" + Frame(Opcode.BINARY, b"hasty").serialize(mask=True))

    noted = await server.one()
    await until(lambda: noted.data == b"hasty")


async def test_host_is_what_the_proxy_says(server: Server) -> None:
    async with web_socket(server, additional_headers={"X-Forwarded-For": "198.51.100.1"}) as (_, noted):
        assert server.forwarded == [(HOST, "198.51.100.1")]
        assert noted.transport.host == "192.0.2.1"
        assert noted.transport.peer[0] == HOST


async def test_proxy_that_says_no_address_is_refused(server: Server) -> None:
    server.says = None

    with pytest.raises(InvalidStatus, match="400"):
        await connect_websocket(f"ws://{HOST}:{server.websocket_port}", proxy=None)

    await until(lambda: server.noted[-1].told == ["lost"])


async def test_socket_that_was_not_upgraded_sends_nothing(server: Server) -> None:
    raw = await server.raw(server.websocket_port)
    await until(lambda: bool(server.noted))

    server.noted[-1].transport.write([b"hello"])
    server.noted[-1].transport.close()

    assert await raw.all() == b""
