"""What this store misses, and what each source still owes us, in a file that survives a kill at any moment.

The file is `sync.json` in the data directory. It is written as a whole, and it may only lag behind: a range leaves it
after its envelopes are on disk. What it still lists by mistake is asked for again, and found in the store.
"""

import asyncio
import json
from collections.abc import Mapping
from pathlib import Path
from reprlib import repr as shown
from typing import Any

from mailserver.catchup.ranges import (
    MAX_ASIDE,
    MAX_RANGES,
    WINDOW_S,
    MissingRange,
    cut_window,
    join_nearest,
    merge,
    not_yet_asked,
    unite,
    without,
)
from mailserver.codec.keys import PUBLIC_KEY_BYTES, NodeId
from mailserver.errors import DecodeError, MailserverError
from mailserver.files import write_atomically
from mailserver.mail.request import Cursor
from mailserver.waku.envelope import MAX_U32

PROGRESS_FILE = "sync.json"

MAX_SOURCES = 16
"""Most sources at a time. Each may take the memory of two pages (`page_rules`), and a connection."""

MAX_ACCOUNTS = 64
"""Most sources that are remembered, those that are no longer asked included. Beyond it, the least recently used one is
forgotten."""

MAX_FILE_BYTES = 4 * 1024 * 1024
"""More than MAX_ACCOUNTS accounts with all their ranges take."""

_VERSION = 1


class CatchupError(MailserverError):
    """The progress file cannot be read or written. `str()` is one line for the operator, and names the file."""


class Account:
    """What one source owes us. `asked`: all that was asked for since it last owed nothing, without cursors.

    `aside`: parts that it did not answer or refused, without cursors, at most MAX_ASIDE. They are asked for when
    nothing else is owed, in turn. `is_from_aside`: whether the window under way was one of them.
    """

    def __init__(
        self,
        asked: list[MissingRange] | None = None,
        pending: list[MissingRange] | None = None,
        aside: list[MissingRange] | None = None,
    ) -> None:
        """Begin with what is owed.

        Args:
            aside: which of `pending` are set aside.
        """
        pending = pending or []
        self.asked = merge(asked or [])[:MAX_RANGES]
        self.aside = join_nearest([part for part in aside or [] if part.cursor is None and part in pending], MAX_ASIDE)
        self._waiting = unite(part for part in pending if part not in (aside or []) or part.cursor is not None)
        self._current: MissingRange | None = None
        self.is_from_aside = False

    @property
    def pending(self) -> list[MissingRange]:
        """What is still to be asked for: the window under way, the rest of it, what is set aside."""
        return ([] if self._current is None else [self._current]) + self._waiting + self.aside

    @property
    def kept_aside(self) -> list[MissingRange]:
        """Which parts of `pending` are set aside when this is read again: also the one under way, if it was."""
        is_under_way = self.is_from_aside and self._current is not None and self._current.cursor is None
        return [*self.pending[:is_under_way], *self.aside]

    @property
    def is_only_aside(self) -> bool:
        """Whether all that is owed is set aside."""
        return bool(self.aside) and self._current is None and not self._waiting

    def add(self, wanted: MissingRange) -> None:
        """Owe this range, too, except for the parts that have been asked for already."""
        self._waiting = unite([*self._waiting, *not_yet_asked(wanted, self.asked)])
        self.asked = merge([*self.asked, wanted])[:MAX_RANGES]

    def window(self, span_s: int = WINDOW_S, *, takes_aside: bool = True) -> MissingRange | None:
        """What to ask for now: the window under way, else the newest, of `span_s` at most; None if nothing is owed.

        Args:
            takes_aside: whether to ask for what is set aside, if nothing else is owed.
        """
        self.is_from_aside = self.is_from_aside if self._current is not None else not self._waiting
        parts = self.aside if self.is_from_aside else self._waiting
        if self._current is None and parts and (takes_aside or not self.is_from_aside):
            self._current, rest = cut_window(parts.pop(0), span_s)
            if rest is not None:
                parts.insert(0, rest)
        return self._current

    def advance(self, cursor: Cursor | None) -> None:
        """The window under way has been fetched up to this cursor; None: begin it again."""
        assert self._current is not None
        self._current = MissingRange(self._current.lower, self._current.upper, cursor)

    def give(self, done: MissingRange) -> None:
        """This range has been given, by another way than windows. If the window under way was cut, it begins again."""
        waiting = self.pending[: -len(self.aside) or None]
        self._waiting = unite(left for part in waiting for left in without(part, done))
        self.aside = join_nearest((left for part in self.aside for left in without(part, done)), MAX_ASIDE)
        self._current = None
        self._forget_if_done()

    def shorten(self, lowest: int | None) -> None:
        """Ask for less than the window under way, which waits again, without what has come of it.

        Args:
            lowest: when the oldest envelope so far was created.
        """
        assert self._current is not None
        lower, upper, cursor = self._current.lower, self._current.upper, self._current.cursor
        # Only an answer that goes from new to old has a cursor in the range, and below what has come.
        if cursor is not None and lowest is not None and lower <= cursor.created <= lowest:
            upper = min(upper, cursor.created)
        if self.is_from_aside:
            self.aside = join_nearest([*self.aside, MissingRange(lower, upper)], MAX_ASIDE)
        else:
            self._waiting = unite([MissingRange(lower, upper), *self._waiting])
        self._current = None

    def set_aside(self) -> None:
        """Ask for the window under way last, and from its beginning."""
        assert self._current is not None
        self.aside = join_nearest([*self.aside, MissingRange(self._current.lower, self._current.upper)], MAX_ASIDE)
        self._current = None

    def finish(self) -> None:
        """The window under way is finished."""
        self._current = None
        self._forget_if_done()

    def _forget_if_done(self) -> None:
        if not self.pending:
            self.asked = []  # if the same is asked for again, it is meant


