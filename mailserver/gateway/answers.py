"""The answers of one client that wait for the store or the daemon. They are sent one by one, as it reads them."""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable

from mailserver.libp2p.streams import StreamId

MAX_WAITING_ANSWERS = 16
MAX_WAITING_BYTES = 1024 * 1024
"""How many requests of one client may wait for the store or the daemon, and how long they may be in all."""


class Answers:
    """A queue of answers, and the task that sends them while there are any. `held_bytes`: of their requests."""

    def __init__(
        self,
        name: str,
        may_queue: Callable[[], bool],
        send: Callable[[StreamId, bytes], None],
        failed: Callable[[StreamId, Exception], None],
    ) -> None:
        """Begin without any.

        Args:
            may_queue: whether another answer may be queued for the client.
            failed: there is no answer for this stream, by a fault of ours.
        """
        self._name = name
        self._may_queue = may_queue
        self._send = send
        self._failed = failed
        self._waiting: deque[tuple[Callable[[], Awaitable[bytes]], StreamId, int]] = deque()
        self._task: asyncio.Task[None] | None = None
        self._has_room = asyncio.Event()
        self.held_bytes = 0

    @property
    def is_full(self) -> bool:
        """Whether no further request may be taken that takes a while."""
        return len(self._waiting) >= MAX_WAITING_ANSWERS or self.held_bytes >= MAX_WAITING_BYTES

    def add(self, stream: StreamId, answer: Callable[[], Awaitable[bytes]], request_bytes: int) -> None:
        """Send an answer when those before it are sent and read.

        Args:
            request_bytes: how much of the request is kept until then.
        """
        self._waiting.append((answer, stream, request_bytes))
        self.held_bytes += request_bytes
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._run(), name=self._name)

    def go_on(self) -> None:
        """The client has read something."""
        if self._waiting and self._may_queue():
            self._has_room.set()

    def stop(self) -> None:
        """Send nothing any more."""
        if self._task is not None:
            self._task.cancel()
        self._waiting.clear()
        self.held_bytes = 0

    async def _run(self) -> None:
        try:
            while self._waiting:
                while not self._may_queue():
                    self._has_room.clear()
                    await self._has_room.wait()
                answer, stream, request_bytes = self._waiting.popleft()
                await self._answer(stream, answer)
                self.held_bytes -= request_bytes
        finally:
            self._task = None

    async def _answer(self, stream: StreamId, answer: Callable[[], Awaitable[bytes]]) -> None:
        """Send one answer; it is not kept here while the next one waits."""
        try:
            encoded = await answer()
        except Exception as error:  # noqa: BLE001 - whatever it is, it costs this answer, and no other
            self._failed(stream, error)
        else:
            self._send(stream, encoded)
