"""Looking for damage in a store, beside its daemon or without one. Nothing is changed.

First comes SQLite's own check of its pages and indexes, then what this program knows: every row is the envelope that
its columns describe, the counts and the message ids are right (`count_check`, `id_check`), and the record of the
compaction is this store's. Each fault is reported once, where it is, and not what follows from it: where pages are
damaged, indexes and counts cannot be right. At the end, everything that can be saved is counted, as `salvage` would do
it.

A million rows take some seconds and little memory. The daemon's log (`-wal`) grows while a single moment is read: for
SQLite's check, and while rows and ids are counted. The envelopes, which take longest, are read in batches.
"""

import contextlib
import re
import sqlite3
from collections.abc import Mapping
from pathlib import Path

from mailserver.errors import DecodeError, StoreError
from mailserver.handoff.archived import ArchivedError
from mailserver.handoff.last_run import CompactionRecordError
from mailserver.store.engine.row_check import decode_and_compare
from mailserver.store.sqlite.continuity import is_log_later
from mailserver.store.sqlite.damage import HEADER_BYTES, SQLITE_MAGIC, log_is_later, missing_pages
from mailserver.store.sqlite.handoff import read_archived, read_compaction
from mailserver.store.sqlite.read_only import open_read_only
from mailserver.store.sqlite.repair.count_check import CountCheck
from mailserver.store.sqlite.repair.id_check import IdCheck
from mailserver.store.sqlite.repair.report import CheckReport, DamageKind, Show
from mailserver.store.sqlite.repair.salvage import survey
from mailserver.store.sqlite.schema import MIGRATIONS, PAGE_BYTES
from mailserver.store.sqlite.wal import read_log, wal_file
from mailserver.waku.envelope import MAX_U32

MAX_SQLITE_LINES = 1000
"""Most lines that SQLite's check may give before it stops."""

BATCH_ROWS = 2000
"""Rows of one statement, and between two reports of progress: some 15 ms."""

_INTERRUPTIBLE_EVERY = 100_000
"""Steps of SQLite's machine after which it notices Ctrl-C: some milliseconds."""


def check_store(path: Path, show: Show) -> CheckReport:
    """Look for damage.

    Raises:
        StoreError: there is no store of this version at `path`, or it cannot be opened.
        KeyboardInterrupt: also in the middle of a statement.
    """
    report, damaged = CheckReport(), set[int]()
    with contextlib.suppress(OSError):  # opening it says why
        _look_at_files(path, report)
    _look_inside(path, report, damaged, show)
    if report.unread or report.found.keys() & _SALVAGED:
        with contextlib.suppress(OSError, StoreError):  # nothing of it can be read, or it is not ours
            _count_what_is_left(path, report, damaged, show)
    if report.unread and DamageKind.PAGES not in report.found:  # else the report says where
        report.add(DamageKind.PAGES, report.unread)
    return report


def _look_inside(path: Path, report: CheckReport, damaged: set[int], show: Show) -> None:
    """Add what SQLite says to the report, and the pages that it names to `damaged`.

    Raises:
        StoreError: it cannot be opened, and not because it is damaged.
    """
    with contextlib.ExitStack() as stack:
        try:
            connection = stack.enter_context(open_read_only(path))
        except StoreError as error:
            if isinstance(error.__cause__, sqlite3.DatabaseError):
                report.unread = str(error)  # so damaged that SQLite reads nothing of it
            elif report.is_sound:
                raise
            return
        connection.set_progress_handler(_look_for_signals, _INTERRUPTIBLE_EVERY)
        check = _Check(connection, path, report, damaged, show)
        for step in (check.schema, check.pages, check.rows, check.counts, check.ids, check.record):
            if step in (check.rows, check.counts, check.ids) and report.pages_damaged:
                continue  # they would stop there; rows are read page by page later
            if step in (check.counts, check.ids) and DamageKind.ROW in report.found:
                report.drop(DamageKind.INDEX)  # entries of what these rows were
                continue
            try:
                step()
            except sqlite3.Error as error:
                if getattr(error, "sqlite_errorcode", None) == sqlite3.SQLITE_INTERRUPT:
                    raise KeyboardInterrupt from error  # nobody else interrupts
                report.unread = f"it cannot be read to the end: {error}"
        if report.pages_damaged:
            report.drop(DamageKind.INDEX)


