"""Catching up from several sources at once. Each has its own list of what it owes, so none holds up another.

Every source is asked for all of a range, not for a part of it: if two sources both had downtimes, each has what the
other lacks. What one source has given is skipped when another gives it, too.
"""

import asyncio
import contextlib
import logging
import math
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from mailserver.catchup.comparing import CompareTimes
from mailserver.catchup.ledger import MAX_SOURCES, CatchupError, open_ledger
from mailserver.catchup.outages import Contacts, Outages
from mailserver.catchup.progress import SourceProgress, SourceState
from mailserver.catchup.ranges import LATE_S, MissingRange, missed_range
from mailserver.catchup.settings import CatchupSettings
from mailserver.catchup.source import CatchupSource
from mailserver.codec.keys import Enode, NodeId
from mailserver.live.intake import Clock
from mailserver.store.message_ids import StoreWithIds
from mailserver.units import SECONDS_PER_DAY
from mailserver.waku.acceptance import MAX_AHEAD_S
from mailserver.waku.envelope import MAX_U32

log = logging.getLogger(__name__)

SAVE_INTERVAL_S = 1.0
"""How far the progress file may lag behind. After a kill, what it does not list is fetched again."""

LOG_INTERVAL_S = 60.0

ASK_AGAIN_S = 600
"""So long after the start, we also ask for what was created since. By then our peers have found us again."""

UNSENT_INTERVAL_S = 60
"""A source is asked for what it cannot send us at most this often."""

UNSENT_ATTEMPTS = 2
"""After so many failures in a row, a peer that is not a source of the settings is no longer asked, until it again has
something that it cannot send us."""

MAX_LEAP_S = LATE_S
"""A smaller leap of our clock is ignored. A machine that was suspended, or that started with its clock far behind, has
missed the time in between; one whose clock was far ahead has refused live envelopes."""

STOP_GRACE_S = 0.5
"""How long sources may take to say goodbye when we stop. Then their connections are cut."""


class TooManySources(CatchupError):
    """MAX_SOURCES mailservers are asked already, and none of them can be forgotten."""

    def __str__(self) -> str:
        return f"cannot catch up from more than {MAX_SOURCES} mailservers"


