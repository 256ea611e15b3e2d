"""The whole way of a community's history through the wire: envelopes to mailservers, the job with a real Spark, the
owner's service, links by a mailserver, torrents on loopback, members. All of them have the test's clock.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from mailserver.api.params import Json
from mailserver.app.communities import Serving, serve_communities
from mailserver.app.communities_config import CommunitiesConfig
from mailserver.app.control_call import SYNC, call_daemon
from mailserver.client.mail_client import connect
from mailserver.client.sealing import seal_envelope
from mailserver.codec.keys import PrivateKey
from mailserver.communities import links
from mailserver.communities.channels import Channel, chat_channel
from mailserver.communities.formats import PIECE_BYTES
from mailserver.communities.index import DEPLOYED, SPEC
from mailserver.community.folder import COMMUNITIES_FOLDER
from mailserver.community.member.fetching import Fetched, OnProgress
from mailserver.community.member.following import MemberSettings, open_member
from mailserver.community.member.history import read_overview
from mailserver.community.member.joined import Joined, MemberFolder, membership
from mailserver.community.member.records import ArchiveState, HistoryMessage
from mailserver.community.owner import service
from mailserver.community.owner.announcing import read_announced
from mailserver.community.owner.folders import CommunityFolder
from mailserver.community.owner.record import new_community
from mailserver.ids.envelopes import NS, content_topic_of, read_meta, topic_of
from mailserver.ids.muid import DEFAULT_NETWORK_TOPIC
from mailserver.store.sqlite.schema import STORE_FILE
from mailserver.torrents.client import TorrentProcess
from mailserver.waku.envelope import Envelope, encode_envelope
from mailserver.waku.payload import key_from_password
from spark_export.communities import CommunitiesRun as ExportConfig
from spark_export.communities import make_archives
from spark_export.community_plan import SETTLE_S, missing_of
from tests.app.daemons import Daemon, running
from tests.community.member.torrents import LOOPBACK, quiet
from tests.community.member.worlds import messages_of
from tests.community.owner.samples import OTHER_OWNER, OWNER, made_in, week
from tests.mailservers import Clock
from tests.ports import free_ports
from tests.waiting import until

pytestmark = pytest.mark.spark

GENERAL, NEWS, ELSEWHERE = map(chat_channel, ("garden general", "garden news", "elsewhere"))
DAY_S = 86_400
PATIENCE_S = 60.0


@pytest.fixture(autouse=True)
def no_long_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """The 20 s after the last link are tested with links themselves, without a clock."""
    monkeypatch.setattr(links, "WAIT_S", 0.3)
    monkeypatch.setattr(service, "LOOK_S", 0.05)


@dataclass
class World:
    """Two mailservers, of which the owner's service knows one, and two communities with the same channels.

    `near` is the owner's mailserver, `far` knows nothing of it. `folder` is the community with the specification's
    format, `opened` the one with that of status-go. `posted`: what `near` got for the channels, whenever. `payloads`:
    what was sealed in each envelope, by its RLP.
    """

    clock: Clock
    spark: SparkSession
    near: Daemon
    far: Daemon
    folder: CommunityFolder
    opened: CommunityFolder
    served: Serving
    posted: list[Envelope] = field(default_factory=list)
    payloads: dict[bytes, bytes] = field(default_factory=dict)

    async def seal(self, channel: Channel) -> Envelope:
        """A message, created at this moment."""
        assert channel.key is not None
        payload, now = f"message {len(self.payloads)}".encode(), int(self.clock.now)
        envelope = await seal_envelope(payload, channel.key, channel.topic, ttl=50, min_pow=0.002, now=now)
        self.payloads[envelope.raw] = payload
        return envelope

    async def post(self, *channels: Channel) -> list[Envelope]:
        """Post messages to both mailservers."""
        envelopes = [await self.seal(channel) for channel in channels]
        await post(self.near, envelopes)
        await post(self.far, envelopes)
        self.posted += [each for each in envelopes if each.topic != ELSEWHERE.topic]
        return envelopes

    async def fetch_from_far(self, created: int) -> int:
        """Have the owner's mailserver fetch what the other has of a second; return how many it did not have."""
        asked: dict[str, Json] = {"sources": [str(self.far.enode)], "since": created, "until": created}
        (progress,) = await call_daemon(self.near.config.data_dir, SYNC, asked, lambda progress: None)
        return int(progress["stored"])

    async def export(self) -> set[int]:
        """Run the job, once it is on disk that nothing is being fetched; return how many archives communities got."""
        communities, store = self.folder.path.parent, self.near.config.data_dir / STORE_FILE
        await until(lambda: not missing_of([store], communities.parent, int(self.clock.now)))
        config = ExportConfig(
            communities, (store,), missing=missing_of([store], communities.parent, int(self.clock.now))
        )
        report = await asyncio.to_thread(make_archives, self.spark, config, now=self.clock.now)
        assert len(report.communities) == 2
        return {each.archives for each in report.communities}

    async def until_announced(self, pieces: int) -> None:
        """Wait until torrents with so many pieces of `data` were announced."""
        await until(lambda: self._announced() == {pieces * PIECE_BYTES}, PATIENCE_S)

    def _announced(self) -> set[int]:
        announced = [read_announced(folder.announced) for folder in (self.folder, self.opened)]
        return {0 if each is None else each.data_bytes for each in announced}

    async def uploaded(self) -> int:
        """How many bytes of `folder` the owner has sent."""
        seeded = self.served.owners.communities[self.folder.path].publisher.seeded
        torrents = (await self.served.torrents.statistics()).torrents
        return sum(each.uploaded_bytes for each in torrents if seeded and each.info_hash == seeded.info_hash)

    def of_week(self, number: int) -> list[bytes]:
        """What was posted of a week, and the owner's mailserver has."""
        return sorted(each.raw for each in self.posted if week(number).lower <= each.created < week(number).upper)

    @property
    def settings(self) -> MemberSettings:
        """Of all members."""
        key = key_from_password(self.near.config.password)
        return MemberSettings((), key, DEFAULT_NETWORK_TOPIC, "test/1", self.clock)

    def member(self, path: Path, of: CommunityFolder) -> MemberFolder:
        """A new member, who asks both mailservers."""
        folder = membership(path, of.id)
        folder.write(Joined(of.id, ("garden general", "garden news"), (self.near.enode, self.far.enode)))
        return folder


