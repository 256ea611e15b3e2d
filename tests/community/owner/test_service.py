"""The owner's service, on a real store and feed socket, with real torrents on loopback. The clock is the test's."""

import asyncio
import contextlib
import logging
import sqlite3
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from mailserver.communities.channels import Channel, community_id, special_channel
from mailserver.communities.index import DEPLOYED
from mailserver.communities.progress import Week
from mailserver.community.owner.announcing import Announced, read_announced
from mailserver.community.owner.folders import CommunityFolder
from mailserver.community.owner.record import CommunityError, new_community
from mailserver.ids.envelopes import content_topic_of
from mailserver.ids.muid import DEFAULT_NETWORK_TOPIC
from mailserver.torrents.info import PIECE_BYTES
from mailserver.torrents.magnet import MagnetLink
from mailserver.torrents.statistics import TorrentTraffic
from mailserver.waku.acceptance import Requirements
from mailserver.waku.bloom import Interest
from mailserver.waku.envelope import Envelope, encode_envelope
from mailserver.waku.payload import MAX_PADDING_BYTES, seal_symmetric
from tests.community.owner.samples import (
    ATTIC,
    GARDEN,
    KITCHEN,
    OTHER_OWNER,
    REGISTERED,
    TTL,
    channel,
    garden,
    made_in,
    sealed,
    week,
)
from tests.community.owner.samples import OWNER as COMMUNITY_KEY
from tests.community.owner.serving import communities_of, held_by, info_hash_of, make_week, serving
from tests.feed_socket.worlds import World, running_world
from tests.mailservers import Clock, stored
from tests.store.engines import EACH_ENGINE, ENGINES
from tests.torrents.processes import MEMBER, OWNER, process_on
from tests.waiting import until

pytestmark = pytest.mark.integration

CHANNEL_KEY = bytes([5]) * 32
OPENED = Channel("garden", content_topic_of(GARDEN), CHANNEL_KEY)

HOUR_S = 3600
DAY_S = 86_400


@pytest.fixture
def clock() -> Clock:
    return Clock(week(1).upper)


@pytest.fixture
async def world(request: pytest.FixtureRequest, tmp_path: Path, clock: Clock) -> AsyncIterator[World]:
    engine = ENGINES[getattr(request, "param", "sqlite")](tmp_path)
    async with running_world(tmp_path, wall_clock=clock, engine=engine) as running:
        yield running


@pytest.fixture
def folder(world: World) -> CommunityFolder:
    return made_in(communities_of(world), garden(GARDEN, KITCHEN))


async def test_history_is_published_announced_and_fetched_and_a_week_later_the_next(
    world: World, clock: Clock, folder: CommunityFolder, tmp_path: Path
) -> None:
    make_week(folder, 0, *(sealed(week(0).lower + number, number) for number in range(3)))
    async with serving(world, clock) as serve:
        (first,) = await serve.until_announced(folder, 1)
        assert await serve.seeded() == [info_hash_of(first)]
        assert not folder.next_index.exists()
        assert first.clock == clock.now * 1000
        kept = folder.data.read_bytes()

        clock.now += 7 * DAY_S
        make_week(folder, 1, sealed(week(1).lower, 9))
        _, second = await serve.until_announced(folder, 2)

        assert await serve.seeded() == [info_hash_of(second)]
        assert info_hash_of(second) != info_hash_of(first)
        assert second.clock == clock.now * 1000
        assert "http" not in second.uri
        async with process_on(MEMBER) as member:
            link = replace(MagnetLink.decode(second.uri), peers=((OWNER, serve.torrents.port),))
            info = await member.metadata(link)
            (tmp_path / "fetched").mkdir()
            await member.fetch(info, tmp_path / "fetched", [info.pieces], link=link)
        fetched = (tmp_path / "fetched" / "data").read_bytes()
        assert fetched == folder.data.read_bytes()
        assert fetched.startswith(kept)
        assert (tmp_path / "fetched" / "index").read_bytes() == folder.index.read_bytes()
        assert info.name == folder.path.name


async def test_link_is_announced_again_every_eight_hours_and_after_a_restart(
    world: World, clock: Clock, folder: CommunityFolder
) -> None:
    make_week(folder, 0)
    async with serving(world, clock) as serve:
        (first,) = await serve.until_announced(folder, 1)
        clock.now += 8 * HOUR_S - 1
        await serve.owners.look()
        await serve.until_announced(folder, 1)
        clock.now += 1

        _, second = await serve.until_announced(folder, 2)

        assert second == (first.clock + 8 * HOUR_S * 1000, first.uri)
    clock.now -= 10  # set back
    async with serving(world, clock) as serve:
        (third,) = await serve.until_announced(folder, 1)
        assert third == (second.clock + 1, first.uri)
        assert await serve.seeded() == [info_hash_of(first)]


