"""Moving a store from a file into a database, and back: all of it, as it is, whatever ends the move."""

import asyncio
import json
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from mailserver.data_dir.folder import DataDirInUse, locked
from mailserver.errors import ConfigError, StartupError, StoreError
from mailserver.ids.muid import DEFAULT_NETWORK_TOPIC
from mailserver.moving import difference
from mailserver.moving import move as moving
from mailserver.moving.aside import SetAside
from mailserver.store.engine import index_state
from mailserver.store.interface import NewEnvelope
from mailserver.store.message_ids import NotIndexedYet, OtherNetworkTopic
from mailserver.store.retention import END_OF_TIME, Surplus
from mailserver.store.sqlite import moving as sqlite_moving
from mailserver.store.sqlite.moving import open_source
from tests.moving.ends import ROWS, End, columns, database, file_in, move_between, muids, show_nothing, some
from tests.store.indexing import ids_indexed_at_once
from tests.store.samples import DAY, RECEIVED, START


@pytest.fixture(scope="module", autouse=True)
def _indexed_at_once() -> Iterator[None]:
    with ids_indexed_at_once():
        yield


@pytest.fixture(autouse=True)
def _small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(moving, "MAX_GROUP_ROWS", 16)


@pytest.fixture(params=["into a database", "into a file"])
def ends(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[End, End]:
    """Both ends, either way."""
    file, other = file_in(tmp_path / "data"), database()
    return (file, other) if request.param == "into a database" else (other, file)


async def test_every_row_is_there_as_it_was_in_the_order_of_arrival(ends: tuple[End, End]) -> None:
    source, target = ends
    await source.fill(some(100))

    report = await move_between(source, target)

    assert await target.rows() == await source.rows() == columns(some(100))
    assert (report.moved, report.there, report.set_aside, report.compared) == (100, 0, 0, 100)
    assert report.more is not None
    assert (report.missing.count, report.pruned, report.more.count) == (0, 0, 0)
    assert report.is_whole


async def test_days_have_their_partitions_before_a_long_history_comes(tmp_path: Path) -> None:
    """What is older than the days that get one would fill the last partition, and then none could be made in time."""
    source, target = file_in(tmp_path / "data"), database()
    await source.fill(some(3))

    await move_between(source, target)

    a_month_ago = f"envelopes_d{int(time.time()) // DAY - 30}"
    assert await target.rows(f"SELECT to_regclass('{a_month_ago}') IS NOT NULL") == [(True,)]


async def test_there_and_back_again_is_the_same(tmp_path: Path) -> None:
    first, between, last = file_in(tmp_path / "one"), database(), file_in(tmp_path / "two")
    await first.fill(some(50))

    await move_between(first, between)
    await move_between(between, last)

    assert await last.rows() == columns(some(50))


async def test_what_is_deleted_by_reception_is_what_was_received_first(ends: tuple[End, End]) -> None:
    source, target = ends
    await source.fill(some(60))
    await move_between(source, target)

    async with target.open() as store:
        deleted = await store.prune(Surplus(END_OF_TIME, 20))
        assert deleted.envelopes == 20
        days = await store.reception_days(10)

    assert await target.rows() == columns(some(60))[20:]
    assert [day.envelopes for day in days] == [40]


async def test_what_is_there_is_left_as_it_is_and_what_is_more_is_named(ends: tuple[End, End]) -> None:
    source, target = ends
    await source.fill(some(40))
    there, more = [replace_received(envelope) for envelope in some(10)], some(5, first=1000)
    await target.fill(there + more)

    report = await move_between(source, target)

    assert (report.moved, report.there) == (30, 10)
    assert sorted(await target.rows()) == sorted(columns(there + more + some(40)[10:]))
    assert report.more is not None
    assert sorted(report.more.muids) == muids(more)
    assert report.more.is_all
    assert report.is_whole


def replace_received(envelope: NewEnvelope) -> NewEnvelope:
    return envelope._replace(received=RECEIVED)


async def test_next_move_looks_only_at_what_has_come_since(ends: tuple[End, End]) -> None:
    source, target = ends
    await source.fill(some(40))
    await move_between(source, target)
    await source.fill(some(50))  # 40 of them are there
    looked_at: list[int] = []

    report = await move_between(source, target, lambda step, done, _: looked_at.append(done if "moving" in step else 0))

    assert (report.moved, report.there) == (50, 0)
    assert await target.rows() == columns(some(50))
    assert [done for done in looked_at if done] == [50, 50]


async def test_wrong_rows_are_set_aside_once_and_counted(ends: tuple[End, End], tmp_path: Path) -> None:
    source, target = ends
    envelopes = some(40)
    await source.fill(envelopes)
    async with source.open() as store:
        await store.message_ids.find([])  # they are indexed before they are damaged
    seq, other = (await source.rows("SELECT seq FROM envelopes ORDER BY seq"))[10:12]
    damaged = envelopes[10].raw[:-1] + bytes([envelopes[10].raw[-1] ^ 1])
    hexed = damaged.hex()
    raw = f"x'{hexed}'" if isinstance(source.place, Path) else f"'\\x{hexed}'"
    await source.change(
        f"UPDATE envelopes SET raw = {raw} WHERE seq = {seq[0]}",
        f"UPDATE envelopes SET received = {2**40} WHERE seq = {other[0]}",
    )

    first = await move_between(source, target)
    again = await move_between(source, target)

    assert await target.rows() == columns(envelopes[:10] + envelopes[12:])
    assert (first.moved, first.set_aside, first.is_whole) == (38, 2, False)
    assert (again.moved, again.there, again.set_aside) == (0, 38, 2)
    lines = [
        json.loads(line) for line in (tmp_path / "data" / "mailserver.db-set-aside.jsonl").read_text().splitlines()
    ]
    assert [(line["place"], line["why"]) for line in lines] == [
        (seq[0], "its hash is different"),
        (other[0], "its columns are not those of an envelope"),
    ]
    assert lines[0]["row"][-1] == hexed
    assert again.missing.muids == muids([envelopes[11]])


async def test_target_that_has_lost_what_was_moved_gets_it_again(ends: tuple[End, End]) -> None:
    source, target = ends
    await source.fill(some(40))
    await move_between(source, target)
    async with target.open() as store:
        kept = await store.move_record.read()
        await store.prune(Surplus(END_OF_TIME, 15))
        assert kept is not None
        # As one that was restored from a backup: it knows of no pruning.
        await store.move_record.write(replace(kept, adopted=2**32))

    report = await move_between(source, target)

    assert (report.moved, report.there) == (15, 25)
    assert sorted(await target.rows()) == sorted(columns(some(40)))
    assert report.is_whole


async def test_what_the_target_has_pruned_by_itself_is_not_missing(ends: tuple[End, End]) -> None:
    source, target = ends
    envelopes = [envelope for envelope in some(40) if envelope.created > START // 2]
    await source.fill(envelopes)
    await move_between(source, target)
    async with target.open() as store:
        await store.prune(Surplus(END_OF_TIME, 4))
    gone = envelopes[:4]
    as_old = max(envelope.created for envelope in gone)

    report = await move_between(source, target)

    assert report.pruned == 4
    assert as_old >= min(envelope.created for envelope in envelopes[4:])
    assert report.is_whole
    assert await target.rows() == columns(envelopes[4:])


async def test_what_the_source_has_pruned_is_known_to_the_target(ends: tuple[End, End]) -> None:
    source, target = ends
    await source.fill(some(40))
    async with source.open() as store:
        await store.prune(Surplus(END_OF_TIME, 10))
        pruned_until = store.pruned_until

    await move_between(source, target)

    async with target.open() as store:
        assert store.pruned_until == pruned_until == max(envelope.created for envelope in some(10))
        assert store.removed_until >= pruned_until


class Ended(Exception):
    """A kill."""


@pytest.mark.parametrize("at", [0, 1, 3, 6])
async def test_move_that_ended_at_any_batch_goes_on(
    ends: tuple[End, End], at: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, target = ends
    await source.fill(some(100))
    monkeypatch.setattr(moving, "RECORD_INTERVAL_S", 0.0)
    shown: list[int] = []

    def end(step: str, done: int, total: int | None) -> None:
        shown.append(done)
        if len(shown) > at:
            raise Ended

    with pytest.raises(Ended):
        await move_between(source, target, end)
    assert len(await target.rows()) < 117
    report = await move_between(source, target)

    assert await target.rows() == columns(some(100))
    assert (report.moved, report.there) == (100, 0)
    assert report.is_whole


async def test_what_could_not_be_stored_is_looked_at_again(tmp_path: Path) -> None:
    source, target = file_in(tmp_path / "data"), database()
    await source.fill(some(40))
    assert isinstance(source.place, Path)
    async with open_source(source.place, DEFAULT_NETWORK_TOPIC, is_alone=True) as read, target.open() as written:
        aside = SetAside(tmp_path / "aside", await read.identity())
        written.hold("no room")
        with pytest.raises(StoreError, match="no room"):
            await (await moving.StoreMove.begin(read, written, aside, show_nothing)).run()
        kept = await written.move_record.read()
        written.hold("")
        report = await (await moving.StoreMove.begin(read, written, aside, show_nothing)).run()

    assert kept is None
    assert (report.moved, report.is_whole) == (40, True)
    assert await target.rows() == columns(some(40))


async def test_file_that_a_daemon_writes_is_read_beside_it(tmp_path: Path) -> None:
    source, target = file_in(tmp_path / "data"), database()
    with locked(tmp_path / "data"):
        async with source.open() as daemon:
            await daemon.put(some(40))
            putting = asyncio.create_task(put_on(daemon.put, some(60)[40:]))
            await move_between(source, target)
            await putting
            await move_between(source, target)

    assert await target.rows() == columns(some(60))


async def put_on(put: object, envelopes: list[NewEnvelope]) -> None:
    assert callable(put)
    for envelope in envelopes:
        await put([envelope])


async def test_database_that_a_daemon_writes_is_read_beside_it(tmp_path: Path) -> None:
    source, target = database(), file_in(tmp_path / "data")
    async with source.open() as daemon:
        await daemon.put(some(40))
        putting = asyncio.create_task(put_on(daemon.put, some(60)[40:]))
        await move_between(source, target)
        await putting
        report = await move_between(source, target)

    assert await target.rows() == columns(some(60))
    assert report.is_whole


async def test_file_whose_daemon_indexes_nothing_is_not_waited_for_without_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, target = file_in(tmp_path / "data"), database()
    await source.fill(some(10))
    await source.change(
        "UPDATE id_index SET until_seq = 0, network_topic = ''", "DELETE FROM ids", "DELETE FROM id_sums"
    )
    monkeypatch.setattr(index_state, "INDEX_WAIT_S", 0.05)
    monkeypatch.setattr(sqlite_moving, "INDEX_LONGER_S", 0.0)
    monkeypatch.setattr(difference, "STALL_S", 0.1)

    with locked(tmp_path / "data"), pytest.raises(NotIndexedYet):
        await move_between(source, target)

    assert await target.rows() == columns(some(10))
    assert (await move_between(source, target)).is_whole


async def test_file_that_another_takes_the_place_of_is_not_read_on(tmp_path: Path) -> None:
    source, target = file_in(tmp_path / "data"), database()
    await source.fill(some(100))
    other = file_in(tmp_path / "other")
    await other.fill(some(10, first=1000))

    def replace_it(step: str, done: int, total: int | None) -> None:
        assert isinstance(source.place, Path)
        assert isinstance(other.place, Path)
        if other.place.exists():
            other.place.rename(source.place)

    with locked(tmp_path / "data"):
        async with source.open():
            with pytest.raises(StoreError, match="was replaced"):
                await move_between(source, target, replace_it)


async def test_file_of_a_running_mailserver_is_not_written(tmp_path: Path) -> None:
    source, target = database(), file_in(tmp_path / "data")
    await source.fill(some(1))

    with locked(tmp_path / "data"), pytest.raises(DataDirInUse):
        await move_between(source, target)

    assert isinstance(target.place, Path)
    assert not target.place.exists()


async def test_where_there_is_no_store_none_is_made_to_be_read(tmp_path: Path) -> None:
    file, other = file_in(tmp_path / "data"), database()

    with pytest.raises(StoreError, match="there is none"):
        await move_between(file, other)
    with pytest.raises(StartupError, match="there is no store in the database"):
        await move_between(other, file)

    assert isinstance(file.place, Path)
    assert not file.place.exists()


async def test_stores_of_different_network_topics_are_refused(ends: tuple[End, End]) -> None:
    source, target = ends
    await source.fill(some(10))
    async with source.open() as store:
        await store.message_ids.find([])
    await source.change("UPDATE id_index SET network_topic = '/waku/2/other/proto'")

    with pytest.raises(OtherNetworkTopic):
        await move_between(source, target)


@pytest.mark.parametrize(
    ("source", "target", "cause"),
    [
        (Path(__file__), Path("two/mailserver.db"), "waku-mailserver backup"),
        ("postgresql:///one", "postgresql:///two", "pg_dump"),
        ("postgresql:///one", Path("two/store.db"), "only by the name mailserver.db"),
    ],
    ids=["files", "databases", "name"],
)
async def test_what_is_not_a_file_and_a_database_is_refused(source: Path | str, target: Path | str, cause: str) -> None:
    with pytest.raises(ConfigError, match=cause):
        await move_between(End(source), End(target))


async def test_damaged_record_is_told(ends: tuple[End, End], tmp_path: Path) -> None:
    source, target = ends
    await source.fill(some(3))
    await move_between(source, target)
    if isinstance(target.place, Path):
        (tmp_path / "data" / "mailserver.db-move.json").write_text("{")
    else:
        await target.change("UPDATE records SET body = '{' WHERE name = 'move'")

    with pytest.raises(StoreError, match="record of a move"):
        await move_between(source, target)
    assert len(await target.rows(ROWS)) == 3
