"""Looking for damage in a store, beside its daemon or without one. Nothing is changed.

First SQLite's own check of its pages and indexes, then what this program knows: every row is the envelope that its
columns say, what the tables of days and topics say is what is there, and the record of the compaction is this store's.
Each fault is told once, where it is, and not what follows from it: where pages are damaged, indexes and counts cannot
be right. Then all that can be saved is counted, as `salvage` would do it.
A million rows take some seconds and little memory. The daemon's log (`-wal`) grows as long as one moment is looked at:
for SQLite's check, and while rows are counted. The envelopes, which take longest, are read bit by bit.
"""

import contextlib
import re
import sqlite3
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path

from mailserver.errors import DecodeError, StoreError
from mailserver.handoff.archived import ArchivedError
from mailserver.handoff.last_run import CompactionRecordError
from mailserver.store.sqlite.damage import HEADER_BYTES, SQLITE_MAGIC, missing_pages
from mailserver.store.sqlite.handoff import read_archived, read_compaction
from mailserver.store.sqlite.read_only import open_read_only
from mailserver.store.sqlite.repair.salvage import survey
from mailserver.store.sqlite.row_check import decode_and_compare
from mailserver.store.sqlite.schema import MIGRATIONS, PAGE_BYTES
from mailserver.store.sqlite.wal import read_log, wal_file
from mailserver.units import SECONDS_PER_DAY
from mailserver.waku.envelope import MAX_U32

MAX_SHOWN = 20
"""Of each kind of damage so many are told of one by one; all are counted."""

MAX_SQLITE_LINES = 1000
"""Most lines that SQLite's check may give before it stops."""

BATCH_ROWS = 2000
"""Rows of one statement, and between two words of progress: some 15 ms."""

_MAX_DAY = MAX_U32 // SECONDS_PER_DAY
_INTERRUPTIBLE_EVERY = 100_000
"""Steps of SQLite's machine between two looks for Ctrl-C: some milliseconds."""

Show = Callable[[str, int, int | None], None]
"""Takes what is being done, how much of it is done, and how much there is; None where that cannot be known."""


class Kind(Enum):
    """What is damaged; the value says what to do."""

    PAGES = (
        "pages of the file are damaged. Look after the disk first. Stop the mailserver, keep a copy of the folder, and "
        "run waku-mailserver salvage: it saves what is left; or restore a backup"
    )
    LOG = (
        "the log is damaged: SQLite drops what follows, and clients were told that it is stored. Do not start the "
        "mailserver on it: keep a copy of the folder, and run waku-mailserver salvage, which reads all of the log"
    )
    INDEX = (
        "an index does not fit its table: requests miss envelopes. Stop the mailserver, and run waku-mailserver "
        "salvage: it makes the indexes anew"
    )
    SCHEMA = "the store is not as this program makes it. Who has changed it? Restore a backup"
    ROW = (
        "rows are damaged: clients would get something else than was stored. Look after the disk. Stop the mailserver, "
        "and run waku-mailserver salvage, which sets them aside; then fetch them again (waku-mailserver sync), or "
        "restore a backup"
    )
    COUNTS = (
        "what the store says of its days is wrong. Stop the mailserver, and run waku-mailserver salvage: it counts "
        "them anew"
    )
    RECORD = (
        "a record of the compaction is of no use, and pruning or reports wait for it: delete it, and the next run "
        "writes it anew"
    )


@dataclass(slots=True)
class CheckReport:
    """What was found: how many envelopes were read, their bytes, and all damage by kind.

    `saved`: how many envelopes `salvage` would save, of `expected` that the store says it has; None where nothing is
    damaged, or that cannot be read. `unread`: where SQLite gave up, as it says so itself.
    """

    envelopes: int = 0
    bytes: int = 0
    saved: int | None = None
    expected: int | None = None
    unread: str = ""
    found: Counter[Kind] = field(default_factory=Counter)
    shown: dict[Kind, list[str]] = field(default_factory=dict)

    @property
    def is_sound(self) -> bool:
        """Whether nothing is damaged."""
        return not self.found

    @property
    def pages_damaged(self) -> bool:
        """Whether SQLite cannot be believed about rows and counts."""
        return bool(self.unread) or Kind.PAGES in self.found

    @property
    def lost(self) -> int | None:
        """How many envelopes cannot be saved; None if that is not known."""
        return None if self.saved is None or self.expected is None else max(self.expected - self.saved, 0)

    def drop(self, kind: Kind) -> None:
        """Forget damage that follows from other damage."""
        self.found.pop(kind, None)
        self.shown.pop(kind, None)

    def add(self, kind: Kind, text: str) -> None:
        """Note some damage."""
        self.found[kind] += 1
        lines = self.shown.setdefault(kind, [])
        if len(lines) < MAX_SHOWN:
            lines.append(text)


