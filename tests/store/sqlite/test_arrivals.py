"""A store file read in the order of arrival, damaged, and while it is replaced. What holds of every engine is in
`tests/store/test_arrivals.py`."""

import asyncio
import shutil
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from mailserver.errors import StoreError
from mailserver.ids.muid import DEFAULT_NETWORK_TOPIC
from mailserver.store.arrivals import OtherStore, StoredPlace
from mailserver.store.message_ids import BEFORE_ALL, Arrival, OtherNetworkTopic
from mailserver.store.sqlite.arrivals import SqliteArrivalLog, open_arrivals
from mailserver.store.sqlite.schema import SCHEMA_VERSION, STORE_FILE
from mailserver.waku.envelope import Envelope
from tests.store.samples import EVERY_BYTE, change, make_store, make_version_1, plain, rows
from tests.store.test_arrivals import envelope, new


def place(seq: int) -> StoredPlace:
    return StoredPlace(Arrival(seq), None)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / STORE_FILE


@pytest.fixture
async def log(path: Path) -> AsyncIterator[SqliteArrivalLog]:
    async with open_arrivals(path, DEFAULT_NETWORK_TOPIC) as opened:
        yield opened


def remove(path: Path) -> None:
    path.unlink()


def identity(path: Path) -> str:
    ((found,),) = rows(path, "SELECT id FROM identity")
    return str(found)


@pytest.mark.parametrize(
    "damage",
    [
        "raw = x'00'",
        "raw = substr(raw, 1, 30) || x'ff' || substr(raw, 32)",
        "hash = x'00'",
        "hash = 7",
        "raw = x'', hash = x'c5d2460186f7233c927e7db2dcc703c0'",  # what nothing hashes to
    ],
)
async def test_damaged_rows_are_counted_and_the_others_read(path: Path, log: SqliteArrivalLog, damage: str) -> None:
    some = [envelope(number) for number in range(3)]
    make_store(path, new(*some))
    change(path, f"UPDATE envelopes SET {damage} WHERE seq = 2")

    arrived = await log.after(BEFORE_ALL, 100, of=identity(path))

    found, damaged = arrived.decode()
    assert [each.envelope for each in found] == [some[0], some[2]]
    assert damaged == 1
    assert arrived.end == 3
    fields, damaged = arrived.fields()
    assert [each.hash for each in fields] == [some[0].hash(), some[2].hash()]
    assert damaged == 1


async def test_what_is_not_bytes_is_read_as_if_it_was_not_there(path: Path, log: SqliteArrivalLog) -> None:
    make_store(path, new(envelope(1), envelope(2)))
    change(path, "UPDATE envelopes SET raw = 'text' WHERE seq = 1")

    found = await log.read([place(1), place(2)], 2, EVERY_BYTE)

    assert found == ([0, len(envelope(2).raw)], 2, {2: envelope(2).raw})


class LosesRows:
    """Knows no envelope; the store loses one of them before this is asked for the last time."""

    def __init__(self, path: Path, arrival: Arrival, questions: int) -> None:
        self._path = path
        self._arrival = arrival
        self._left = questions

    def __contains__(self, arrival: object) -> bool:
        self._left -= 1
        if not self._left:
            change(self._path, f"DELETE FROM envelopes WHERE seq = {self._arrival}")
        return False


async def test_long_envelope_that_is_removed_once_its_length_is_known_is_not_there(
    path: Path, log: SqliteArrivalLog
) -> None:
    some = [envelope(1), envelope(2, 9000), envelope(3, 9000)]
    make_store(path, new(*some))
    sizes = [len(each.raw) for each in some]
    places = [place(1), place(2), place(3)]
    is_told_of_each_twice = LosesRows(path, Arrival(2), 2 * len(some))

    found = await log.read(places, 3, sum(sizes), known=is_told_of_each_twice)

    assert found == ([sizes[0], 0, sizes[2]], 3, {Arrival(1): some[0].raw, Arrival(3): some[2].raw})


async def test_store_that_took_the_place_of_another_is_read(path: Path, tmp_path: Path, log: SqliteArrivalLog) -> None:
    make_store(path, new(envelope(1)))
    before = identity(path)
    await log.after(BEFORE_ALL, 1, of=before)
    make_store(tmp_path / "other.db", new(envelope(2)))
    (tmp_path / "other.db").replace(path)

    with pytest.raises(OtherStore) as caught:
        await log.after(Arrival(1), 1, of=before)
    arrived = await log.after(BEFORE_ALL, 1, of=caught.value.identity)

    assert [each.envelope for each in arrived.decode()[0]] == [envelope(2)]