async def test_what_the_job_appends_while_a_torrent_is_made_is_not_in_it(
    world: World, clock: Clock, folder: CommunityFolder
) -> None:
    make_week(folder, 0)
    with folder.data.open("ab") as data:
        data.write(b"not whole yet")
    async with serving(world, clock) as serve:
        await serve.until_announced(folder, 1)

    announced = read_announced(folder.announced)
    assert announced is not None
    assert announced.data_bytes == PIECE_BYTES


async def test_community_that_is_switched_off_is_not_seeded_until_it_is_on_again(
    world: World, clock: Clock, folder: CommunityFolder
) -> None:
    make_week(folder, 0)
    async with serving(world, clock) as serve:
        await serve.until_announced(folder, 1)

        folder.change(lambda community: replace(community, is_enabled=False))
        await serve.owners.look()
        assert await serve.seeded() == []
        clock.now += DAY_S
        await serve.until_announced(folder, 1)

        folder.change(lambda community: replace(community, is_enabled=True))
        links = await serve.until_announced(folder, 2)
        assert await serve.seeded() == [info_hash_of(links[1])]


async def test_community_without_history_is_not_announced_and_one_that_is_made_later_is_found(
    world: World, clock: Clock
) -> None:
    async with serving(world, clock) as serve:
        await serve.owners.look()
        folder = made_in(communities_of(world))
        await serve.until_announced(folder, 0)

        make_week(folder, 0)

        await serve.until_announced(folder, 1)


@pytest.mark.parametrize("world", EACH_ENGINE, indirect=True)
async def test_holdings_follow_the_store_and_go_when_old_archived_and_distributed(
    world: World, clock: Clock, folder: CommunityFolder
) -> None:
    archived, unarchived, young, foreign = (
        sealed(created, number, topic)
        for number, (created, topic) in enumerate(
            ((week(0).lower, GARDEN), (week(0).lower + 1, GARDEN), (week(1).lower, GARDEN), (week(0).lower, ATTIC))
        )
    )
    clock.now = week(0).upper
    await world.store.put([stored(each, each.created) for each in (archived, unarchived, young, foreign)])
    async with serving(world, clock) as serve:
        await serve.owners.look()
        (owned,) = serve.owners.communities.values()
        assert await held_by(owned) == 3

        # Old, but not archived; then archived, but the daemon takes no link; then all three.
        clock.now = week(0).lower + 31 * DAY_S
        await serve.owners.look()
        assert await held_by(owned) == 3
        make_week(folder, 0, archived)
        make_week(folder, 1, young)
        await world.stop()
        await until(lambda: serve.feed.terms is None)
        await serve.owners.look()
        assert "no link is announced" in serve.owners.problems[0]
        assert len(await serve.seeded()) == 1
        assert await held_by(owned) == 3
        await world.start()
        await until(lambda: serve.feed.terms is not None)
        await serve.until_announced(folder, 1)

        assert serve.owners.problems == []
        assert await held_by(owned) == 2
        late = sealed(week(1).lower + 5, 77, KITCHEN)
        await world.store.put([stored(late)])
        await serve.owners.look()
        assert await held_by(owned) == 3


async def test_holdings_of_a_channel_that_does_not_hold_any_more_go_too(
    world: World, clock: Clock, folder: CommunityFolder
) -> None:
    clock.now = week(0).lower + 31 * DAY_S
    await world.store.put([stored(sealed(week(0).lower + 5, 1, KITCHEN))])
    make_week(folder, 0)
    async with serving(world, clock) as serve:
        await serve.until_announced(folder, 1)
        (owned,) = serve.owners.communities.values()
        await serve.owners.look()
        assert await held_by(owned) == 1

        folder.change(lambda community: community.without_channel(channel(KITCHEN).name, at=week(0).lower))
        clock.now += HOUR_S
        await serve.owners.look()

        assert await held_by(owned) == 0


async def test_holdings_that_claim_to_be_older_than_the_history_go_too(
    world: World, clock: Clock, folder: CommunityFolder
) -> None:
    clock.now = week(1).lower
    await world.store.put([stored(sealed(week(0).lower - 400 * DAY_S), week(1).lower)])
    make_week(folder, 0)
    async with serving(world, clock) as serve:
        await serve.until_announced(folder, 1)
        (owned,) = serve.owners.communities.values()
        clock.now += HOUR_S
        await serve.owners.look()
        assert await held_by(owned) == 1  # no run had it yet, as far as is known

        clock.now = week(1).upper + HOUR_S
        make_week(folder, 1)
        await serve.until_announced(folder, 2)

        assert await held_by(owned) == 0


