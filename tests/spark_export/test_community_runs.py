"""Whole runs over weeks, with real stores and a real archive's files; the tasks run here, in whatever order."""

import asyncio
import os
import random
import sqlite3
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mailserver.communities import index
from mailserver.communities.checking import check_archive, check_index
from mailserver.communities.formats import TimeRange
from mailserver.communities.spec_format import SpecFormat
from mailserver.community.folder import COMMUNITIES_FOLDER
from mailserver.community.owner.appending import read_index
from mailserver.community.owner.folders import CommunityFolder
from mailserver.community.owner.holdings import open_holdings
from mailserver.community.owner.publishing import take_next_index
from mailserver.files import open_descriptor, try_lock, write_holder
from mailserver.ids.muid import DEFAULT_NETWORK_TOPIC
from mailserver.store.arrivals import ArrivedEnvelope
from mailserver.store.interface import NewEnvelope
from mailserver.store.message_ids import Arrival
from mailserver.waku.envelope import Envelope
from spark_export import community_encoding, community_rows
from spark_export.communities import (
    LOCK_FILE,
    SCRATCH_FOLDER,
    CommunitiesReport,
    CommunitiesRun,
    CommunityReport,
    RangeMade,
    RangeTask,
    RunTasks,
    make_archives_by,
    make_range,
)
from spark_export.errors import ExportError
from tests.community.owner.samples import GARDEN, KITCHEN, OTHER_OWNER, channel, garden, made_in, sealed, week
from tests.properties import settings
from tests.spark_export.samples import put

FORM = SpecFormat(DEFAULT_NETWORK_TOPIC)


def stored(envelopes: Sequence[Envelope]) -> list[NewEnvelope]:
    return [NewEnvelope(each.created + 1, each.created, each.topic, each.hash(), each.raw) for each in envelopes]


def in_order(tasks: Sequence[RangeTask]) -> list[RangeMade]:
    return [make_range(task) for task in tasks]


def shuffled(order: random.Random) -> RunTasks:
    """Tasks run in any order, and some of them twice."""

    def run(tasks: Sequence[RangeTask]) -> list[RangeMade]:
        numbers = [*range(len(tasks)), *order.choices(range(len(tasks)), k=2)]
        order.shuffle(numbers)
        made = {number: make_range(tasks[number]) for number in numbers}
        return [made[number] for number in range(len(tasks))]

    return run


def run(
    folder: CommunityFolder, now: int, *stores: Path, tasks: RunTasks = in_order, missing: tuple[TimeRange, ...] = ()
) -> CommunitiesReport:
    config = CommunitiesRun(folder.path.parent, stores, missing=missing)
    return make_archives_by(tasks, config, None, now=now)


def history(folder: CommunityFolder) -> list[tuple[TimeRange, list[bytes]]]:
    """What each history archive has, in order: its range, and the hashes of its messages. All of it is checked."""
    listed, data = read_index(folder.next_index) or read_index(folder.index), folder.data.read_bytes()
    assert listed is not None
    assert check_index(listed, len(data)) == []
    found = []
    for entry in listed.entries:
        archive = check_archive(FORM, entry, data[entry.offset : entry.end]).archive
        assert archive is not None
        found.append((entry.time_range, [message.hash for message in archive.messages]))
    return found


def hashes(*envelopes: Envelope) -> list[bytes]:
    return [message.hash for message in sorted(map(FORM.message_of, envelopes))]


def settled(number: int) -> int:
    return week(number).upper + 3600


@pytest.fixture
def folder(tmp_path: Path) -> CommunityFolder:
    return made_in(tmp_path / COMMUNITIES_FOLDER, garden(GARDEN, KITCHEN))


POSTS = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3), st.integers(0, 40)), max_size=8, unique=True)


