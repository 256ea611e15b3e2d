"""Who calls, as methods see it: a connection that may be notified, and what goes on for it until it ends."""

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
"""Most subscriptions of one connection."""

NOTIFIED_TOGETHER_CHARS = 128 * 1024
"""So much is sent to a connection before others have their turn: it takes some 2 ms."""

Send = Callable[[str], Awaitable[None]]
"""Sends one text; waits while the other side does not read. Raises ConnectionLost."""


class Caller:
    """One connection of a client, or one HTTP request."""

    def __init__(self, send: Send | None = None) -> None:
        """Begin with no subscriptions.

        Args:
            send: how notifications get there; None where they cannot.
        """
        self._send = send
        self._following: dict[str, asyncio.Task[None]] = {}
        self._turn = asyncio.Lock()
        self._notified_chars = 0  # since others had their turn

    async def notify(self, method: str, params: Callable[[], Json]) -> None:
        """Send a notification, after those that wait already.

        Args:
            params: makes them when it is their turn: a hundred subscriptions whose connection is not read from hold a
                message each, and not two megabytes of hex digits each.
        Raises:
            RpcError: this connection takes none.
            ConnectionLost: it has ended.
        """
        if self._send is None:
            raise _no_notifications()
        async with self._turn:
            text = json.dumps({"jsonrpc": "2.0", "method": method, "params": params()}, allow_nan=False)
            self._notified_chars += len(text)
            await self._send(text)
            if self._notified_chars >= NOTIFIED_TOGETHER_CHARS:  # where the caller reads fast, sending does not wait
                self._notified_chars = 0
                await asyncio.sleep(0)

    def check_room(self) -> None:
        """Say whether one more subscription is possible.

        Raises:
            RpcError: this connection takes no notifications, or has as many subscriptions as it may.
        """
        if self._send is None:
            raise _no_notifications()
        if len(self._following) >= MAX_SUBSCRIPTIONS:
            raise RpcError(ErrorCode.TOO_MANY, f"a connection has at most {MAX_SUBSCRIPTIONS} subscriptions")

    def follow(self, subscription: str, run: Coroutine[None, None, None], at_end: Callable[[], object]) -> None:
        """Run something until it ends, the subscription is cancelled, or the connection is gone.

        Args:
            at_end: called once, however it ends.
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
        """End a subscription; say whether there was one. Nothing is sent for it any more."""
        task = self._following.pop(subscription, None)
        return task is not None and task.cancel()

    async def end(self) -> None:
        """The connection has ended: end all that goes on for it."""
        tasks = list(self._following.values())
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)


@dataclass(frozen=True, slots=True)
class Call:
    """One text from a caller. Its transport sets `answered` once the answer is sent: a subscription's first
    notification must not overtake the answer that names it."""

    caller: Caller
    answered: asyncio.Event = field(default_factory=asyncio.Event)


def _no_notifications() -> RpcError:
    return RpcError(ErrorCode.NO_NOTIFICATIONS, "this connection takes no notifications: use a WebSocket")