class Ledger:
    """The accounts of all sources, and their file. Made by `open_ledger`.

    `missed`: the creation times for which this store may lack envelopes, until one source has given all of them,
    whichever it is. At most MAX_RANGES, without cursors.
    """

    def __init__(self, path: Path, accounts: dict[NodeId, Account], missed: list[MissingRange]) -> None:
        self.missed = missed
        self._path = path
        self._accounts = accounts
        self._turn = asyncio.Lock()
        self._changed = False

    def account(self, source: NodeId) -> Account:
        """The account of a source; a new one that owes nothing, if there is none."""
        account = self._accounts.pop(source, None) or Account()
        self._accounts[source] = account  # it is the most recently used one now
        if len(self._accounts) > MAX_ACCOUNTS:
            del self._accounts[next(iter(self._accounts))]
        return account

    @property
    def awaited(self) -> list[MissingRange]:
        """The creation times of `missed` that some source still owes us. If nobody is asked, nothing is awaited."""
        owed = unite(part for account in self._accounts.values() for part in account.pending)
        return [
            each for each in self.missed if any(each.lower <= part.upper and part.lower <= each.upper for part in owed)
        ]

    def forget(self, source: NodeId) -> None:
        """Drop the account of a source that owes nothing and is no longer asked."""
        self._accounts.pop(source, None)

    def note_missed(self, missed: MissingRange) -> None:
        """Note that these creation times are missed, too."""
        self.missed = unite([*self.missed, missed])
        self.note_change()

    def note_change(self) -> None:
        """Note that something has changed: the next `save` writes the file."""
        self._changed = True

    async def save(self) -> None:
        """Write what is owed now, if it has changed. A write that has begun is finished, even if this is cancelled.

        Raises:
            CatchupError: it cannot be written. The file is as it was.
        """
        async with self._turn:  # two writers at once would use the same temporary file
            if not self._changed:
                return
            self._changed = False
            writing = asyncio.ensure_future(asyncio.to_thread(write_atomically, self._path, self._encode()))
            try:
                await asyncio.shield(writing)
            except asyncio.CancelledError:
                await asyncio.wait([writing])
                self._changed = writing.exception() is not None
                raise
            except OSError as error:
                self._changed = True
                raise CatchupError(f"cannot write {self._path}: {error.strerror or error}") from error
            finally:
                del writing  # its error refers to this frame by its traceback: they would keep each other in memory

    def _encode(self) -> str:
        sources = {
            source.hex(): {
                "asked": [*map(_encode, account.asked)],
                "pending": [*map(_encode, pending)],
                "aside": [*map(_encode, account.kept_aside)],
            }
            for source, account in self._accounts.items()
            if (pending := account.pending)
        }
        record = {"version": _VERSION, "missed": [*map(_encode, self.missed)], "sources": sources}
        return json.dumps(record, indent=1) + "\n"


