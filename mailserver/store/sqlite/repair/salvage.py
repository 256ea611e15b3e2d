"""Saving what is left of a damaged store: every row that can be read is verified and put into a new store.

The rows are found page by page (`page_reader`), whatever is damaged of trees, indexes or header; of a damaged log, all
that is whole is read. Each row is decoded and compared with its columns: only envelopes that were stored get into the
new store, and each once. (There is nothing to compare the time of reception with.) The rest is set aside in a file. The
source is only read.

The new store counts its rows anew, by reception as before. It has an identity of its own, so nothing in it counts as
archived.
"""

import contextlib
import json
import os
import sqlite3
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from mailserver.errors import DecodeError, StoreError
from mailserver.files import open_descriptor, write_new
from mailserver.handoff.archived import ArchivedError
from mailserver.store.engine.put_queue import MAX_GROUP_ROWS
from mailserver.store.engine.verified import verified
from mailserver.store.interface import NewEnvelope
from mailserver.store.sqlite.damage import HEADER_BYTES, SQLITE_MAGIC
from mailserver.store.sqlite.handoff import archived_file, read_archived, write_archived
from mailserver.store.sqlite.leaves import is_leaf
from mailserver.store.sqlite.read_only import open_read_only
from mailserver.store.sqlite.repair.page_reader import Pages, RecoveredRow, first_seq, is_known, open_pages, rows_of
from mailserver.store.sqlite.repair.report import Show
from mailserver.store.sqlite.schema import APPLICATION_ID, PAGE_BYTES, SCHEMA_VERSION
from mailserver.store.sqlite.store import open_store
from mailserver.store.sqlite.wal import read_log, wal_file

BATCH_BYTES = 4 * 1024 * 1024
"""How much is stored at once."""

SHOW_PAGES = 100

Aside = Callable[[dict[str, object]], None]
"""Takes what does not fit into the new store."""


@dataclass(slots=True)
class SalvageReport:
    """What was saved. `rows`: how many rows were read; `saved`: how many envelopes are in the new store, each once.

    `wrong`: rows that are not what was stored; `unreadable`: what should be rows, but is not; `pages`: pages that the
    disk cannot read, that are gone, or that are not SQLite's, each with an unknown number of rows. `expected`: how many
    envelopes the damaged store says it has; None if that cannot be read.
    """

    rows: int = 0
    saved: int = 0
    wrong: int = 0
    unreadable: int = 0
    pages: int = 0
    expected: int | None = None


async def salvage(source: Path, target: Path, aside: Path, show: Show) -> SalvageReport:
    """Make a new store at `target` of what is left of the one at `source`; write what does not fit into it to `aside`.

    Raises:
        StoreError: there is no store, it is foreign or of a later version, or nothing is left of it; or the new one
            cannot be written.
        OSError: a file cannot be read or written at all.
    """
    found = SalvageReport()
    with _pages_of(source) as pages, _setting_aside(aside) as set_aside:
        saving = _Saving(pages, found, set_aside)
        leaves, strange = saving.sort_out(show)
        async with open_store(target) as store:
            for batch in saving.batches(leaves, show):
                await store.put(batch)
            found.saved = (await store.stats()).envelopes
            identity = await store.identity()
        if not found.saved:
            raise StoreError(f"{source} has no row of a mailserver store that can be read: restore a backup")
        saving.set_pages_aside(strange)
    found.expected = _expected(source)
    _hand_over(source, target, identity)
    return found


def survey(source: Path, aside: Aside, show: Show) -> SalvageReport:
    """What `salvage` would save and set aside; nothing is written.

    Raises:
        StoreError: the store is foreign or of a later version.
        OSError: a file cannot be read at all.
    """
    found = SalvageReport()
    with _pages_of(source) as pages:
        saving = _Saving(pages, found, aside)
        leaves, strange = saving.sort_out(show)
        # A temporary database: what a million rows take is not all held in memory.
        with contextlib.closing(sqlite3.connect("", isolation_level=None)) as seen:
            seen.execute("CREATE TABLE seen (created, hash, PRIMARY KEY (created, hash)) WITHOUT ROWID")
            seen.execute("BEGIN")
            for batch in saving.batches(leaves, show):
                keys = ((envelope.created, envelope.hash) for envelope in batch)
                found.saved += seen.executemany("INSERT OR IGNORE INTO seen VALUES (?, ?)", keys).rowcount
        saving.set_pages_aside(strange)
    found.expected = _expected(source)
    return found


@contextlib.contextmanager
def _pages_of(source: Path) -> Iterator[Pages]:
    """The pages of a store, including those in its log."""
    with contextlib.ExitStack() as stack:
        file = stack.enter_context(source.open("rb"))
        _check_ours(os.pread(file.fileno(), HEADER_BYTES, 0), source)
        log_file = None
        with contextlib.suppress(FileNotFoundError):
            log_file = stack.enter_context(wal_file(source).open("rb"))
        yield open_pages(file, log_file, read_log(source, PAGE_BYTES))


