"""The outcome of history requests that this node has sent to other mailservers for its users (8/WAKU-MAIL "P2P Request
Complete").

A request is identified by its id and by the connection on which it was sent, so only the mailserver that was asked can
complete it. Each request ends exactly once, and all subscribers are told. It ends with the mailserver's completion, or
with a failure made here if none comes: the connection has ended, the mailserver is silent, or is no longer trusted.
"""

import asyncio
from collections import deque
from dataclasses import dataclass, field

from mailserver.errors import MailserverError
from mailserver.mail.completion import Completion, Failure, decode_completion
from mailserver.mail.request import RequestId
from mailserver.net.due import call_when_due

MAX_PENDING = 1000
"""Most requests under way, of all users together: more than mailservers answer in ANSWER_TIMEOUT_S."""

MAX_QUEUED = 256
"""Most outcomes that wait for one subscriber. Beyond this number, the oldest is dropped."""

MAX_FAILURE_CHARS = 512
"""How much is kept of a mailserver's failure message. Our own mailserver's messages are shorter than 100 characters."""

ANSWER_TIMEOUT_S = 30.0
"""How long a mailserver may be silent before a request has failed. Deployed clients wait 10 to 30 s."""

MAX_TIMEOUT_S = 600.0
"""The longest such time that a user may choose."""

MAX_ANSWER_S = 3600.0
"""A request ends after this time even if the mailserver still sends."""


class TooManyRequests(MailserverError):
    """MAX_PENDING requests are under way."""

    def __str__(self) -> str:
        return f"{MAX_PENDING} history requests are under way, as many as there may be"


@dataclass(frozen=True, slots=True)
class Asker:
    """The user that asked. `who` is compared by identity. `told` is set once the user knows the id of the request."""

    who: object = None
    told: asyncio.Event = field(default_factory=asyncio.Event)


@dataclass(frozen=True, slots=True)
class RequestEnded:
    """A request has ended, with this outcome."""

    outcome: Completion | Failure
    asker: Asker


@dataclass(slots=True)
class _Pending:
    request_id: RequestId
    asker: Asker
    timeout_s: float
    began: float
    timer: asyncio.TimerHandle | None = None


class OutcomeQueue:
    """The outcomes that one subscriber has not read yet."""

    def __init__(self) -> None:
        self._queue: deque[RequestEnded] = deque(maxlen=MAX_QUEUED)
        self._arrived = asyncio.Event()

    async def next(self) -> RequestEnded:
        """Wait for the next outcome."""
        while not self._queue:
            self._arrived.clear()
            await self._arrived.wait()
        return self._queue.popleft()

    def put(self, ended: RequestEnded) -> None:
        """Add an outcome."""
        self._queue.append(ended)
        self._arrived.set()


class Completions:
    """All requests under way, by the number of the connection on which they were sent."""

    def __init__(self) -> None:
        self._pending: dict[int, dict[RequestId, _Pending]] = {}
        self._heard_at: dict[int, float] = {}  # when each connection last sent a part of an answer
        self._count = 0
        self._subscriptions: set[OutcomeQueue] = set()

    def __len__(self) -> int:
        return self._count

    def subscribe(self) -> OutcomeQueue:
        """Receive all outcomes from now on, until `unsubscribe`."""
        subscription = OutcomeQueue()
        self._subscriptions.add(subscription)
        return subscription

    def unsubscribe(self, subscription: OutcomeQueue) -> None:
        """End a subscription."""
        self._subscriptions.discard(subscription)

    def expect(self, connection: int, request_id: RequestId, asker: Asker, timeout_s: float = ANSWER_TIMEOUT_S) -> None:
        """Expect the end of a request that is about to be sent. If sending fails, call `forget`.

        Args:
            timeout_s: how long the mailserver may be silent; more than MAX_TIMEOUT_S counts as that.
        Raises:
            TooManyRequests: MAX_PENDING requests are under way.
        """
        if self._count >= MAX_PENDING:
            raise TooManyRequests
        self.forget(connection, request_id)
        now = asyncio.get_running_loop().time()
        pending = _Pending(request_id, asker, min(timeout_s, MAX_TIMEOUT_S), now)
        self._pending.setdefault(connection, {})[request_id] = pending
        self._count += 1
        self._arm(connection, pending, now + pending.timeout_s)

    def forget(self, connection: int, request_id: RequestId) -> None:
        """Forget a request that was not sent. Subscribers are not told."""
        self._take(connection, request_id)

    def on_messages(self, connection: int) -> None:
        """Note that a part of an answer has come on this connection."""
        if connection in self._pending:
            self._heard_at[connection] = asyncio.get_running_loop().time()

    def on_completion(self, connection: int, payload: bytes) -> None:
        """Take a completion. It is not even decoded if no request was sent on this connection.

        Raises:
            DecodeError: it is not a completion.
        """
        if connection not in self._pending:
            return
        outcome = decode_completion(payload)
        if isinstance(outcome, Failure):
            outcome = Failure(outcome.request_id, outcome.message[:MAX_FAILURE_CHARS])
        pending = self._take(connection, outcome.request_id)
        if pending is not None:
            self._tell(RequestEnded(outcome, pending.asker))

    def end_all(self, connection: int, why: str) -> None:
        """Fail all requests of this connection; `why` says what has happened."""
        for request_id in list(self._pending.get(connection, ())):
            self._fail(connection, request_id, why)

    def _arm(self, connection: int, pending: _Pending, when: float) -> None:
        pending.timer = call_when_due(when, self._on_timer, connection, pending)

    def _on_timer(self, connection: int, pending: _Pending) -> None:
        now = asyncio.get_running_loop().time()
        silent_since = max(pending.began, self._heard_at.get(connection, pending.began))
        deadline = min(silent_since + pending.timeout_s, pending.began + MAX_ANSWER_S)
        if now < deadline:
            self._arm(connection, pending, deadline)
            return
        waited = f"no completion within {MAX_ANSWER_S:g} s"
        if deadline < pending.began + MAX_ANSWER_S:
            waited = f"no answer within {pending.timeout_s:g} s"
        self._fail(connection, pending.request_id, waited)

    def _fail(self, connection: int, request_id: RequestId, why: str) -> None:
        pending = self._take(connection, request_id)
        if pending is not None:
            self._tell(RequestEnded(Failure(request_id, why), pending.asker))

    def _take(self, connection: int, request_id: RequestId) -> _Pending | None:
        """Remove a request; None if it is not under way."""
        of_connection = self._pending.get(connection, {})
        pending = of_connection.pop(request_id, None)
        if pending is None:
            return None
        self._count -= 1
        if not of_connection:
            del self._pending[connection]
            self._heard_at.pop(connection, None)
        assert pending.timer is not None
        pending.timer.cancel()
        return pending

    def _tell(self, ended: RequestEnded) -> None:
        for subscription in self._subscriptions:
            subscription.put(ended)
