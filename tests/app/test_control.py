"""mailserver.app.control: calls over a real socket, what it bears with, and how long a command waits for a source."""

import asyncio
import contextlib
import os
import socket
import stat
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from mailserver.api.caller import Call
from mailserver.api.dispatch import Dispatcher, Method
from mailserver.api.params import Fields, Json, text
from mailserver.app.control import CONTROL_ERRORS, MAX_CONNECTIONS, CatchupMethods, ControlSocket
from mailserver.app.control_call import MAX_LINE_BYTES, SYNC, CallFailed, call_daemon
from mailserver.catchup import source as source_module
from mailserver.catchup.command import ATTEMPTS
from mailserver.codec.keys import Enode
from mailserver.data_dir.running import CONTROL_FILE
from mailserver.errors import ConnectionLost, StartupError
from tests.catchup.running import catching_up, hurry
from tests.catchup.servers import DAY, Archive, Asked, make_envelopes, serving
from tests.mailservers import NOW
from tests.pairs import private_key
from tests.raw_peer import close_stream
from tests.waiting import DEADLINE_S, turns, until

pytestmark = pytest.mark.integration

Stream = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class Calls:
    """The methods of these tests, and what is under way."""

    def __init__(self) -> None:
        self.hanging = 0
        self.shouted = 0

    async def echo(self, params: Fields, call: Call) -> Json:
        return params.required("text", text(100))

    async def count(self, params: Fields, call: Call) -> Json:
        for number in range(3):
            await call.caller.notify("count", lambda number=number: number)  # type: ignore[misc]
        return "counted"

    async def hang(self, params: Fields, call: Call) -> Json:
        self.hanging += 1
        try:
            await asyncio.Event().wait()
        finally:
            self.hanging -= 1
        return None

    async def shout(self, params: Fields, call: Call) -> Json:
        self.shouted += 1
        return "x" * MAX_LINE_BYTES

    def table(self) -> dict[str, Method]:
        return {
            "echo": Method(self.echo, ("text",)),
            "count": Method(self.count),
            "hang": Method(self.hang, timeout_s=None),
            "shout": Method(self.shout),
        }


@pytest.fixture
def calls() -> Calls:
    return Calls()


@pytest.fixture
async def control(tmp_path: Path, calls: Calls) -> AsyncIterator[ControlSocket]:
    control = ControlSocket(Dispatcher(calls.table(), CONTROL_ERRORS))
    await control.start(tmp_path)
    yield control
    await asyncio.wait_for(control.stop(), DEADLINE_S)


async def call(folder: Path, method: str, **params: Json) -> Json:
    return await asyncio.wait_for(call_daemon(folder, method, params, lambda _: None), DEADLINE_S)


@contextlib.asynccontextmanager
async def connected(folder: Path, count: int = 1) -> AsyncIterator[list[Stream]]:
    """Connections by hand."""
    descriptor = os.open(folder, os.O_RDONLY)
    streams: list[Stream] = []
    try:
        while len(streams) < count:
            streams.append(await asyncio.open_unix_connection(f"/proc/self/fd/{descriptor}/{CONTROL_FILE}"))
        yield streams
    finally:
        os.close(descriptor)
        for _, writer in streams:
            await close_stream(writer)


async def hears_the_end(stream: Stream) -> bool:
    """Whether the other side hangs up without a word."""
    try:
        return await asyncio.wait_for(stream[0].read(1), DEADLINE_S) == b""
    except ConnectionResetError:
        return True


# Calls


async def test_call_is_answered(tmp_path: Path, control: ControlSocket) -> None:
    assert await call(tmp_path, "echo", text="hello") == "hello"


async def test_notifications_come_before_the_answer(tmp_path: Path, control: ControlSocket) -> None:
    heard: list[Json] = []

    assert await call_daemon(tmp_path, "count", {}, heard.append) == "counted"

    assert heard == [0, 1, 2]


async def test_refused_call_says_why(tmp_path: Path, control: ControlSocket) -> None:
    with pytest.raises(CallFailed, match="unknown method 'nothing'"):
        await call(tmp_path, "nothing")
    with pytest.raises(CallFailed, match="text: missing"):
        await call(tmp_path, "echo")


async def test_call_where_nobody_listens_says_where(tmp_path: Path) -> None:
    with pytest.raises(StartupError, match=f"no mailserver answers at {tmp_path}/{CONTROL_FILE}: No such file"):
        await call(tmp_path, "echo", text="hello")


