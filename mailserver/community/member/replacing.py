"""Putting archives into the history: a range of time becomes what its archives say, in one transaction.

What an archive says stays: a range is the union of all archives of it that were ever listed, so two control nodes with
different histories add to each other, and nothing is deleted and fetched in a circle. What only mailservers have said
of the range is deleted, once all of its archives that are listed could be used (61/STATUS "Canonical message
histories"). Expiry is not looked at.
"""

import sqlite3
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from mailserver.communities.checking import HistoryFinding
from mailserver.communities.formats import TimeRange
from mailserver.community.member.records import Content, HistoryMessage
from mailserver.errors import MailserverError
from mailserver.ids.envelopes import NS
from mailserver.store.sqlite.connections import transaction

Load = Callable[[Content], Sequence[HistoryMessage]]
"""Reads and checks a downloaded archive. ArchiveRefused: it cannot be used. DownloadLost: it is not there."""

_PUT = """
    INSERT INTO messages (timestamp, hash, topic, payload, signer, meta, version, is_archived)
    VALUES (?, ?, ?, ?, ?, ?, ?, ?)
"""

_PUT_ARCHIVED = f"{_PUT} ON CONFLICT (timestamp, hash) DO UPDATE SET is_archived = 1 WHERE NOT is_archived"

_PUT_RECENT = f"{_PUT} ON CONFLICT DO NOTHING"


_WHOLE = """
    SELECT lower, upper FROM archives WHERE is_listed GROUP BY lower, upper
    HAVING min(imported_at IS NOT NULL) AND (lower, upper) NOT IN (SELECT lower, upper FROM replaced)
"""
"""The ranges of which all archives that are listed were imported, and which are not replaced yet."""

_REFUSED_AS = """
    INSERT OR IGNORE INTO refused_archives
    SELECT content, json_array(form, lower, upper, topics, padding) FROM archives WHERE content = ?
"""


class ArchiveRefused(MailserverError):
    """A downloaded archive cannot be used; `findings` says why."""

    def __init__(self, findings: Sequence[HistoryFinding]) -> None:
        super().__init__(findings)
        self.findings = findings

    def __str__(self) -> str:
        return "; ".join(f"{finding.fault.value} ({finding.detail})" for finding in self.findings)


class DownloadLost(MailserverError):
    """What was downloaded is not on the disk any more, or has changed there: it is fetched again."""


@dataclass(slots=True)
class Replaced:
    """How a range was replaced.

    `imported` has the number of messages of each archive, `refused` why others cannot be used, `lost` those that are
    to be fetched again. `removed` counts messages that only mailservers had.
    """

    imported: dict[Content, int] = field(default_factory=dict)
    refused: dict[Content, str] = field(default_factory=dict)
    lost: list[Content] = field(default_factory=list)
    removed: int = 0


def replace_range(
    connection: sqlite3.Connection, time_range: TimeRange, downloaded: Sequence[Content], load: Load, now: int
) -> Replaced:
    """Import what is downloaded of a range: all of it, or nothing.

    Args:
        downloaded: archives of this range in the state DOWNLOADED.
        load: called for one after another, so that one of them is in memory at a time.
        now: Unix seconds.
    Raises:
        sqlite3.Error: nothing has changed.
    """
    done = Replaced()
    with transaction(connection):
        topics = Topics(connection)
        for content in downloaded:
            try:
                messages = load(content)
            except ArchiveRefused as error:
                done.refused[content] = str(error)
                refuse(connection, content, str(error))
                continue
            except DownloadLost:
                done.lost.append(content)
                connection.execute("UPDATE archives SET downloaded_at = NULL WHERE content = ?", (content,))
                continue
            _put(connection, _PUT_ARCHIVED, topics, messages, is_archived=True)
            done.imported[content] = len(messages)
            connection.execute(
                "UPDATE archives SET imported_at = ?, messages = ?, downloaded_at = NULL WHERE content = ?",
                (now, len(messages), content),
            )
        done.removed = _replace_whole(connection)
    return done


def replace_whole(connection: sqlite3.Connection) -> int:
    """Replace the ranges that have become whole without an import, as an archive of them is not listed any more.

    Returns:
        How many messages that only mailservers had were removed.
    Raises:
        sqlite3.Error: nothing has changed.
    """
    with transaction(connection):
        return _replace_whole(connection)


def _replace_whole(connection: sqlite3.Connection) -> int:
    removed = 0
    for lower, upper in connection.execute(_WHOLE).fetchall():
        connection.execute("INSERT INTO replaced VALUES (?, ?)", (lower, upper))
        removed += connection.execute(
            "DELETE FROM messages WHERE timestamp >= ? AND timestamp < ? AND NOT is_archived",
            nanoseconds(TimeRange(lower, upper)),
        ).rowcount
    return removed


def put_recent(connection: sqlite3.Connection, messages: Iterable[HistoryMessage]) -> int:
    """Take what mailservers send, but for ranges of which only the archives count; return how many are new."""
    with transaction(connection):
        ranges = [TimeRange(*row) for row in connection.execute("SELECT lower, upper FROM replaced ORDER BY lower")]
        kept = (message for message in messages if not any(time_range.has(message.timestamp) for time_range in ranges))
        return _put(connection, _PUT_RECENT, Topics(connection), kept, is_archived=False)


def refuse(connection: sqlite3.Connection, content: Content, reason: str) -> None:
    """An archive is not as the index says: it is not fetched again, unless an index says what none has said yet."""
    connection.execute(_REFUSED_AS, (content,))
    connection.execute("UPDATE archives SET refused = ?, downloaded_at = NULL WHERE content = ?", (reason, content))


def nanoseconds(time_range: TimeRange) -> tuple[int, int]:
    """Its bounds as timestamps of messages."""
    return time_range.lower * NS, time_range.upper * NS


class Topics(dict[str, int]):
    """The numbers of content topics. New ones get theirs when they are first asked for."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        super().__init__(connection.execute("SELECT name, number FROM topics"))
        self._connection = connection

    def __missing__(self, name: str) -> int:
        number = self._connection.execute("INSERT INTO topics (name) VALUES (?)", (name,)).lastrowid
        assert number is not None, "a row was inserted"
        self[name] = number
        return number


def _put(
    connection: sqlite3.Connection,
    statement: str,
    topics: Topics,
    messages: Iterable[HistoryMessage],
    *,
    is_archived: bool,
) -> int:
    """Put messages; return how many rows that changed."""
    return connection.executemany(
        statement,
        (
            (timestamp, hash_, topics[topic], payload, signer, meta, version, is_archived)
            for timestamp, hash_, topic, payload, signer, meta, version in messages
        ),
    ).rowcount