@given(posts=st.lists(POSTS, min_size=2, max_size=4), seed=st.integers(0, 1000), kills=st.sets(st.integers(0, 3)))
@settings(max_examples=12)
def test_weeks_with_late_envelopes_and_kills_hold_all_that_was_posted_once(
    tmp_path_factory: pytest.TempPathFactory,
    posts: list[list[tuple[int, int, int]]],
    seed: int,
    kills: set[int],
) -> None:
    """In each step, envelopes of this week and of earlier ones turn up, then a run is made."""
    base, order = tmp_path_factory.mktemp("weeks"), random.Random(seed)
    folder = made_in(base / COMMUNITIES_FOLDER, garden(GARDEN, KITCHEN))
    twin = made_in(base / "twin", garden(GARDEN, KITCHEN))
    store = put(base / "a" / "mailserver.db")
    expected: dict[TimeRange, set[bytes]] = {week(number): set() for number in range(len(posts))}
    data = b""

    for step, batch in enumerate(posts):
        envelopes = [sealed(week(at % (step + 1)).lower + second, number) for at, second, number in batch]
        put(store, stored(envelopes))
        for each in envelopes:
            expected[next(one for one in expected if one.has(each.created * 10**9))].update(hashes(each))
        if step in kills:
            with pytest.raises(KeyboardInterrupt):
                run(folder, settled(step), store, tasks=_killed)
        run(folder, settled(step), store, tasks=shuffled(order))
        run(twin, settled(step), store)
        assert folder.data.read_bytes() == twin.data.read_bytes()
        assert folder.data.read_bytes().startswith(data)
        data = folder.data.read_bytes()
        take_next_index(folder)
        take_next_index(twin)
        assert folder.index.read_bytes() == twin.index.read_bytes()
        again = run(folder, settled(step), store)
        assert [each.archives for each in again.communities] == [0]

    found: dict[TimeRange, list[bytes]] = {}
    for time_range, messages in history(folder):
        found.setdefault(time_range, []).extend(messages)
    assert {time_range: sorted(messages) for time_range, messages in found.items()} == {
        time_range: sorted(messages) for time_range, messages in expected.items()
    }


def _killed(tasks: Sequence[RangeTask]) -> list[RangeMade]:
    make_range(tasks[0])
    raise KeyboardInterrupt


def test_envelopes_come_from_stores_and_holdings_each_once(folder: CommunityFolder, tmp_path: Path) -> None:
    first, both, second, held = (sealed(week(0).lower + 5, number) for number in range(4))
    stores = [put(tmp_path / "a" / "mailserver.db", stored([first, both]))]
    stores.append(put(tmp_path / "b" / "mailserver.db", stored([both, second])))

    async def hold() -> None:
        async with open_holdings(folder.holdings) as holdings:
            arrived = [ArrivedEnvelope(Arrival(1), held, held.hash()), ArrivedEnvelope(Arrival(2), both, both.hash())]
            await holdings.take(arrived, Arrival(2), frozenset({GARDEN}), week(0).lower)

    asyncio.run(hold())

    report = run(folder, settled(0), *stores)

    assert history(folder) == [(week(0), hashes(first, both, second, held))]
    assert (report.communities[0].messages, report.communities[0].ranges) == (4, [week(0)])


def test_only_what_was_posted_while_a_channel_held_belongs_to_it(tmp_path: Path) -> None:
    until = week(0).lower + 1000
    community = garden(GARDEN, KITCHEN).without_channel(channel(KITCHEN).name, at=until)
    folder = made_in(tmp_path / COMMUNITIES_FOLDER, community.with_channel(channel(KITCHEN), since=until + 10))
    inside = [sealed(until - 1, 1, KITCHEN), sealed(until + 10, 2, KITCHEN), sealed(week(0).upper - 1, 3)]
    outside = [sealed(until, 4, KITCHEN), sealed(until + 9, 5, KITCHEN), sealed(week(0).upper, 6)]
    store = put(tmp_path / "a" / "mailserver.db", stored([*inside, *outside]))

    run(folder, settled(0), store)

    assert history(folder) == [(week(0), hashes(*inside))]


def test_damaged_rows_are_left_out(folder: CommunityFolder, tmp_path: Path) -> None:
    good, bad, worse = (sealed(week(0).lower + 5, number) for number in range(3))
    store = put(tmp_path / "a" / "mailserver.db", stored([good, bad, worse]))
    connection = sqlite3.connect(store)
    connection.execute("UPDATE envelopes SET raw = x'00' WHERE hash = ?", (bad.hash()[:16],))
    connection.execute("UPDATE envelopes SET hash = x'00' WHERE hash = ?", (worse.hash()[:16],))
    connection.commit()
    connection.close()

    run(folder, settled(0), store)

    assert history(folder) == [(week(0), hashes(good))]


