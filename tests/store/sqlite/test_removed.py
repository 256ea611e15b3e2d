"""How far back a store says that it is complete: what was pruned, and what it may have missed before it began."""

import time
from pathlib import Path

import pytest

from mailserver.store.interface import NewEnvelope, Query
from mailserver.store.retention import END_OF_TIME, Surplus
from mailserver.store.sqlite.backup import snapshot
from mailserver.store.sqlite.repair.salvage import salvage
from mailserver.store.sqlite.schema import MISSED_MARGIN_S, STORE_FILE
from mailserver.store.sqlite.store import SqliteStore, open_store
from mailserver.waku.envelope import encode_envelope
from tests.store.samples import (
    DAY,
    EVER,
    EVERY_BYTE,
    FULL,
    NEWS,
    RECEIVED,
    START,
    change,
    make_store,
    new_envelope,
    rows,
)

ALL = Surplus(END_OF_TIME, 10**9)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / STORE_FILE


def forget(path: Path) -> None:
    """Let a store say that it was complete from the beginning of time."""
    change(path, "UPDATE removed SET until = 0")


def make_version_2(path: Path, envelopes: list[NewEnvelope]) -> None:
    make_store(path, envelopes)
    tables = ("removed", "ids", "id_sums", "id_index")
    change(path, *(f"DROP TABLE {table}" for table in tables), "PRAGMA user_version = 2")


async def until_of(path: Path) -> int:
    async with open_store(path) as store:
        return store.removed_until


def now() -> int:
    return int(time.time())


async def test_new_store_may_lack_what_was_created_before_it(path: Path) -> None:
    before = now()

    until = await until_of(path)

    assert before + MISSED_MARGIN_S <= until <= now() + MISSED_MARGIN_S
    assert await until_of(path) == until


async def test_new_store_has_pruned_nothing_and_says_what_it_pruned_since(path: Path) -> None:
    async with open_store(path) as store:
        assert store.pruned_until == -1
        await store.put([new_envelope(number, created=START + number) for number in (5, 9, 7)])
        await store.prune(Surplus(END_OF_TIME, 2))
        assert store.pruned_until == START + 9

    async with open_store(path) as store:
        assert store.pruned_until == START + 9
        assert store.removed_until > START + 9  # what another store had, in whose place this one may be


async def test_old_store_may_have_pruned_what_is_as_old_as_its_oldest(path: Path) -> None:
    envelopes = [new_envelope(number, created=START)._replace(received=START + number * DAY) for number in range(1, 4)]
    empty_path = path.with_name("empty.db")
    make_store(path, envelopes)
    make_store(empty_path, [])
    for each in (path, empty_path):
        change(each, "ALTER TABLE removed DROP COLUMN pruned", "PRAGMA user_version = 4")

    async with open_store(path) as store, open_store(empty_path) as empty:
        oldest_day = (START + DAY) // DAY
        assert store.pruned_until == (oldest_day + 1) * DAY + MISSED_MARGIN_S
        assert empty.pruned_until == -1


async def test_pruning_says_what_is_the_newest_that_it_has_removed(path: Path) -> None:
    make_store(path, [new_envelope(number, created=START + number) for number in (5, 9, 7)])
    forget(path)

    async with open_store(path) as store:
        assert store.removed_until == 0
        await store.prune(Surplus(END_OF_TIME, 2))

        assert store.removed_until == START + 9
        assert rows(path, "SELECT until FROM removed") == [(START + 9,)]
        await store.prune(ALL)
        assert store.removed_until == START + 9
    assert await until_of(path) == START + 9


async def test_pruning_that_removes_nothing_says_nothing(path: Path) -> None:
    make_store(path, [new_envelope(1, created=START)._replace(received=RECEIVED)])
    forget(path)

    async with open_store(path) as store:
        await store.prune(Surplus(RECEIVED, 10))
        await store.prune(ALL, {})

        assert store.removed_until == 0


async def test_what_is_older_than_all_that_was_removed_changes_nothing(path: Path) -> None:
    make_store(path, [new_envelope(1, created=START)])
    change(path, f"UPDATE removed SET until = {START + DAY}")

    async with open_store(path) as store:
        await store.prune(ALL)

        assert store.removed_until == START + DAY


async def test_batch_that_fails_is_not_said_to_be_removed_on_disk(path: Path) -> None:
    make_store(path, [new_envelope(1, created=START)])
    forget(path)
    change(path, "CREATE TRIGGER broken BEFORE UPDATE ON removed BEGIN SELECT RAISE(ABORT, 'broken'); END")

    async with open_store(path) as store:
        with pytest.raises(Exception, match="broken"):
            await store.prune(ALL)

    assert rows(path, "SELECT until FROM removed") == [(0,)]
    assert rows(path, "SELECT count(*) FROM envelopes") == [(1,)]


