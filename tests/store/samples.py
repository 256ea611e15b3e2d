"""Envelopes to store, stores made without the code under test, and plain connections that look at the result."""

import contextlib
import random
import shutil
import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any

from hypothesis import Phase

from mailserver.store.interface import NewEnvelope, Place, Query
from mailserver.store.sqlite.schema import APPLICATION_ID, HASH_PREFIX_BYTES, MIGRATIONS, PAGE_BYTES, SCHEMA_VERSION
from mailserver.waku.bloom import Interest
from mailserver.waku.envelope import Envelope, EnvelopeHash, Topic

DAY = 86_400
START = 20_000 * DAY
"""A midnight, Unix seconds."""

RECEIVED = START + 12 * 3600
LAST_SECOND = 2**32 - 1
EVER = (0, LAST_SECOND)

EVERY_BYTE = 2**30
"""More than any envelopes here take together."""

NEWS = Topic(b"\x9a\xcb\x04\x42")
SPORT = Topic(b"\xf0\xc5\x34\x1e")
FULL = Interest()

UNSHRUNK = (Phase.explicit, Phase.reuse, Phase.generate)
"""For properties that make files: to shrink a failure of one takes minutes."""


def new_envelope(number: int, *, created: int = START, topic: Topic = NEWS, size: int = 40) -> NewEnvelope:
    """The envelope with this number; another number gives another hash. The store never looks into `raw`."""
    name = number.to_bytes(8, "big")
    return NewEnvelope(RECEIVED, created, topic, EnvelopeHash(sha256(name).digest()), name.ljust(size, b"."))


def new_envelopes(count: int, *, first: int = 0, created: int = START, size: int = 40) -> list[NewEnvelope]:
    """Envelopes numbered from `first`, one a second."""
    return [new_envelope(number, created=created + number, size=size) for number in range(first, first + count)]


@contextlib.contextmanager
def plain(path: Path, *, write: bool = False) -> Iterator[sqlite3.Connection]:
    """A plain connection in autocommit mode."""
    uri = f"file:{path}?mode={'rwc' if write else 'ro'}"
    with contextlib.closing(sqlite3.connect(uri, uri=True, isolation_level=None)) as connection:
        yield connection


def rows(path: Path, sql: str, *parameters: object) -> list[Any]:
    """What another process reads that opens the store now."""
    with plain(path) as connection:
        return connection.execute(sql, parameters).fetchall()


def change(path: Path, *statements: str) -> None:
    """Change a file behind the store's back."""
    with plain(path, write=True) as connection:
        for statement in statements:
            connection.execute(statement)


def stored(path: Path) -> list[NewEnvelope]:
    """Everything in the store by order of reception; `hash` is the stored prefix."""
    columns = rows(path, "SELECT received, created, topic, hash, raw FROM envelopes ORDER BY seq")
    return [NewEnvelope(*row) for row in columns]


def raws(envelopes: Iterable[NewEnvelope | Envelope]) -> list[bytes]:
    return [envelope.raw for envelope in envelopes]


def assert_counts_are_right(path: Path) -> None:
    """`days`, `day_topics` and `reception_days` say what counting would."""
    days = rows(path, "SELECT created / 86400, count(*), sum(length(raw)) FROM envelopes GROUP BY 1")
    topics = rows(path, "SELECT DISTINCT created / 86400, topic FROM envelopes")

    assert sorted(rows(path, "SELECT day, envelopes, bytes FROM days")) == sorted(days)
    assert sorted(rows(path, "SELECT day, topic FROM day_topics")) == sorted(topics)

    counted = rows(path, "SELECT received / 86400, count(*), sum(length(raw)), min(seq) FROM envelopes GROUP BY 1")
    ends = dict(rows(path, "SELECT received / 86400, max(seq) FROM envelopes GROUP BY 1"))
    ((last_ever,),) = rows(path, "SELECT coalesce(max(seq), 0) FROM sqlite_sequence WHERE name = 'envelopes'") or [(0,)]
    reception_days = rows(path, "SELECT day, envelopes, bytes, first_seq, last_seq FROM reception_days ORDER BY day")
    assert [day[:4] for day in reception_days] == sorted(counted)
    for day, *_, last_seq in reception_days:
        assert ends[day] <= last_seq <= last_ever


def pages_of(path: Path, name: str, kind: str) -> list[int]:
    """The pages of a table or index, "leaf" or "internal", by a look at their types."""
    with plain(path) as connection:
        root = connection.execute("SELECT rootpage FROM sqlite_master WHERE name = ?", (name,)).fetchone()[0]
    content = path.read_bytes()

    def page(number: int) -> bytes:
        return content[(number - 1) * PAGE_BYTES : number * PAGE_BYTES]

    found, waiting = [], [root]
    while waiting:
        number = waiting.pop()
        is_leaf = page(number)[0] in (0x0D, 0x0A)
        if is_leaf == (kind == "leaf"):
            found.append(number)
        if not is_leaf:
            count = int.from_bytes(page(number)[3:5], "big")
            waiting.append(int.from_bytes(page(number)[8:12], "big"))
            for n in range(count):
                cell = int.from_bytes(page(number)[12 + 2 * n : 14 + 2 * n], "big")
                waiting.append(int.from_bytes(page(number)[cell : cell + 4], "big"))
    return sorted(found)


