"""The history of one community on disk: links, archives and their states, messages."""

import contextlib
import json
import sqlite3
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

from mailserver.codec.keys import NodeId
from mailserver.communities.formats import TimeRange
from mailserver.communities.index import IndexEntry
from mailserver.communities.links import AnnouncedLink
from mailserver.community.member.database import explained, open_worker, reading
from mailserver.community.member.records import (
    ArchiveState,
    Attempt,
    Content,
    HistoryMessage,
    KnownArchive,
    KnownHistory,
    ListedArchive,
    Overview,
)
from mailserver.community.member.replacing import (
    Load,
    Replaced,
    nanoseconds,
    put_recent,
    refuse,
    replace_range,
    replace_whole,
)
from mailserver.ids.envelopes import BEFORE_TOPIC, BEHIND_TOPIC, topic_of
from mailserver.store.sqlite.connections import transaction
from mailserver.store.sqlite.worker import ConnectionThread
from mailserver.waku.envelope import Topic

T = TypeVar("T")

MAX_LINKS = 100
"""How many magnet links are remembered, the newest ones. One is announced every 8 hours: this is a month of them."""

MAX_REFUSED_LINKS = 1000

_ARCHIVES = """
    SELECT content, form, id, lower, upper, topics, offset, size, padding, is_listed, downloaded_at, imported_at,
        messages, refused
    FROM archives ORDER BY lower, upper, offset, content
"""

_LIST = """
    INSERT INTO archives (content, form, id, lower, upper, topics, offset, size, padding, is_listed)
    VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, 1)
    ON CONFLICT (content) DO UPDATE SET id = excluded.id, offset = excluded.offset, is_listed = 1
"""

_CORRECT = """
    UPDATE archives SET form = ?2, lower = ?3, upper = ?4, topics = ?5, padding = ?6, refused = NULL
    WHERE content = ?1 AND imported_at IS NULL AND (form, lower, upper, topics, padding) != (?2, ?3, ?4, ?5, ?6)
        AND (?1, json_array(?2, ?3, ?4, ?5, ?6)) NOT IN (SELECT content, said FROM refused_archives)
"""
"""An archive was refused because of what another index said of it, perhaps. The same is not tried twice."""

_FORGET = """
    DELETE FROM archives
    WHERE NOT is_listed AND downloaded_at IS NULL AND imported_at IS NULL AND refused IS NULL
        AND content NOT IN (SELECT content FROM refused_archives)
"""
"""What was only ever listed. Each index of a control node may list 20,000 that nobody has."""

_LISTED_TOPICS = """
    SELECT value FROM archives, json_each(topics) WHERE is_listed AND value GLOB ?
    GROUP BY value ORDER BY max(upper) DESC, value LIMIT ?
"""

_OF_ENVELOPES = f"{BEFORE_TOPIC.decode()}{'[0-9a-f]' * 8}{BEHIND_TOPIC.decode()}"
"""The content topics that `topic_of` takes."""

_MESSAGES = """
    SELECT timestamp, hash, name, payload, signer, meta, version FROM messages JOIN topics ON number = topic
    WHERE timestamp >= ? AND timestamp < ?
"""


