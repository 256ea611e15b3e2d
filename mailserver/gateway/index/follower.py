"""Following the store: what arrives there gets into the index, and what was removed there leaves it.

Both happen in steps. Each step reads a part of the store, and is one transaction of the index, so that originals are
kept between two of them. Hashing is done in the thread that writes.
"""

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Iterable, Sequence
from functools import partial

from mailserver.errors import StoreError
from mailserver.gateway.index.archived import ArchivedMessages
from mailserver.gateway.index.database import IndexDatabase
from mailserver.gateway.index.flood import Flood
from mailserver.gateway.index.search import FIRST_PLACE, MessageKey, SearchScope, find, find_originals
from mailserver.gateway.index.writing import (
    IndexProgress,
    begin_anew,
    clean,
    index,
    note_swept,
    read_progress,
    read_swept,
    remove,
)
from mailserver.ids.envelopes import NS
from mailserver.ids.waku_message import MessageHash
from mailserver.store.arrivals import ArrivalLog, Arrived, OtherStore
from mailserver.store.engine import work
from mailserver.store.message_ids import BEFORE_ALL, NotIndexedYet

log = logging.getLogger(__name__)

STEP_ENVELOPES = 8000
"""How many envelopes are indexed in one transaction: 0.1 s. Each page of the index that a transaction changes is
written, and hashes change pages everywhere: with a quarter of this, a million takes twice as long."""

FOLLOW_S = 1.0
"""How often to look for what arrived, while nobody asks for messages."""

MAX_BEHIND = 100_000
"""Whoever asks for messages waits until those are indexed that arrived before, unless they are more: some seconds."""

CATCH_UP_S = 10.0
"""How long to wait for that."""

SWEPT_KEYS = 1000
"""How many messages are looked for in the store at once."""

SWEEP_PAUSE_S = 0.01
"""How long to wait before the next are looked for."""

ARCHIVE_REST_S = 60.0
"""How often to look what was published of the archive, while nothing is removed from the store."""

UNSEEN_S = 60.0
"""If the store was not looked at for so long, some of what arrived meanwhile may have been removed again."""

MAX_DAMAGED = 10_000
"""How many messages are remembered whose envelopes were damaged since they were indexed."""

SWEEP_REST_S = 5.0
"""How long a round is the last, at least."""

SWEEP_REST = 10
"""How many times as long as it took a round is the last."""


