"""The caller of a method: a connection that may receive notifications, and the tasks that run until it ends."""

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass, field

from mailserver.api.errors import ErrorCode, RpcError
from mailserver.api.params import Json
from mailserver.errors import ConnectionLost

log = logging.getLogger(__name__)

MAX_SUBSCRIPTIONS = 100
"""Maximum number of subscriptions of one connection."""

NOTIFIED_TOGETHER_CHARS = 128 * 1024
"""How much is sent to one connection before others have their turn. It takes some 2 ms."""

Send = Callable[[str], Awaitable[None]]
"""Sends one text. Waits while the other side does not read. Raises ConnectionLost."""


class Caller:
    """One connection of a client, or one HTTP request."""

    def __init__(self, send: Send | None = None) -> None:
        """Begin with no subscriptions.

        Args:
            send: sends notifications; None if the connection cannot receive any.
        """
        self._send = send
        self._following: dict[str, asyncio.Task[None]] = {}
        self._turn = asyncio.Lock()
        self._notified_chars = 0  # since others had their turn

    async def notify(self, method: str, params: Callable[[], Json]) -> None:
        """Send a notification, after those that are already waiting.

        Args:
            params: makes the params when it is this notification's turn. So a hundred subscriptions of a connection
                that does not read hold one message each, and not two megabytes of hex digits each.
        Raises:
            RpcError: this connection cannot receive notifications.
            ConnectionLost: the connection has ended.
        """
        if self._send is None:
            raise _no_notifications()
        async with self._turn:
            text = json.dumps({"jsonrpc": "2.0", "method": method, "params": params()}, allow_nan=False)
            self._notified_chars += len(text)
            await self._send(text)
            if self._notified_chars >= NOTIFIED_TOGETHER_CHARS:  # sending does not wait if the caller reads fast
                self._notified_chars = 0
                await asyncio.sleep(0)

    def check_room(self) -> None:
        """Check that one more subscription is possible.

        Raises:
            RpcError: this connection cannot receive notifications, or has MAX_SUBSCRIPTIONS.
        """
        if self._send is None:
            raise _no_notifications()
        if len(self._following) >= MAX_SUBSCRIPTIONS:
            raise RpcError(ErrorCode.TOO_MANY, f"a connection may have at most {MAX_SUBSCRIPTIONS} subscriptions")

    def follow(self, subscription: str, run: Coroutine[None, None, None], at_end: Callable[[], object]) -> None:
        """Run the task of a subscription until it ends, the subscription is cancelled, or the connection ends.

        Args:
            at_end: called once, however the task ends.
        """
        task = asyncio.get_running_loop().create_task(run, name=f"subscription {subscription[:8]}")
        self._following[subscription] = task

        def ended(task: asyncio.Task[None]) -> None:
            self._following.pop(subscription, None)
            at_end()
            if task.cancelled():
                return
            error = task.exception()
            if error is not None and not isinstance(error, ConnectionLost):
                log.error("internal error subscription=%s", subscription[:8], exc_info=error)

        task.add_done_callback(ended)

    def cancel(self, subscription: str) -> bool:
        """End a subscription; return whether there was one. Nothing more is sent for it."""
        task = self._following.pop(subscription, None)
        return task is not None and task.cancel()

    async def end(self) -> None:
        """End all subscriptions, because the connection has ended."""
        tasks = list(self._following.values())
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)


@dataclass(frozen=True, slots=True)
class Call:
    """One text from a caller. Its transport sets `answered` once the answer is sent: the first notification of a
    subscription must not overtake the answer that contains its id."""

    caller: Caller
    answered: asyncio.Event = field(default_factory=asyncio.Event)


def _no_notifications() -> RpcError:
    return RpcError(ErrorCode.NO_NOTIFICATIONS, "this connection cannot receive notifications: use a WebSocket")