class MemberHistory:
    """The history, open for writing. Made by `open_history`. Each method is one transaction, on disk when it returns.

    All of them raise StoreError if the file cannot be read or written.
    """

    def __init__(self, path: Path, worker: ConnectionThread) -> None:
        self._path = path
        self._worker = worker

    async def note_link(self, link: AnnouncedLink, now: int) -> None:
        """Remember a link that the control node has signed."""

        def note(connection: sqlite3.Connection) -> None:
            with transaction(connection):
                connection.execute("INSERT OR IGNORE INTO links VALUES (?, ?, ?)", (*link, now))
                connection.execute(
                    "DELETE FROM links WHERE clock NOT IN (SELECT clock FROM links ORDER BY clock DESC LIMIT ?)",
                    (MAX_LINKS,),
                )

        await self._write(note)

    async def refuse_link(self, uri: str, reason: str) -> None:
        """The torrent or the index of a link cannot be used: it is not fetched again."""

        def note(connection: sqlite3.Connection) -> None:
            with transaction(connection):
                connection.execute("INSERT OR IGNORE INTO refused_links VALUES (?, ?)", (uri, reason))
                connection.execute(
                    "DELETE FROM refused_links WHERE uri != ? AND uri NOT IN (SELECT uri FROM links) "
                    "AND (SELECT count(*) FROM refused_links) > ?",
                    (uri, MAX_REFUSED_LINKS),
                )

        await self._write(note)

    async def refused_link(self, uri: str) -> str | None:
        """Why a link is not to be fetched; None: nothing is known against it."""

        def read(connection: sqlite3.Connection) -> str | None:
            row = connection.execute("SELECT reason FROM refused_links WHERE uri = ?", (uri,)).fetchone()
            return None if row is None else str(row[0])

        return await self._write(read)

    async def note_attempt(self, attempt: Attempt) -> bool:
        """Remember the last attempt to fetch; whether its problem is another than that of the one before."""

        def note(connection: sqlite3.Connection) -> bool:
            with transaction(connection):
                before = _attempt(connection)
                connection.execute("DELETE FROM attempt")
                connection.execute("INSERT INTO attempt VALUES (?, ?, ?)", attempt)
            return before is None or (before.uri, before.problem) != (attempt.uri, attempt.problem)

        return await self._write(note)

    async def list_archives(self, listed: Sequence[ListedArchive]) -> None:
        """Remember what an index lists. What it does not list is kept if it was downloaded or refused, and not listed
        any more."""

        def put(connection: sqlite3.Connection) -> None:
            with transaction(connection):
                connection.execute("UPDATE archives SET is_listed = 0 WHERE is_listed")
                for content, form, entry in listed:
                    topics = json.dumps(entry.content_topics)
                    said = (form, *entry.time_range, topics, entry.padding)
                    connection.execute(
                        _LIST,
                        (content, form, entry.id, *entry.time_range, topics, entry.offset, entry.size, entry.padding),
                    )
                    connection.execute(_CORRECT, (content, *said))
                connection.execute(_FORGET)

        await self._write(put)

    async def note_downloaded(self, contents: Iterable[Content], now: int) -> None:
        """Their bytes are on disk."""
        await self._set_each("UPDATE archives SET downloaded_at = ? WHERE content = ?", [(now, c) for c in contents])

    async def note_lost(self, contents: Iterable[Content]) -> None:
        """What was downloaded is gone: it is missing again."""
        await self._set_each("UPDATE archives SET downloaded_at = NULL WHERE content = ?", [(c,) for c in contents])

    async def refuse(self, content: Content, reason: str) -> None:
        """An archive cannot be used: it is not fetched again."""

        def put(connection: sqlite3.Connection) -> None:
            with transaction(connection):
                refuse(connection, content, reason)

        await self._write(put)

    async def replace(self, time_range: TimeRange, downloaded: Sequence[Content], load: Load, now: int) -> Replaced:
        """Import what is downloaded of a range; see `replace_range`."""
        return await self._write(lambda connection: replace_range(connection, time_range, downloaded, load, now))

    async def replace_whole(self) -> int:
        """Replace ranges that have become whole, as what an index listed of them is gone; see there."""
        return await self._write(replace_whole)

    async def put_recent(self, messages: Sequence[HistoryMessage]) -> int:
        """Take what mailservers send; return how many are new. Ranges that archives have said are left as they are."""
        return await self._write(lambda connection: put_recent(connection, messages))

    async def note_asked(self, mailserver: NodeId, topics: Iterable[Topic], until: int) -> None:
        """A mailserver was asked for all that was created on these topics before `until`, in Unix seconds."""
        await self._set_each(
            "INSERT OR REPLACE INTO asked VALUES (?, ?, ?)", [(mailserver, topic, until) for topic in topics]
        )

    async def asked_until(self, mailserver: NodeId, topics: Collection[Topic]) -> int | None:
        """Up to when a mailserver was asked for all of these topics; None: for one of them it never was."""

        def read(connection: sqlite3.Connection) -> int | None:
            rows = connection.execute("SELECT topic, until FROM asked WHERE mailserver = ?", (mailserver,))
            known = dict(rows.fetchall())
            return min((known[topic] for topic in topics), default=None) if known.keys() >= {*topics} else None

        return await self._write(read)

    async def known(self) -> KnownHistory:
        """What is known of archives and links."""
        return await self._write(_read_known)

    async def listed_topics(self, most: int) -> list[Topic]:
        """The topics of the archives that the last index lists, those of the newest ranges first.

        Args:
            most: how many at most.
        """

        def read(connection: sqlite3.Connection) -> list[Topic]:
            return [topic_of(name) for (name,) in connection.execute(_LISTED_TOPICS, (_OF_ENVELOPES, most))]

        return await self._write(read)

    async def _set_each(self, statement: str, rows: Collection[tuple[Any, ...]]) -> None:
        def put(connection: sqlite3.Connection) -> None:
            with transaction(connection):
                connection.executemany(statement, rows)

        await self._write(put)

    async def _write(self, work: Callable[[sqlite3.Connection], T]) -> T:
        with explained(self._path):
            return await self._worker.run(work)


