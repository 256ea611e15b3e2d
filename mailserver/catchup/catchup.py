"""Catching up from several sources at once, each with its own list of what it owes: none holds up another.

Sources are asked for all of a range, not for a part each: two that both had downtimes hold each other's gaps. What
the one has given is skipped when the other gives it, too.
"""

import asyncio
import contextlib
import logging
import math
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from mailserver.catchup.ledger import CatchupError, open_ledger
from mailserver.catchup.outages import Contacts, Outages
from mailserver.catchup.progress import Progress, State
from mailserver.catchup.ranges import LATE_S, Range, missed_range
from mailserver.catchup.source import CatchupSettings, Clock, Source
from mailserver.codec.keys import Enode, NodeId
from mailserver.store.interface import Store
from mailserver.units import SECONDS_PER_DAY
from mailserver.waku.acceptance import MAX_AHEAD_S
from mailserver.waku.envelope import MAX_U32

log = logging.getLogger(__name__)

MAX_SOURCES = 16
"""Most sources. Each may take the memory of two pages of MAX_PAGE_BYTES, and a connection."""

SAVE_INTERVAL_S = 1.0
"""How far the progress file may lag behind: after a kill, what it does not know of is fetched again."""

LOG_INTERVAL_S = 60.0

ASK_AGAIN_S = 600
"""How long after the start what was created meanwhile is asked for, too: until then our peers have found us again.
Those that we dial are tried every minute."""

UNSENT_INTERVAL_S = 60
"""How often at most a source is asked for what it cannot send us."""

UNSENT_ATTEMPTS = 2
"""After so many failures in a row, a peer that is not a source of the settings is not asked any more, until it has
something again that it cannot send us."""

MAX_LEAP_S = LATE_S
"""By how much our clock may leap unnoticed. A machine that was suspended, or has started with a clock far behind, has
missed the time between; one whose clock was far ahead has refused what was live."""

STOP_PATIENCE_S = 0.5
"""How long sources have to say goodbye when stopped, before their connections are cut."""


class TooManySources(CatchupError):
    """MAX_SOURCES mailservers are asked already, and none of them can be forgotten."""

    def __str__(self) -> str:
        return f"cannot catch up from more than {MAX_SOURCES} mailservers"