async def post(daemon: Daemon, envelopes: list[Envelope]) -> None:
    async with connect(daemon.enode, "test/1") as client:
        assert (await client.post(envelopes)).errors == ()


@contextlib.asynccontextmanager
async def running_world(tmp_path: Path, spark: SparkSession) -> AsyncIterator[World]:
    clock = Clock(week(0).lower + 1000)
    data_dir = tmp_path / "near"
    for name in ("near", "far"):
        (tmp_path / name).mkdir()

    def make(form: str, key: PrivateKey) -> CommunityFolder:
        community = new_community("Garden", form, DEFAULT_NETWORK_TOPIC, int(clock.now))
        for channel in (GENERAL, NEWS):
            community = community.with_channel(channel)
        return made_in(data_dir / COMMUNITIES_FOLDER, community, key)

    folder, opened = make(SPEC, OWNER), make(DEPLOYED, OTHER_OWNER)
    (port,) = free_ports(1)
    address = f"127.0.0.1:{port}"
    config = CommunitiesConfig(data_dir, torrent_listen=address, advertise=(address,))
    async with contextlib.AsyncExitStack() as stack:
        far = await stack.enter_async_context(running(tmp_path / "far", clock=clock))
        near = await stack.enter_async_context(running(data_dir, clock=clock, feed_socket=True))
        failed = asyncio.Event()
        served = await stack.enter_async_context(serve_communities(config, clock, failed.set))
        try:
            yield World(clock, spark, near, far, folder, opened, served)
        finally:
            far.task.cancel()  # a signal reaches the last daemon that has begun, and no other
            await asyncio.wait([far.task])
        assert not failed.is_set()


@contextlib.asynccontextmanager
async def following(
    world: World, folder: MemberFolder, torrents: TorrentProcess, on_progress: OnProgress = quiet
) -> AsyncIterator[None]:
    async with open_member(folder, torrents, world.settings) as member:
        task = asyncio.create_task(member.follow(on_progress))
        try:
            yield
        finally:
            task.cancel()
            await asyncio.wait([task])
        if not task.cancelled():
            task.result()


def envelope_of(message: HistoryMessage) -> bytes:
    """The RLP of the envelope that a message was taken from."""
    assert message.meta is not None
    meta = read_meta(message.meta)
    expiry, topic = meta.created + meta.ttl, topic_of(message.content_topic)
    return encode_envelope(expiry, meta.ttl, topic, message.payload, meta.nonce).raw


def held(folder: MemberFolder, number: int) -> list[bytes]:
    """The envelopes that a member has of a week."""
    return sorted(map(envelope_of, messages_of(folder.history, week(number))))