class Catchup:
    """Catches up on whatever was added, in this run of the program or an earlier one, while `run` runs."""

    def __init__(self, store: StoreWithIds, folder: Path, settings: CatchupSettings, clock: Clock = time.time) -> None:
        """Read the progress file in `folder`.

        Raises:
            CatchupError: it is damaged.
            TooManySources: the settings name more than MAX_SOURCES.
        """
        self._store = store
        self._settings = settings
        self._clock = clock
        self._ledger = open_ledger(folder)
        self._sources: dict[NodeId, CatchupSource] = {}
        self._tasks: dict[NodeId, asyncio.Task[None]] = {}
        self._logged_pages: dict[NodeId, int] = {}
        self._unsent_asked: dict[NodeId, int] = {}  # by the clock
        self._unnamed: set[NodeId] = set()  # sources that neither the settings nor a command name
        self._problem: str | None = None
        self._is_missed_saved = True
        self._running = False
        self._stopping = asyncio.Event()
        self._max_days = 0.0  # how far back we ask for what was missed
        self._ask_again_at = math.inf  # by the loop's clock
        self._compare_times = CompareTimes()
        self._rest: list[MissingRange] = []  # what was missed and is to be asked for then
        self._contacts: Callable[[Collection[NodeId]], Contacts] | None = None
        for enode in settings.sources:
            self._source(enode, settings.sources)

    async def add(self, since: int, until: int, sources: Iterable[Enode] | None = None) -> dict[Enode, SourceProgress]:
        """Ask sources for all envelopes created from `since` to `until`: Unix seconds, at most the present.

        When this returns, the request is on disk, and `run` does the work. What an earlier call has asked for is not
        asked for twice. A source that was given up is tried again. Returns how far each source was before.

        Args:
            sources: the sources to ask; those of the settings if not given. A new address of a node replaces the old.
        Raises:
            CatchupError: the progress file cannot be written.
            TooManySources: MAX_SOURCES others are being asked.
            ValueError: the bounds are not times, or in the wrong order.
        """
        until = min(until, int(self._clock()) + MAX_AHEAD_S)
        if not 0 <= since <= until < MAX_U32:
            raise ValueError(f"{since} to {until} is no range of times")
        enodes = self._settings.sources if sources is None else tuple(sources)
        asked = {enode: self._source(enode, enodes) for enode in enodes}
        before = {enode: source.progress() for enode, source in asked.items()}
        for source in asked.values():
            source.account.add(MissingRange(since, until))
            source.wake()  # not after `save`: a new source has begun by then, and would not wait after a failure
        self._ledger.note_change()
        await self._ledger.save()
        return before

    async def note_missed(self) -> None:
        """Note that everything since the last reception may be missing here. The caller saves that.

        It must be noted before anything is stored: from then on the last reception is a recent one, even of history.

        Raises:
            StoreError: the store cannot be read.
        """
        now = int(self._clock())
        self._ledger.note_missed(missed_range(await self._store.last_reception(now), now, ASK_AGAIN_S))
        self._is_missed_saved = False

    async def add_missed(self, max_days: float) -> None:
        """Ask the sources of the settings for what was missed, now and earlier. Call it before anything is received.

        What was missed is on disk when this returns, and stays there until one of these sources has given all of it:
        the settings may name wrong sources, or none, and others later. If it cannot be written, the store is held until
        it can: the first envelope that is stored would hide what was missed.

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
        """Also ask sources for what we miss while we run, as far back as `add_missed` was told.

        Args:
            contacts: which of these mailservers are connected, and how, and whether any peer is.
        """
        self._contacts = contacts

    def ask_for_unsent(self, enode: Enode) -> bool:
        """Ask a peer for what it cannot send us because its pool is too long for a packet; return whether it is asked.

        The first time, we ask for what may still be in its pool; then, at most every UNSENT_INTERVAL_S, for what was
        created since the last time. The peer need not be a source of the settings. One that is not is given up if it
        does not answer as a mailserver would, and makes room for a source of the settings or of a command.
        """
        node_id = enode.node_id
        named = {source.node_id: source for source in self._settings.sources}
        if self._max_days <= 0:
            return False
        is_unnamed = node_id not in named and (node_id in self._unnamed or node_id not in self._sources)
        try:
            source = self._source(named.get(node_id, enode), self._settings.sources, is_unnamed=is_unnamed)
        except TooManySources:
            return False
        if is_unnamed and source.progress().is_hopeless:
            return False
        now = int(self._clock())
        asked_at = self._unsent_asked.get(node_id)
        if asked_at is None or now >= asked_at + UNSENT_INTERVAL_S:
            since = now if asked_at is None else asked_at
            self._unsent_asked[node_id] = now
            self._owe(MissingRange(max(since - LATE_S, 0), now), [source])
        return True

    def follow(self, sources: Iterable[Enode]) -> None:
        """Take other sources: new ones are asked for what is missed, removed ones for nothing.

        What a removed source owes is kept until it comes back, by this or by `add`.
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
                    source.wake()
                    self._owe_missed([source])
        except TooManySources as error:  # commands have others asked just now
            log.error("catch-up does not follow the settings error=%r", str(error))

    async def settled(self, sources: Iterable[Enode] | None = None) -> None:
        """Wait until only sources that were given up owe anything.

        Args:
            sources: the sources to wait for; all if not given.
        """
        await asyncio.gather(*(source.settled() for source in self._these(sources)))

    def snapshot(self, sources: Iterable[Enode] | None = None) -> tuple[SourceProgress, ...]:
        """How far catching up from each of these sources is; from all, if none are given."""
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
            began = self._clock() - loop.time()  # changes only when our clock is set, or the machine was suspended
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
                self._see_to_comparing(loop.time())
                await self._save()
                if loop.time() >= log_at:
                    self._log_progress()
                    log_at += LOG_INTERVAL_S
        finally:
            self._running = False
            await self._end_tasks()
            await self._save()

    def stop(self) -> None:
        """Let `run` return soon. The next start continues what is unfinished."""
        self._stopping.set()

    def _ask_for_missed(self) -> None:
        """Ask for what was missed now, and once more when our peers are back."""
        if self._max_days <= 0:
            return
        self._owe_missed(self._these(self._settings.sources))
        now = int(self._clock())
        self._rest = [MissingRange(max(now - LATE_S, 0), now + ASK_AGAIN_S)]
        self._ask_again_at = asyncio.get_running_loop().time() + ASK_AGAIN_S

    def _on_leap(self, leap_s: float, unset_s: float) -> None:
        """Our clock was moved by `leap_s`, the first time for `unset_s`."""
        if leap_s > 0:
            log.warning("clock leapt ahead, what was sent meanwhile is missed seconds=%.0f", leap_s)
            missed_s = leap_s
        else:  # for all we know, it was ahead all the time, and live envelopes looked expired
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
            self._owe(MissingRange(since, int(self._clock())), self._these(self._settings.sources))
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
            self._owe(MissingRange(since, int(wall)), [source])

    def _see_to_comparing(self, now: float) -> None:
        if self._max_days > 0 and self._compare_times.are_due(now):
            until = int(self._clock())
            for source in self._these(self._settings.sources):
                source.compare(MissingRange(max(until - round(self._max_days * SECONDS_PER_DAY), 0), until))

    def _owe_missed(self, sources: Sequence[CatchupSource]) -> None:
        for part in self._ledger.missed:
            self._owe(part, sources)

    def _owe(self, missed: MissingRange, sources: Sequence[CatchupSource]) -> None:
        """These sources owe this range, as far back as we may ask, and until now."""
        now = int(self._clock())
        since = max(missed.lower, now - round(self._max_days * SECONDS_PER_DAY))
        until = min(missed.upper, now)
        if since <= until and self._max_days > 0:
            for source in sources:
                source.account.add(MissingRange(since, until))
                if source.progress().state is not SourceState.SET_ASIDE:  # it is asked when its time is over
                    source.wake()
            self._ledger.note_change()

    def _these(self, sources: Iterable[Enode] | None) -> list[CatchupSource]:
        if sources is None:
            return [source for source in self._sources.values() if not source.is_dismissed]
        return [self._sources[enode.node_id] for enode in sources if enode.node_id in self._sources]

    def _source(self, enode: Enode, beside: Sequence[Enode], *, is_unnamed: bool = False) -> CatchupSource:
        node_id = enode.node_id
        if node_id in self._unnamed and not is_unnamed:  # now it is named
            self._forget(node_id)
        source = self._sources.get(node_id)
        if source is None:
            if len(self._sources) >= MAX_SOURCES:
                self._forget_one(beside, for_unnamed=is_unnamed)
            settings, ledger = self._settings, self._ledger
            if is_unnamed:
                settings = replace(settings, give_up_after=UNSENT_ATTEMPTS)
                self._unnamed.add(node_id)
            source = CatchupSource(
                enode, ledger.account(node_id), self._store, settings, self._clock, ledger.note_change
            )
            self._sources[node_id] = source
            if self._running:
                self._start(node_id, source)
        source.enode = enode
        return source

    def _forget_one(self, beside: Sequence[Enode], *, for_unnamed: bool) -> None:
        """Make room for one more: forget an unneeded source, preferably one that owes nothing now."""
        kept = {enode.node_id for enode in (*self._settings.sources, *beside)}
        others = {node_id: source for node_id, source in self._sources.items() if node_id not in kept}
        free = [node_id for node_id, source in others.items() if source.is_dismissed or not source.account.pending]
        if not for_unnamed:
            free += [node_id for node_id in others if node_id in self._unnamed]
        if not free:
            raise TooManySources
        self._forget(free[0])

    def _forget(self, node_id: NodeId) -> None:
        """Stop asking a source. What it owes is kept until it comes back."""
        source = self._sources.pop(node_id)
        source.dismiss()  # for those who wait for it
        if not source.account.pending:
            self._ledger.forget(node_id)
        self._unnamed.discard(node_id)
        self._logged_pages.pop(node_id, None)
        task = self._tasks.pop(node_id, None)
        if task is not None:
            task.cancel()

    def _start(self, node_id: NodeId, source: CatchupSource) -> None:
        self._tasks[node_id] = asyncio.create_task(source.run(), name=f"catch-up {source}")

    async def _end_tasks(self) -> None:
        tasks = list(self._tasks.values())
        self._tasks.clear()
        # Cancelling once may not be enough: a source may fail to store its page instead, or wait for a goodbye.
        while tasks:
            for task in tasks:
                task.cancel()
            _, pending = await asyncio.wait(tasks, timeout=STOP_GRACE_S)
            tasks = list(pending)

    async def _save(self) -> None:
        try:
            await self._ledger.save()
            self._problem = None
            self._is_missed_saved = True
            self._store.hold("")
        except CatchupError as error:  # we try again in a second; what a kill loses is fetched twice
            if not self._is_missed_saved:
                self._store.hold(str(error))
            if str(error) != self._problem:
                self._problem = str(error)
                log.error("catch-up progress not saved error=%r", self._problem)

    def _log_progress(self) -> None:
        """Log how far we are with each source that has given something since the last time."""
        for node_id, source in self._sources.items():
            progress = source.progress()
            if progress.state is SourceState.FETCHING and progress.pages != self._logged_pages.get(node_id, 0):
                self._logged_pages[node_id] = progress.pages
                progress.log_state()
