"""What repair says: how far it is, and what a check has found: damage by kind, and what to do about it."""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum

MAX_SHOWN = 20
"""How many faults of each kind are shown one by one; all are counted."""


Show = Callable[[str, int, int | None], None]
"""Takes what is being done, how much of it is done, and how much there is; None if that cannot be known."""


class DamageKind(Enum):
    """What is damaged. The value says what to do."""

    PAGES = (
        "pages of the file are damaged. Check the disk first. Stop the mailserver, keep a copy of the folder, and "
        "run waku-mailserver salvage: it saves what is left; or restore a backup"
    )
    LOG = (
        "the log is damaged: SQLite drops what follows, and clients were told that it is stored. Do not start the "
        "mailserver on it: keep a copy of the folder, and run waku-mailserver salvage, which reads all of the log"
    )
    INDEX = (
        "an index does not fit its table: requests miss envelopes. Stop the mailserver, and run waku-mailserver "
        "salvage: it rebuilds the indexes"
    )
    SCHEMA = "the store is not as this program makes it: somebody has changed it. Restore a backup"
    ROW = (
        "rows are damaged: clients would not get what was stored. Check the disk. Stop the mailserver, "
        "and run waku-mailserver salvage, which sets them aside; then fetch them again (waku-mailserver sync), or "
        "restore a backup"
    )
    COUNTS = (
        "what the store says of its days is wrong. Stop the mailserver, and run waku-mailserver salvage: it counts "
        "them again"
    )
    IDS = (
        "the index of message ids does not fit the envelopes. No envelope is lost. Stop the mailserver, and run "
        "waku-mailserver salvage: the new store makes its index anew"
    )
    RECORD = (
        "a record of the compaction is unusable, and pruning or reports wait for it: delete it, and the next run "
        "writes a new one"
    )


@dataclass(slots=True)
class CheckReport:
    """What was found: how many envelopes were read, their bytes, and all damage by kind.

    `saved`: how many envelopes `salvage` would save, of the `expected` number that the store says it has; None if
    nothing is damaged, or that cannot be read. `unread`: SQLite's words, if it gave up.
    """

    envelopes: int = 0
    bytes: int = 0
    saved: int | None = None
    expected: int | None = None
    unread: str = ""
    found: Counter[DamageKind] = field(default_factory=Counter)
    shown: dict[DamageKind, list[str]] = field(default_factory=dict)

    @property
    def is_sound(self) -> bool:
        """Whether nothing is damaged."""
        return not self.found

    @property
    def pages_damaged(self) -> bool:
        """Whether what SQLite says about rows and counts is unreliable."""
        return bool(self.unread) or DamageKind.PAGES in self.found

    @property
    def lost(self) -> int | None:
        """How many envelopes cannot be saved; None if that is not known."""
        return None if self.saved is None or self.expected is None else max(self.expected - self.saved, 0)

    def drop(self, kind: DamageKind) -> None:
        """Forget damage that follows from other damage."""
        self.found.pop(kind, None)
        self.shown.pop(kind, None)

    def add(self, kind: DamageKind, text: str) -> None:
        """Note some damage."""
        self.found[kind] += 1
        lines = self.shown.setdefault(kind, [])
        if len(lines) < MAX_SHOWN:
            lines.append(text)