def _count_what_is_left(path: Path, report: CheckReport, damaged: set[int], show: Show) -> None:
    """Count what can be saved. Report damaged rows and pages that are not in the report yet."""
    reads_rows = report.pages_damaged or DamageKind.LOG in report.found

    def note(what: dict[str, object]) -> None:
        page = what["page"]
        if not reads_rows or ("row" not in what and "seq" not in what and page in damaged):
            return
        if "seq" in what:
            report.add(DamageKind.ROW, f"page {page}, row {what['seq']}: {what['why']}")
        else:
            report.add(DamageKind.PAGES, f"page {page}: {what['why']}")

    found = survey(path, note, show)
    report.saved, report.expected = found.saved, found.expected
    if reads_rows:
        report.envelopes = found.rows


def _look_for_signals() -> None:
    """Give Python a chance to raise Ctrl-C: SQLite calls this now and then, and stops the statement if it raises."""


def _look_at_files(path: Path, report: CheckReport) -> None:
    """Report what SQLite ignores: a log that it does not read to its end, a file that is cut off."""
    log = read_log(path, PAGE_BYTES)
    if log is not None and log.damage:
        report.add(DamageKind.LOG, f"{wal_file(path)}: {log.damage}")
    if log is not None and is_log_later(path, log):
        report.add(DamageKind.LOG, log_is_later(path))
    with path.open("rb") as file:
        header = file.read(HEADER_BYTES)
    missing = missing_pages(path, header, log) if header.startswith(SQLITE_MAGIC) else ""
    if missing:
        report.add(DamageKind.PAGES, missing)


_SALVAGED = {DamageKind.PAGES, DamageKind.LOG, DamageKind.ROW}
"""What may have cost envelopes."""


