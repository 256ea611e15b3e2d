"""The daemon's control socket: JSON-RPC for commands, one text per line.

It is a Unix socket in the data directory that only its owner may use (mode 0600), so it needs no port and no token.
Methods that take a while send notifications before they answer.
"""

import asyncio
import contextlib
import json
import logging
from collections import deque
from collections.abc import Mapping
from pathlib import Path

from mailserver.api.caller import Call, Caller
from mailserver.api.dispatch import Dispatcher, Method
from mailserver.api.errors import ErrorCode, ErrorCodes
from mailserver.api.params import Fields, Json, enode, flag, list_of, whole
from mailserver.app.control_call import (
    MAX_LINE_BYTES,
    STATUS,
    SYNC,
    SYNC_ARCHIVE,
    SYNC_ARCHIVE_PROGRESS,
    SYNC_PROGRESS,
    read_line,
)
from mailserver.app.history import History
from mailserver.catchup.catchup import Catchup
from mailserver.catchup.command import ATTEMPTS, SHOW_INTERVAL_S
from mailserver.catchup.compared import Compared
from mailserver.catchup.ledger import MAX_SOURCES, CatchupError
from mailserver.catchup.progress import SourceProgress, SourceState
from mailserver.codec.keys import Enode
from mailserver.data_dir.running import CONTROL_FILE
from mailserver.errors import ConnectionLost, StoreError
from mailserver.live.intake import Clock
from mailserver.monitoring.state import Monitoring
from mailserver.net.unix_socket import bind_private
from mailserver.waku.acceptance import Acceptance
from mailserver.waku.envelope import MAX_U32

log = logging.getLogger(__name__)

MAX_CONNECTIONS = 16
"""Maximum number of commands that talk to the daemon at the same time."""


class StatusMethods:
    """The state of the daemon."""

    def __init__(self, monitoring: Monitoring) -> None:
        self._monitoring = monitoring

    def table(self) -> dict[str, Method]:
        """The methods by name."""
        return {STATUS: Method(self._status)}

    async def _status(self, params: Fields, call: Call) -> Json:
        """The same as /status.json."""
        status: Json = json.loads(json.dumps(self._monitoring.status().as_json()))
        return status


class CatchupMethods:
    """Catching up on request of a command."""

    def __init__(self, catchup: Catchup) -> None:
        self._catchup = catchup

    def table(self) -> dict[str, Method]:
        """The methods by name."""
        return {SYNC: Method(self._sync, ("sources", "since", "until"), timeout_s=None)}

    async def _sync(self, params: Fields, call: Call) -> Json:
        """Ask sources for a range; notify the caller of the progress; return how it ended.

        The daemon goes on if the caller goes away. This returns early if a source has failed ATTEMPTS times, which is
        how often a command without a daemon would try it.
        """
        sources = params.required("sources", list_of(enode, MAX_SOURCES))
        since, until = (params.required(name, whole(0, MAX_U32)) for name in ("since", "until"))
        try:
            before = await self._catchup.add(since, until, sources)
        except ValueError as error:
            raise params.wrong("since", str(error)) from error
        settled = asyncio.create_task(self._catchup.settled(sources))
        try:
            waiting = True
            while waiting:
                await call.caller.notify(SYNC_PROGRESS, lambda: self._shown(before))
                await asyncio.wait([settled], timeout=SHOW_INTERVAL_S)
                waiting = not settled.done() and any(map(_is_worth_waiting, self._catchup.snapshot(sources)))
        finally:
            settled.cancel()
        return self._shown(before)

    def _shown(self, before: Mapping[Enode, SourceProgress]) -> Json:
        """The progress since this call began, source by source."""
        now = ((was, self._catchup.snapshot([source])) for source, was in before.items())
        return [progress.since(was).as_json() for was, progresses in now for progress in progresses]


