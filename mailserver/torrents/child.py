"""The torrent process as seen from the service: started, asked, started again when it ends by itself.

A request stays until it is answered, over restarts: the new process is told what it has to know, and then sent each
request that waits. So the process may get any request twice.
"""

import asyncio
import contextlib
import itertools
import logging
import os
import signal
import sys
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, replace

from mailserver.errors import StartupError
from mailserver.torrents.errors import RequestFault, TorrentFault
from mailserver.torrents.frames import Frame, encode_frame, read_frame
from mailserver.torrents.settings import TorrentSettings

log = logging.getLogger(__name__)

STOP_S = 10.0
"""How long the process may take to write down what it has, and to say goodbye to peers and trackers."""

ENDS_S = 5.0
"""How long it may take to end after its last word."""

PING_INTERVAL_S = 15.0
ANSWER_S = 30.0
"""How often it is asked whether it lives, and how long it may take to say so: calls of libtorrent wait for its disk."""

FIRST_PAUSE_S = 0.1
LONGEST_PAUSE_S = 30.0
"""Before it is started again; the pause doubles while it ends at once."""

RUNS_WELL_S = 60.0
"""After so long, the next pause is the first one again."""

COMMAND = (sys.executable, "-m", "mailserver.torrents.process")


@dataclass(slots=True)
class _Request:
    frame: Frame
    answer: asyncio.Future[Frame]
    on_event: Callable[[Frame], None] | None