class Follower:
    """Follows one store. Made by `start`."""

    def __init__(
        self,
        database: IndexDatabase,
        arrivals: ArrivalLog,
        progress: IndexProgress,
        swept: str | None,
        wall_clock: Callable[[], float],
        archived: ArchivedMessages | None,
    ) -> None:
        self._database = database
        self._arrivals = arrivals
        self._progress = progress
        self._wall_clock = wall_clock
        self._archived = archived
        self._stepping = asyncio.Lock()
        self._flood = Flood()
        self._steps_begun = self._steps_done = 0
        self._last = progress.arrival
        self._looked_at = asyncio.get_running_loop().time()
        self._may_lack = False
        self._removals: str | None = None
        self._removed_until = 0
        self._swept = swept  # what the index has of this, too: a start is no reason to sweep all of it again
        self._missing: list[MessageKey] = []
        self._look_at = 0.0
        self._is_owing = asyncio.Event()
        self._following = self._sweeping = ""
        self._damaged = 0
        self._damaged_since: set[MessageHash] = set()

    @classmethod
    async def start(
        cls,
        database: IndexDatabase,
        arrivals: ArrivalLog,
        network_topic: str,
        wall_clock: Callable[[], float],
        archived: ArchivedMessages | None = None,
    ) -> "Follower":
        """Go on where the index ends; from the beginning, if its hashes belong to another network topic.

        Raises:
            StoreError: the index cannot be used.
        """
        progress = await database.write(read_progress)
        if progress.network_topic != network_topic:
            # Of no store: the first step finds one.
            progress = await database.write(partial(begin_anew, identity="", network_topic=network_topic))
        swept = await database.write(read_swept)
        return cls(database, arrivals, progress, swept, wall_clock, archived)

    @property
    def behind(self) -> int:
        """How many envelopes are not indexed yet, at most, as far as is known."""
        return max(0, self._last - self._progress.arrival)

    @property
    def problem(self) -> str:
        """Why the store could not be followed the last time; "" if it was."""
        return self._following or self._sweeping

    @property
    def removed_until(self) -> int:
        """Nothing that was created later than this was ever removed from the store, in Unix seconds."""
        return self._removed_until

    @property
    def progress(self) -> IndexProgress:
        """How far which store is indexed."""
        return self._progress

    @property
    def damaged(self) -> int:
        """How many envelopes were found damaged: each once, when it was to be indexed, or when it was read later."""
        return self._damaged + len(self._damaged_since)

    def note_damaged(self, names: Iterable[MessageHash]) -> None:
        """The envelopes of these messages were damaged since they were indexed."""
        if len(self._damaged_since) < MAX_DAMAGED:
            self._damaged_since.update(names)

    async def catch_up(self) -> None:
        """Index what was stored before this call. Those who call at the same time share what is done.

        Raises:
            NotIndexedYet: it is too much, or takes too long.
            StoreError: the store or the index cannot be used.
        """
        before = self._steps_begun
        self._flood.wanted(asyncio.get_running_loop().time())
        try:
            async with asyncio.timeout(CATCH_UP_S):
                await self._step_unless(lambda: self._steps_done > before)
                goal = self._last  # as it was after the call
                while self._progress.arrival < goal:
                    await self._step_unless(lambda: self._progress.arrival >= goal)
        except TimeoutError as error:
            raise NotIndexedYet(self.behind) from error

    async def _step_unless(self, is_done: Callable[[], bool]) -> None:
        if self.behind > MAX_BEHIND:
            raise NotIndexedYet(self.behind)
        async with self._stepping:
            if not is_done():
                await self._step()

    async def _step(self, *, only_looks: bool = False) -> None:
        """Index the next part of what arrived, if there is any; or only look how the store is."""
        limit = 0 if only_looks else STEP_ENVELOPES
        self._steps_begun += 1
        number = self._steps_begun
        try:
            arrived = await self._read(limit)
        except OtherStore as error:
            log.info("messages of the store are indexed anew identity=%s", error.identity)
            begin = partial(begin_anew, identity=error.identity, network_topic=self._progress.network_topic)
            self._progress = await self._database.write(begin)
            self._removals = self._swept = None
            self._missing.clear()
            self._look_at_archive()
            arrived = await self._read(limit)
        self._flood.look(arrived.last, asyncio.get_running_loop().time())
        self._note_gaps(arrived)
        if arrived.end > self._progress.arrival:
            indexed = await self._database.write(partial(index, progress=self._progress, arrived=arrived))
            if indexed is None:  # it was already, for somebody who has not waited for it
                self._progress = await self._database.write(read_progress)
            else:
                self._progress = self._progress._replace(arrival=arrived.end)
                self._damaged += indexed.damaged
        if self._removals is None:
            self._is_owing.set()
        self._last, self._removals, self._removed_until = arrived.last, arrived.removals, arrived.removed_until
        if self._may_lack and not self.behind:
            # Of what only the archive has, more may be missing.
            self._may_lack = False
            self._look_at_archive()
        self._steps_done = number

    def _note_gaps(self, arrived: Arrived) -> None:
        """Notice if some may have been removed from the store before they were indexed."""
        now = asyncio.get_running_loop().time()
        if BEFORE_ALL < self._progress.arrival < arrived.first - 1:
            self._may_lack = True
        elif self._removals not in (None, arrived.removals):
            # What is removed need not be what arrived first: a day of creation goes at once.
            self._may_lack |= self.behind > 0 or now - self._looked_at > UNSEEN_S
        self._looked_at = now

    def _look_at_archive(self) -> None:
        """Have what was published of the archive indexed at once. Until then, it is not known what it has alone."""
        if self._archived is not None:
            self._archived.begin_anew()
        self._look_at = 0.0
        self._is_owing.set()

    async def _read(self, limit: int) -> Arrived:
        return await self._arrivals.after(self._progress.arrival, limit, of=self._progress.identity)

    def note_missing(self, keys: Sequence[MessageKey]) -> None:
        """The envelopes of these messages are gone: the next round begins with them."""
        self._missing += keys[: max(0, SWEPT_KEYS - len(self._missing))]

    async def sweep(self) -> None:
        """Remove the messages whose envelopes were removed from the store, if any were since the last time, before this
        start or after it.

        What was published of the archive by then is indexed first: what is removed here must be found there.

        Raises:
            StoreError: the store, the archive or the index cannot be used.
        """
        if self._removals is None:
            return
        identity, removals, until = self._progress.identity, self._removals, self._removed_until
        now = asyncio.get_running_loop().time()
        if self._archived is not None and (removals != self._swept or self._missing or now >= self._look_at):
            await self._archived.index(until)
            self._look_at = now + ARCHIVE_REST_S
        if removals != self._swept or self._missing:
            noted, self._missing = self._missing, []
            await self._remove([key for key in noted if key.arrival], self._progress)
            if self._archived is not None:
                await self._archived.forget([key for key in noted if not key.arrival], int(self._wall_clock()))
        if removals == self._swept:
            return
        scope = SearchScope(FIRST_PLACE, ((until + 1) * NS, b""), None, is_forward=True)
        while True:
            progress = self._progress
            keys = await self._database.read(partial(find, scope=scope, count=SWEPT_KEYS), SWEPT_KEYS * work.ROW)
            await self._remove(keys, progress)
            if len(keys) < SWEPT_KEYS:
                break
            scope = scope.behind(keys[-1].place)
            await asyncio.sleep(SWEEP_PAUSE_S)
        await self._sweep_originals(until)
        await self._database.write(partial(clean, now=int(self._wall_clock())))
        if await self._database.write(partial(note_swept, identity=identity, removals=removals)):
            self._swept = removals

    async def _remove(self, keys: Sequence[MessageKey], progress: IndexProgress) -> None:
        """Remove those of some messages whose envelopes are gone.

        Args:
            progress: how far the index had come when they were found. What was indexed since is left alone: it may have
                been put into the store since then, under the same number, if that is another store.
        """
        missing = {*await self._arrivals.missing([key for key in keys if key.arrival <= progress.arrival])}
        gone = [key for key in keys if key.arrival in missing]
        if gone:
            now = int(self._wall_clock())
            await self._database.write(partial(remove, identity=progress.identity, keys=gone, now=now))

    async def _sweep_originals(self, until: int) -> None:
        """Remove what is gone of the messages of v2. Their times, and so their places, are their own."""
        after = BEFORE_ALL
        while True:
            progress = self._progress
            reads = partial(find_originals, until=until, after=after, count=SWEPT_KEYS)
            keys = await self._database.read(reads, SWEPT_KEYS * work.ROW)
            await self._remove(keys, progress)
            if len(keys) < SWEPT_KEYS:
                return
            after = keys[-1].arrival
            await asyncio.sleep(SWEEP_PAUSE_S)

    async def run(self) -> None:
        """Follow the store, and remove what was removed there, until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._follow(), name="index follower")
            tasks.create_task(self._sweep_on(), name="index sweeper")

    async def _follow(self) -> None:
        while True:
            self._following = _changed(self._following, await _problem_of(self._step_alone()))
            if self._following or not self.behind or self._may_put_off():
                await asyncio.sleep(FOLLOW_S)

    async def _step_alone(self) -> None:
        async with self._stepping:
            await self._step(only_looks=self._may_put_off())

    def _may_put_off(self) -> bool:
        return self._flood.may_put_off(self.behind, asyncio.get_running_loop().time())

    async def _sweep_on(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            started = loop.time()
            self._sweeping = _changed(self._sweeping, await _problem_of(self.sweep()))
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(max(SWEEP_REST_S, SWEEP_REST * (loop.time() - started))):
                    # What the archive has, and this store has not, must be known before it can be asked for.
                    await self._is_owing.wait()
            self._is_owing.clear()


async def _problem_of(work: Awaitable[None]) -> str:
    """Why something could not be done; "" if it could."""
    try:
        await work
    except StoreError as error:
        return str(error)
    return ""


def _changed(before: str, now: str) -> str:
    """The problem that there is now; it is logged when it is new."""
    if now and now != before:
        log.error("messages of the store are not indexed error=%r", now)
    return now