class _Check:
    """The steps. Each may fail with `sqlite3.Error`; the next ones still report what they can."""

    def __init__(
        self, connection: sqlite3.Connection, path: Path, report: CheckReport, damaged: set[int], show: Show
    ) -> None:
        self._execute = connection.execute
        self._damaged = damaged
        self._path = path
        self._report = report
        self._show = show

    def schema(self) -> None:
        """Every table and index that the migrations make is there; others are ignored."""
        self._show("schema", 0, None)
        there = dict(self._execute("SELECT name, sql FROM sqlite_master WHERE sql IS NOT NULL"))
        model = sqlite3.connect(":memory:")
        try:
            for statement in (statement for migration in MIGRATIONS for statement in migration):
                model.execute(statement)
            wanted = list(model.execute("SELECT type, name, sql FROM sqlite_master WHERE sql IS NOT NULL"))
        finally:
            model.close()
        for kind, name, sql in wanted:
            if name not in there:
                self._report.add(DamageKind.SCHEMA, f"{kind} {name} is missing")
            elif there[name] != sql:
                self._report.add(DamageKind.SCHEMA, f"{kind} {name} is not ours: {there[name]!r}")

    def pages(self) -> None:
        """SQLite's own check. It does not say how far it is.

        SQLite names a page that it cannot read once for each path that leads there, and calls all pages below it "never
        used". Here each page is reported once, and unused pages only if nothing else is wrong.
        """
        self._show("pages and indexes", 0, None)
        trees = {root: name for name, root in self._execute("SELECT name, rootpage FROM sqlite_master")}
        unused = []
        for (text,) in self._execute(f"PRAGMA integrity_check({MAX_SQLITE_LINES})"):
            for line in text.splitlines():
                if line in ("ok", "*** in database main ***"):
                    continue
                if line.startswith(("row ", "wrong # of entries", "non-unique entry")):
                    self._report.add(DamageKind.INDEX, line)
                elif _NEVER_USED.fullmatch(line):
                    unused.append(line)
                elif (place := _IN_TREE.match(line)) is None:
                    self._report.add(DamageKind.PAGES, line)
                else:
                    page = int(place["page"])
                    if page not in self._damaged:
                        self._damaged.add(page)
                        self._report.add(
                            DamageKind.PAGES, f"page {page} of {_tree(place, trees)}: {line[place.end() :]}"
                        )
        if DamageKind.PAGES not in self._report.found:
            for line in unused:
                self._report.add(DamageKind.PAGES, line)

    def rows(self) -> None:
        """Each row is the envelope that its columns describe. Rows that arrive meanwhile are for the next check."""
        ((first, last),) = self._execute("SELECT coalesce(min(seq), 0), coalesce(max(seq), -1) FROM envelopes")
        seq = first - 1
        while seq < last:
            self._show("rows", seq + 1 - first, last + 1 - first)
            batch = self._execute(_ROWS, (seq, last)).fetchall()
            if not batch:
                return
            for row in batch:
                self._look_at(*row)
            seq = batch[-1][0]

    def _look_at(self, seq: int, received: int, created: int, topic: bytes, key_hash: bytes, raw: bytes) -> None:
        try:
            decode_and_compare(created, topic, key_hash, raw)
            if not 0 <= received <= MAX_U32:
                raise DecodeError("its time of reception is not a time")
        except (DecodeError, TypeError) as error:  # TypeError: a column that is nothing at all
            self._report.add(DamageKind.ROW, f"row {seq}: {error}")
        self._report.envelopes += 1
        self._report.bytes += len(raw)

    def counts(self) -> None:
        """What the store says of its days, topics and numbers is what there is."""
        CountCheck(self._execute, self._report, self._show).run()

    def ids(self) -> None:
        """The index of message ids has the ids of all rows that it says it has, and their sums."""
        if DamageKind.SCHEMA not in self._report.found:
            IdCheck(self._execute, self._report, self._show).run()

    def record(self) -> None:
        """The compaction's records can be read, are this store's, and name no rows that never existed."""
        self._show("record of the compaction", 0, None)
        try:
            read_compaction(self._path)
        except CompactionRecordError as error:
            self._report.add(DamageKind.RECORD, str(error))
        try:
            archived = read_archived(self._path)
        except ArchivedError as error:
            self._report.add(DamageKind.RECORD, str(error))
            return
        if archived is None:
            return
        identity = self._execute("SELECT id FROM identity").fetchone()
        if identity is not None and identity[0] != archived.store_id:  # none: a backup that was not started yet
            self._report.add(
                DamageKind.RECORD, f"the record of the compaction belongs to another store, {archived.store_id}"
            )
            return
        for day, seq in archived.days.items():
            row = self._execute("SELECT last_seq FROM reception_days WHERE day = ?", (day,)).fetchone()
            if row is not None and seq > row[0]:
                self._report.add(DamageKind.RECORD, f"day {day}: archived up to row {seq}, but there were {row[0]}")


# The casts keep a damaged row, whose values may be of any type, from ending the run.
_ROWS = f"""
    SELECT seq, CAST(received AS INTEGER), CAST(created AS INTEGER), CAST(topic AS BLOB), CAST(hash AS BLOB),
        coalesce(CAST(raw AS BLOB), x'')
    FROM envelopes WHERE seq > ? AND seq <= ? ORDER BY seq LIMIT {BATCH_ROWS}
"""
_IN_TREE = re.compile(r"Tree (?P<root>[0-9]+) page (?P<page>[0-9]+)(?: cell [0-9]+| right child)?: ")
_NEVER_USED = re.compile("Page [0-9]+: never used")


def _tree(place: re.Match[str], trees: Mapping[int, str]) -> str:
    """The table or index whose page SQLite names, by its first page."""
    return trees.get(int(place["root"]), "the schema" if place["root"] == "1" else f"tree {place['root']}")