def check_store(path: Path, show: Show) -> CheckReport:
    """Look for damage.

    Raises:
        StoreError: there is no store of this version at `path`, or it cannot be opened.
        KeyboardInterrupt: also in the middle of a statement.
    """
    report, damaged = CheckReport(), set[int]()
    with contextlib.suppress(OSError):  # whoever opens it says why
        _look_at_files(path, report)
    _look_inside(path, report, damaged, show)
    if report.unread or report.found.keys() & _SALVAGED:
        with contextlib.suppress(OSError, StoreError):  # nothing of it can be read, or it is not ours
            _count_what_is_left(path, report, damaged, show)
    if report.unread and Kind.PAGES not in report.found:  # else it is known where
        report.add(Kind.PAGES, report.unread)
    return report


def _look_inside(path: Path, report: CheckReport, damaged: set[int], show: Show) -> None:
    """What SQLite says; the pages that it names are put into `damaged`.

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
        for step in (check.schema, check.pages, check.rows, check.counts, check.record):
            if step in (check.rows, check.counts) and report.pages_damaged:
                continue  # they would stop there; rows are read page by page below
            if step == check.counts and Kind.ROW in report.found:
                report.drop(Kind.INDEX)  # entries of what these rows were
                continue
            try:
                step()
            except sqlite3.Error as error:
                if getattr(error, "sqlite_errorcode", None) == sqlite3.SQLITE_INTERRUPT:
                    raise KeyboardInterrupt from error  # nobody else interrupts
                report.unread = f"it cannot be read to the end: {error}"
        if report.pages_damaged:
            report.drop(Kind.INDEX)


def _count_what_is_left(path: Path, report: CheckReport, damaged: set[int], show: Show) -> None:
    """Count what can be saved. Damaged rows and pages that nobody has named yet are named."""
    reads_rows = report.pages_damaged or Kind.LOG in report.found

    def note(what: dict[str, object]) -> None:
        page = what["page"]
        if not reads_rows or ("row" not in what and "seq" not in what and page in damaged):
            return
        if "seq" in what:
            report.add(Kind.ROW, f"page {page}, row {what['seq']}: {what['why']}")
        else:
            report.add(Kind.PAGES, f"page {page}: {what['why']}")

    found = survey(path, note, show)
    report.saved, report.expected = found.saved, found.expected
    if reads_rows:
        report.envelopes = found.rows


def _look_for_signals() -> None:
    """Be Python code that SQLite calls now and then: there Ctrl-C is raised, and SQLite stops the statement."""


def _look_at_files(path: Path, report: CheckReport) -> None:
    """What SQLite does not mind: a log that is not read to its end, a file that is cut off."""
    log = read_log(path, PAGE_BYTES)
    if log is not None and log.damage:
        report.add(Kind.LOG, f"{wal_file(path)}: {log.damage}")
    with path.open("rb") as file:
        header = file.read(HEADER_BYTES)
    missing = missing_pages(path, header, log) if header.startswith(SQLITE_MAGIC) else ""
    if missing:
        report.add(Kind.PAGES, missing)


_SALVAGED = {Kind.PAGES, Kind.LOG, Kind.ROW}
"""What may have cost envelopes."""


class _Check:
    """The steps. Each may fail with `sqlite3.Error`, and the next ones still say what they can."""

    def __init__(
        self, connection: sqlite3.Connection, path: Path, report: CheckReport, damaged: set[int], show: Show
    ) -> None:
        self._execute = connection.execute
        self._damaged = damaged
        self._path = path
        self._report = report
        self._show = show

    def schema(self) -> None:
        """There are the tables and indexes that the migrations make; others are nobody's business."""
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
                self._report.add(Kind.SCHEMA, f"{kind} {name} is missing")
            elif there[name] != sql:
                self._report.add(Kind.SCHEMA, f"{kind} {name} is another: {there[name]!r}")

    def pages(self) -> None:
        """SQLite's own check. It does not tell how far it is.

        It names a page that it cannot read once for each tree and way that leads there, and all pages below as "never
        used": each is told once, and the latter only where they are all there is.
        """
        self._show("pages and indexes", 0, None)
        trees = {root: name for name, root in self._execute("SELECT name, rootpage FROM sqlite_master")}
        unused = []
        for (text,) in self._execute(f"PRAGMA integrity_check({MAX_SQLITE_LINES})"):
            for line in text.splitlines():
                if line in ("ok", "*** in database main ***"):
                    continue
                if line.startswith(("row ", "wrong # of entries", "non-unique entry")):
                    self._report.add(Kind.INDEX, line)
                elif _NEVER_USED.fullmatch(line):
                    unused.append(line)
                elif (place := _IN_TREE.match(line)) is None:
                    self._report.add(Kind.PAGES, line)
                else:
                    page = int(place["page"])
                    if page not in self._damaged:
                        self._damaged.add(page)
                        self._report.add(Kind.PAGES, f"page {page} of {_tree(place, trees)}: {line[place.end() :]}")
        if Kind.PAGES not in self._report.found:
            for line in unused:
                self._report.add(Kind.PAGES, line)

    def rows(self) -> None:
        """Each row is the envelope that its columns say. Those that come meanwhile are for the next check."""
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
                raise DecodeError("its time of reception is none")
        except (DecodeError, TypeError) as error:  # TypeError: a column that is nothing at all
            self._report.add(Kind.ROW, f"row {seq}: {error}")
        self._report.envelopes += 1
        self._report.bytes += len(raw)

    def counts(self) -> None:
        """What is said of days, topics and numbers is what is there, at one moment."""
        self._show("counts", 0, None)
        self._execute("BEGIN")
        try:
            days, reception_days = self._count()
            self._compare("days", self._days("SELECT day, envelopes, bytes FROM days"), days)
            stored = self._days("SELECT day, envelopes, bytes, first_seq, last_seq FROM reception_days")
            self._compare_reception(stored, reception_days)
            self._topics()
            self._identity()
        finally:
            self._execute("ROLLBACK")

    def record(self) -> None:
        """What the compaction has left beside the store can be read, is its own, and names no rows that never were."""
        self._show("record of the compaction", 0, None)
        try:
            read_compaction(self._path)
        except CompactionRecordError as error:
            self._report.add(Kind.RECORD, str(error))
        try:
            archived = read_archived(self._path)
        except ArchivedError as error:
            self._report.add(Kind.RECORD, str(error))
            return
        if archived is None:
            return
        identity = self._execute("SELECT id FROM identity").fetchone()
        if identity is not None and identity[0] != archived.store_id:  # none: a backup that was not started yet
            self._report.add(Kind.RECORD, f"the record of the compaction is of another store, {archived.store_id}")
            return
        for day, seq in archived.days.items():
            row = self._execute("SELECT last_seq FROM reception_days WHERE day = ?", (day,)).fetchone()
            if row is not None and seq > row[0]:
                self._report.add(Kind.RECORD, f"day {day}: archived up to row {seq}, but there were {row[0]}")

    def _count(self) -> tuple[dict[int, list[int]], dict[int, list[int]]]:
        """What should stand in `days` and `reception_days`."""
        days: dict[int, list[int]] = {}
        reception_days: dict[int, list[int]] = {}
        for day, reception_day, size, seq in self._execute(_SIZES):
            _add(days, day, size, seq)
            _add(reception_days, reception_day, size, seq)
        return days, reception_days

    def _days(self, sql: str) -> dict[int, list[int]]:
        return {day: numbers for day, *numbers in self._execute(sql)}

    def _compare(self, table: str, stored: dict[int, list[int]], counted: dict[int, list[int]]) -> None:
        for day in sorted(stored.keys() | counted.keys()):
            said, found = stored.get(day, [0, 0])[:2], counted.get(day, [0, 0])[:2]
            if said != found:
                counts = f"{said[0]} envelopes of {said[1]} bytes, there are {found[0]} of {found[1]}"
                self._report.add(Kind.COUNTS, f"{table}, day {day}: it says {counts}")

    def _compare_reception(self, stored: dict[int, list[int]], counted: dict[int, list[int]]) -> None:
        self._compare("reception_days", stored, counted)
        for day in sorted(stored.keys() & counted.keys()):
            first, last = stored[day][2:]
            if first != counted[day][2] or last < counted[day][3]:  # the last one may have been deleted
                rows = f"rows {first} to {last}, there are {counted[day][2]} to {counted[day][3]}"
                self._report.add(Kind.COUNTS, f"reception_days, day {day}: it says {rows}")

    def _topics(self) -> None:
        """`day_topics` has what the index by topic has; both come in order, so neither is held in memory."""
        self._show("topics", 0, None)
        there, said = self._execute(_TOPICS_OF_ROWS), self._execute("SELECT day, topic FROM day_topics ORDER BY 1, 2")
        for place, is_there in _differences(iter(there), iter(said)):
            what = "is not in day_topics" if is_there else "is in day_topics, but has no envelope"
            topic = place[1].hex() if isinstance(place[1], bytes) else repr(place[1])
            self._report.add(Kind.COUNTS, f"topic 0x{topic} of day {place[0]} {what}")

    def _identity(self) -> None:
        """The store has one identity, or none: then it is a backup. No number of a row will be used again."""
        identities = [identity for (identity,) in self._execute("SELECT id FROM identity LIMIT 2")]
        if len(identities) > 1 or not all(isinstance(identity, str) and identity for identity in identities):
            self._report.add(Kind.SCHEMA, f"the store has not one identity, but {identities!r}")
        ((last,),) = self._execute("SELECT coalesce(max(seq), 0) FROM envelopes")
        ((said,),) = self._execute("SELECT coalesce(max(seq), 0) FROM sqlite_sequence WHERE name = 'envelopes'")
        if said < last:
            self._report.add(Kind.COUNTS, f"sqlite_sequence says {said}, but there is row {last}")


