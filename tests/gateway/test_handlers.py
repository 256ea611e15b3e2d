"""mailserver.gateway.handlers, over sockets on the loopback interface."""

import asyncio

import pytest

from mailserver.gateway.handlers import requests_to
from mailserver.gateway.peer import MAX_REQUESTS_BYTES, Peer
from mailserver.libp2p.ping import PING, PING_BYTES
from mailserver.libp2p.streams import MAX_STREAM_BYTES, StreamId
from mailserver.waku2.frames import encode_frame
from tests.gateway.clients import MPLEX, YAMUX, LightClient, connected
from tests.gateway.hosts import ECHO, LATER, MAX_REQUEST_BYTES, SILENT, Faulty, running_host
from tests.pairs import digest
from tests.waiting import until

pytestmark = pytest.mark.integration

BOTH_MUXERS = pytest.mark.parametrize("muxer", [MPLEX, YAMUX])


async def echoed(client: LightClient) -> None:
    """The connection still serves."""
    assert await client.ask(ECHO, b"still here") == b"still here"


@BOTH_MUXERS
async def test_request_is_answered_and_our_half_closed(muxer: str) -> None:
    async with running_host() as world, connected(world.port, muxer=muxer) as client:
        stream = await client.open(ECHO, encode_frame(b"hello"))  # its half stays open

        heard = await client.heard(stream)

        assert heard.is_closed
        assert heard.data == encode_frame(b"hello")


@BOTH_MUXERS
async def test_request_may_come_in_pieces(muxer: str) -> None:
    async with running_host() as world, connected(world.port, muxer=muxer) as client:
        stream = await client.open(ECHO)
        for byte in encode_frame(b"x" * 200):
            await client.send(stream, bytes([byte]))

        assert (await client.heard(stream)).data == encode_frame(b"x" * 200)


@BOTH_MUXERS
async def test_longest_request_is_answered(muxer: str) -> None:
    async with running_host() as world, connected(world.port, muxer=muxer) as client:
        request = bytes(MAX_REQUEST_BYTES)

        assert await client.ask(ECHO, request) == request


@BOTH_MUXERS
async def test_request_that_is_too_long_is_reset_at_its_length(muxer: str) -> None:
    async with running_host() as world, connected(world.port, muxer=muxer) as client:
        stream = await client.open(ECHO, encode_frame(bytes(MAX_REQUEST_BYTES + 1))[:100])

        assert (await client.heard(stream)).is_reset
        await echoed(client)


async def test_request_that_is_none_is_reset() -> None:
    async with running_host() as world, connected(world.port) as client:
        assert await client.ask(ECHO, b"!") is None
        await echoed(client)


@BOTH_MUXERS
async def test_only_the_first_request_of_a_stream_is_answered(muxer: str) -> None:
    async with running_host() as world, connected(world.port, muxer=muxer) as client:
        stream = await client.open(ECHO, encode_frame(b"one") + encode_frame(b"two"))
        await client.send(stream, encode_frame(b"three"))

        assert (await client.heard(stream)).data == encode_frame(b"one")
        await client.send(stream, bytes(2 * MAX_STREAM_BYTES) if muxer == MPLEX else b"more")
        await echoed(client)


@BOTH_MUXERS
async def test_what_is_behind_a_request_is_not_even_cut_into_frames(muxer: str) -> None:
    async with running_host() as world, connected(world.port, muxer=muxer) as client:
        stream = await client.open(ECHO, encode_frame(b"one") + b"\xff" * 100)  # no frame has such a length

        heard = await client.heard(stream)

        assert heard.data == encode_frame(b"one")
        assert not heard.is_reset


@BOTH_MUXERS
async def test_stream_that_is_closed_without_a_request_is_closed_by_us(muxer: str) -> None:
    async with running_host() as world, connected(world.port, muxer=muxer) as client:
        stream = await client.open(ECHO)
        client.machine.close_write(stream)
        await client.flush()

        heard = await client.heard(stream)

        assert heard.is_closed
        assert heard.data == b""


@BOTH_MUXERS
async def test_stream_that_is_closed_amidst_a_request_is_closed_and_keeps_nothing(muxer: str) -> None:
    async with running_host() as world, connected(world.port, muxer=muxer) as client:
        stream = await client.open(ECHO, encode_frame(bytes(1000))[:500])
        await until(lambda: world.host.unread_bytes == 500)
        client.machine.close_write(stream)
        await client.flush()

        heard = await client.heard(stream)

        assert heard.is_closed
        assert heard.data == b""
        await until(lambda: world.host.unread_bytes == 0)


@BOTH_MUXERS
@pytest.mark.parametrize("ending", ["whole", "reset"])
async def test_request_that_is_not_whole_is_counted_until_it_is_or_is_gone(muxer: str, ending: str) -> None:
    async with running_host() as world, connected(world.port, muxer=muxer) as client:
        request = encode_frame(bytes(1000))
        stream = await client.open(ECHO, request[:500])
        await until(lambda: world.host.unread_bytes == 500)

        if ending == "whole":
            await client.send(stream, request[500:])
        else:
            client.machine.reset(stream)
            await client.flush()

        await until(lambda: world.host.unread_bytes == 0)