async def test_call_that_the_daemon_does_not_survive_says_so(
    tmp_path: Path, control: ControlSocket, calls: Calls
) -> None:
    calling = asyncio.create_task(call(tmp_path, "hang"))
    await until(lambda: calls.hanging == 1)
    await asyncio.wait_for(control.stop(), DEADLINE_S)

    with pytest.raises(ConnectionLost, match="the mailserver stopped"):
        await calling
    assert calls.hanging == 0


async def test_several_lines_of_one_connection_are_answered_in_turn(tmp_path: Path, control: ControlSocket) -> None:
    async with connected(tmp_path) as [(reader, writer)]:
        for number in range(3):
            writer.write(b'{"jsonrpc":"2.0","id":%d,"method":"echo","params":["hi"]}\n' % number)
        answers = [await asyncio.wait_for(reader.readline(), DEADLINE_S) for _ in range(3)]

    assert [b'"id": %d' % number in answer for number, answer in enumerate(answers)] == [True] * 3


# The socket


async def test_socket_is_its_owners_alone_whatever_the_umask(tmp_path: Path, calls: Calls) -> None:
    control = ControlSocket(Dispatcher(calls.table(), CONTROL_ERRORS))
    before = os.umask(0)
    try:
        await control.start(tmp_path)
    finally:
        os.umask(before)
    mode = stat.S_IMODE((tmp_path / CONTROL_FILE).stat().st_mode)
    await control.stop()

    assert mode == 0o600


async def test_socket_of_a_killed_daemon_is_replaced(tmp_path: Path, calls: Calls) -> None:
    for _ in range(2):  # stopping leaves the file, as a kill does
        control = ControlSocket(Dispatcher(calls.table(), CONTROL_ERRORS))
        await control.start(tmp_path)
        assert await call(tmp_path, "echo", text="hello") == "hello"
        await control.stop()


async def test_socket_that_cannot_be_made_is_named(tmp_path: Path, calls: Calls) -> None:
    (tmp_path / CONTROL_FILE).mkdir()

    with pytest.raises(StartupError, match=f"cannot create {tmp_path}/{CONTROL_FILE}: Is a directory"):
        await ControlSocket(Dispatcher(calls.table(), CONTROL_ERRORS)).start(tmp_path)


async def test_no_more_connect_than_may_and_who_leaves_makes_room(tmp_path: Path, control: ControlSocket) -> None:
    async with connected(tmp_path, MAX_CONNECTIONS + 1) as streams:
        assert await hears_the_end(streams[-1])
        reader, writer = streams[0]
        writer.write(b'{"jsonrpc":"2.0","id":1,"method":"echo","params":["hi"]}\n')
        assert b'"hi"' in await asyncio.wait_for(reader.readline(), DEADLINE_S)
        await close_stream(streams[1][1])

        async with asyncio.timeout(DEADLINE_S):
            while True:  # until the daemon has noticed
                with contextlib.suppress(ConnectionLost):
                    assert await call(tmp_path, "echo", text="hello") == "hello"
                    break


async def test_line_that_is_too_long_ends_its_connection(tmp_path: Path, control: ControlSocket) -> None:
    async with connected(tmp_path) as [stream]:
        with contextlib.suppress(ConnectionError):
            stream[1].write(b" " * (2 * MAX_LINE_BYTES + 1))
            await stream[1].drain()
        assert await hears_the_end(stream)

    assert await call(tmp_path, "echo", text="hello") == "hello"


async def test_half_a_line_is_no_call(tmp_path: Path, control: ControlSocket, calls: Calls) -> None:
    async with connected(tmp_path) as [stream]:
        stream[1].write(b'{"jsonrpc":"2.0","id":1,"method":"hang"}')
        stream[1].write_eof()

        assert await hears_the_end(stream)
    assert calls.hanging == 0


# Stopping