# The casts keep a damaged row, whose values may be of any type, from ending the run.
_ROWS = f"""
    SELECT seq, CAST(received AS INTEGER), CAST(created AS INTEGER), CAST(topic AS BLOB), CAST(hash AS BLOB),
        coalesce(CAST(raw AS BLOB), x'')
    FROM envelopes WHERE seq > ? AND seq <= ? ORDER BY seq LIMIT {BATCH_ROWS}
"""
_SIZES = """
    SELECT created / 86400, received / 86400, length(CAST(raw AS BLOB)), seq FROM envelopes NOT INDEXED ORDER BY seq
"""
_TOPICS_OF_ROWS = """
    SELECT DISTINCT created / 86400, topic FROM envelopes INDEXED BY envelopes_by_topic ORDER BY 1, 2
"""


_IN_TREE = re.compile(r"Tree (?P<root>[0-9]+) page (?P<page>[0-9]+)(?: cell [0-9]+| right child)?: ")
_NEVER_USED = re.compile("Page [0-9]+: never used")


def _tree(place: re.Match[str], trees: Mapping[int, str]) -> str:
    """The table or index whose page SQLite names, by its first page."""
    return trees.get(int(place["root"]), "the schema" if place["root"] == "1" else f"tree {place['root']}")


def _add(days: dict[int, list[int]], day: object, size: int, seq: int) -> None:
    """Count a row of a day; rows come by `seq`. A day that is none is left out: that bounds the days."""
    if not isinstance(day, int) or not -_MAX_DAY <= day <= _MAX_DAY:
        return
    counted = days.get(day)
    if counted is None:
        counted = days[day] = [0, 0, seq, seq]
    counted[0] += 1
    counted[1] += size
    counted[3] = seq


def _differences(
    ours: Iterator[tuple[int, object]], theirs: Iterator[tuple[int, object]]
) -> Iterator[tuple[tuple[int, object], bool]]:
    """What only one of two ascending sequences has, and whether that is the first one."""
    left, right = next(ours, None), next(theirs, None)
    while left is not None or right is not None:
        if left == right:
            left, right = next(ours, None), next(theirs, None)
        elif right is None or (left is not None and _key(left) < _key(right)):
            assert left is not None
            yield left, True
            left = next(ours, None)
        else:
            yield right, False
            right = next(theirs, None)


def _key(place: tuple[int, object]) -> tuple[int, bytes]:
    return place[0], place[1] if isinstance(place[1], bytes) else b""
