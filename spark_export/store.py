"""A store as the export reads it: read-only, in short statements beside the daemons that write it; plain SQLite, or
PostgreSQL."""

import contextlib
import sqlite3
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from mailserver.errors import EarlierVersion, StoreError
from mailserver.store.sqlite.schema import APPLICATION_ID, NEWEST, SCHEMA_VERSION
from spark_export.errors import ExportError, MailserverFirst
from spark_export.places import StorePlace

_SQLITE_HEADER = b"SQLite format 3\x00"
_BUSY_TIMEOUT_S = 30.0


@dataclass(frozen=True, slots=True)
class StoreDay:
    """What a store received on one UTC day: rows with `first_seq <= seq <= last_seq`, among those of other days."""

    day: int
    envelopes: int
    bytes: int
    first_seq: int
    last_seq: int


@dataclass(frozen=True, slots=True)
class StoreSnapshot:
    """A store as it was at one moment. Rows never change and `seq` only rises, so `last_seq` of each day is enough to
    see the same rows later. Nothing is pruned while the compaction lock is held.
    """

    place: StorePlace
    id: str
    days: tuple[StoreDay, ...]
    topics_of_a_day: int
    """Distinct topics on the day of creation that had the most."""
    newest: int
    """The newest `seq` that it has ever given to a row."""


@contextlib.contextmanager
def connect(path: Path) -> Iterator[sqlite3.Connection]:
    """Open a store read-only.

    Raises:
        ExportError: there is none, it is foreign or damaged, or of another schema version than this program's.
    """
    try:
        with path.open("rb") as file:
            if file.read(len(_SQLITE_HEADER)) != _SQLITE_HEADER:
                raise ExportError(f"{path} is not a mailserver store: it is not an SQLite database")
        connection = sqlite3.connect(f"file:{quote(str(path.absolute()))}?mode=ro", uri=True, timeout=_BUSY_TIMEOUT_S)
    except FileNotFoundError as error:
        raise ExportError(f"cannot open the store {path}: there is none") from error
    except (OSError, sqlite3.Error) as error:
        raise ExportError(f"cannot open the store {path}: {error}") from error
    with contextlib.closing(connection):
        try:
            _check(connection, path)
            yield connection
        except sqlite3.Error as error:
            raise ExportError(f"cannot read the store {path}: {error}") from error


def _check(connection: sqlite3.Connection, path: Path) -> None:
    ((application_id,),) = connection.execute("PRAGMA application_id")
    ((version,),) = connection.execute("PRAGMA user_version")
    if application_id != APPLICATION_ID:
        raise ExportError(f"{path} is not a mailserver store (application_id {application_id:#x})")
    if version > SCHEMA_VERSION:
        raise ExportError(f"{path} has schema version {version}, this program knows {SCHEMA_VERSION}: use a newer one")
    if version < SCHEMA_VERSION:
        raise MailserverFirst(
            f"{path} has schema version {version}, this program reads {SCHEMA_VERSION}: "
            "start this version of the mailserver on it once, which migrates it"
        )


def describe(place: StorePlace) -> StoreSnapshot:
    """Look at what is in a store, without counting it.

    Raises:
        ExportError: it cannot be read.
    """
    if isinstance(place, Path):
        return _describe_file(place)
    with translated():
        held = place.held()
    days = tuple(StoreDay(*day) for day in held.days)
    return StoreSnapshot(
        place, held.identity, days, held.topics_of_a_day, max((day.last_seq for day in days), default=0)
    )


@contextlib.contextmanager
def translated() -> Iterator[None]:
    """Raise what a database says as ExportError."""
    try:
        yield
    except EarlierVersion as error:
        raise MailserverFirst(str(error)) from error
    except StoreError as error:
        raise ExportError(str(error)) from error


def _describe_file(path: Path) -> StoreSnapshot:
    with connect(path) as connection:
        connection.execute("BEGIN")  # one snapshot for all of it
        identity = _identity(connection, path)
        days = connection.execute(
            "SELECT day, envelopes, bytes, first_seq, last_seq FROM reception_days ORDER BY day"
        ).fetchall()
        ((topics,),) = connection.execute(
            "SELECT coalesce(max(topics), 0) FROM (SELECT count(*) AS topics FROM day_topics GROUP BY day)"
        )
        ((newest,),) = connection.execute(NEWEST)
        connection.execute("COMMIT")
    return StoreSnapshot(path, identity, tuple(StoreDay(*day) for day in days), topics, newest)


def _identity(connection: sqlite3.Connection, path: Path) -> str:
    row = connection.execute("SELECT id FROM identity").fetchone()
    if row is None:
        raise MailserverFirst(f"{path} is a backup: start the mailserver on it once, which gives it an identity")
    return str(row[0])


def check_mailserver_was_first(place: StorePlace) -> None:
    """Make sure that the mailserver was started on a store, if it has to be before a run can read it.

    Raises:
        MailserverFirst: it was not.
        ExportError: the store cannot be read.
    """
    if isinstance(place, Path):
        with connect(place) as connection:
            _identity(connection, place)
    else:
        with translated(), place.connected():
            place.check_version()


def check_network_topic(places: Iterable[StorePlace], network_topic: str) -> None:
    """Check that the message ids of stores belong to a network topic, as those of their archive are to.

    Raises:
        ExportError: those of one belong to another, or it cannot be read.
    """
    for place in places:
        topic = _network_topic(place)
        if topic not in ("", network_topic):  # '': while they are made anew
            raise ExportError(
                f"the message ids of {place} belong to {topic}, and those of the archive are to belong to"
                f" {network_topic}: give --network-topic (SPARK_EXPORT_NETWORK_TOPIC) what the mailserver has"
            )


def _network_topic(place: StorePlace) -> str:
    if not isinstance(place, Path):
        with translated():
            return place.network_topic()
    with connect(place) as connection:
        row = connection.execute("SELECT network_topic FROM id_index").fetchone()
    return "" if row is None else str(row[0])


def last_reception(place: StorePlace) -> int | None:
    """When a store received its last envelope, in Unix seconds; None if it is empty.

    Raises:
        ExportError: it cannot be read.
    """
    if not isinstance(place, Path):
        with translated():
            return place.last_reception()
    with connect(place) as connection:
        ((last,),) = connection.execute("SELECT max(received) FROM envelopes")
    return None if last is None else int(last)


def oldest_day(place: StorePlace) -> int | None:
    """The oldest UTC day of reception that a store has rows of; None if it is empty.

    Raises:
        ExportError: it cannot be read.
    """
    if not isinstance(place, Path):
        with translated():
            return place.oldest_day()
    with connect(place) as connection:
        ((day,),) = connection.execute("SELECT min(day) FROM reception_days WHERE envelopes > 0")
    return None if day is None else int(day)