def copy_as_on_disk(path: Path, to: Path) -> Path:
    """What a kill at this moment leaves: the file and its WAL, or a new one. The WAL's index is made from it again."""
    to.mkdir()
    for file in path.parent.glob(f"{path.name}*"):
        if not file.name.endswith("-shm"):
            shutil.copy(file, to / file.name)
    return to / path.name


def read(file: Path) -> bytes:
    return file.read_bytes()


def write(file: Path, content: bytes) -> None:
    file.write_bytes(content)


def names_in(folder: Path) -> set[str]:
    return {file.name for file in folder.iterdir()}


@contextlib.contextmanager
def permitting(path: Path, mode: int) -> Iterator[None]:
    """Let a file or folder have these permissions for a while."""
    before = path.stat().st_mode
    path.chmod(mode)
    try:
        yield
    finally:
        path.chmod(before)


def contents_of(folder: Path) -> dict[str, bytes]:
    """Every file in a folder, but for the index of a WAL, which readers write too."""
    return {file.name: file.read_bytes() for file in folder.iterdir() if not file.name.endswith("-shm")}


def make_store(path: Path, envelopes: Sequence[NewEnvelope]) -> None:
    """Make a store by plain SQL, as the schema says it should be."""
    with plain(path, write=True) as connection:
        connection.execute("PRAGMA synchronous = OFF")
        connection.execute(f"PRAGMA page_size = {PAGE_BYTES}")
        connection.execute("PRAGMA auto_vacuum = INCREMENTAL")
        connection.execute("BEGIN")
        for migration in MIGRATIONS:
            for statement in migration:
                connection.execute(statement)
        connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        connection.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")
        connection.executemany(
            "INSERT INTO envelopes (received, created, topic, hash, raw) VALUES (?, ?, ?, ?, ?)",
            [(received, created, topic, name[:16], raw) for received, created, topic, name, raw in envelopes],
        )
        connection.execute(
            "INSERT INTO days SELECT created / 86400, count(*), sum(length(raw)) FROM envelopes GROUP BY 1"
        )
        connection.execute("INSERT INTO day_topics SELECT DISTINCT created / 86400, topic FROM envelopes")
        connection.execute(
            "INSERT INTO reception_days "
            "SELECT received / 86400, count(*), sum(length(raw)), min(seq), max(seq) FROM envelopes GROUP BY 1"
        )
        connection.execute("COMMIT")


def make_version_1(path: Path, envelopes: Sequence[NewEnvelope]) -> None:
    """Make a store as version 1 of the schema has it, in a file that cannot give pages back."""
    make_store(path, envelopes)
    change(
        path,
        "DROP TABLE ids",
        "DROP TABLE id_sums",
        "DROP TABLE id_index",
        "DROP TABLE identity",
        "DROP TABLE removed",
        "DROP TABLE reception_days",
        "DROP INDEX envelopes_by_reception",
        "PRAGMA user_version = 1",
        "PRAGMA auto_vacuum = NONE",
        "VACUUM",
        "PRAGMA journal_mode = WAL",
    )


def topics_around(rng: random.Random, count: int) -> list[Topic]:
    """Topics that share bytes and bits with one another, and those at the edges."""
    edges = [b"\x00\x00\x00\x00", b"\xff\xff\xff\xff", b"\x9a\x00\x00\x00", b"\x9a\xff\xff\xff", b"\x9b\x00\x00\x00"]
    near = [bytes([rng.choice(NEWS[:3] + SPORT[:3]) for _ in range(3)] + [rng.randrange(8)]) for _ in range(count)]
    return [Topic(topic) for topic in {*edges, *near, NEWS, SPORT}]


# The model: what a store answers, in plain Python


def deployed_bloom(topic: bytes) -> bytes:
    """A topic's bloom filter as deployed clients make it: each bit is written over the whole byte in which it lies."""
    bloom = bytearray(64)
    for number in range(3):
        bit = topic[number] + 256 * (topic[3] >> number & 1)
        bloom[bit // 8] = 1 << bit % 8
    return bytes(bloom)


def wants(interest: Interest, topic: bytes) -> bool:
    """Whether an interest wants a topic, by the words of 6/WAKU1: (filter AND bloom) == bloom."""
    if interest.topics is not None:
        return topic in interest.topics
    bloom = int.from_bytes(deployed_bloom(topic), "big")
    return int.from_bytes(interest.bloom, "big") & bloom == bloom


def place(envelope: NewEnvelope) -> Place:
    """Where an envelope stands in the order of an answer."""
    return envelope.created, envelope.hash


def place_at(created: int, full_hash: bytes) -> Place:
    """The place of an envelope of this hash, if there is one or not."""
    return created, EnvelopeHash(full_hash)


def is_prefix_of(end: Place, whole: Place) -> bool:
    """Whether the end of a page is this place, as far as the store has its hash: samples are not what they hash to."""
    return end[0] == whole[0] and end[1].rstrip(b"\x00") == whole[1][:HASH_PREFIX_BYTES].rstrip(b"\x00")


def answer(envelopes: Iterable[NewEnvelope], query: Query) -> list[NewEnvelope]:
    """Everything that the query asks for, newest first."""
    found = [
        envelope
        for envelope in envelopes
        if query.lower <= envelope.created <= query.upper
        and wants(query.interest, envelope.topic)
        and (query.below is None or place(envelope) < query.below)
    ]
    return sorted(found, key=place, reverse=True)