async def test_copy_of_the_same_store_is_read_in_its_place(path: Path, tmp_path: Path, log: SqliteArrivalLog) -> None:
    make_store(path, new(envelope(1)))
    await log.after(BEFORE_ALL, 1, of=identity(path))
    shutil.copy(path, tmp_path / "copy.db")
    with plain(tmp_path / "copy.db", write=True) as connection:
        make_envelope = "INSERT INTO envelopes (received, created, topic, hash, raw) VALUES (?, ?, ?, ?, ?)"
        ((received, created, topic, whole, raw),) = new(envelope(2))
        connection.execute(make_envelope, (received, created, topic, whole[:16], raw))
    (tmp_path / "copy.db").replace(path)

    arrived = await log.after(Arrival(1), 1, of=identity(path))

    assert [each.envelope for each in arrived.decode()[0]] == [envelope(2)]


async def test_store_that_was_removed_is_an_error_until_there_is_one_again(path: Path, log: SqliteArrivalLog) -> None:
    make_store(path, new(envelope(1)))
    await log.after(BEFORE_ALL, 1, of=identity(path))
    remove(path)

    with pytest.raises(StoreError, match="there is none"):
        await log.after(BEFORE_ALL, 1, of="")

    make_store(path, new(envelope(2)))
    arrived = await log.after(BEFORE_ALL, 1, of=identity(path))
    assert [each.envelope for each in arrived.decode()[0]] == [envelope(2)]


async def test_ids_of_another_network_topic_are_refused(path: Path, log: SqliteArrivalLog) -> None:
    make_store(path, new(envelope(1)))
    change(path, "UPDATE id_index SET network_topic = '/waku/2/rs/9/9'")

    with pytest.raises(OtherNetworkTopic, match="/waku/2/rs/9/9"):
        await log.after(BEFORE_ALL, 1, of=identity(path))


async def test_backup_that_no_mailserver_has_opened_is_refused(path: Path, log: SqliteArrivalLog) -> None:
    make_store(path, new(envelope(1)))
    change(path, "DELETE FROM identity")

    with pytest.raises(StoreError, match="restored from a backup"):
        await log.after(BEFORE_ALL, 1, of="")


async def test_store_of_an_earlier_version_is_refused_with_what_to_do(path: Path, log: SqliteArrivalLog) -> None:
    make_version_1(path, new(envelope(1)))

    with pytest.raises(StoreError, match="start the mailserver on it once"):
        await log.after(BEFORE_ALL, 1, of="")


async def test_store_that_becomes_of_a_later_version_is_refused(path: Path, log: SqliteArrivalLog) -> None:
    make_store(path, new(envelope(1)))
    await log.after(BEFORE_ALL, 1, of=identity(path))
    change(path, f"PRAGMA user_version = {SCHEMA_VERSION + 1}")

    with pytest.raises(StoreError, match="this program knows"):
        await log.after(BEFORE_ALL, 1, of=identity(path))


async def test_table_that_is_gone_is_a_store_error(path: Path, log: SqliteArrivalLog) -> None:
    make_store(path, new(envelope(1)))
    change(path, "DROP TABLE envelopes")

    with pytest.raises(StoreError, match="cannot read the store"):
        await log.missing([place(1)])


_WRITER = """
import asyncio, sys
from pathlib import Path
from mailserver.store.sqlite.store import open_store
from tests.store.test_arrivals import envelope, new

async def write() -> None:
    async with open_store(Path(sys.argv[1])) as store:
        for number in range(200):
            await store.put(new(envelope(number)))

asyncio.run(write())
"""


@pytest.mark.slow
async def test_what_another_process_writes_meanwhile_is_read_once_each(path: Path, log: SqliteArrivalLog) -> None:
    make_store(path, [])
    end, found = BEFORE_ALL, list[Envelope]()

    writer = await asyncio.create_subprocess_exec(sys.executable, "-c", _WRITER, str(path))
    is_all = False
    while writer.returncode is None or not is_all:
        arrived = await log.after(end, 7, of=identity(path))
        found += [each.envelope for each in arrived.decode()[0]]
        end, is_all = arrived.end, arrived.end == arrived.last

    assert await writer.wait() == 0
    assert found == [envelope(number) for number in range(200)]
