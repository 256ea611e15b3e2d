"""mailserver.net.pipe, over socket pairs."""

import asyncio
import contextlib
import random
import socket
import struct
from collections.abc import AsyncIterator

import pytest

from mailserver.net.pipe import CHUNK_BYTES, READ_HIGH_BYTES, WRITE_HIGH_BYTES, Pipe
from tests.raw_peer import stream_pair
from tests.waiting import DEADLINE_S, until

KERNEL_BYTES = 4 * 1024 * 1024
"""More than a socket pair ever holds by itself."""


@pytest.fixture
async def joined() -> AsyncIterator[tuple[Pipe, socket.socket]]:
    """A pipe, and the other end of its socket."""
    ours, theirs = stream_pair()
    _, pipe = await asyncio.get_running_loop().create_connection(Pipe, sock=ours)
    with theirs:
        yield pipe, theirs
        pipe.abort()
        await lost(pipe)


async def lost(pipe: Pipe) -> None:
    """Wait until the pipe's socket is gone."""
    async with asyncio.timeout(DEADLINE_S):
        while await pipe.read() != b"":
            pass


async def send(end: socket.socket, data: bytes) -> None:
    async with asyncio.timeout(DEADLINE_S):
        await asyncio.get_running_loop().sock_sendall(end, data)


async def receive(end: socket.socket, size: int) -> bytes:
    """Exactly so many bytes, or fewer if the end comes first."""
    data = bytearray()
    async with asyncio.timeout(DEADLINE_S):
        while len(data) < size:
            chunk = await asyncio.get_running_loop().sock_recv(end, size - len(data))
            if not chunk:
                break
            data += chunk
    return bytes(data)


async def push(end: socket.socket) -> int:
    """Send until nothing more goes out, though the pipe has had every chance to take it; return how much that was.

    Gives up where it is clear that the pipe takes everything.
    """
    sent = 0
    stuck = 0
    while stuck < 20 and sent < READ_HIGH_BYTES + 2 * KERNEL_BYTES:
        try:
            sent += end.send(bytes(65536))
            stuck = 0
        except BlockingIOError:
            stuck += 1
        await turn()
    return sent


async def turn() -> None:
    """Let the loop look at its sockets twice: uvloop writes at the end of a turn."""
    for _ in range(2):
        await asyncio.sleep(0)