def open_ledger(folder: Path) -> Ledger:
    """Read the progress file in a folder. If there is none, nothing is owed.

    Raises:
        CatchupError: it cannot be read, is damaged, or is of a later version.
    """
    path = folder / PROGRESS_FILE
    try:
        with path.open("rb") as file:
            data = file.read(MAX_FILE_BYTES + 1)
    except FileNotFoundError:
        return Ledger(path, {}, [])
    except OSError as error:
        raise CatchupError(f"cannot read {path}: {error.strerror}") from error
    try:
        if len(data) > MAX_FILE_BYTES:
            raise ValueError(f"more than {MAX_FILE_BYTES} bytes")
        return Ledger(path, *_decode(json.loads(data)))
    except (ValueError, RecursionError, DecodeError) as error:
        advice = "delete it, and fetch what may be missing here with waku-mailserver sync --since"
        raise CatchupError(f"{path} is damaged: {error}; {advice}") from error


def _encode(part: MissingRange) -> dict[str, int | str]:
    fields: dict[str, int | str] = {"lower": part.lower, "upper": part.upper}
    return fields if part.cursor is None else {**fields, "cursor": part.cursor.encode().hex()}


def _decode(record: Any) -> tuple[dict[NodeId, Account], list[MissingRange]]:
    if not isinstance(record, dict):
        raise ValueError("not an object")
    version = record.get("version")
    if version != _VERSION:
        raise ValueError(f"version {shown(version)}, this program knows {_VERSION}")
    sources = record.get("sources")
    if not isinstance(sources, dict) or len(sources) > MAX_ACCOUNTS:
        raise ValueError("sources are not what they should be")
    accounts = {_decode_source(text): _decode_account(account) for text, account in sources.items()}
    return accounts, merge(_decode_ranges(record.get("missed")))


def _decode_source(text: str) -> NodeId:
    source = bytes.fromhex(text)
    if len(source) != PUBLIC_KEY_BYTES:
        raise ValueError(f"{shown(text)} is no node id")
    return NodeId(source)


def _decode_account(account: object) -> Account:
    if not isinstance(account, dict):
        raise ValueError(f"{shown(account)} says nothing of a source")
    aside = account.get("aside", [])  # versions before this one set nothing aside
    return Account(*(_decode_ranges(parts) for parts in (account.get("asked"), account.get("pending"), aside)))


def _decode_ranges(parts: object) -> list[MissingRange]:
    if not isinstance(parts, list) or len(parts) > MAX_RANGES + 1 + MAX_ASIDE:  # and the current one
        raise ValueError(f"{shown(parts)} is no list of ranges")
    return [_decode_range(part) for part in parts]


def _decode_range(part: object) -> MissingRange:
    if not isinstance(part, Mapping):
        raise ValueError(f"{shown(part)} is no range")
    lower, upper, cursor = part.get("lower"), part.get("upper"), part.get("cursor")
    # bool is an int, but no time.
    if type(lower) is not int or type(upper) is not int or not 0 <= lower <= upper <= MAX_U32:
        raise ValueError(f"{shown(part)} is no range")
    if cursor is None:
        return MissingRange(lower, upper)
    if type(cursor) is not str:
        raise ValueError(f"{shown(part)} has no cursor")
    return MissingRange(lower, upper, Cursor.decode(bytes.fromhex(cursor)))