class Catchup:
    """Catches up whatever was added, now and before the process was last ended, as long as `run` runs."""

    def __init__(self, store: Store, folder: Path, settings: CatchupSettings, clock: Clock = time.time) -> None:
        """Read the progress file in `folder`.

        Raises:
            CatchupError: it is damaged.
            TooManySources: the settings name more than MAX_SOURCES.
        """
        self._store = store
        self._settings = settings
        self._clock = clock
        self._ledger = open_ledger(folder)
        self._sources: dict[NodeId, Source] = {}
        self._tasks: dict[NodeId, asyncio.Task[None]] = {}
        self._logged_pages: dict[NodeId, int] = {}
        self._unsent_asked: dict[NodeId, int] = {}  # by the clock
        self._by_the_way: set[NodeId] = set()  # sources that nobody has named as such
        self._problem: str | None = None
        self._is_missed_saved = True
        self._running = False
        self._stopping = asyncio.Event()
        self._max_days = 0.0  # how far back what was missed is asked for
        self._ask_again_at = math.inf  # by the loop's clock
        self._rest: list[Range] = []  # what of the missed is to be asked for then
        self._contacts: Callable[[Collection[NodeId]], Contacts] | None = None
        for enode in settings.sources:
            self._source(enode, settings.sources)

    async def add(self, since: int, until: int, sources: Iterable[Enode] | None = None) -> dict[Enode, Progress]:
        """Have sources asked for all envelopes created from `since` to `until`, Unix seconds, at most the present.

        It is on disk when this returns, and `run` sees to it. What is owed of an earlier call is not asked for twice.
        One that was given up is tried again. Returns how far each of them was before.

        Args:
            sources: whom to ask; those of the settings if not given. An address that is new for its node counts.
        Raises:
            CatchupError: the progress file cannot be written.
            TooManySources: MAX_SOURCES others are being asked.
            ValueError: the bounds are no times, or in the wrong order.
        """
        until = min(until, int(self._clock()) + MAX_AHEAD_S)
        if not 0 <= since <= until < MAX_U32:
            raise ValueError(f"{since} to {until} is no range of times")
        enodes = self._settings.sources if sources is None else tuple(sources)
        asked = {enode: self._source(enode, enodes) for enode in enodes}
        before = {enode: source.progress() for enode, source in asked.items()}
        for source in asked.values():
            source.account.add(Range(since, until))
        self._ledger.note_change()
        await self._ledger.save()
        for source in asked.values():
            source.rouse()
        return before

    async def note_missed(self) -> None:
        """Take down that everything since the last reception may be missing here; to be saved by who calls this.

        It must be known before anything is stored: the last reception is a recent one then, also if it was fetched.

        Raises:
            StoreError: the store cannot be read.
        """
        now = int(self._clock())
        self._ledger.note_missed(missed_range(await self._store.last_reception(now), now, ASK_AGAIN_S))
        self._is_missed_saved = False

    async def add_missed(self, max_days: float) -> None:
        """Have the sources of the settings asked for what was missed, now and formerly; call it before any reception.

        It is on disk when this returns, and stays there until one of these sources has given all of it: sources may be
        wrong or missing in the settings, and named later. Where the disk is full, the store is held until it is there:
        what was missed would be forgotten with the first envelope that is stored.

        Args:
            max_days: how far to go back at most; 0: ask for nothing.
        Raises:
            StoreError: the store cannot be read.
        """
        await self.note_missed()
        self._max_days = max_days
        self._ask_for_missed()
        await self._save()

    def watch(self, contacts: Callable[[Collection[NodeId]], Contacts]) -> None:
        """Ask sources also for what we miss of them while we run, as far back as `add_missed` was told.

        Args:
            contacts: says which of these mailservers are connected, and how, and whether anybody is.
        """
        self._contacts = contacts

    def ask_for_unsent(self, enode: Enode) -> bool:
        """Ask a peer for what it cannot send us, as its pool is too long for a packet; return whether it is asked.

        What was created since the last call is asked for, at most every UNSENT_INTERVAL_S, and for the first time what
        may still be in its pool. It need not be a source of the settings: such a peer is given up when it does not
        answer as a mailserver would, and makes room where a source of the settings or of a command needs it.
        """
        node_id = enode.node_id
        named = {source.node_id: source for source in self._settings.sources}
        if self._max_days <= 0:
            return False
        is_by_the_way = node_id not in named and (node_id in self._by_the_way or node_id not in self._sources)
        try:
            source = self._source(named.get(node_id, enode), self._settings.sources, is_by_the_way=is_by_the_way)
        except TooManySources:
            return False
        if is_by_the_way and source.progress().is_hopeless:
            return False
        now = int(self._clock())
        asked_at = self._unsent_asked.get(node_id)
        if asked_at is None or now >= asked_at + UNSENT_INTERVAL_S:
            since = now if asked_at is None else asked_at
            self._unsent_asked[node_id] = now
            self._owe(Range(max(since - LATE_S, 0), now), [source])
        return True

    def follow(self, sources: Iterable[Enode]) -> None:
        """Put other sources in force: new ones are asked for what is missed, those that are none any more for nothing.

        What these owe is kept for when they come back; also who asks them by `add` has them back.
        """
        before = {enode.node_id for enode in self._settings.sources}
        enodes = tuple(sources)
        self._settings = replace(self._settings, sources=enodes)
        for node_id in before - {enode.node_id for enode in enodes}:
            if node_id in self._sources:
                self._sources[node_id].dismiss()
        try:
            for enode in enodes:
                is_new = enode.node_id not in before or enode.node_id not in self._sources
                source = self._source(enode, enodes)
                if is_new:
                    source.rouse()
                    self._owe_missed([source])
        except TooManySources as error:  # commands have others asked just now
            log.error("catch-up does not follow the settings error=%r", str(error))

    async def settled(self, sources: Iterable[Enode] | None = None) -> None:
        """Wait until no source owes anything but those that were given up.

        Args:
            sources: those to wait for; all if not given.
        """
        await asyncio.gather(*(source.settled() for source in self._these(sources)))

    def snapshot(self, sources: Iterable[Enode] | None = None) -> tuple[Progress, ...]:
        """How far catching up from each of these sources is; from all if none are given."""
        return tuple(source.progress() for source in self._these(sources))

    async def run(self) -> None:
        """Catch up until stopped."""
        self._running = True
        for node_id, source in self._sources.items():
            self._start(node_id, source)
        try:
            loop = asyncio.get_running_loop()
            log_at = loop.time() + LOG_INTERVAL_S
            outages = Outages(self._clock(), loop.time())
            began = self._clock() - loop.time()  # moves only when our clock is set, or the machine has slept
            set_at = loop.time()
            while not self._stopping.is_set():
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(SAVE_INTERVAL_S):
                        await self._stopping.wait()
                leap_s = self._clock() - loop.time() - began
                began += leap_s
                if abs(leap_s) > MAX_LEAP_S:
                    self._on_leap(leap_s, loop.time() - set_at)
                    set_at = loop.time()
                self._see_to_missed(loop.time())
                self._see_to_outages(outages, loop.time())
                await self._save()
                if loop.time() >= log_at:
                    self._log_progress()
                    log_at += LOG_INTERVAL_S
        finally:
            self._running = False
            await self._end_tasks()
            await self._save()

    def stop(self) -> None:
        """Let `run` return soon. What is not finished goes on where it was with the next start."""
        self._stopping.set()

    def _ask_for_missed(self) -> None:
        """Ask for it now, and once more when our peers are back."""
        if self._max_days <= 0:
            return
        self._owe_missed(self._these(self._settings.sources))
        now = int(self._clock())
        self._rest = [Range(max(now - LATE_S, 0), now + ASK_AGAIN_S)]
        self._ask_again_at = asyncio.get_running_loop().time() + ASK_AGAIN_S

    def _on_leap(self, leap_s: float, unset_s: float) -> None:
        """Our clock was moved by `leap_s`, after it had not been for `unset_s`."""
        if leap_s > 0:
            log.warning("clock leapt ahead, what was sent meanwhile is missed seconds=%.0f", leap_s)
            missed_s = leap_s
        else:  # it was ahead all the time, for all we know: what was live looked expired
            log.warning("clock was set back, what was sent before is missed by=%.0f seconds=%.0f", -leap_s, unset_s)
            missed_s = unset_s
        now = int(self._clock())
        self._ledger.note_missed(missed_range(max(now - math.ceil(missed_s), 0), now, ASK_AGAIN_S))
        self._is_missed_saved = False
        self._ask_for_missed()

    def _see_to_missed(self, now: float) -> None:
        if self._max_days <= 0:
            return
        if now >= self._ask_again_at:
            self._ask_again_at = math.inf
            since = self._rest.pop().lower
            self._owe(Range(since, int(self._clock())), self._these(self._settings.sources))
        given = any(not source.account.pending for source in self._these(self._settings.sources))
        if given and self._ledger.missed != self._rest:
            self._ledger.missed = list(self._rest)
            self._ledger.note_change()

    def _see_to_outages(self, outages: Outages, now: float) -> None:
        if self._max_days <= 0 or self._contacts is None:
            return
        wall = self._clock()
        sources = {source.enode.node_id: source for source in self._these(self._settings.sources)}
        for node_id, since in outages.look(self._contacts(sources.keys()), sources, wall, now).items():
            source = sources[node_id]
            log.info(
                "trusted peer was out of reach, what it has is asked for source=%s since_s=%d", source, wall - since
            )
            self._owe(Range(since, int(wall)), [source])

    def _owe_missed(self, sources: Sequence[Source]) -> None:
        for part in self._ledger.missed:
            self._owe(part, sources)

    def _owe(self, missed: Range, sources: Sequence[Source]) -> None:
        """These sources owe this, as far back as may be, and until now."""
        now = int(self._clock())
        since = max(missed.lower, now - round(self._max_days * SECONDS_PER_DAY))
        until = min(missed.upper, now)
        if since <= until and self._max_days > 0:
            for source in sources:
                source.account.add(Range(since, until))
                if source.progress().state is not State.SET_ASIDE:  # what it owes, it is asked for in its time
                    source.rouse()
            self._ledger.note_change()

    def _these(self, sources: Iterable[Enode] | None) -> list[Source]:
        if sources is None:
            return [source for source in self._sources.values() if not source.is_dismissed]
        return [self._sources[enode.node_id] for enode in sources if enode.node_id in self._sources]

    def _source(self, enode: Enode, beside: Sequence[Enode], *, is_by_the_way: bool = False) -> Source:
        node_id = enode.node_id
        if node_id in self._by_the_way and not is_by_the_way:  # now somebody has named it
            self._forget(node_id)
        source = self._sources.get(node_id)
        if source is None:
            if len(self._sources) >= MAX_SOURCES:
                self._forget_one(beside, for_one_by_the_way=is_by_the_way)
            settings, ledger = self._settings, self._ledger
            if is_by_the_way:
                settings = replace(settings, give_up_after=UNSENT_ATTEMPTS)
                self._by_the_way.add(node_id)
            source = Source(enode, ledger.account(node_id), self._store, settings, self._clock, ledger.note_change)
            self._sources[node_id] = source
            if self._running:
                self._start(node_id, source)
        source.enode = enode
        return source

    def _forget_one(self, beside: Sequence[Enode], *, for_one_by_the_way: bool) -> None:
        """Make room for one more: forget a source that nobody has named, preferably one that owes nothing now."""
        kept = {enode.node_id for enode in (*self._settings.sources, *beside)}
        others = {node_id: source for node_id, source in self._sources.items() if node_id not in kept}
        free = [node_id for node_id, source in others.items() if source.is_dismissed or not source.account.pending]
        if not for_one_by_the_way:
            free += [node_id for node_id in others if node_id in self._by_the_way]
        if not free:
            raise TooManySources
        self._forget(free[0])

    def _forget(self, node_id: NodeId) -> None:
        """Ask a source nothing more. What it owes is kept for when it comes back."""
        source = self._sources.pop(node_id)
        source.dismiss()  # nobody waits for it any more
        if not source.account.pending:
            self._ledger.forget(node_id)
        self._by_the_way.discard(node_id)
        self._logged_pages.pop(node_id, None)
        task = self._tasks.pop(node_id, None)
        if task is not None:
            task.cancel()

    def _start(self, node_id: NodeId, source: Source) -> None:
        self._tasks[node_id] = asyncio.create_task(source.run(), name=f"catch-up {source}")

    async def _end_tasks(self) -> None:
        tasks = list(self._tasks.values())
        self._tasks.clear()
        # Once may not do: who was storing a page may have failed at that instead, and connections are closed politely.
        while tasks:
            for task in tasks:
                task.cancel()
            _, pending = await asyncio.wait(tasks, timeout=STOP_PATIENCE_S)
            tasks = list(pending)

    async def _save(self) -> None:
        try:
            await self._ledger.save()
            self._problem = None
            self._is_missed_saved = True
            self._store.hold("")
        except CatchupError as error:  # tried again in a second; what a kill loses is only fetched twice
            if not self._is_missed_saved:
                self._store.hold(str(error))
            if str(error) != self._problem:
                self._problem = str(error)
                log.error("catch-up progress not saved error=%r", self._problem)

    def _log_progress(self) -> None:
        """Say how far it is with the sources that something has come from since the last time."""
        for node_id, source in self._sources.items():
            progress = source.progress()
            if progress.state is State.FETCHING and progress.pages != self._logged_pages.get(node_id, 0):
                self._logged_pages[node_id] = progress.pages
                progress.log_state()
