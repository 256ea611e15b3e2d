"""Where history requests are answered from: the store alone, or the store and the archive.

The archive is read by pyarrow, which is in an extra of its own: it is imported only where it is used, and takes 50 MB.
"""

import contextlib
import importlib.util
import logging
import os
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

from mailserver.app.config import Config
from mailserver.archive.access.places import files_of, is_on_s3
from mailserver.archive.files import local_folder
from mailserver.catchup.compared import Compared, CompareWithArchive
from mailserver.errors import StoreError
from mailserver.history.id_lists import IdLists
from mailserver.metrics.archive import ArchiveMetrics
from mailserver.metrics.registry import Metrics
from mailserver.store.interface import HistorySource
from mailserver.store.message_ids import StoreWithIds

if TYPE_CHECKING:
    from mailserver.archive.reading.source import ArchiveSource

log = logging.getLogger(__name__)

LIBRARIES = ("pyarrow", "numpy")

MAX_USUAL_READS = 4
"""How many threads read the archive at most, unless the settings say it: each may hold a row group of 18 MiB."""


@dataclass(frozen=True, slots=True)
class History:
    """What answers requests, and questions about ids (`lists`).

    `archive_problem`: why the archive could not be read of late; "" if it could. `compare`: compares the store with the
    archive, or says why that is not read. `prepare`: reads what is read once, so that the first request that goes to
    the archive does not wait for that.
    """

    lists: IdLists
    compare: CompareWithArchive
    prepare: Callable[[], Coroutine[Any, Any, None]]
    archive_problem: Callable[[], str] = lambda: ""

    @property
    def source(self) -> HistorySource:
        """What answers history requests."""
        return self.lists.source


@contextlib.contextmanager
def open_history(config: Config, store: StoreWithIds, metrics: Metrics) -> Iterator[History]:
    """Answer from the archive, too, where the settings say so and it can be read from here."""
    if not config.archive or not config.answer_from_archive:
        cause = "the settings say not to read it" if config.archive else "there is none: set --archive"
        yield _of_store(store, cause)
        return
    with open_archive(config, store.handoff.was_archived, metrics) as archive:
        if archive is None:
            yield _of_store(store, cause_for_store_only(config.archive))
            return

        from mailserver.catchup.archived import compare_with_archive  # noqa: PLC0415 - as above
        from mailserver.history.merged import MergedHistory  # noqa: PLC0415
        from mailserver.history.merged_ids import MergedIds  # noqa: PLC0415

        async def prepare() -> None:
            with contextlib.suppress(StoreError):  # the archive has said so
                await archive.periods()

        lists = IdLists(MergedHistory(store, archive), MergedIds(store, store.message_ids, archive))
        yield History(lists, partial(compare_with_archive, store, archive), prepare, lambda: archive.problem)


class ArchiveSettings(Protocol):
    """The settings of whoever reads the archive."""

    @property
    def archive(self) -> str:
        """Where it is: a path or a URL; empty: there is none."""

    @property
    def archive_reads(self) -> int:
        """How many threads read it; 0: as `reads_at_once` says."""

    @property
    def archive_cache_bytes(self) -> int:
        """How many bytes of it are kept in memory."""


@contextlib.contextmanager
def open_archive(
    settings: ArchiveSettings, is_expected: Callable[[], bool], metrics: ArchiveMetrics
) -> "Iterator[ArchiveSource | None]":
    """Read the archive that the settings name, if it can be read from here; yield None if it cannot, or there is none.

    Args:
        is_expected: as for `ArchiveSource`.
    """
    if not settings.archive:
        yield None
        return
    files = files_of(settings.archive)
    cause = cause_for_store_only(settings.archive)
    if files is None or cause:
        log.warning("history is not answered from the archive cause=%r", cause)
        yield None
        return

    from mailserver.archive.reading.source import ArchiveSource  # noqa: PLC0415 - as above

    at_once = settings.archive_reads or reads_at_once(settings.archive)
    archive = ArchiveSource(
        files,
        at_once=at_once,
        cache_bytes=settings.archive_cache_bytes,
        is_expected=is_expected,
        metrics=metrics,
    )
    log.info(
        "history is answered from the archive, too archive=%s reads=%d cache_bytes=%d",
        files.where(""),
        at_once,
        settings.archive_cache_bytes,
    )
    try:
        yield archive
    finally:
        archive.close()


def reads_at_once(archive: str) -> int:
    """How many threads read an archive unless the settings say it.

    Threads that read files mostly compute. With as many as there are CPUs, the event loop would wait for them: on two
    CPUs, while 8 clients read the archive, one request in a hundred for what is in the store took longer than 33 ms
    with two threads, and longer than 23 ms with one. Threads that read from S3 mostly wait for the network.
    """
    if is_on_s3(archive):
        return MAX_USUAL_READS
    cpus = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(max(cpus - 1, 1), MAX_USUAL_READS)


def _of_store(store: StoreWithIds, cause: str) -> History:
    """Answers from the store alone, and the cause."""

    async def compare(*_: object, **_asked: object) -> Compared:
        raise StoreError(f"the archive cannot be compared with: {cause}")

    async def prepare() -> None:
        """Nothing has to be read."""

    return History(IdLists(store, store.message_ids), compare, prepare)


def cause_for_store_only(archive: str) -> str:
    """Why requests cannot be answered from an archive; "" if they can.

    Args:
        archive: its path or URL.
    """
    missing = [name for name in LIBRARIES if importlib.util.find_spec(name) is None]
    if missing:
        return f"{missing[0]} is not installed"
    is_in_sight = local_folder(archive) is not None or is_on_s3(archive)
    return "" if is_in_sight else "it is neither in a local folder nor on S3"
