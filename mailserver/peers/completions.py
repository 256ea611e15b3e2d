"""How the history requests ended that this node has sent to other mailservers for its users (8/WAKU-MAIL "P2P Request
Complete").

A request is known by its id and by the connection that it went out on: nobody else's completion counts, nor one of a
request that was not made here. Each that was sent ends once, and whoever follows is told: by the mailserver's
completion, or with a failure of ours where none comes: the connection is gone, the mailserver is silent, or it is not
trusted any more.
"""

import asyncio
from collections import deque
from dataclasses import dataclass, field

from mailserver.errors import MailserverError
from mailserver.mail.completion import Completion, Failure, decode_completion
from mailserver.mail.request import RequestId

MAX_PENDING = 1000
"""Most requests that wait for their end, of all users together: more than mailservers answer in ANSWER_TIMEOUT_S."""

MAX_QUEUED = 256
"""Ends that wait for one follower to read them. Beyond, the oldest goes."""

MAX_FAILURE_CHARS = 512
"""How much is kept of what a mailserver says about a failure; ours say less than 100 characters."""

ANSWER_TIMEOUT_S = 30.0
"""How long a mailserver may be silent before a request counts as unanswered; deployed clients wait 10 to 30 s."""

MAX_TIMEOUT_S = 600.0
"""The longest time that a user may give instead."""

MAX_ANSWER_S = 3600.0
"""After so long a request ends however much the mailserver sends."""


class TooManyRequests(MailserverError):
    """MAX_PENDING requests wait for their end."""

    def __str__(self) -> str:
        return f"{MAX_PENDING} history requests are under way, as many as there may be"


@dataclass(frozen=True, slots=True)
class Asker:
    """Who asked, compared by identity; `told` is set once they know the request's id."""

    who: object = None
    told: asyncio.Event = field(default_factory=asyncio.Event)


@dataclass(frozen=True, slots=True)
class Ended:
    """A request has ended so."""

    outcome: Completion | Failure
    asker: Asker


@dataclass(slots=True)
class _Pending:
    request_id: RequestId
    asker: Asker
    timeout_s: float
    began: float
    timer: asyncio.TimerHandle | None = None


class Follower:
    """One who is told how requests end."""

    def __init__(self) -> None:
        self._queue: deque[Ended] = deque(maxlen=MAX_QUEUED)
        self._arrived = asyncio.Event()

    async def next(self) -> Ended:
        """Wait for the next one."""
        while not self._queue:
            self._arrived.clear()
            await self._arrived.wait()
        return self._queue.popleft()

    def put(self, ended: Ended) -> None:
        """Queue one more."""
        self._queue.append(ended)
        self._arrived.set()


class Completions:
    """All requests that are under way, by the number of the connection that they went out on."""

    def __init__(self) -> None:
        self._pending: dict[int, dict[RequestId, _Pending]] = {}
        self._heard_at: dict[int, float] = {}  # when each of these last sent something of an answer
        self._count = 0
        self._followers: set[Follower] = set()

    def __len__(self) -> int:
        return self._count

    def follow(self) -> Follower:
        """Follow what ends from now on, until `unfollow`."""
        follower = Follower()
        self._followers.add(follower)
        return follower

    def unfollow(self, follower: Follower) -> None:
        """This one is told nothing more."""
        self._followers.discard(follower)

    def expect(self, connection: int, request_id: RequestId, asker: Asker, timeout_s: float = ANSWER_TIMEOUT_S) -> None:
        """A request is about to be sent; `forget` it if that fails.

        Args:
            timeout_s: how long the mailserver may be silent, at most MAX_TIMEOUT_S.
        Raises:
            TooManyRequests: there is no room.
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
        """A request was not sent: nobody is told."""
        self._take(connection, request_id)

    def on_messages(self, connection: int) -> None:
        """Something of an answer has come."""
        if connection in self._pending:
            self._heard_at[connection] = asyncio.get_running_loop().time()

    def on_completion(self, connection: int, payload: bytes) -> None:
        """A completion has come. Where nothing was asked for, it is not even looked at.

        Raises:
            DecodeError: it is none.
        """
        if connection not in self._pending:
            return
        outcome = decode_completion(payload)
        if isinstance(outcome, Failure):
            outcome = Failure(outcome.request_id, outcome.message[:MAX_FAILURE_CHARS])
        pending = self._take(connection, outcome.request_id)
        if pending is not None:
            self._tell(Ended(outcome, pending.asker))

    def end_all(self, connection: int, why: str) -> None:
        """Nothing more will come from this connection."""
        for request_id in list(self._pending.get(connection, ())):
            self._fail(connection, request_id, why)

    def _arm(self, connection: int, pending: _Pending, when: float) -> None:
        pending.timer = asyncio.get_running_loop().call_at(when, self._on_timer, connection, pending)

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
            self._tell(Ended(Failure(request_id, why), pending.asker))

    def _take(self, connection: int, request_id: RequestId) -> _Pending | None:
        """Wait for this one no longer."""
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

    def _tell(self, ended: Ended) -> None:
        for follower in self._followers:
            follower.put(ended)