async def test_what_is_wrong_with_one_community_is_told_once_and_the_others_go_on(
    world: World, clock: Clock, folder: CommunityFolder, caplog: pytest.LogCaptureFixture
) -> None:
    other = made_in(communities_of(world), garden(), OTHER_OWNER)
    make_week(other, 0)
    folder.index.write_bytes(b"damaged")
    caplog.set_level(logging.ERROR)
    async with serving(world, clock) as serve:
        await serve.until_announced(other, 1)
        await serve.owners.look()

        assert [folder.path.name in problem for problem in serve.owners.problems] == [True]
        assert len([record for record in caplog.records if "not served" in record.message]) == 1

        folder.index.unlink()
        make_week(folder, 0)
        await serve.until_announced(folder, 1)
        assert serve.owners.problems == []


async def test_holdings_that_cannot_be_used_hold_up_nothing_else(
    world: World, clock: Clock, folder: CommunityFolder, caplog: pytest.LogCaptureFixture
) -> None:
    other = made_in(communities_of(world), garden(GARDEN), OTHER_OWNER)
    make_week(folder, 0)
    folder.holdings.write_bytes(b"not a database, " * 300)
    await world.store.put([stored(sealed(week(0).lower, 1))])
    caplog.set_level(logging.ERROR)
    async with serving(world, clock) as serve:
        await serve.until_announced(folder, 1)
        await serve.owners.look()

        assert [str(folder.holdings) in problem for problem in serve.owners.problems] == [True]
        assert len([record for record in caplog.records if "not served" in record.message]) == 1
        assert await held_by(serve.owners.communities[other.path]) == 1

        folder.holdings.unlink()
        await serve.owners.look()

        assert serve.owners.problems == []
        assert await held_by(serve.owners.communities[folder.path]) == 1


async def test_holdings_that_cannot_be_written_hold_up_nothing_else(
    world: World, clock: Clock, folder: CommunityFolder
) -> None:
    other = made_in(communities_of(world), garden(GARDEN), OTHER_OWNER)
    async with serving(world, clock) as serve:
        await serve.owners.look()
        await world.store.put([stored(sealed(week(0).lower, number)) for number in range(3)])
        with contextlib.closing(sqlite3.connect(folder.holdings)) as connection:
            connection.execute("CREATE TRIGGER no BEFORE INSERT ON envelopes BEGIN SELECT RAISE(ABORT, 'no'); END")

            await serve.owners.look()

            assert [str(folder.holdings) in problem for problem in serve.owners.problems] == [True]
            assert await held_by(serve.owners.communities[other.path]) == 3
            connection.execute("DROP TRIGGER no")

        await serve.owners.look()

        assert serve.owners.problems == []
        assert await held_by(serve.owners.communities[folder.path]) == 3


async def test_channel_that_the_mailserver_does_not_take_is_a_problem_while_it_holds(
    tmp_path: Path, clock: Clock
) -> None:
    topics = frozenset({GARDEN, special_channel(community_id(COMMUNITY_KEY.public_key)).topic})
    async with running_world(
        tmp_path, wall_clock=clock, requirements=Requirements(0.0, Interest(topics=topics))
    ) as world:
        folder = made_in(communities_of(world), garden(GARDEN, KITCHEN))
        make_week(folder, 0)
        async with serving(world, clock) as serve:
            await serve.until_announced(folder, 1)
            said = f"channel {channel(KITCHEN).name}, topic 0x00000002"
            assert serve.owners.problems == [f"the mailserver does not take {said}: see its --archive-topics"]

            folder.change(lambda community: community.without_channel(channel(KITCHEN).name, at=int(clock.now)))
            await serve.owners.look()

            assert serve.owners.problems == []


async def test_damaged_next_index_leaves_what_is_published_as_it_is(
    world: World, clock: Clock, folder: CommunityFolder
) -> None:
    make_week(folder, 0)
    async with serving(world, clock) as serve:
        (link,) = await serve.until_announced(folder, 1)
        index = folder.index.read_bytes()
        folder.next_index.write_bytes(b"damaged")

        await serve.until_announced(folder, 1)

        assert await serve.seeded() == [info_hash_of(link)]
        assert folder.index.read_bytes() == index
        assert not folder.next_index.exists()


