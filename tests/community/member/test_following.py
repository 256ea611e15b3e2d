"""The whole way of a member: links and messages by a real mailserver, history by real torrents, all on loopback."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pytest

from mailserver.client.mail_client import connect
from mailserver.client.sealing import seal_envelope
from mailserver.codec.keys import Enode, PrivateKey
from mailserver.communities import links
from mailserver.communities.channels import Channel, chat_channel, community_id, special_channel
from mailserver.communities.choosing import Latest
from mailserver.communities.links import AnnouncedLink, encode_link
from mailserver.community.member import following
from mailserver.community.member.fetching import CannotFetch, Fetched, OnProgress
from mailserver.community.member.following import MAX_CLOCK_AHEAD_MS, MemberSettings, open_member
from mailserver.community.member.history import read_overview
from mailserver.community.member.joined import CommunityBusy, Joined, MemberFolder, membership
from mailserver.community.member.records import ArchiveState
from mailserver.ids.envelopes import topic_of
from mailserver.torrents.client import TorrentProcess
from mailserver.waku.envelope import Envelope
from mailserver.waku.payload import key_from_password
from tests.app.daemons import Daemon, running
from tests.community.member.publishing import FOREIGNER, NETWORK_TOPIC, OWNER, TOPICS, Published, published, sealed
from tests.community.member.torrents import HASTY, Seeded, quiet
from tests.community.member.worlds import messages_of, week
from tests.mailservers import make_envelope
from tests.waiting import until

pytestmark = pytest.mark.integration

COMMUNITY = community_id(OWNER.public_key)
SPECIAL = special_channel(COMMUNITY)
NEWS = chat_channel("news")
PASSWORD_KEY = key_from_password("status-offline-inbox")


def now_ms() -> int:
    return int(time.time() * 1000)


async def announcement(uri: str, clock: int, key: PrivateKey = OWNER, special: Channel = SPECIAL) -> Envelope:
    """The envelope of a link."""
    assert special.key is not None
    payload = encode_link(AnnouncedLink(clock, uri), key)
    return await seal_envelope(
        payload, special.key, special.topic, ttl=50, min_pow=0.002, now=int(time.time()), signing_key=key
    )


async def news(text: str) -> Envelope:
    assert NEWS.key is not None
    return await seal_envelope(text.encode(), NEWS.key, NEWS.topic, ttl=50, min_pow=0.002, now=int(time.time()))


async def post(enode: Enode, envelopes: Sequence[Envelope]) -> None:
    async with connect(enode, "test/1") as client:
        await client.post(envelopes)


def weeks(*numbers: int) -> Published:
    return published({week(number): [sealed(week(number).lower)] for number in numbers})


def settings(enode: Enode) -> MemberSettings:
    return MemberSettings((enode,), PASSWORD_KEY, NETWORK_TOPIC, "test/1", time.time)


@pytest.fixture(autouse=True)
def no_long_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """The 20 s after the last link are tested with links themselves, without a clock."""
    monkeypatch.setattr(links, "WAIT_S", 0.5)


@pytest.fixture
async def daemon(tmp_path: Path) -> AsyncIterator[Daemon]:
    (tmp_path / "mailserver").mkdir()
    async with running(tmp_path / "mailserver") as started:
        yield started


@pytest.fixture
def folder(tmp_path: Path) -> MemberFolder:
    joined = membership(tmp_path / "member", COMMUNITY)
    joined.write(Joined(COMMUNITY, ("news",)))
    return joined


async def test_newcomer_holds_the_history_that_the_newest_link_names(
    tmp_path: Path, daemon: Daemon, processes: tuple[TorrentProcess, TorrentProcess], folder: MemberFolder
) -> None:
    owner, torrents = processes
    stale = "magnet:?xt=urn:btih:" + "01" * 20
    uri = await Seeded(owner, tmp_path / "owner").publish(weeks(4, 5))
    forged = "magnet:?xt=urn:btih:" + "02" * 20
    await post(
        daemon.enode,
        [
            await announcement(uri, now_ms()),
            await announcement(stale, now_ms() - 5000),
            await announcement(forged, now_ms() + 1000, FOREIGNER),
            await announcement(forged, now_ms() + MAX_CLOCK_AHEAD_MS + 60_000),
            await news("hello"),
        ],
    )

    async with open_member(folder, torrents, settings(daemon.enode)) as member:
        fetched, failed = await member.fetch_once(None, quiet)

    assert (fetched, failed) == (Fetched(downloaded=2, imported=2, messages=2), [])
    assert member.ignored == 2
    overview = read_overview(folder.history)
    assert overview.link is not None
    assert overview.link.uri == uri
    assert overview.unarchived == 1
    assert [message.content_topic for message in messages_of(folder.history)][-1] == NEWS.content_topic


async def test_mailserver_is_asked_for_what_is_new_only(
    tmp_path: Path, daemon: Daemon, processes: tuple[TorrentProcess, TorrentProcess], folder: MemberFolder
) -> None:
    owner, torrents = processes
    seeded, made = Seeded(owner, tmp_path / "owner"), weeks(4)
    await post(daemon.enode, [await announcement(await seeded.publish(made), now_ms())])
    async with open_member(folder, torrents, settings(daemon.enode)) as member:
        await member.fetch_once(None, quiet)
    made.add(week(5), [sealed(week(5).lower)])
    await post(daemon.enode, [await announcement(await seeded.publish(made), now_ms())])

    async with open_member(folder, torrents, settings(daemon.enode)) as member:
        fetched, _ = await member.fetch_once(None, quiet)

    assert fetched == Fetched(downloaded=1, imported=1, messages=1)


async def test_without_a_link_nothing_is_fetched(
    daemon: Daemon, processes: tuple[TorrentProcess, TorrentProcess], folder: MemberFolder
) -> None:
    async with open_member(folder, processes[1], settings(daemon.enode)) as member:
        with pytest.raises(CannotFetch, match="no mailserver has a magnet link"):
            await member.fetch_once(None, quiet)


async def test_mailserver_that_is_away_is_named(
    tmp_path: Path, daemon: Daemon, processes: tuple[TorrentProcess, TorrentProcess], folder: MemberFolder
) -> None:
    away = Enode(FOREIGNER.public_key, "127.0.0.1", 1)
    uri = await Seeded(processes[0], tmp_path / "owner").publish(weeks(4))
    await post(daemon.enode, [await announcement(uri, now_ms())])
    folder.write(Joined(COMMUNITY, (), (away, daemon.enode)))

    async with open_member(folder, processes[1], settings(daemon.enode)) as member:
        fetched, failed = await member.fetch_once(None, quiet)

    assert fetched.imported == 1
    assert len(failed) == 1
    assert failed[0].startswith("127.0.0.1:1: cannot connect")


@contextlib.asynccontextmanager
async def followed(
    folder: MemberFolder, torrents: TorrentProcess, enode: Enode, on_progress: OnProgress = quiet
) -> AsyncIterator[None]:
    async with open_member(folder, torrents, settings(enode)) as member:
        task = asyncio.create_task(member.follow(on_progress))
        try:
            yield
        finally:
            task.cancel()
            await asyncio.wait([task])
        if not task.cancelled():
            task.result()


def imported(folder: MemberFolder) -> int:
    archives = read_overview(folder.history).archives
    return sum(archive.state is ArchiveState.IMPORTED for archive in archives)


async def test_follower_takes_live_links_and_messages(
    tmp_path: Path, daemon: Daemon, processes: tuple[TorrentProcess, TorrentProcess], folder: MemberFolder
) -> None:
    owner, torrents = processes
    seeded, made = Seeded(owner, tmp_path / "owner"), weeks(4)
    await post(daemon.enode, [await announcement(await seeded.publish(made), now_ms())])

    async with followed(folder, torrents, daemon.enode):
        await until(lambda: folder.history.exists() and imported(folder) == 1, 60)
        made.add(week(5), [sealed(week(5).lower)])
        await post(daemon.enode, [await announcement(await seeded.publish(made), now_ms()), await news("live")])
        await until(lambda: imported(folder) == 2, 60)
        await until(lambda: read_overview(folder.history).unarchived == 1)

    assert len(messages_of(folder.history)) == 3


async def test_channel_that_archives_list_is_followed_from_then_on(
    tmp_path: Path, daemon: Daemon, processes: tuple[TorrentProcess, TorrentProcess], folder: MemberFolder
) -> None:
    owner, torrents = processes
    uri = await Seeded(owner, tmp_path / "owner").publish(weeks(4))
    await post(daemon.enode, [await announcement(uri, now_ms())])

    async with followed(folder, torrents, daemon.enode):
        await until(lambda: folder.history.exists() and imported(folder) == 1, 60)
        envelope = await seal_envelope(
            b"x", bytes(32), topic_of(TOPICS[2]), ttl=50, min_pow=0.002, now=int(time.time())
        )
        await post(daemon.enode, [envelope])
        await until(lambda: read_overview(folder.history).unarchived == 1, 60)


async def test_newer_link_ends_the_download_of_the_one_before(
    tmp_path: Path,
    daemon: Daemon,
    processes: tuple[TorrentProcess, TorrentProcess],
    folder: MemberFolder,
    caplog: pytest.LogCaptureFixture,
) -> None:
    owner, torrents = processes
    dead = "magnet:?xt=urn:btih:" + "01" * 20
    await post(daemon.enode, [await announcement(dead, now_ms())])
    steps: list[str] = []

    async with followed(folder, torrents, daemon.enode, lambda step, done, total: steps.append(step)):
        await until(lambda: bool(steps))  # looking for the dead one
        uri = await Seeded(owner, tmp_path / "owner").publish(weeks(4))
        await post(daemon.enode, [await announcement(uri, now_ms())])
        await until(lambda: read_overview(folder.history).attempt is not None, 60)

    attempt = read_overview(folder.history).attempt
    assert attempt is not None
    assert (attempt.uri, attempt.problem) == (uri, None)
    assert imported(folder) == 1
    assert [record for record in caplog.records if "not fetched" in record.getMessage()] == []


async def test_link_of_which_seeds_were_away_is_tried_again(
    tmp_path: Path,
    daemon: Daemon,
    processes: tuple[TorrentProcess, TorrentProcess],
    folder: MemberFolder,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(following, "RETRY_S", 0.1)
    owner, _ = processes
    seeded = Seeded(owner, tmp_path / "owner")
    uri = await seeded.publish(weeks(4))
    assert seeded.info is not None
    await owner.drop(seeded.info.info_hash)
    folder.write(Joined(COMMUNITY, choice=Latest()))
    await post(daemon.enode, [await announcement(uri, now_ms())])

    def has_failed() -> bool:
        attempt = read_overview(folder.history).attempt if folder.history.exists() else None
        return attempt is not None and attempt.problem is not None

    async with TorrentProcess(HASTY) as hasty, followed(folder, hasty, daemon.enode):
        await until(has_failed, 60)
        await owner.seed(seeded.info, tmp_path / "owner")
        await until(lambda: imported(folder) == 1, 60)


async def test_one_process_at_a_time_fetches(
    daemon: Daemon, processes: tuple[TorrentProcess, TorrentProcess], folder: MemberFolder
) -> None:
    async with open_member(folder, processes[1], settings(daemon.enode)):
        with pytest.raises(CommunityBusy, match="another process"):
            async with open_member(folder, processes[1], settings(daemon.enode)):
                pass


async def test_envelopes_without_an_id_or_of_the_future_are_left_alone(
    daemon: Daemon, processes: tuple[TorrentProcess, TorrentProcess], folder: MemberFolder
) -> None:
    now = int(time.time())
    odd = [make_envelope(number, created=created, topic=NEWS.topic) for number, created in enumerate((0, now + 3600))]

    async with open_member(folder, processes[1], settings(daemon.enode)) as member:
        await member.take(odd)
        await member.take([make_envelope(3, created=now, topic=NEWS.topic)])

    assert len(messages_of(folder.history)) == 1


@pytest.mark.parametrize("at_once", [20, 1], ids=["a page", "one by one"])
async def test_junk_in_the_special_channel_holds_up_nobody(
    daemon: Daemon,
    processes: tuple[TorrentProcess, TorrentProcess],
    folder: MemberFolder,
    monkeypatch: pytest.MonkeyPatch,
    at_once: int,
) -> None:
    monkeypatch.setattr(following, "TURN_S", 0.0)
    junk = [await announcement("magnet:?", now_ms() + number, FOREIGNER) for number in range(20)]
    others = 0

    async def count() -> None:
        nonlocal others
        while True:
            others += 1
            await asyncio.sleep(0)

    async with open_member(folder, processes[1], settings(daemon.enode)) as member:
        counting = asyncio.create_task(count())
        for at in range(0, len(junk), at_once):
            await member.take(junk[at : at + at_once])
        counting.cancel()

        assert member.ignored == len(junk)
    assert others >= len(junk)