@BOTH_MUXERS
async def test_requests_that_are_not_whole_may_not_be_too_long_in_all(muxer: str) -> None:
    async with running_host() as world, connected(world.port, muxer=muxer) as client:
        part = encode_frame(bytes(MAX_REQUEST_BYTES))[:-1]
        fit = MAX_REQUESTS_BYTES // len(part)

        streams = [await client.open(ECHO, part) for _ in range(fit + 1)]

        assert (await client.heard(streams[-1])).is_reset
        await client.send(streams[0], b"\0")
        assert (await client.heard(streams[0])).data == encode_frame(bytes(MAX_REQUEST_BYTES))
        assert not any(client.streams[stream].is_reset for stream in streams[:-1])


async def test_service_without_answers_closes_its_half() -> None:
    async with running_host() as world, connected(world.port) as client:
        stream = await client.open(SILENT, encode_frame(b"hello"))

        heard = await client.heard(stream)

        assert heard.is_closed
        assert heard.data == b""
        assert world.silent.asked == [b"hello"]


@BOTH_MUXERS
@pytest.mark.parametrize("when", ["at once", "later"])
async def test_fault_of_ours_costs_one_request_and_is_told_once(
    muxer: str, when: str, caplog: pytest.LogCaptureFixture
) -> None:
    more = {"/test/faulty/1.0.0": requests_to(Faulty())}
    async with running_host(more=more) as world, connected(world.port, muxer=muxer) as client:
        failed = await client.open("/test/faulty/1.0.0", encode_frame(when.encode()))
        after = await client.open(LATER, encode_frame(b"the next"))
        world.later.go.set()

        assert (await client.heard(failed)).is_reset
        assert (await client.heard(after)).data == encode_frame(b"the next")
        await echoed(client)
        assert world.host.unread_bytes == 0
        assert world.endings() == {}

    (line,) = caplog.records
    assert (line.getMessage(), line.levelname) == ("internal error in a request", "ERROR")
    assert line.exc_info is not None
    assert line.exc_info[0] is KeyError
    assert world.metrics.internal_errors.value == 1


async def test_fault_of_ours_outside_of_a_request_ends_its_connection_and_no_other(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def broken(peer: Peer, stream: StreamId) -> None:
        raise KeyError("a bug")

    async with (
        running_host(more={"/test/broken/1.0.0": broken}) as world,
        connected(world.port) as client,
        connected(world.port, seed=digest("another")) as other,
    ):
        await client.open("/test/broken/1.0.0")
        await until(lambda: client.closed is not None)
        await until(lambda: len(world.host) == 1)
        await echoed(other)

    assert [line.getMessage() for line in caplog.records] == ["internal error in a request"]
    assert world.metrics.internal_errors.value == 1
    assert world.endings() == {}


async def test_answer_that_takes_a_while_holds_up_no_other() -> None:
    async with running_host() as world, connected(world.port) as client:
        later = asyncio.create_task(client.ask(LATER, b"slow"))
        await until(lambda: world.later.begun == [b"slow"])
        await echoed(client)

        world.later.go.set()

        assert await later == b"slow"


async def test_client_that_resets_its_request_does_not_get_an_answer() -> None:
    async with running_host() as world, connected(world.port) as client:
        stream = await client.open(LATER, encode_frame(b"slow"))
        await until(lambda: world.later.begun == [b"slow"])
        client.machine.reset(stream)
        await client.flush()

        world.later.go.set()

        await echoed(client)
        assert client.streams[stream].data == b""


@BOTH_MUXERS
async def test_pings_come_back_until_the_client_has_had_enough(muxer: str) -> None:
    async with running_host() as world, connected(world.port, muxer=muxer) as client:
        stream = await client.open(PING, b"a" * PING_BYTES + b"b" * 10)
        await client.send(stream, b"b" * (PING_BYTES - 10))
        await until(lambda: len(client.streams[stream].data) == 2 * PING_BYTES)
        client.machine.close_write(stream)
        await client.flush()

        heard = await client.heard(stream)

        assert heard.is_closed
        assert heard.data == b"a" * PING_BYTES + b"b" * PING_BYTES


async def test_client_that_does_not_read_its_pings_loses_their_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    async with running_host() as world, connected(world.port) as client:
        stream = await client.open(PING, bytes(PING_BYTES))
        await until(lambda: len(client.streams[stream].data) == PING_BYTES)
        monkeypatch.setattr("mailserver.gateway.send_memory.MAX_CLIENT_BYTES", 0)

        await client.send(stream, bytes(PING_BYTES))

        assert (await client.heard(stream)).is_reset


async def test_idle_stream_is_no_fault() -> None:
    async with running_host() as world, connected(world.port) as client:
        for protocol in (ECHO, LATER, SILENT, PING):
            await client.open(protocol)

        await echoed(client)
        assert world.endings() == {}