def states(folder: MemberFolder) -> list[ArchiveState]:
    return [archive.state for archive in read_overview(folder.history).archives]


async def test_members_hold_exactly_what_was_posted_to_the_owners_mailserver(
    spark: SparkSession, tmp_path: Path
) -> None:
    async with running_world(tmp_path, spark) as world:
        # The first week: messages of both channels and of another, some of one second, one twice; and one that the
        # owner's mailserver does not get.
        for day in range(7):
            world.clock.now = week(0).lower + day * DAY_S + 1000
            first, *_ = await world.post(GENERAL, NEWS, ELSEWHERE, GENERAL)
            await post(world.near, [first])
        world.clock.now = week(0).upper - 20
        late = await world.seal(NEWS)
        await post(world.far, [late])

        world.clock.now = week(0).upper + SETTLE_S - 1
        assert await world.export() == {0}
        world.clock.now += 1
        assert await world.export() == {1}
        await world.until_announced(pieces=1)
        (recent,) = await world.post(GENERAL)

        # Who joins now gets the link from what mailservers have stored.
        member = world.member(tmp_path / "member", world.folder)
        async with TorrentProcess(LOOPBACK) as torrents, open_member(member, torrents, world.settings) as newcomer:
            fetched, failed = await newcomer.fetch_once(None, quiet)
        assert (fetched, failed) == (Fetched(downloaded=1, imported=1, messages=21), [])
        assert held(member, 0) == world.of_week(0)
        assert held(member, 1) == [recent.raw]
        assert len(messages_of(member.history)) == 22

        # The second week: what is live comes live. The owner's mailserver gets what it lacks from the other one.
        published = world.folder.data.read_bytes()
        async with TorrentProcess(LOOPBACK) as torrents:
            downloaded = asyncio.Event()

            def stop(step: str, done: int, total: int | None) -> None:
                if step == "importing":  # all is downloaded, and nothing imported
                    task = asyncio.current_task()
                    assert task is not None
                    task.cancel()
                    downloaded.set()

            async with following(world, member, torrents, stop):
                for day in range(1, 7):
                    world.clock.now = week(1).lower + day * DAY_S
                    await world.post(GENERAL, ELSEWHERE, NEWS)
                    await until(lambda: held(member, 1) == world.of_week(1), PATIENCE_S)  # before they expire
                assert await world.fetch_from_far(late.created) == 1
                world.posted.append(late)
                world.clock.now = week(1).upper + SETTLE_S
                assert await world.export() == {2}
                await world.until_announced(pieces=3)
                await asyncio.wait_for(downloaded.wait(), PATIENCE_S)
        assert states(member) == [ArchiveState.IMPORTED, ArchiveState.DOWNLOADED, ArchiveState.DOWNLOADED]
        assert held(member, 0) != world.of_week(0)
        index_bytes = world.folder.index.stat().st_size
        assert await world.uploaded() == 2 * PIECE_BYTES + index_bytes
        async with TorrentProcess(LOOPBACK) as torrents, following(world, member, torrents):
            await until(lambda: states(member) == [ArchiveState.IMPORTED] * 3, PATIENCE_S)
            assert (held(member, 0), held(member, 1)) == (world.of_week(0), world.of_week(1))
            assert len(messages_of(member.history)) == len(world.posted)
            overview = read_overview(member.history)
            assert overview.unarchived == 0
        assert await world.uploaded() == 2 * PIECE_BYTES + index_bytes  # nothing came twice
        assert world.folder.data.read_bytes().startswith(published)

        # Who joins from nothing has the same.
        last = world.member(tmp_path / "last", world.folder)
        async with TorrentProcess(LOOPBACK) as torrents, open_member(last, torrents, world.settings) as newcomer:
            fetched, _ = await newcomer.fetch_once(None, quiet)
        assert fetched == Fetched(downloaded=3, imported=3, messages=len(world.posted))
        assert messages_of(last.history) == messages_of(member.history)

        # And who joins the other community has it opened.
        opened = world.member(tmp_path / "last", world.opened)
        async with TorrentProcess(LOOPBACK) as torrents, open_member(opened, torrents, world.settings) as newcomer:
            fetched, _ = await newcomer.fetch_once(None, quiet)
        assert fetched == Fetched(downloaded=3, imported=3, messages=len(world.posted))
        assert [message[:4] for message in messages_of(opened.history)] == sorted(
            (each.created * NS, each.hash(), content_topic_of(each.topic), world.payloads[each.raw])
            for each in world.posted
        )