class Named(asyncio.Transport):
    """A transport that knows who is at the other end, and nothing else."""

    def __init__(self, peername: object, sockname: object) -> None:
        super().__init__(extra={"peername": peername, "sockname": sockname, "socket": socket.socket()})

    def __del__(self) -> None:
        self.get_extra_info("socket").close()

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Nothing is ever written."""


async def test_kernel_takes_little_of_what_its_peer_does_not_read() -> None:
    loop = asyncio.get_running_loop()
    pipes: list[Pipe] = []
    server = await loop.create_server(lambda: Pipe(pipes.append), "127.0.0.1", 0)
    with socket.create_connection(server.sockets[0].getsockname()):
        await until(lambda: bool(pipes))
        (pipe,) = pipes
        for _ in range(200):
            pipe.write([bytes(65536)])
            await turn()

        # What the receiver's kernel has taken, and what is not yet on its way: left alone, this takes 4 MB.
        assert pipe.written_bytes < 1024 * 1024
        assert pipe.is_full
        pipe.abort()
    server.close()
    await server.wait_closed()


# Reading


async def test_chunk_is_read_as_it_came(joined: tuple[Pipe, socket.socket]) -> None:
    pipe, end = joined

    await send(end, b"one")
    first = await pipe.read()
    await send(end, b"two")
    second = await pipe.read()

    assert (first, second) == (b"one", b"two")


async def test_what_comes_at_once_is_read_in_pieces(joined: tuple[Pipe, socket.socket]) -> None:
    pipe, end = joined
    data = random.randbytes(2 * CHUNK_BYTES + 1)

    end.sendall(data)
    pieces: list[bytes] = []
    while sum(map(len, pieces)) < len(data):
        pieces.append(await pipe.read() or b"")

    assert b"".join(pieces) == data
    assert max(map(len, pieces)) <= CHUNK_BYTES


@pytest.fixture
async def joined_too(joined: tuple[Pipe, socket.socket]) -> AsyncIterator[tuple[Pipe, socket.socket]]:
    """A second pipe."""
    ours, theirs = stream_pair()
    _, pipe = await asyncio.get_running_loop().create_connection(Pipe, sock=ours)
    with theirs:
        yield pipe, theirs
        pipe.abort()
        await lost(pipe)


async def test_pipes_do_not_mix_what_they_read_at_the_same_time(
    joined: tuple[Pipe, socket.socket], joined_too: tuple[Pipe, socket.socket]
) -> None:
    (left, left_end), (right, right_end) = joined, joined_too

    left_end.sendall(b"to the left")
    right_end.sendall(b"right")
    await until(lambda: left.received_bytes == 11 and right.received_bytes == 5)

    assert await left.read() == b"to the left"
    assert await right.read() == b"right"


async def test_what_came_before_the_end_is_read_before_the_end(joined: tuple[Pipe, socket.socket]) -> None:
    pipe, end = joined

    await send(end, b"last words")
    end.shutdown(socket.SHUT_WR)

    assert await pipe.read() == b"last words"
    assert await pipe.read() == b""
    assert await pipe.read() == b""


async def test_broken_socket_reads_as_its_end(joined: tuple[Pipe, socket.socket]) -> None:
    pipe, end = joined
    pipe.write([b"never read"])
    await turn()

    end.close()

    assert await pipe.read() == b""


async def test_waiting_read_is_woken_with_none(joined: tuple[Pipe, socket.socket]) -> None:
    pipe, end = joined
    reading = asyncio.create_task(pipe.read())
    await turn()

    pipe.wake()

    assert await reading is None
    await send(end, b"later")
    assert await pipe.read() == b"later"


async def test_sender_is_held_back_while_nobody_reads_and_loses_nothing(joined: tuple[Pipe, socket.socket]) -> None:
    pipe, end = joined

    sent = await push(end)

    assert sent < READ_HIGH_BYTES + KERNEL_BYTES
    end.shutdown(socket.SHUT_WR)
    received = 0
    async with asyncio.timeout(DEADLINE_S):
        while chunk := await pipe.read():
            received += len(chunk)
    assert received == sent


async def test_what_waits_is_read_also_after_the_socket_is_gone(joined: tuple[Pipe, socket.socket]) -> None:
    pipe, end = joined
    await push(end)

    pipe.abort()

    assert await pipe.read()
    await lost(pipe)


# Writing


async def test_chunks_are_sent_in_order(joined: tuple[Pipe, socket.socket]) -> None:
    pipe, end = joined

    pipe.write([b"one, ", b"two"])
    pipe.write([b", three"])

    assert await receive(end, 15) == b"one, two, three"


async def test_pipe_is_full_above_the_high_mark_until_the_peer_reads(joined: tuple[Pipe, socket.socket]) -> None:
    pipe, end = joined
    size = WRITE_HIGH_BYTES + KERNEL_BYTES
    empty_before = not pipe.is_full

    pipe.write([bytes(size)])
    await turn()
    full = pipe.is_full
    draining = asyncio.create_task(pipe.drain())
    await turn()
    waits = not draining.done()
    await receive(end, size)
    await asyncio.wait_for(draining, DEADLINE_S)

    assert empty_before
    assert full
    assert waits
    assert not pipe.is_full


async def test_drain_ends_when_the_socket_is_gone(joined: tuple[Pipe, socket.socket]) -> None:
    pipe, end = joined
    pipe.write([bytes(WRITE_HIGH_BYTES + KERNEL_BYTES)])
    await turn()
    draining = asyncio.create_task(pipe.drain())
    await turn()

    end.close()

    await asyncio.wait_for(draining, DEADLINE_S)


async def test_writing_after_the_end_goes_nowhere(joined: tuple[Pipe, socket.socket]) -> None:
    pipe, end = joined
    pipe.abort()

    pipe.write([b"into the void"])

    assert await receive(end, 1) == b""


async def test_our_side_stays_open_after_the_peer_has_closed_its_own(joined: tuple[Pipe, socket.socket]) -> None:
    pipe, end = joined
    end.shutdown(socket.SHUT_WR)
    assert await pipe.read() == b""

    pipe.write([b"answer"])

    assert await receive(end, 6) == b"answer"


# Ending


async def test_finish_sends_everything_and_waits_until_the_peer_has_closed(joined: tuple[Pipe, socket.socket]) -> None:
    pipe, end = joined
    size = WRITE_HIGH_BYTES + KERNEL_BYTES
    pipe.write([bytes(size)])

    finishing = asyncio.create_task(pipe.finish())
    read = await receive(end, size + 1)
    waits = not finishing.done()
    await send(end, b"not heard any more")
    end.close()
    await asyncio.wait_for(finishing, DEADLINE_S)

    assert len(read) == size
    assert waits


async def test_finish_goes_on_when_woken(joined: tuple[Pipe, socket.socket]) -> None:
    pipe, end = joined
    finishing = asyncio.create_task(pipe.finish())
    await turn()

    pipe.wake()
    await turn()

    assert not finishing.done()
    end.close()
    await asyncio.wait_for(finishing, DEADLINE_S)


async def test_finish_of_a_closed_pipe_does_nothing(joined: tuple[Pipe, socket.socket]) -> None:
    pipe, _ = joined
    pipe.abort()

    await asyncio.wait_for(pipe.finish(), DEADLINE_S)


async def test_finish_of_a_connection_that_the_peer_has_reset_ends_it_like_any_other() -> None:
    listening = socket.create_server(("127.0.0.1", 0))  # pairs of sockets cannot be reset
    with listening:
        _, pipe = await asyncio.get_running_loop().create_connection(Pipe, *listening.getsockname())
        end, _ = listening.accept()
    end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    end.close()  # and the loop has had no turn to see it

    await asyncio.wait_for(pipe.finish(), DEADLINE_S)

    await asyncio.wait_for(pipe.closed(), DEADLINE_S)


async def test_abort_closes_whatever_is_unsent(joined: tuple[Pipe, socket.socket]) -> None:
    pipe, end = joined
    size = WRITE_HIGH_BYTES + KERNEL_BYTES
    pipe.write([bytes(size)])
    await turn()

    pipe.abort()

    received = 0
    with contextlib.suppress(ConnectionError):
        received = len(await receive(end, size))
    assert received < size


# Sleeping


Sleeping = tuple[Pipe, socket.socket, asyncio.Task[bool]]


@pytest.fixture
async def sleeping(joined: tuple[Pipe, socket.socket]) -> Sleeping:
    """A pipe that sleeps for longer than any test may take, the other end of its socket, and the task that sleeps."""
    pipe, end = joined
    task = asyncio.create_task(pipe.sleep(10 * DEADLINE_S))
    await turn()
    return pipe, end, task


async def test_sleep_says_whether_the_peer_may_still_send(joined: tuple[Pipe, socket.socket]) -> None:
    pipe, end = joined

    assert await pipe.sleep(0.001)

    end.shutdown(socket.SHUT_WR)

    async with asyncio.timeout(DEADLINE_S):
        while await pipe.sleep(0.001):
            pass


async def test_written_bytes_stand_still_while_the_peer_does_not_read(joined: tuple[Pipe, socket.socket]) -> None:
    pipe, _end = joined
    while not pipe.is_full:
        pipe.write([bytes(64 * 1024)])
    written = pipe.written_bytes

    pipe.write([bytes(64 * 1024)])

    assert 0 < written == pipe.written_bytes < pipe.sent_bytes


async def test_sleep_is_over_after_its_time(joined: tuple[Pipe, socket.socket]) -> None:
    pipe, _ = joined
    loop = asyncio.get_running_loop()
    started = loop.time()

    await asyncio.wait_for(pipe.sleep(0.02), DEADLINE_S)

    assert loop.time() - started >= 0.019  # uvloop counts in milliseconds


async def test_sleep_goes_on_whatever_comes_and_loses_nothing(sleeping: Sleeping) -> None:
    pipe, end, task = sleeping

    await send(end, b"what is said meanwhile")
    end.shutdown(socket.SHUT_WR)
    await until(lambda: pipe.received_bytes == 22)
    await turn()

    assert not task.done()
    pipe.wake()
    await asyncio.wait_for(task, DEADLINE_S)
    assert await pipe.read() == b"what is said meanwhile"
    assert await pipe.read() == b""


async def test_sleep_is_over_when_the_socket_is_gone(sleeping: Sleeping) -> None:
    pipe, _, task = sleeping

    pipe.abort()

    await asyncio.wait_for(task, DEADLINE_S)
    await asyncio.wait_for(pipe.closed(), DEADLINE_S)
    await asyncio.wait_for(pipe.sleep(10 * DEADLINE_S), DEADLINE_S)  # nor is there another


async def test_sleep_is_over_when_it_is_woken_and_the_next_is_not(sleeping: Sleeping) -> None:
    pipe, _, task = sleeping

    pipe.wake()
    await asyncio.wait_for(task, DEADLINE_S)

    again = asyncio.create_task(pipe.sleep(10 * DEADLINE_S))
    await turn()
    assert not again.done()
    pipe.wake()
    await asyncio.wait_for(again, DEADLINE_S)


async def test_sender_is_held_back_by_the_kernel_while_we_rest(sleeping: Sleeping) -> None:
    _, end, task = sleeping

    sent = await push(end)

    assert sent < READ_HIGH_BYTES + KERNEL_BYTES
    assert not task.done()
    task.cancel()


# Who is there


@pytest.mark.parametrize(
    ("peername", "sockname", "host", "address", "local_address"),
    [
        (("192.0.2.7", 30303), ("192.0.2.1", 1), "192.0.2.7", "192.0.2.7:30303", "192.0.2.1:1"),
        (
            ("2001:db8::7", 30303, 0, 0),
            ("2001:db8::1", 2, 0, 0),
            "2001:db8::7",
            "[2001:db8::7]:30303",
            "[2001:db8::1]:2",
        ),
        ("", "", "", "?", "?"),
        ("/run/feed", "", "", "?", "?"),
        (None, ("192.0.2.1", 1), "", "?", "?"),
    ],
    ids=["IPv4", "IPv6", "a socket pair", "a Unix socket", "gone before we looked"],
)
async def test_addresses_are_written_as_in_a_url(
    peername: object, sockname: object, host: str, address: str, local_address: str
) -> None:
    connected: list[Pipe] = []
    pipe = Pipe(connected.append)

    pipe.connection_made(Named(peername, sockname))

    assert (pipe.host, pipe.address, pipe.local_address) == (host, address, local_address)
    assert connected == [pipe]


async def test_received_bytes_are_counted_as_they_come(joined: tuple[Pipe, socket.socket]) -> None:
    pipe, end = joined
    before = pipe.received_bytes

    await send(end, b"twelve bytes")
    await until(lambda: pipe.received_bytes == 12)
    await pipe.read()
    await send(end, b"!")
    await until(lambda: pipe.received_bytes == 13)

    assert before == 0