async def test_link_that_the_daemon_cannot_store_is_a_problem_and_posted_again(
    world: World, clock: Clock, folder: CommunityFolder
) -> None:
    make_week(folder, 0)
    async with serving(world, clock) as serve:
        with world.disk_full():
            await serve.owners.look()

            assert "does not take the magnet link" in serve.owners.problems[0]

        await serve.until_announced(folder, 2)  # the first was relayed all the same
        assert serve.owners.problems == []


async def test_service_looks_until_it_is_stopped(
    world: World, clock: Clock, folder: CommunityFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mailserver.community.owner.service.LOOK_S", 0.01)
    make_week(folder, 0)
    async with serving(world, clock) as serve:
        running = asyncio.create_task(serve.owners.run())
        await until(lambda: len(serve.links(folder)) == 1)
        make_week(folder, 1)
        await until(lambda: len(serve.links(folder)) == 2)
        running.cancel()
        await asyncio.wait([running])


@pytest.mark.parametrize("text", ["{}", '{"version": 1, "info_hash": "zz"}'])
def test_record_of_the_last_link_that_is_damaged_is_named(tmp_path: Path, text: str) -> None:
    path = tmp_path / "announced.json"
    path.write_text(text)

    with pytest.raises(CommunityError, match="record of a magnet link"):
        read_announced(path)


def test_record_of_the_last_link_comes_back(tmp_path: Path) -> None:
    announced = Announced(bytes(20), 5, 6, 7)
    (tmp_path / "announced.json").write_text(announced.encode())

    assert read_announced(tmp_path / "announced.json") == announced
    assert read_announced(tmp_path / "none") is None


async def test_weeks_that_ended_without_an_archive_are_late_from_the_newest_archive_on(
    world: World, clock: Clock, folder: CommunityFolder
) -> None:
    async with serving(world, clock) as serve:
        await serve.owners.look()
        (owned,) = serve.owners.communities.values()
        before = await owned.progress(clock.now, TorrentTraffic())  # registered in week 0, and it is the end of week 1
        make_week(folder, 0)
        await serve.until_announced(folder, 1)
        after = await owned.progress(clock.now, TorrentTraffic())

        folder.change(lambda community: replace(community, is_enabled=False))
        await serve.owners.look()
        off = await owned.progress(clock.now, TorrentTraffic())

    assert (before.late_weeks, before.weeks, before.is_seeding, before.announced_at) == (2, (), None, None)
    assert (after.late_weeks, after.is_seeding, after.announced_at) == (1, True, clock.now)
    assert after.weeks == (Week(*week(0), 1, is_distributed=True, is_seeding=True, is_fetched=False, fetched_times=0),)
    assert (off.late_weeks, off.is_seeding) == (0, None)


async def test_week_without_messages_is_not_late_in_the_format_that_has_no_archive_of_it(
    world: World, clock: Clock
) -> None:
    community = new_community("Garden", DEPLOYED, DEFAULT_NETWORK_TOPIC, REGISTERED).with_channel(OPENED)
    made_in(communities_of(world), community)
    await world.store.put([stored(_opened_by(CHANNEL_KEY, week(1).lower, b"hello"))])
    async with serving(world, clock) as serve:
        await serve.owners.look()
        (owned,) = serve.owners.communities.values()

        progress = await owned.progress(clock.now, TorrentTraffic())

    assert progress.late_weeks == 1


async def test_what_no_key_of_its_channel_opens_is_not_held_where_messages_are_opened(
    world: World, clock: Clock
) -> None:
    community = new_community("Garden", DEPLOYED, DEFAULT_NETWORK_TOPIC, REGISTERED).with_channel(OPENED)
    made_in(communities_of(world), community)
    junk = sealed(week(1).lower, 1), _opened_by(bytes(32), week(0).lower, b"of somebody else")
    await world.store.put([stored(each) for each in junk])
    async with serving(world, clock) as serve:
        await serve.owners.look()
        (owned,) = serve.owners.communities.values()
        before = await held_by(owned)
        progress = await owned.progress(clock.now, TorrentTraffic())
        await world.store.put([stored(_opened_by(CHANNEL_KEY, week(1).lower, b"hello"))])
        await serve.owners.look()

        assert (before, progress.late_weeks) == (0, 0)
        assert await held_by(owned) == 1


def _opened_by(key: bytes, created: int, payload: bytes) -> Envelope:
    data = seal_symmetric(payload, key, nonce=bytes(12), padding=bytes(MAX_PADDING_BYTES))
    return encode_envelope(created + TTL, TTL, GARDEN, data, 0)
