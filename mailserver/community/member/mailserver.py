"""One mailserver of a member: asked for the last 30 days of the community's topics, then followed live.

It subscribes before it asks, so nothing falls between the two. What it was asked for once is not asked for again after
a restart, but for the last minutes, in which messages may have been late. When the connection ends, it is made again.
"""

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Protocol

from mailserver.catchup.page_rules import PAGE_TIMEOUT_S, PageBuffer, PageTooLong, SourceLies, Walk
from mailserver.catchup.ranges import LATE_S, MissingRange, cut_window, unite, without
from mailserver.catchup.request_pow import RequestTooDear, request_pow
from mailserver.catchup.retry import backoff_s
from mailserver.client.mail_client import MailClient, NoAnswer, RequestFailed, connect
from mailserver.client.sealing import TooMuchWork
from mailserver.codec.keys import Enode, NodeId
from mailserver.errors import ConnectionLost, DecodeError, StoreError
from mailserver.mail.answer import AnswerCheck
from mailserver.mail.request import Cursor
from mailserver.net.sessions import random_key
from mailserver.units import SECONDS_PER_DAY
from mailserver.waku.bloom import Interest
from mailserver.waku.envelope import Envelope, Topic

log = logging.getLogger(__name__)

HISTORY_S = 30 * SECONDS_PER_DAY
"""How far back mailservers are asked (61/STATUS "Fetching message history archives")."""


class Diary(Protocol):
    """Remembers up to when a mailserver was asked; Unix seconds."""

    async def asked_until(self, mailserver: NodeId, topics: Collection[Topic]) -> int | None:
        """Up to when it was asked for all of these; None: for one of them it never was."""

    async def note_asked(self, mailserver: NodeId, topics: Collection[Topic], until: int) -> None:
        """It was asked for all that was created on them before."""


FAILURES = (ConnectionLost, DecodeError, NoAnswer, RequestFailed, RequestTooDear, SourceLies, TimeoutError, TooMuchWork)
"""What a mailserver may do to us. A TimeoutError is that it does not read what we send."""

Take = Callable[[Sequence[Envelope]], Awaitable[None]]


@dataclass(slots=True)
class _Window:
    """A part that is being asked for, over any number of connections. `cursor`: where the next page begins."""

    part: MissingRange
    walk: Walk
    cursor: Cursor | None = None


class Mailserver:
    """Asks one mailserver while `follow` runs. `problem`: why it has none of our attention now; empty if it has."""

    def __init__(
        self,
        enode: Enode,
        topics: frozenset[Topic],
        key: bytes,
        client_id: str,
        diary: Diary,
        take: Take,
        wall_clock: Callable[[], float],
    ) -> None:
        """Begin with nothing asked.

        Args:
            topics: at most MAX_REQUEST_TOPICS.
            key: what requests are sealed with, as of `seal_request`.
            take: called with what comes, again and again; it may come twice.
        """
        self.enode = enode
        self.problem = "not asked yet"
        self.answered = asyncio.Event()
        """Set once it has given all that it has of the last 30 days."""
        self._topics = topics
        self._key = key
        self._client_id = client_id
        self._diary = diary
        self._take = take
        self._wall_clock = wall_clock
        self._until: int | None = None
        self._owed: list[MissingRange] = []
        self._window: _Window | None = None
        self._node_key = random_key()  # the same for all connections: mailservers count our requests by it

    async def follow(self) -> None:
        """Ask and listen, again and again. Only cancelling ends this."""
        failures = 0
        while True:
            try:
                async with connect(self.enode, self._client_id, self._node_key) as client:
                    with client.subscribe(Interest(topics=self._topics)) as live:
                        await self.ask(client)
                        failures = 0
                        async for envelope in live:
                            await self._take([envelope])
            except PageTooLong:
                continue
            except (*FAILURES, StoreError) as error:
                self._fail(str(error))
            failures += 1
            await asyncio.sleep(backoff_s(failures))

    async def ask_once(self) -> None:
        """Ask for the last 30 days, and leave.

        Raises:
            MailserverError: one of FAILURES: it does not answer, or not as it should; or a StoreError.
        """
        while True:
            with contextlib.suppress(PageTooLong):
                async with connect(self.enode, self._client_id, self._node_key) as client:
                    await self.ask(client)
                return

    async def ask(self, client: MailClient) -> None:
        """Ask for what was not asked for yet, the newest day first.

        Raises:
            MailserverError: as `ask_once`. What was answered until then is not asked for again on the next connection.
            PageTooLong: ask for less, on another connection.
        """
        now = int(self._wall_clock())
        if self._until is None:
            self._until = await self._diary.asked_until(self.enode.node_id, self._topics)
        since = now - HISTORY_S if self._until is None else max(self._until - LATE_S, now - HISTORY_S)
        self._owed = unite([*self._owed, MissingRange(max(since, 0), now)])
        self._until = now
        while self._owed:
            if self._window is None:
                part, _ = cut_window(self._owed[0])
                self._window = _Window(part, Walk(part))
            await self._ask_window(client, self._window)
            done = self._window.part
            self._owed = [left for part in self._owed for left in without(part, done)]
            self._window = None
        await self._diary.note_asked(self.enode.node_id, self._topics, now)
        self.problem = ""
        self.answered.set()

    async def _ask_window(self, client: MailClient, window: "_Window") -> None:
        while True:
            try:
                envelopes, cursor = await self._ask_page(client, window)
            except PageTooLong:
                window.walk.shrink()
                raise  # the rest of this page may still come: only another connection is free of it
            await self._take(envelopes)
            window.cursor = cursor
            if cursor is None:
                return
            window.walk.note([(envelope.created, envelope.hash()) for envelope in envelopes], cursor)

    async def _ask_page(self, client: MailClient, window: "_Window") -> tuple[Sequence[Envelope], Cursor | None]:
        check = AnswerCheck()  # a page that was cut off comes again: what was in it is no repetition
        min_pow = request_pow(client.settings.pow_requirement, 0.0)
        request = window.walk.request(window.cursor, Interest(topics=self._topics))
        now = asyncio.get_running_loop().time
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(PAGE_TIMEOUT_S) as deadline:
                buffer = PageBuffer(on_full=lambda: deadline.reschedule(now()))
                completion = await client.request(request, self._key, buffer, min_pow=min_pow, check=check)
                if not buffer.is_full:  # it may have filled up in the moment in which the page ended
                    self._note_faults(check)
                    return buffer.envelopes, completion.cursor
        raise PageTooLong

    def _note_faults(self, check: AnswerCheck) -> None:
        if check.faults:
            log.info("mailserver answers with something else mailserver=%s wrong=%s", self._short(), check)

    def _fail(self, problem: str) -> None:
        if problem != self.problem:
            log.info("mailserver not followed mailserver=%s cause=%r", self._short(), problem)
        self.problem = problem

    def _short(self) -> str:
        return f"{self.enode.node_id.hex()[:8]}@{self.enode.host}:{self.enode.port}"
