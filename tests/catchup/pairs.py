"""A store and its archive, to compare."""

import contextlib
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from mailserver.archive.access.folder import FolderFiles
from mailserver.archive.reading.source import ArchiveSource
from mailserver.catchup.archived import compare_with_archive
from mailserver.catchup.compared import Compared
from mailserver.metrics.registry import Metrics
from mailserver.store.interface import NewEnvelope, Query
from mailserver.store.sqlite.schema import STORE_FILE
from mailserver.store.sqlite.store import SqliteStore, open_store
from mailserver.waku.acceptance import Acceptance, Requirements
from mailserver.waku.bloom import FULL_INTEREST
from mailserver.waku.envelope import Topic
from tests.archive.reading.parquet import envelope, write_period
from tests.store.samples import DAY, EVER, EVERY_BYTE, NEWS, SPORT, START, change, make_store, raws

TOPICS = (NEWS, SPORT, Topic(b"\x9a\x00\x00\x01"))
NOW = START + 10 * DAY
ACCEPT_ALL = Requirements(0.0, FULL_INTEREST)


@dataclass
class Pair:
    """A store and its archive."""

    store: SqliteStore
    archive: ArchiveSource
    shown: list[Compared] = field(default_factory=list)

    async def compare(
        self,
        since: int = START,
        until: int = NOW,
        *,
        takes: bool = True,
        requirements: Requirements = ACCEPT_ALL,
    ) -> Compared:
        return await compare_with_archive(
            self.store,
            self.archive,
            Acceptance(requirements),
            lambda: NOW + 0.5,
            since=since,
            until=until,
            takes=takes,
            show=self.shown.append,
        )

    async def stored(self) -> list[bytes]:
        page = await self.store.find(Query(*EVER, FULL_INTEREST), 10_000)
        found: list[bytes] = []
        while page.left:
            found += (await page.read(1000, EVERY_BYTE)).split()
        return found


def publish_days(archive: Path, archived: Sequence[NewEnvelope], network_topic: str | None = None) -> None:
    """Write a period for each day of reception, without sums of ids unless their network topic is given."""
    for day in {one.received // DAY for one in archived}:
        write_period(archive, [one for one in archived if one.received // DAY == day], network_topic=network_topic)


@contextlib.asynccontextmanager
async def pair(
    folder: Path,
    stored: Sequence[NewEnvelope],
    archived: Sequence[NewEnvelope],
    *,
    pruned: int = -1,
    publish: Callable[[Path, Sequence[NewEnvelope]], None] = publish_days,
) -> AsyncIterator[Pair]:
    """Both; retention has deleted from the store what was created up to `pruned`. `publish` writes the archive."""
    path, archive = folder / STORE_FILE, folder / "archive"
    make_store(path, stored)
    change(path, f"UPDATE removed SET pruned = {pruned}")
    publish(archive, archived)
    source = ArchiveSource(
        FolderFiles(archive), at_once=2, cache_bytes=2**20, is_expected=lambda: bool(archived), metrics=Metrics()
    )
    try:
        async with open_store(path) as store:
            yield Pair(store, source)
    finally:
        source.close()


def some(count: int, *, first: int = 0, step: int = 3600) -> list[NewEnvelope]:
    return [
        envelope(number, created=START + number * step, topic=TOPICS[number % 3])
        for number in range(first, first + count)
    ]


def newest_first(envelopes: Sequence[NewEnvelope]) -> list[bytes]:
    return raws(sorted(envelopes, key=lambda one: (one.created, one.hash), reverse=True))