@contextlib.contextmanager
def asking(folder: Path) -> Iterator[socket.socket]:
    """A connection that is made without a turn of the loop."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        with socket.socket(socket.AF_UNIX) as asking:
            asking.connect(f"/proc/self/fd/{descriptor}/{CONTROL_FILE}")
            asking.setblocking(False)
            yield asking
    finally:
        os.close(descriptor)


# Not after one step: asyncio, unlike uvloop, loses whom it is just accepting when the server is closed.
@pytest.mark.parametrize("steps", [0, 2, 3, 4, 5])
async def test_stop_hangs_up_on_whoever_has_just_connected(tmp_path: Path, control: ControlSocket, steps: int) -> None:
    with asking(tmp_path) as command:
        await turns(steps)

        await asyncio.wait_for(control.stop(), DEADLINE_S)

        with contextlib.suppress(ConnectionResetError):
            assert await asyncio.wait_for(asyncio.get_running_loop().sock_recv(command, 1), DEADLINE_S) == b""


async def test_stop_does_not_wait_for_a_command_that_reads_nothing(
    tmp_path: Path, control: ControlSocket, calls: Calls
) -> None:
    with asking(tmp_path) as command:
        command.send(b'{"jsonrpc":"2.0","id":1,"method":"shout"}\n')
        await until(lambda: calls.shouted == 1)
        await turns()  # it waits for the command to read

        await asyncio.wait_for(control.stop(), DEADLINE_S)


# How long a command waits


def request(*sources: Enode) -> dict[str, Json]:
    return {"sources": [str(source) for source in sources], "since": NOW - DAY, "until": NOW}


@contextlib.asynccontextmanager
async def daemon(folder: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[None]:
    """What a daemon has that catches up."""
    hurry(monkeypatch)
    monkeypatch.setattr("mailserver.app.control.SHOW_INTERVAL_S", 0.02)
    async with catching_up(folder, wanted=None) as catchup:
        control = ControlSocket(Dispatcher(CatchupMethods(catchup).table(), CONTROL_ERRORS))
        await control.start(folder)
        try:
            yield
        finally:
            await control.stop()


async def test_command_waits_until_all_is_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    heard: list[Json] = []

    async with daemon(tmp_path, monkeypatch), serving(Archive(make_envelopes(50))) as server:
        (ended,) = await call_daemon(tmp_path, SYNC, request(server.enode), heard.append)

    assert (ended["state"], ended["stored"]) == ("done", 50)
    assert len(heard) > 0


async def test_command_is_told_what_it_has_done_and_not_what_others_had_done_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with daemon(tmp_path, monkeypatch), serving(Archive(make_envelopes(50))) as server:
        (first,) = await call_daemon(tmp_path, SYNC, request(server.enode), lambda _: None)
        heard: list[Any] = []
        began = time.monotonic()

        def hear(progress: Any) -> None:
            heard.append((progress, time.monotonic() - began))

        (second,) = await call_daemon(tmp_path, SYNC, request(server.enode), hear)

    numbers = ("pages", "fetched", "stored")
    assert [first[name] for name in numbers] == [2, 50, 50]
    assert [second[name] for name in numbers] == [2, 50, 0]
    (at_first,), elapsed = heard[0]
    assert (
        at_first["fetched"] <= second["fetched"]
    )  # it may be all by then, if this process had to wait for a processor
    assert at_first["seconds"] <= elapsed


async def test_command_does_not_wait_for_a_source_that_says_the_same_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The daemon goes on all the same, less and less often."""
    monkeypatch.setattr(source_module, "backoff_s", lambda failures: 0.0 if failures < 2 else 3600.0)

    async def refuse(asked: Asked) -> None:
        asked.fail("failed to decrypt p2p request")

    async with daemon(tmp_path, monkeypatch), serving(refuse) as server:
        calling = call_daemon(tmp_path, SYNC, request(server.enode), lambda _: None)
        (ended,) = await asyncio.wait_for(calling, DEADLINE_S)

    assert (ended["state"], ended["failures"], ended["is_hopeless"]) == ("waiting", 2, True)
    assert ended["problem"] == "failed to decrypt p2p request"


async def test_command_does_not_wait_for_ever_for_a_source_that_is_down(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    nobody = Enode(private_key("nobody").public_key, "127.0.0.1", 1)

    async with daemon(tmp_path, monkeypatch), serving(Archive(make_envelopes(50))) as server:
        calling = call_daemon(tmp_path, SYNC, request(nobody, server.enode), lambda _: None)
        down, there = await asyncio.wait_for(calling, DEADLINE_S)

    assert (down["state"], there["state"]) == ("waiting", "done")
    assert down["failures"] >= ATTEMPTS
    assert "Connect call failed" in down["problem"] or "refused" in down["problem"]


async def test_range_of_no_times_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nobody = Enode(private_key("nobody").public_key, "127.0.0.1", 1)

    async with daemon(tmp_path, monkeypatch):
        with pytest.raises(CallFailed, match="no range of times"):
            await call(tmp_path, SYNC, **{**request(nobody), "since": NOW + DAY, "until": NOW + DAY})
        with pytest.raises(CallFailed, match="sources"):
            await call(tmp_path, SYNC, **{**request(), "sources": ["enode://nobody"]})