class Child:
    """The process, and the requests that wait for it.

    Args:
        settings: of the process.
        again: what it has to be told after a restart, before the requests that wait.
    """

    def __init__(self, settings: TorrentSettings, again: Callable[[], Iterable[Frame]]) -> None:
        self._settings = settings
        self._again = again
        self._ids = itertools.count(1)
        self._requests: dict[int, _Request] = {}
        self._process: asyncio.subprocess.Process | None = None
        self._running: asyncio.Task[None] | None = None
        self._stopping = False
        self.port = 0
        self.restarts = 0

    @property
    def process_id(self) -> int | None:
        """Of the process that answers now, if one does."""
        return None if self._process is None else self._process.pid

    async def start(self) -> None:
        """Start the process, and keep it running from now on.

        Raises:
            StartupError: it does not start, or cannot listen.
        """
        started = asyncio.get_running_loop().create_future()
        self._running = asyncio.create_task(self._keep_running(started))
        try:
            await asyncio.wait([started, self._running], return_when=asyncio.FIRST_COMPLETED)
            if not started.done():
                await self._running  # it raises
        except BaseException:
            await self.kill()
            raise

    async def stop(self) -> None:
        """Let the process end; kill it if that takes too long. What still waits for an answer gets a fault."""
        self._stopping = True
        if self._process is not None and self._running is not None:
            self._send(self._request({"op": "stop"}).frame)
            await asyncio.wait([self._running], timeout=STOP_S)
        await self.kill()

    async def kill(self) -> None:
        """End the process at once."""
        self._stopping = True
        if self._running is not None:
            self._running.cancel()
            await asyncio.wait([self._running])
        for request in self._requests.values():
            if not request.answer.done():
                request.answer.set_exception(RequestFault(TorrentFault.DROPPED, "the torrent process was stopped"))

    async def ask(self, frame: Frame, on_event: Callable[[Frame], None] | None = None) -> Frame:
        """Send a request, and wait for its answer, however often the process is started again.

        If the caller is cancelled, the process learns that nobody waits any more.

        Raises:
            RequestFault: the process says so, or was stopped.
        """
        request = self._request(frame, on_event)
        request_id = request.frame["id"]
        self._send(request.frame)
        try:
            return await request.answer
        except asyncio.CancelledError:
            self._send({"id": next(self._ids), "op": "forget", "request": request_id})
            raise
        finally:
            del self._requests[request_id]

    def _request(self, frame: Frame, on_event: Callable[[Frame], None] | None = None) -> _Request:
        request_id = next(self._ids)
        answer: asyncio.Future[Frame] = asyncio.get_running_loop().create_future()
        request = self._requests[request_id] = _Request({"id": request_id, **frame}, answer, on_event)
        return request

    def _send(self, frame: Frame) -> None:
        """Write a frame; if there is no process now, the next one gets what waits."""
        if self._process is not None and self._process.stdin is not None:
            self._process.stdin.write(encode_frame(frame))

    async def _keep_running(self, started: asyncio.Future[None]) -> None:
        loop = asyncio.get_running_loop()
        pause_s = FIRST_PAUSE_S
        while True:
            began = loop.time()
            cause = await self._run_once(started)
            if self._stopping:
                return
            if not started.done():
                raise StartupError(f"the torrent process cannot start: {cause}")
            self.restarts += 1
            pause_s = FIRST_PAUSE_S if loop.time() - began > RUNS_WELL_S else min(2 * pause_s, LONGEST_PAUSE_S)
            log.error("torrent process ended cause=%s restarts=%d pause_s=%.1f", cause, self.restarts, pause_s)
            await asyncio.sleep(pause_s)

    async def _run_once(self, started: asyncio.Future[None]) -> str:
        """Start the process, and pass on what it says, until it ends; return why it did."""
        try:
            process = await asyncio.create_subprocess_exec(
                *COMMAND,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                start_new_session=True,  # Ctrl-C is for us alone: we stop it
            )
        except OSError as error:
            return error.strerror or str(error)
        assert process.stdin is not None
        assert process.stdout is not None
        ended = asyncio.create_task(process.wait())
        silent = False
        pinging: asyncio.Task[None] | None = None

        def on_silence(task: asyncio.Task[None]) -> None:
            nonlocal silent
            if not task.cancelled():
                silent = True
                _kill(process)

        try:
            host, port = self._settings.listen
            settings = asdict(replace(self._settings, listen=(host, self.port or port)))  # links name the port
            process.stdin.write(encode_frame({"id": 0, "op": "start", "settings": settings}))
            frame = await read_frame(process.stdout)
            if frame is not None and "error" in frame:
                return str(frame["text"])
            if frame is not None:
                self.port = frame["result"]["port"]
                self._process = process  # not before: what is asked meanwhile waits, and would be sent twice
                for each in [*self._again(), *(request.frame for request in self._requests.values())]:
                    self._send({"id": next(self._ids), **each})
                if not started.done():
                    started.set_result(None)
                pinging = asyncio.create_task(self._ping())
                pinging.add_done_callback(on_silence)
            while (frame := await read_frame(process.stdout)) is not None:
                self._on_frame(frame)
            await asyncio.wait({ended}, timeout=ENDS_S)
        finally:
            self._process = None
            if pinging is not None:
                pinging.cancel()
            if not ended.done():
                _kill(process)
            code = await ended
        return f"no answer for {ANSWER_S:g} s" if silent else f"exit code {code}"

    async def _ping(self) -> None:
        """Return when the process does not answer any more."""
        with contextlib.suppress(TimeoutError):
            while True:
                await asyncio.sleep(PING_INTERVAL_S)
                async with asyncio.timeout(ANSWER_S):
                    await self.ask({"op": "ping"})

    def _on_frame(self, frame: Frame) -> None:
        request = self._requests.get(frame["id"])
        if request is None:
            if "error" in frame:
                log.error("torrent not added again cause=%s", frame["text"])
        elif "event" in frame:
            if request.on_event is not None and not request.answer.done():
                request.on_event(frame)
        elif not request.answer.done():
            if "error" in frame:
                request.answer.set_exception(RequestFault(TorrentFault(frame["error"]), frame["text"]))
            else:
                request.answer.set_result(frame["result"])


def _kill(process: asyncio.subprocess.Process) -> None:
    """Not `process.kill()`, which reaps a process that has just ended: asyncio then takes 255 for its exit code."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