def _check_ours(header: bytes, path: Path) -> None:
    """Check that a database is ours. A file that is not a database needs no check: only our rows are taken from it."""
    if header[: len(SQLITE_MAGIC)] != SQLITE_MAGIC:
        return
    version, application_id = (int.from_bytes(header[at : at + 4], "big") for at in (60, 68))
    if application_id not in (APPLICATION_ID, 0):
        raise StoreError(f"{path} is not a mailserver store (application_id {application_id:#x})")
    if application_id and version > SCHEMA_VERSION:
        raise StoreError(f"{path} has schema version {version}, this program knows {SCHEMA_VERSION}: use a newer one")


class _Saving:
    """One run over the pages."""

    def __init__(self, pages: Pages, found: SalvageReport, aside: Aside) -> None:
        self._pages = pages
        self._found = found
        self._aside = aside
        self._batch: list[NewEnvelope] = []
        self._batch_bytes = 0

    def sort_out(self, show: Show) -> tuple[list[int], dict[int, str]]:
        """The leaves, in the order of their rows, and the pages that are not SQLite's, with what is wrong with them."""
        pages, leaves, strange = self._pages, [], {}
        for page in range(1, pages.count + 1):
            if page % SHOW_PAGES == 1:
                show("pages", page - 1, pages.count)
            if page in pages.free:
                continue
            try:
                images = list(pages.images(page))
            except OSError as error:
                strange[page] = error.strerror or str(error)
                continue
            seqs = [first_seq(image) for image in images if is_leaf(image)]
            if seqs:
                leaves.append((max(seqs), page))
            elif not is_known(page, images[0]) and not pages.is_spare(page):
                strange[page] = "no page of SQLite's"
        return [page for _, page in sorted(leaves)], strange

    def batches(self, leaves: list[int], show: Show) -> Iterator[list[NewEnvelope]]:
        """The envelopes in the leaves' rows; everything else is set aside."""
        for done, page in enumerate(leaves):
            if done % SHOW_PAGES == 0:
                show("rows", done, len(leaves))
            for image in self._pages.images(page):
                if is_leaf(image):
                    self._take(page, image)
            if len(self._batch) >= MAX_GROUP_ROWS or self._batch_bytes >= BATCH_BYTES:
                yield self._take_batch()
        yield self._take_batch()

    def set_pages_aside(self, strange: dict[int, str]) -> None:
        """Set aside the pages in which no row was found, and none continues."""
        self._found.pages += self._pages.missing
        for page, why in strange.items():
            if self._pages.overflow[page]:
                continue
            self._found.pages += 1
            content = b""
            with contextlib.suppress(OSError):
                content = self._pages.read(page)
            self._aside({"page": page, "why": why, "bytes": content.rstrip(b"\x00").hex()})

    def _take(self, page: int, image: bytes) -> None:
        for row in rows_of(self._pages, page, image):
            if not isinstance(row, RecoveredRow):
                self._found.unreadable += 1
                self._aside({"page": page, "why": row.why, "bytes": row.content.hex()})
                continue
            self._found.rows += 1
            try:
                envelope = verified(row.values)
            except DecodeError as error:
                self._found.wrong += 1
                values = [value.hex() if isinstance(value, bytes) else value for value in row.values]
                self._aside({"page": page, "seq": row.seq, "why": str(error), "row": values})
                continue
            self._batch.append(envelope)
            self._batch_bytes += len(envelope.raw)

    def _take_batch(self) -> list[NewEnvelope]:
        batch, self._batch, self._batch_bytes = self._batch, [], 0
        return batch


@contextlib.contextmanager
def _setting_aside(path: Path) -> Iterator[Aside]:
    """A file with a JSON object on each line, for its owner only; no file if nothing is set aside."""
    with (
        open_descriptor(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL) as descriptor,
        os.fdopen(descriptor, "w", encoding="utf-8", closefd=False) as file,
    ):
        yield lambda what: print(json.dumps(what), file=file)
        file.flush()
        os.fsync(descriptor)
        is_empty = os.fstat(descriptor).st_size == 0
    if is_empty:
        path.unlink()


def _expected(source: Path) -> int | None:
    try:
        with open_read_only(source) as connection:
            ((count,),) = connection.execute("SELECT coalesce(sum(envelopes), 0) FROM reception_days")
    except (StoreError, sqlite3.Error):
        return None
    return count if isinstance(count, int) else None


def _hand_over(source: Path, target: Path, identity: str) -> None:
    """Write a record by which nothing in the new store is archived: its rows have other numbers than archived ones.

    Without a record, pruning would not wait for the archive. A record that cannot be read is copied: it stops pruning.
    """
    try:
        archived = read_archived(source)
    except ArchivedError:
        write_new(archived_file(target), archived_file(source).read_bytes())
        return
    if archived is not None:
        write_archived(target, replace(archived, store_id=identity, days={}, went_back_from=0))