class ArchiveMethods:
    """Comparing the store with its archive, on request of a command."""

    def __init__(self, history: History, acceptance: Acceptance, clock: Clock) -> None:
        self._history = history
        self._acceptance = acceptance
        self._clock = clock

    def table(self) -> dict[str, Method]:
        """The methods by name."""
        return {SYNC_ARCHIVE: Method(self._sync_archive, ("since", "until", "takes"), timeout_s=None)}

    async def _sync_archive(self, params: Fields, call: Call) -> Json:
        """Compare a range; notify the caller of the progress; return how it ended. It ends early if the caller goes."""
        since, until = (params.required(name, whole(0, MAX_U32)) for name in ("since", "until"))
        takes = params.required("takes", flag)
        shown = deque[Compared](maxlen=1)
        comparing = asyncio.ensure_future(
            self._history.compare(
                self._acceptance, self._clock, since=since, until=until, takes=takes, show=shown.append
            )
        )
        try:
            while not comparing.done():
                if shown:
                    await call.caller.notify(SYNC_ARCHIVE_PROGRESS, shown[0].as_json)
                await asyncio.wait([comparing], timeout=SHOW_INTERVAL_S)
            return comparing.result().as_json()
        finally:
            comparing.cancel()
            await asyncio.wait([comparing])


def _is_worth_waiting(source: SourceProgress) -> bool:
    """Whether the source is being asked, or will be soon."""
    if source.state is SourceState.WAITING:
        return source.failures < ATTEMPTS and not source.is_hopeless
    return source.state is SourceState.FETCHING


CONTROL_ERRORS: ErrorCodes = {
    CatchupError: ErrorCode.STORE_UNAVAILABLE,
    StoreError: ErrorCode.STORE_UNAVAILABLE,
    ConnectionLost: ErrorCode.PEER_UNAVAILABLE,  # the command itself has gone away, so nobody reads this
}


class ControlSocket:
    """Answers commands while it is open."""

    def __init__(self, dispatcher: Dispatcher) -> None:
        self._dispatcher = dispatcher
        self._server: asyncio.Server | None = None
        self._serving: dict[asyncio.Task[None], asyncio.WriteTransport] = {}
        self._stopped = False

    async def start(self, data_dir: Path) -> None:
        """Listen in the data directory. A socket that a killed daemon has left there is removed: we hold the lock.

        Raises:
            StartupError: the socket cannot be created.
        """
        listening = bind_private(data_dir / CONTROL_FILE)
        self._server = await asyncio.start_unix_server(self._on_connected, sock=listening, limit=MAX_LINE_BYTES)

    async def stop(self) -> None:
        """Stop listening, cancel the calls under way, and hang up on every command."""
        self._stopped = True
        if self._server is not None:
            self._server.close()
        for task, transport in self._serving.items():
            task.cancel()
            # Not left to the task: one that has not begun would not do it, and `close` waits for a command to read all.
            transport.abort()
        if self._serving:
            await asyncio.wait(self._serving)

    def _on_connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._stopped or len(self._serving) >= MAX_CONNECTIONS:  # stopped: it was accepted just before
            writer.transport.abort()
            return
        task = asyncio.create_task(self._serve(reader, writer))
        self._serving[task] = writer.transport
        task.add_done_callback(self._serving.pop)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        async def send(text: str) -> None:
            try:
                if writer.is_closing():  # uvloop refuses a write to a closing transport
                    raise BrokenPipeError
                writer.write(f"{text}\n".encode())
                await writer.drain()
            except ConnectionError as error:
                raise ConnectionLost(None, "the command is gone") from error

        caller = Caller(send)
        try:
            while line := await read_line(reader):
                call = Call(caller)
                answer = await self._dispatcher.answer(line, call)
                if answer is not None:
                    await send(answer)
                call.answered.set()
        except ConnectionLost:
            pass  # the command was interrupted
        finally:
            await caller.end()
            writer.close()
            with contextlib.suppress(ConnectionError):
                await writer.wait_closed()