@contextlib.asynccontextmanager
async def open_history(path: Path) -> AsyncIterator[MemberHistory]:
    """Open the history at `path` for writing; make it first if need be.

    Raises:
        StoreError: the file is foreign, damaged, or of a later version, or cannot be written.
    """
    async with open_worker(path) as worker:
        yield MemberHistory(path, worker)


def read_overview(path: Path) -> Overview:
    """What there is; somebody may be writing it.

    Raises:
        StoreError: the history cannot be read.
    """
    with reading(path) as connection:
        return _overview(connection)


def read_known(path: Path) -> KnownHistory:
    """What is known of archives and links; somebody may be writing it. Messages are not counted.

    Raises:
        StoreError: the history cannot be read.
    """
    with reading(path) as connection:
        return _read_known(connection)


@contextlib.contextmanager
def read_messages(
    path: Path, time_range: TimeRange, content_topics: Collection[str] = ()
) -> Iterator[Iterator[HistoryMessage]]:
    """The messages of a range, oldest first, as they are at this moment.

    Args:
        content_topics: which topics; empty: all.
    Raises:
        StoreError: the history cannot be read.
    """
    statement, values = _MESSAGES, [*nanoseconds(time_range), *content_topics]
    if content_topics:
        statement += f" AND name IN ({', '.join('?' * len(content_topics))})"
    with reading(path) as connection:
        rows = connection.execute(f"{statement} ORDER BY timestamp, hash", values)
        yield (HistoryMessage(*row) for row in rows)


def _overview(connection: sqlite3.Connection) -> Overview:
    known = _read_known(connection)
    (messages, oldest, newest) = connection.execute(
        "SELECT count(*), min(timestamp), max(timestamp) FROM messages"
    ).fetchone()
    (unarchived,) = connection.execute("SELECT count(*) FROM messages WHERE NOT is_archived").fetchone()
    return Overview(
        archives=known.archives,
        link=known.link,
        refused_link=known.refused_link,
        attempt=known.attempt,
        messages=messages,
        unarchived=unarchived,
        oldest=oldest,
        newest=newest,
    )


def _read_known(connection: sqlite3.Connection) -> KnownHistory:
    link = connection.execute(
        "SELECT clock, links.uri, reason FROM links LEFT JOIN refused_links USING (uri) ORDER BY clock DESC LIMIT 1"
    ).fetchone()
    return KnownHistory(
        archives=tuple(map(_known, connection.execute(_ARCHIVES))),
        link=None if link is None else AnnouncedLink(link[0], link[1]),
        refused_link=None if link is None else link[2],
        attempt=_attempt(connection),
    )


def _attempt(connection: sqlite3.Connection) -> Attempt | None:
    row = connection.execute("SELECT uri, at, problem FROM attempt").fetchone()
    return None if row is None else Attempt(*row)


def _known(row: tuple[Any, ...]) -> KnownArchive:
    content, form, id_, lower, upper, topics, offset, size, padding, is_listed, *states, messages, refused = row
    downloaded_at, imported_at = states
    if imported_at is not None:
        state = ArchiveState.IMPORTED
    elif refused is not None:
        state = ArchiveState.REFUSED
    else:
        state = ArchiveState.MISSING if downloaded_at is None else ArchiveState.DOWNLOADED
    entry = IndexEntry(id_, TimeRange(lower, upper), tuple(json.loads(topics)), offset, size, padding)
    return KnownArchive(Content(content), form, entry, bool(is_listed), state, messages, refused)