async def test_nobody_can_see_that_rows_are_gone_before_it_is_said(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_store(path, [new_envelope(1, created=START)])
    forget(path)
    seen: list[tuple[int, int]] = []
    note = SqliteStore._note_removed  # noqa: SLF001

    def look(store: SqliteStore, until: int, pruned: int) -> None:
        note(store, until, pruned)
        ((count,),) = rows(path, "SELECT count(*) FROM envelopes")
        seen.append((count, store.removed_until))

    monkeypatch.setattr(SqliteStore, "_note_removed", look)
    async with open_store(path) as store:
        await store.prune(ALL)

    assert seen == [(1, START)]


async def test_store_of_version_2_may_lack_anything_up_to_its_migration(path: Path) -> None:
    make_version_2(path, [new_envelope(1, created=START)])
    before = now()

    until = await until_of(path)

    assert before + MISSED_MARGIN_S <= until <= now() + MISSED_MARGIN_S
    assert await until_of(path) == until
    assert rows(path, "SELECT count(*) FROM envelopes") == [(1,)]


async def test_version_2_whose_clock_was_ahead_may_lack_what_came_by_that_clock(path: Path) -> None:
    tomorrow = (now() // DAY + 2) * DAY
    make_version_2(path, [new_envelope(1, created=START)._replace(received=tomorrow)])

    assert await until_of(path) == tomorrow + DAY + MISSED_MARGIN_S


async def test_backup_that_is_put_back_may_lack_what_came_after_it(path: Path, tmp_path: Path) -> None:
    make_store(path, [new_envelope(1, created=START)])
    change(path, f"UPDATE removed SET until = {START + 5}")
    copy = tmp_path / "copy.db"
    with snapshot(path) as source:
        source.copy(copy, lambda done, whole: None)
    before = now()

    until = await until_of(copy)

    assert before + MISSED_MARGIN_S <= until <= now() + MISSED_MARGIN_S
    assert await until_of(copy) == until
    assert await until_of(path) == START + 5


async def test_salvaged_store_may_lack_anything(path: Path, tmp_path: Path) -> None:
    true = encode_envelope(START + 50, 50, NEWS, bytes(40), 0)
    make_store(path, [NewEnvelope(RECEIVED, START, NEWS, true.hash(), true.raw)])
    forget(path)
    before = now()

    await salvage(path, tmp_path / "saved.db", tmp_path / "aside", lambda what, done, whole: None)

    assert await until_of(tmp_path / "saved.db") >= before + MISSED_MARGIN_S


# What another source's envelopes can be put between


async def test_page_says_where_others_stand_among_its_own(path: Path) -> None:
    kept = [new_envelope(number, created=START + number // 2) for number in range(6)]
    make_store(path, kept)
    newest_first = sorted(((one.created, one.hash) for one in kept), reverse=True)
    between = (newest_first[2][0], type(newest_first[2][1])(newest_first[2][1][:16] + b"\xff" * 16))

    async with open_store(path) as store:
        page = await store.find(Query(*EVER, FULL), 10)

        assert page.ranks(newest_first) == [None] * 6
        assert page.ranks([between]) == [None]  # as far as the store knows hashes, it is the same
        absent = [new_envelope(number, created=START + number // 2) for number in range(100, 140)]
        places = [(one.created % 3 + START, one.hash) for one in absent]
        assert page.ranks(places) == [sum(place < mine for mine in newest_first) for place in places]
        assert page.ranks([(START - 1, kept[0].hash), (START + 9, kept[0].hash)]) == [6, 0]


async def test_empty_page_has_nothing_before_anything(path: Path) -> None:
    make_store(path, [])

    async with open_store(path) as store:
        page = await store.find(Query(*EVER, FULL), 10)

        assert page.ranks([(START, new_envelope(1).hash)]) == [0]


@pytest.mark.parametrize("count", [0, 1, 3, 4])
async def test_page_that_is_cut_ends_behind_what_is_left(path: Path, count: int) -> None:
    kept = sorted(
        (new_envelope(number, created=START + number) for number in range(4)), key=lambda one: one.created, reverse=True
    )
    make_store(path, kept)

    async with open_store(path) as store:
        page = await store.find(Query(*EVER, FULL), 10)
        page.cut(count)

        assert page.left == count
        raws = await page.read(10, EVERY_BYTE)
        assert raws.split() == [one.raw for one in kept[:count]]
        assert (page.end is None) == (count == 0)
        if page.end is not None:
            assert page.end[0] == kept[count - 1].created