@pytest.mark.parametrize(
    ("module", "limit"),
    [(community_rows, "KEY_ROWS"), (community_rows, "ENVELOPE_ROWS"), (community_encoding, "BATCH_BYTES")],
)
def test_more_rows_of_a_day_than_are_held_at_once_are_all_read(
    folder: CommunityFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, module: ModuleType, limit: str
) -> None:
    monkeypatch.setattr(module, limit, 2)
    envelopes = [sealed(week(0).lower + 5 + number // 3, number) for number in range(9)]
    store = put(tmp_path / "a" / "mailserver.db", stored(envelopes))

    run(folder, settled(0), store)

    assert history(folder) == [(week(0), hashes(*envelopes))]


def test_ranges_wait_for_what_is_still_being_fetched(folder: CommunityFolder, tmp_path: Path) -> None:
    store = put(tmp_path / "a" / "mailserver.db", stored([sealed(week(0).lower + 5)]))
    missing = TimeRange(week(1).lower + 3, week(1).lower + 9)

    report = run(folder, settled(2), store, missing=(missing,))

    assert [time_range for time_range, _ in history(folder)] == [week(0)]
    assert report.communities[0].waiting == [week(1), week(2)]
    assert [*report.as_words()][1].startswith("  2 ranges from 2024-10-17")
    assert [each.archives for each in run(folder, settled(2), store).communities] == [2]


def test_community_whose_index_is_half_full_has_new_weeks_only(
    folder: CommunityFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(index, "MAX_ENTRIES", 6)
    store = put(tmp_path / "a" / "mailserver.db")
    run(folder, settled(1), store)
    put(store, stored([sealed(week(number).lower + 5, number) for number in range(2)]))
    (before,) = run(folder, settled(2), store).communities
    put(store, stored([sealed(week(2).lower + 5)]))

    report = run(folder, settled(3), store)

    (after,) = report.communities
    assert (before.archives, before.further, before.left_out, before.takes_late) == (2, 1, 1, False)
    assert (after.archives, after.further, after.left_out, after.takes_late) == (1, 0, 0, False)
    assert [time_range for time_range, _ in history(folder)] == [week(0), week(1), week(0), week(2), week(3)]
    assert "late are left out" in [*report.as_words()][1]


def test_week_for_which_something_comes_each_day_has_ever_fewer_further_archives(
    folder: CommunityFolder, tmp_path: Path
) -> None:
    store = put(tmp_path / "a" / "mailserver.db", stored([sealed(week(0).lower)]))
    made = []

    for day in range(33):
        put(store, stored([sealed(week(0).lower + 1 + day, day)]))
        report = run(folder, settled(0) + day * 86_400, store)
        made += [day] * sum(time_range == week(0) for time_range in report.communities[0].ranges)

    assert made == [0, 1, 2, 3, 7, 15, 31]
    assert [len(messages) for time_range, messages in history(folder) if time_range == week(0)] == [
        2,
        1,
        1,
        1,
        4,
        8,
        16,
    ]


def test_community_that_is_off_or_has_no_channels_is_left_alone(tmp_path: Path) -> None:
    folder = made_in(tmp_path / COMMUNITIES_FOLDER, replace(garden(), is_enabled=False))

    assert run(folder, settled(0)).communities == []
    assert not folder.data.exists()
    assert make_archives_by(in_order, CommunitiesRun(tmp_path / "none", ()), None, now=0).communities == []


def test_two_runs_do_not_work_at_once(folder: CommunityFolder) -> None:
    with open_descriptor(folder.path.parent / LOCK_FILE, os.O_RDWR | os.O_CREAT) as lock:
        assert try_lock(lock)
        write_holder(lock)

        with pytest.raises(ExportError, match=rf"another run \(pid {os.getpid()}\)"):
            run(folder, settled(0))


def test_scratch_file_that_was_cut_off_ends_the_run(folder: CommunityFolder, tmp_path: Path) -> None:
    store = put(tmp_path / "a" / "mailserver.db", stored([sealed(week(0).lower + 5)]))

    def cut(tasks: Sequence[RangeTask]) -> list[RangeMade]:
        made = in_order(tasks)
        tasks[-1].file.write_bytes(b"short")
        return made

    with pytest.raises(ExportError, match="shorter than the task has written"):
        run(folder, settled(0), store, tasks=cut)

    assert not (folder.path.parent / SCRATCH_FOLDER).exists()
    assert [each.archives for each in run(folder, settled(0), store).communities] == [1]


def damage_record(folder: CommunityFolder) -> None:
    (folder.path / "community.json").write_text("{")


def damage_holdings(folder: CommunityFolder) -> None:
    folder.holdings.write_bytes(b"no database")


def damage_row_of_holdings(folder: CommunityFolder) -> None:
    """What is read first is whole, and what the task reads is not."""
    with closing(sqlite3.connect(folder.holdings)) as connection:
        connection.execute("CREATE TABLE envelopes (received INTEGER)")


def damage_data(folder: CommunityFolder) -> None:
    folder.data.write_bytes(folder.data.read_bytes()[:-1])


@pytest.mark.parametrize("damage", [damage_record, damage_holdings, damage_row_of_holdings, damage_data])
def test_damaged_files_of_a_community_concern_no_other(
    folder: CommunityFolder, tmp_path: Path, damage: Callable[[CommunityFolder], None], caplog: pytest.LogCaptureFixture
) -> None:
    other = made_in(folder.path.parent, garden(GARDEN), OTHER_OWNER)
    store = put(tmp_path / "a" / "mailserver.db", stored([sealed(week(0).lower + 5)]))
    run(folder, settled(0), store)
    for each in (folder, other):
        take_next_index(each)
    published = other.index.read_bytes()
    damage(folder)

    report = run(folder, settled(1), store)

    failed, made = sorted(report.communities, key=lambda each: each.error == "")
    assert (failed.id, failed.archives) == (folder.path.name, 0)
    assert str(folder.path) in failed.error
    assert (made.id, made.archives) == (other.path.name, 1)
    assert [time_range for time_range, _ in history(other)] == [week(0), week(1)]
    assert other.index.read_bytes() == published  # until it is taken
    assert report.failures == f"no history archives of {failed.id} were made: {failed.error}"
    assert any(failed.id in line and failed.error in line for line in report.as_words())
    assert f"history archives not made community={failed.id} cause=" in caplog.text


def test_community_that_could_not_be_read_is_complete_once_it_can(folder: CommunityFolder, tmp_path: Path) -> None:
    store = put(tmp_path / "a" / "mailserver.db", stored([sealed(week(0).lower + 5)]))
    damage_holdings(folder)
    assert run(folder, settled(0), store).failures
    folder.holdings.unlink()

    assert run(folder, settled(0), store).failures == ""

    assert history(folder) == [(week(0), hashes(sealed(week(0).lower + 5)))]


def test_scratch_that_cannot_be_used_is_named(folder: CommunityFolder) -> None:
    def without_folder(tasks: Sequence[RangeTask]) -> list[RangeMade]:
        tasks[0].file.parent.rmdir()
        return in_order(tasks)

    with pytest.raises(ExportError, match="cannot write"):
        run(folder, settled(0), tasks=without_folder)


def test_report_says_what_was_left_out() -> None:
    report = CommunitiesReport(5.0, [CommunityReport("0x02", "Garden", 2, 1234, 204_800, [week(0)], 1, [], 3, 4)])

    assert [*report.as_words()] == [
        "Garden (0x02): 2 history archives of 1 ranges, 1,234 messages, 204,800 bytes",
        "  3 envelopes that no key of their channel opens are left out",
        "  4 envelopes that are damaged, or without an id, are left out",
    ]
    assert report.as_json()["communities"][0]["ranges"] == [week(0)]


def test_communities_that_failed_are_named_in_one_line() -> None:
    of_two = [CommunityReport("0x02", "Garden", error="damaged"), CommunityReport("0x03", "", error="gone")]

    assert [*CommunitiesReport(5.0, of_two).as_words()] == [
        "Garden (0x02): no history archives were made: damaged",
        "0x03: no history archives were made: gone",
    ]
    assert CommunitiesReport(5.0, of_two).failures == "no history archives of 0x02 were made: damaged; and 1 more"
    assert CommunitiesReport(5.0).failures == ""
