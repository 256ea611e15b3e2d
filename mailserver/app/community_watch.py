"""Looks at what `community serve` does, every few seconds, and keeps what it saw: for metrics, health, and the daemon.

So an answer costs next to nothing, and nobody can make us read the disk by asking often.
"""

import asyncio
import contextlib
import logging
from pathlib import Path

from mailserver.app.community_members import Members
from mailserver.communities.channels import id_text
from mailserver.communities.progress import CommunityProgress
from mailserver.community.member.following import Member
from mailserver.community.member.history import read_known
from mailserver.community.member.joined import MemberFolder
from mailserver.community.member.progress import joined_progress
from mailserver.community.member.records import KnownHistory
from mailserver.community.owner.record import CommunityError
from mailserver.community.owner.service import OwnedCommunity, OwnerService
from mailserver.errors import StoreError
from mailserver.feed_socket.client import FeedClient
from mailserver.handoff.communities import write_served
from mailserver.live.intake import Clock
from mailserver.metrics.communities import ServiceFigures
from mailserver.torrents.client import TorrentProcess
from mailserver.torrents.statistics import Statistics, TorrentTraffic

log = logging.getLogger(__name__)

LOOK_INTERVAL_S = 15.0
"""Time from the end of one look to the start of the next. Prometheus asks as often or less."""

FIRST_LOOK_S = 2.0
"""When to look first: by then there is something to see."""

ANSWER_S = 10.0
"""How long the torrent process may take to say what it does: less than it takes to start it again, at times."""


class CommunityWatch:
    """Looks repeatedly. `figures` is what it last saw."""

    def __init__(
        self,
        folder: Path,
        torrents: TorrentProcess,
        owners: OwnerService,
        members: Members,
        feed: FeedClient,
        announce_s: float,
        clock: Clock,
    ) -> None:
        """Take what to look at.

        Args:
            folder: of the communities, where the record for the daemon is written.
        """
        self._folder = folder
        self._torrents = torrents
        self._owners = owners
        self._members = members
        self._feed = feed
        self._announce_s = announce_s
        self._clock = clock
        self._traffic: dict[str, TorrentTraffic] = {}
        self._problem = ""
        self._sending: set[OwnedCommunity] = set()
        self._not_counted: dict[str, str] = {}
        self._communities: tuple[CommunityProgress, ...] = ()
        self._memory_bytes = 0

    async def run(self) -> None:
        """Look until cancelled."""
        await asyncio.sleep(FIRST_LOOK_S)
        while True:
            await self.look()
            await asyncio.sleep(LOOK_INTERVAL_S)

    async def look(self) -> None:
        """Look once."""
        statistics = await self._statistics()
        self._memory_bytes = 0 if statistics is None else statistics.memory_bytes
        now = self._clock()
        owned = [await self._owned(each, statistics, now) for _, each in sorted(self._owners.communities.items())]
        joined = [
            await self._joined(folder, member, statistics)
            for folder, member in sorted(self._members.members.items(), key=lambda item: item[0].path)
        ]
        self._communities = (*owned, *joined)
        try:
            await asyncio.to_thread(write_served, self._folder, self._communities, now)
        except OSError as error:
            problem = f"cannot write {error.filename or self._folder}: {error.strerror or error}"
            if problem != self._problem:
                log.error("state of communities not written error=%r", problem)
            self._problem = problem
        else:
            self._problem = ""

    def figures(self) -> ServiceFigures:
        """What was last seen, for Prometheus."""
        return ServiceFigures(
            communities=self._communities,
            is_connected=self._feed.terms is not None,
            announce_s=self._announce_s,
            torrent_restarts=self._torrents.restarts,
            torrent_memory_bytes=self._memory_bytes,
        )

    def problems(self) -> list[str]:
        """Why the service cannot do all of its work now."""
        problems = [] if self._feed.terms is not None else ["the mailserver is not connected: nothing is announced"]
        not_followed = [f"{id_text(folder.community)}: {text}" for folder, text in self._members.problems.items()]
        others = [text for text in (self._members.problem, self._problem) if text]
        return problems + self._owners.problems + not_followed + others

    async def _statistics(self) -> Statistics | None:
        """What the torrent process does; None while it is being started again."""
        try:
            async with asyncio.timeout(ANSWER_S):
                return await self._torrents.statistics()
        except TimeoutError:
            return None

    async def _owned(self, each: OwnedCommunity, statistics: Statistics | None, now: float) -> CommunityProgress:
        seeded, traffic = each.publisher.seeded, self._traffic.get(each.folder.path.name)
        before = 0 if traffic is None else traffic.uploaded_bytes
        traffic = self._seen(each.folder.path.name, statistics, None if seeded is None else seeded.info_hash)
        is_sending = traffic.uploaded_bytes > before
        # Once more after the last of it was sent: libtorrent tells of it a moment later.
        if seeded is not None and (is_sending or each in self._sending):
            await self._note_sent(each, seeded.info_hash, now)
        (self._sending.add if is_sending else self._sending.discard)(each)
        return await each.progress(now, traffic)

    async def _note_sent(self, each: OwnedCommunity, info_hash: bytes, now: float) -> None:
        """Have what peers got since the last look counted by piece."""
        name, problem = each.folder.path.name, ""
        with contextlib.suppress(TimeoutError):  # it is being started again: that is not known any more
            async with asyncio.timeout(ANSWER_S):
                blocks = await self._torrents.sent(info_hash)
            try:
                await each.note_sent(blocks, now)
            except CommunityError as error:
                problem = str(error)
        if problem and problem != self._not_counted.get(name):
            log.error("what was sent is not counted community=%s error=%r", name, problem)
        self._not_counted[name] = problem

    async def _joined(self, folder: MemberFolder, member: Member, statistics: Statistics | None) -> CommunityProgress:
        traffic = self._seen(id_text(folder.community), statistics, member.info_hash)
        try:
            known = await asyncio.to_thread(read_known, folder.history)
            problem = known.problem or ""
        except StoreError as error:
            known, problem = KnownHistory((), None, None, None), str(error)
        try:
            offered = await asyncio.to_thread(member.offered)
        except OSError as error:
            offered, problem = None, f"cannot read {error.filename or folder.path}: {error.strerror or error}"
        return await asyncio.to_thread(  # an index may list 20,000 archives
            joined_progress,
            folder.community,
            known.archives,
            link=known.link,
            offered=offered,
            traffic=traffic,
            problem=problem,
        )

    def _seen(self, community: str, statistics: Statistics | None, info_hash: bytes | None) -> TorrentTraffic:
        traffic = self._traffic.setdefault(community, TorrentTraffic())
        traffic.see(() if statistics is None else statistics.torrents, info_hash)
        return traffic
