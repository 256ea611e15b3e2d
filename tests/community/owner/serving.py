"""The owner's service on a daemon's feed socket and store, with a torrent process on loopback and a clock by hand."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

from mailserver.client.sealing import open_envelope
from mailserver.communities.channels import special_channel
from mailserver.communities.links import AnnouncedLink, open_link
from mailserver.community.folder import COMMUNITIES_FOLDER
from mailserver.community.owner.appending import append, read_made
from mailserver.community.owner.folders import CommunityFolder
from mailserver.community.owner.service import OwnedCommunity, OwnerService, OwnerSettings
from mailserver.feed_socket.client import FeedClient
from mailserver.torrents import magnet
from mailserver.torrents.client import TorrentProcess
from mailserver.waku.envelope import Envelope, decode_envelope
from tests.community.owner.samples import archives_of
from tests.feed_socket.worlds import World
from tests.mailservers import Clock
from tests.torrents.processes import OWNER, process_on
from tests.waiting import until


@dataclass
class Serving:
    """What runs. `heard`: every envelope that the daemon has accepted."""

    feed: FeedClient
    world: World
    owners: OwnerService
    torrents: TorrentProcess
    heard: list[Envelope]

    def links(self, folder: CommunityFolder) -> list[AnnouncedLink]:
        """The links that were announced in a community's special channel, in order."""
        channel = special_channel(folder.id)
        assert channel.key is not None
        return [
            open_link(open_envelope(each, channel.key).payload, folder.id)
            for each in self.heard
            if each.topic == channel.topic
        ]

    async def until_announced(self, folder: CommunityFolder, count: int) -> list[AnnouncedLink]:
        """Look until so many links of a community were heard."""
        await self.owners.look()
        await until(lambda: len(self.links(folder)) >= count)
        assert len(self.links(folder)) == count
        return self.links(folder)

    async def seeded(self) -> list[bytes]:
        """The info hashes of what is seeded."""
        return [each.info_hash for each in (await self.torrents.statistics()).torrents]


def communities_of(world: World) -> Path:
    """Where the communities of its data directory are."""
    return world.folder / COMMUNITIES_FOLDER


def make_week(folder: CommunityFolder, number: int, *envelopes: Envelope) -> None:
    """What the job does at the end of a week."""
    community = folder.read()
    made = read_made(folder, community.format)
    append(folder, community.format, made, archives_of(community, number, *envelopes))


async def held_by(owned: OwnedCommunity) -> int:
    """How many envelopes a community holds."""
    assert owned.holdings is not None
    return await owned.holdings.count()


def info_hash_of(link: AnnouncedLink) -> bytes:
    """The torrent that a link names."""
    return magnet.MagnetLink.decode(link.uri).info_hash


@contextlib.asynccontextmanager
async def serving(world: World, clock: Clock, settings: OwnerSettings | None = None) -> AsyncIterator[Serving]:
    """The owner's service, connected; the test calls `owners.look`."""
    feed = FeedClient(world.folder)
    heard: list[Envelope] = []

    async def hear() -> None:
        while True:
            batch = await feed.next()
            if isinstance(batch, tuple):
                heard.extend(decode_envelope(each.raw) for each in batch)

    tasks = [asyncio.create_task(feed.run()), asyncio.create_task(hear())]
    try:
        await until(lambda: feed.terms is not None)
        async with (
            world.engine.follow() as arrivals,
            process_on(OWNER) as torrents,
        ):
            owners = OwnerService(communities_of(world), torrents, feed, arrivals, settings or OwnerSettings(), clock)
            try:
                yield Serving(feed, world, owners, torrents, heard)
            finally:
                await owners.close()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
