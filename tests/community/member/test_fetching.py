"""A member's fetcher and a control node, each with a libtorrent of its own, on loopback."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path

import pytest

from mailserver.communities.choosing import All, Between, Choice, Latest
from mailserver.communities.formats import PIECE_BYTES, EncodedArchive, TimeRange
from mailserver.communities.index import SPEC, IndexEntry, entry_of
from mailserver.community.member import fetching
from mailserver.community.member.fetching import BATCH_BYTES, CannotFetch, Fetched, Fetcher
from mailserver.community.member.history import MemberHistory, open_history, read_overview
from mailserver.community.member.records import ArchiveState, KnownArchive
from mailserver.community.member.schema import HISTORY_FILE
from mailserver.files import make_folder
from mailserver.torrents.client import TorrentProcess
from mailserver.torrents.magnet import MagnetLink
from mailserver.torrents.making import make_torrent
from tests.community.member.publishing import NAME, NETWORK_TOPIC, TOPICS, Published, published, sealed
from tests.community.member.torrents import HASTY, LOOPBACK, Seeded, quiet
from tests.community.member.worlds import NOW, WEEK_S, content, message, messages_of, week
from tests.torrents.processes import LIAR
from tests.torrents.raw_seed import liar

pytestmark = pytest.mark.integration

ALL = All()
EMPTY_WEEK = EncodedArchive(week(6), TOPICS, bytes(PIECE_BYTES), 0, 0)


@contextlib.asynccontextmanager
async def fetcher(
    folder: Path, torrents: TorrentProcess, choice: Choice = ALL
) -> AsyncIterator[tuple[Fetcher, MemberHistory]]:
    make_folder(folder)
    async with open_history(folder / HISTORY_FILE) as history:
        made = Fetcher(NAME, folder, history, torrents, choice, NETWORK_TOPIC, lambda: NOW)
        try:
            yield made, history
        finally:
            await made.leave()


def weeks(*numbers: int, per_week: int = 3) -> Published:
    return published(
        {week(number): [sealed(number * WEEK_S + second) for second in range(per_week)] for number in numbers}
    )


async def test_whole_history_is_fetched_and_imported(
    tmp_path: Path, owner: TorrentProcess, torrents: TorrentProcess
) -> None:
    uri = await Seeded(owner, tmp_path / "owner").publish(weeks(4, 5, 6))

    async with fetcher(tmp_path / "member", torrents) as (member, _):
        fetched = await member.fetch(uri, quiet)

    assert fetched == Fetched(downloaded=3, imported=3, messages=9)
    assert len(messages_of(tmp_path / "member" / HISTORY_FILE)) == 9
    overview = read_overview(tmp_path / "member" / HISTORY_FILE)
    assert [archive.state for archive in overview.archives] == [ArchiveState.IMPORTED] * 3
    assert overview.attempt is not None
    assert overview.attempt.problem is None
    assert not [*(tmp_path / "member" / "downloads").iterdir()]


async def test_only_what_is_missing_is_fetched_and_nothing_twice(
    tmp_path: Path, owner: TorrentProcess, torrents: TorrentProcess
) -> None:
    seeded, made = Seeded(owner, tmp_path / "owner"), weeks(4, 5)
    async with fetcher(tmp_path / "member", torrents) as (member, history):
        await member.fetch(await seeded.publish(made), quiet)
        made.add(week(6), [sealed(6 * WEEK_S)])
        made.add(week(4), [sealed(4 * WEEK_S + 99, "late")])
        uri = await seeded.publish(made)

        second = await member.fetch(uri, quiet)
        third = await member.fetch(uri, quiet)

        assert second == Fetched(downloaded=2, imported=2, messages=2)
        assert third == Fetched()
        (torrent,) = (await torrents.statistics()).torrents
        assert seeded.info is not None
        assert torrent.held == len(seeded.info.pieces)
        index_bytes = seeded.info.index_bytes
        assert torrent.downloaded_bytes == 2 * PIECE_BYTES + index_bytes  # not the two that it had
        assert len((await history.known()).archives) == 4
    assert len(messages_of(tmp_path / "member" / HISTORY_FILE)) == 8


@pytest.mark.parametrize(
    ("choice", "expected"),
    [(Latest(), [6]), (Between(TimeRange(5 * WEEK_S, 6 * WEEK_S)), [5]), (All(), [4, 5, 6])],
    ids=["latest", "range", "all"],
)
async def test_only_the_pieces_of_what_was_chosen_are_fetched(
    tmp_path: Path, owner: TorrentProcess, torrents: TorrentProcess, choice: Choice, expected: list[int]
) -> None:
    seeded = Seeded(owner, tmp_path / "owner")
    uri = await seeded.publish(weeks(4, 5, 6))

    async with fetcher(tmp_path / "member", torrents, choice) as (member, history):
        await member.fetch(uri, quiet)
        (torrent,) = (await torrents.statistics()).torrents
        archives = (await history.known()).archives

    assert seeded.info is not None
    assert [archive.time_range for archive in archives if archive.state is ArchiveState.IMPORTED] == [
        *map(week, expected)
    ]
    assert [archive.time_range for archive in archives] == [week(4), week(5), week(6)]
    assert torrent.downloaded_bytes == len(expected) * PIECE_BYTES + seeded.info.index_bytes


async def test_two_control_nodes_that_alternate_are_fetched_once_each(
    tmp_path: Path, owner: TorrentProcess, torrents: TorrentProcess
) -> None:
    both = [sealed(4 * WEEK_S), sealed(5 * WEEK_S)]
    one = published({week(4): both[:1], week(5): [both[1], sealed(5 * WEEK_S + 1, "only one has it")]})
    other = published({week(4): both[:1], week(5): [both[1], sealed(5 * WEEK_S + 2, "only the other has it")]})
    assert [entry.id for entry in one.entries] == [entry.id for entry in other.entries]
    seeded = Seeded(owner, tmp_path / "owner")
    brought = []

    async with fetcher(tmp_path / "member", torrents) as (member, _):
        for made in (one, other, one, other, one):
            fetched = await member.fetch(await seeded.publish(made), quiet)
            brought.append(fetched.downloaded)

    assert brought == [2, 1, 0, 0, 0]
    assert len(messages_of(tmp_path / "member" / HISTORY_FILE)) == 4


async def test_second_member_gets_the_history_from_the_first_while_the_owner_is_away(
    tmp_path: Path, owner: TorrentProcess, torrents: TorrentProcess
) -> None:
    seeded = Seeded(owner, tmp_path / "owner")
    uri = await seeded.publish(weeks(4, 5))
    assert seeded.info is not None
    async with TorrentProcess(LOOPBACK) as of_second, fetcher(tmp_path / "first", torrents) as (first, _):
        await first.fetch(uri, quiet)
        await owner.drop(seeded.info.info_hash)
        link = MagnetLink(seeded.info.info_hash, peers=(("127.0.0.1", torrents.port),))

        async with fetcher(tmp_path / "second", of_second) as (second, _):
            fetched = await second.fetch(link.encode(), quiet)

    assert fetched == Fetched(downloaded=2, imported=2, messages=6)


async def test_torrent_is_offered_again_after_a_restart(
    tmp_path: Path, owner: TorrentProcess, torrents: TorrentProcess
) -> None:
    seeded = Seeded(owner, tmp_path / "owner")
    async with fetcher(tmp_path / "member", torrents) as (member, _):
        await member.fetch(await seeded.publish(weeks(4)), quiet)

    async with fetcher(tmp_path / "member", torrents) as (member, _):
        assert await member.resume() == Fetched()
        (torrent,) = (await torrents.statistics()).torrents

    assert torrent.held == torrent.pieces


async def test_what_was_downloaded_before_a_kill_is_imported_after_it_and_not_fetched_again(
    tmp_path: Path, owner: TorrentProcess, torrents: TorrentProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    seeded = Seeded(owner, tmp_path / "owner")
    uri = await seeded.publish(weeks(4, 5))

    async def killed(*_: object) -> None:
        raise asyncio.CancelledError

    async with fetcher(tmp_path / "member", torrents) as (member, history):
        with monkeypatch.context() as patched:
            patched.setattr(history, "replace", killed)
            with pytest.raises(asyncio.CancelledError):
                await member.fetch(uri, quiet)
    states = [archive.state for archive in read_overview(tmp_path / "member" / HISTORY_FILE).archives]
    assert states == [ArchiveState.DOWNLOADED] * 2
    assert seeded.info is not None
    await owner.drop(seeded.info.info_hash)

    async with fetcher(tmp_path / "member", torrents) as (member, _):
        fetched = await member.resume()

    assert fetched == Fetched(imported=2, messages=6)


async def test_download_that_was_cut_off_goes_on_where_it_ended(
    tmp_path: Path, owner: TorrentProcess, torrents: TorrentProcess
) -> None:
    seeded, made = Seeded(owner, tmp_path / "owner"), weeks(4)
    made.add(week(5), [sealed(5 * WEEK_S + second, "x" * 100_000) for second in range(200)])
    uri = await seeded.publish(made)
    half = len(made.data) // PIECE_BYTES // 2
    async with fetcher(tmp_path / "member", torrents) as (member, _):

        def cut_off(step: str, done: int, total: int | None) -> None:
            if total is not None and done >= half:
                cut.cancel()

        cut = asyncio.create_task(member.fetch(uri, cut_off))
        with pytest.raises(asyncio.CancelledError):
            await cut
        held = next(iter((await torrents.statistics()).torrents)).held

    async with fetcher(tmp_path / "member", torrents) as (member, _):
        fetched = await member.fetch(uri, quiet)
        (torrent,) = (await torrents.statistics()).torrents

    assert fetched.messages == 203
    assert seeded.info is not None
    assert torrent.downloaded_bytes <= (len(seeded.info.pieces) - held) * PIECE_BYTES


async def test_stale_link_is_reported_once_and_the_next_one_is_fetched(
    tmp_path: Path, owner: TorrentProcess, torrents: TorrentProcess, caplog: pytest.LogCaptureFixture
) -> None:
    stale = MagnetLink(bytes([1]) * 20, peers=(("127.0.0.1", owner.port),)).encode()
    seeded = Seeded(owner, tmp_path / "owner")
    async with TorrentProcess(HASTY) as hasty, fetcher(tmp_path / "member", hasty) as (member, history):
        for _ in range(2):
            with pytest.raises(CannotFetch, match="no metadata") as caught:
                await member.fetch(stale, quiet)
            assert not caught.value.is_final
        attempt = (await history.known()).attempt

    async with fetcher(tmp_path / "member", torrents) as (member, _):
        fetched = await member.fetch(await seeded.publish(weeks(4)), quiet)

    assert attempt is not None
    assert attempt.problem is not None
    assert len([record for record in caplog.records if "not fetched" in record.getMessage()]) == 1
    assert fetched.imported == 1


async def test_dead_seed_leaves_what_came(tmp_path: Path, owner: TorrentProcess, torrents: TorrentProcess) -> None:
    seeded, made = Seeded(owner, tmp_path / "owner"), weeks(4)
    made.add(week(5), [sealed(5 * WEEK_S + second, "x" * 100_000) for second in range(200)])
    uri = await seeded.publish(made)
    assert seeded.info is not None
    info = seeded.info

    dropping: list[asyncio.Task[None]] = []

    def leave(step: str, done: int, total: int | None) -> None:
        if step == "fetching" and done and not dropping:
            dropping.append(asyncio.create_task(owner.drop(info.info_hash)))

    slow = replace(LOOPBACK, stall_timeout_s=3.0, download_bytes_s=5_000_000)
    async with TorrentProcess(slow) as hasty, fetcher(tmp_path / "member", hasty) as (member, _):
        with pytest.raises(CannotFetch, match="no piece"):
            await member.fetch(uri, leave)
    await dropping[0]
    await owner.seed(info, tmp_path / "owner")

    async with fetcher(tmp_path / "member", torrents) as (member, _):
        fetched = await member.fetch(uri, quiet)
        (torrent,) = (await torrents.statistics()).torrents

    assert torrent.downloaded_bytes < len(info.pieces) * PIECE_BYTES
    assert fetched.messages == 203


async def test_wrong_pieces_are_refused_and_counted_and_the_right_ones_come_from_another(
    tmp_path: Path, owner: TorrentProcess
) -> None:
    seeded = Seeded(owner, tmp_path / "owner")
    uri = await seeded.publish(weeks(4, 5))
    assert seeded.info is not None
    info, host = seeded.info, LOOPBACK.listen[0]
    await owner.drop(info.info_hash)
    false = liar(info)

    async with (
        TorrentProcess(replace(LOOPBACK, stall_timeout_s=2.0)) as torrents,
        fetcher(tmp_path / "member", torrents) as (member, history),
        false.dialling(torrents.port, host, LIAR),
    ):
        with pytest.raises(CannotFetch, match="wrong ones came") as caught:
            await member.fetch(uri, quiet)
        assert (await history.known()).archives == ()
        await owner.seed(info, seeded.folder)
        fetched = await member.fetch(uri, quiet)
        (torrent,) = (await torrents.statistics()).torrents

    assert not caught.value.is_final
    assert fetched == Fetched(downloaded=2, imported=2, messages=6)
    assert torrent.wrong_bytes >= info.index_bytes
    assert torrent.downloaded_bytes >= torrent.wrong_bytes + info.data_bytes + info.index_bytes


@pytest.mark.parametrize(
    ("forge", "reason"),
    [
        (lambda made: made.entries.pop(0), "leave a gap"),
        (lambda made: made.entries.append(entry_of(made.form, EMPTY_WEEK, PIECE_BYTES)), "leave a gap, or overlap"),
        (lambda made: made.entries.pop(), "does not fit the length of the data"),
    ],
    ids=["gap", "overlap", "short"],
)
async def test_forged_index_is_refused_and_not_fetched_again(
    tmp_path: Path,
    owner: TorrentProcess,
    torrents: TorrentProcess,
    forge: Callable[[Published], object],
    reason: str,
) -> None:
    made = weeks(4, 5)
    forge(made)
    uri = await Seeded(owner, tmp_path / "owner").publish(made)

    async with fetcher(tmp_path / "member", torrents) as (member, history):
        with pytest.raises(CannotFetch, match=reason) as caught:
            await member.fetch(uri, quiet)
        await member.leave()
        with pytest.raises(CannotFetch, match=reason):
            await member.fetch(uri, quiet)

        assert caught.value.is_final
        assert (await torrents.statistics()).torrents == ()
        assert (await history.known()).archives == ()


async def test_archive_that_does_not_decode_is_skipped_and_not_fetched_again(
    tmp_path: Path, owner: TorrentProcess, torrents: TorrentProcess, caplog: pytest.LogCaptureFixture
) -> None:
    made = weeks(4, 5)
    made.data = made.data[:PIECE_BYTES] + b"\xff" * PIECE_BYTES
    seeded = Seeded(owner, tmp_path / "owner")

    async with fetcher(tmp_path / "member", torrents) as (member, history):
        first = await member.fetch(await seeded.publish(made), quiet)
        made.add(week(6), [sealed(6 * WEEK_S)])
        second = await member.fetch(await seeded.publish(made), quiet)
        states = [archive.state for archive in (await history.known()).archives]

    assert (first.downloaded, first.imported, first.refused) == (2, 1, 1)
    assert second == Fetched(downloaded=1, imported=1, messages=1)
    assert states == [ArchiveState.IMPORTED, ArchiveState.REFUSED, ArchiveState.IMPORTED]
    assert len([record for record in caplog.records if "archive refused" in record.getMessage()]) == 1


async def test_range_counts_as_said_once_its_bad_archive_is_not_listed_any_more(
    tmp_path: Path, owner: TorrentProcess, torrents: TorrentProcess
) -> None:
    good, recent = sealed(5 * WEEK_S), message(5 * WEEK_S + 9)
    bad = published({week(5): [good]})
    bad.add(week(5), [sealed(5 * WEEK_S + 1)])
    bad.data = bad.data[:PIECE_BYTES] + b"\xff" * PIECE_BYTES
    seeded = Seeded(owner, tmp_path / "owner")

    async with fetcher(tmp_path / "member", torrents) as (member, history):
        await history.put_recent([recent])
        await member.fetch(await seeded.publish(bad), quiet)
        assert recent in messages_of(tmp_path / "member" / HISTORY_FILE)
        await member.fetch(await seeded.publish(published({week(5): [good]})), quiet)

    (kept,) = messages_of(tmp_path / "member" / HISTORY_FILE)
    assert kept.hash == good.hash


async def test_range_of_many_archives_is_imported_bit_by_bit_and_replaced_at_the_end(
    tmp_path: Path, owner: TorrentProcess, torrents: TorrentProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fetching, "BATCH_BYTES", 1)
    path = tmp_path / "member" / HISTORY_FILE
    made = weeks(4)
    for second in (10, 20):
        made.add(week(4), [sealed(4 * WEEK_S + second)])
    uri = await Seeded(owner, tmp_path / "owner").publish(made)
    seen: list[tuple[int, int]] = []

    class Killed(BaseException):
        pass

    def look(step: str, done: int, total: int | None) -> None:
        if step == "importing":
            overview = read_overview(path)
            seen.append((sum(each.state is ArchiveState.IMPORTED for each in overview.archives), overview.unarchived))
            if len(seen) == 2:
                raise Killed

    async with fetcher(tmp_path / "member", torrents) as (member, history):
        await history.put_recent([message(4 * WEEK_S + 5), message(5 * WEEK_S)])
        with pytest.raises(Killed):
            await member.fetch(uri, look)
    async with fetcher(tmp_path / "member", torrents) as (member, history):
        await member.resume()
        fetched = await member.fetch(uri, look)

    assert seen == [(0, 2), (1, 2), (2, 2)]
    assert fetched == Fetched(downloaded=1, imported=1, messages=1)
    assert len(messages_of(path)) == 6
    assert read_overview(path).unarchived == 1  # of the week after


def test_batches_are_cut_within_a_range() -> None:
    archives = [
        KnownArchive(
            content(str(number)),
            SPEC,
            IndexEntry("", week(4), (), 0, BATCH_BYTES // 2 - (number == 0), 0),
            is_listed=True,
            state=ArchiveState.MISSING,
        )
        for number in range(6)
    ]

    assert [len(batch) for batch in fetching.batches(archives)] == [3, 2, 1]


async def test_nothing_is_fetched_while_the_disk_is_nearly_full(
    tmp_path: Path, owner: TorrentProcess, torrents: TorrentProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    uri = await Seeded(owner, tmp_path / "owner").publish(weeks(4))

    async with fetcher(tmp_path / "member", torrents) as (member, _):
        with monkeypatch.context() as full:
            full.setattr(fetching, "KEPT_FREE_BYTES", 2**62)
            with pytest.raises(CannotFetch, match="is free on the disk") as caught:
                await member.fetch(uri, quiet)
        assert not caught.value.is_final

        assert (await member.fetch(uri, quiet)).messages == 3


@pytest.mark.parametrize(
    "uri", ["http://example.invalid", "magnet:?xt=urn:btih:12", "magnet:?dn=x"], ids=["http", "short", "no hash"]
)
async def test_link_that_is_none_is_refused(tmp_path: Path, torrents: TorrentProcess, uri: str) -> None:
    async with fetcher(tmp_path / "member", torrents) as (member, _):
        with pytest.raises(CannotFetch, match="magnet link") as caught:
            await member.fetch(uri, quiet)

    assert caught.value.is_final


async def test_progress_goes_from_nothing_to_everything(
    tmp_path: Path, owner: TorrentProcess, torrents: TorrentProcess
) -> None:
    uri = await Seeded(owner, tmp_path / "owner").publish(weeks(4, 5))
    steps: list[tuple[str, int, int | None]] = []

    async with fetcher(tmp_path / "member", torrents) as (member, _):
        await member.fetch(uri, lambda *step: steps.append(step))

    assert steps[0] == ("looking for the torrent", 0, None)
    assert steps[-1] == ("importing", 2, 2)
    assert all(total is None or 0 <= done <= total for _, done, total in steps)


async def test_index_that_does_not_parse_is_refused(
    tmp_path: Path, owner: TorrentProcess, torrents: TorrentProcess
) -> None:
    seeded = Seeded(owner, tmp_path / "owner")
    weeks(4).write(seeded.folder)
    (seeded.folder / "index").write_bytes(b"\xff" * 50)
    info = make_torrent(seeded.folder, NAME)
    await owner.seed(info, seeded.folder)
    link = MagnetLink(info.info_hash, peers=(("127.0.0.1", owner.port),))

    async with fetcher(tmp_path / "member", torrents) as (member, _):
        with pytest.raises(CannotFetch, match="index: ") as caught:
            await member.fetch(link.encode(), quiet)

    assert caught.value.is_final


async def test_download_that_cannot_be_written_is_fetched_when_it_can_be(
    tmp_path: Path, owner: TorrentProcess, torrents: TorrentProcess
) -> None:
    uri = await Seeded(owner, tmp_path / "owner").publish(weeks(4))

    async with fetcher(tmp_path / "member", torrents) as (member, _):
        (tmp_path / "member" / "downloads").write_text("a file, where the folder should be")
        with pytest.raises(CannotFetch, match="cannot write the download") as caught:
            await member.fetch(uri, quiet)
        assert not caught.value.is_final
        (tmp_path / "member" / "downloads").unlink()

        assert (await member.fetch(uri, quiet)).messages == 3
        (torrent,) = (await torrents.statistics()).torrents

    assert torrent.downloaded_bytes <= 2 * PIECE_BYTES  # the archive came once


@pytest.mark.parametrize(
    "damage",
    [
        lambda member: (member / "torrent.info").write_text("00"),
        lambda member: (member / "torrent.info").write_text("no hex"),
        lambda member: (member / "torrent").rename(member / "elsewhere").parent.joinpath("torrent").write_text("x"),
    ],
    ids=["torrent", "hex", "folder"],
)
async def test_torrent_that_cannot_be_offered_again_holds_up_nothing(
    tmp_path: Path,
    owner: TorrentProcess,
    torrents: TorrentProcess,
    caplog: pytest.LogCaptureFixture,
    damage: Callable[[Path], object],
) -> None:
    uri = await Seeded(owner, tmp_path / "owner").publish(weeks(4))
    async with fetcher(tmp_path / "member", torrents) as (member, _):
        await member.fetch(uri, quiet)
    damage(tmp_path / "member")

    async with fetcher(tmp_path / "member", torrents) as (member, _):
        assert await member.resume() == Fetched()

    assert [record.levelname for record in caplog.records if "not offered" in record.getMessage()] == ["WARNING"]


async def test_what_cannot_be_removed_is_reported_and_holds_up_nothing(
    tmp_path: Path, owner: TorrentProcess, torrents: TorrentProcess, caplog: pytest.LogCaptureFixture
) -> None:
    uri = await Seeded(owner, tmp_path / "owner").publish(weeks(4))
    make_folder(tmp_path / "member" / "downloads" / "a folder")

    async with fetcher(tmp_path / "member", torrents) as (member, _):
        fetched = await member.fetch(uri, quiet)

    assert fetched.imported == 1
    assert any("downloads not removed" in record.getMessage() for record in caplog.records)
