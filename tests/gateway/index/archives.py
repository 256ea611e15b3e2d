"""A store with an archive beside it, compacted and merged as the nightly job does it, and what follows both."""

import contextlib
import time
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from mailserver.archive.access.folder import FolderFiles
from mailserver.archive.days import day_name
from mailserver.archive.reading.source import ArchiveSource
from mailserver.gateway.index.message_store import open_messages
from mailserver.gateway.index.schema import INDEX_FILE
from mailserver.ids.envelopes import message_of
from mailserver.ids.muid import DEFAULT_NETWORK_TOPIC
from mailserver.ids.waku_message import WakuMessage
from mailserver.metrics.registry import Metrics
from mailserver.store.interface import NewEnvelope
from mailserver.store.retention import Surplus
from mailserver.units import SECONDS_PER_DAY
from mailserver.waku.envelope import Envelope
from tests.archive.reading.parquet import write_period
from tests.gateway.index.worlds import World, new
from tests.store.engines import Engine, SqliteEngine
from tests.store.samples import START

MONTH = day_name(START // SECONDS_PER_DAY)[:7]


@dataclass(frozen=True)
class Kept:
    """An envelope, its message, and how many came before it."""

    number: int
    envelope: NewEnvelope
    message: WakuMessage


@dataclass
class ArchivedWorld(World):
    """The model holds what is in the store or in the archive. `hot`: in the store; `cold`: in the archive."""

    archive: Path = Path()
    source: ArchiveSource = field(kw_only=True)
    hot: list[Kept] = field(default_factory=list)
    cold: dict[bytes, Kept] = field(default_factory=dict)
    runs: dict[str, str] = field(default_factory=dict)

    async def put(self, *some: Envelope, received: int | None = None) -> None:
        """Envelopes of v1 arrive."""
        await super().put(*some, received=received)
        for each in some:
            self._note(each, message_of(each), received or each.created)

    async def send(
        self, message: WakuMessage, created: int = START, nonce: int = 0, received: int | None = None
    ) -> Envelope:
        """A client of v2 sends a message."""
        each = await super().send(message, created, nonce, received)
        self._note(each, message, received or created)
        return each

    def _note(self, each: Envelope, message: WakuMessage, received: int) -> None:
        self.hot.append(Kept(len(self.hot) + len(self.cold), new(each, received), message))

    def compact(self) -> None:
        """Archive what is in the store, and what of its days is in the archive already."""
        for each in self.hot:
            self.cold[each.envelope.hash] = each
        days = {each.envelope.received // SECONDS_PER_DAY for each in self.hot}
        if MONTH in self.runs:
            self._write(MONTH, [*self.cold.values()], {})
        else:
            for day in days:
                of_day = [each for each in self.cold.values() if each.envelope.received // SECONDS_PER_DAY == day]
                self._write(day_name(day), of_day, {})

    def merge(self) -> None:
        """Merge all days into their month."""
        if self.cold:
            days = {name: run for name, run in self.runs.items() if name != MONTH}
            self._write(MONTH, [*self.cold.values()], days)

    def _write(self, period: str, some: Sequence[Kept], replaces: dict[str, str]) -> None:
        number = int(self.runs.get(period, "run-0").partition("-")[2]) + 1
        self.runs = {name: run for name, run in self.runs.items() if name not in replaces}
        self.runs[period] = run = f"run-{number}"
        envelopes = [each.envelope for each in some]
        write_period(self.archive, envelopes, period=period, run=run, replaces=(*replaces.items(),), group_rows=3)

    async def prune(self, count: int) -> None:
        """Delete so many envelopes from the store, the oldest by reception first, whether they are archived or not."""
        self.hot.sort(key=lambda each: (each.envelope.received, each.number))
        while count and self.hot:  # a batch is of one day of reception
            deleted = (await self.store.prune(Surplus(2**33, count))).envelopes
            assert deleted
            count -= deleted
            del self.hot[:deleted]
        there = {each.envelope.hash: each for each in self.hot} | self.cold
        self.model.arrived = [(each.envelope.received, each.number, each.message) for each in there.values()]

    async def follow(self) -> None:
        """Index what arrived and what was archived, and remove what is gone."""
        await self.messages.follower.catch_up()
        await self.messages.follower.sweep()


@contextlib.asynccontextmanager
async def opened_archived_world(
    folder: Path, wall_clock: Callable[[], float] = time.time, engine: Engine | None = None
) -> AsyncIterator[ArchivedWorld]:
    engine = engine or SqliteEngine(folder)
    archive = folder / "archive"
    source = ArchiveSource(
        FolderFiles(archive), at_once=2, cache_bytes=2**20, is_expected=lambda: False, metrics=Metrics()
    )
    try:
        async with (
            engine.open() as store,
            engine.follow() as arrivals,
            open_messages(
                folder / INDEX_FILE, arrivals, DEFAULT_NETWORK_TOPIC, archive=source, wall_clock=wall_clock
            ) as messages,
        ):
            yield ArchivedWorld(folder, store, messages, engine, archive=archive, source=source)
    finally:
        source.close()
