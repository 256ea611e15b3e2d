"""The owner's half of `community serve`: each community of ours is followed, published, announced, and tidied up.

Every few seconds it looks at the folders: commands and the job change them. What goes wrong with one community, or with
its holdings alone, is logged when it is new, is among the `problems`, and is tried again at the next look; the others
go on.
"""

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from mailserver.codec.keys import PrivateKey
from mailserver.communities.deployed_format import opened_by_one_of
from mailserver.communities.index import SPEC
from mailserver.communities.progress import CommunityProgress
from mailserver.communities.ranges import ended_ranges
from mailserver.community.owner.announcing import Announced, Announcer, read_announced
from mailserver.community.owner.folders import CommunityFolder, owned
from mailserver.community.owner.holdings import Holdings, open_holdings
from mailserver.community.owner.progress import owned_progress
from mailserver.community.owner.published_ids import decode_ids
from mailserver.community.owner.publishing import Publisher
from mailserver.community.owner.record import Community, CommunityError
from mailserver.community.owner.removing import Removal
from mailserver.community.owner.sent import SentPieces
from mailserver.errors import DecodeError, StoreError
from mailserver.feed_socket.client import FeedClient
from mailserver.store.arrivals import ArrivalLog, ArrivedEnvelope, OtherStore
from mailserver.store.sqlite.schema import HASH_PREFIX_BYTES
from mailserver.torrents.client import TorrentProcess
from mailserver.torrents.magnet import Address, MagnetLink
from mailserver.torrents.statistics import TorrentTraffic
from mailserver.units import SECONDS_PER_DAY

log = logging.getLogger(__name__)

LOOK_S = 2.0
"""How often the folders and the store are looked at."""

STEP_ENVELOPES = 4000
"""How many envelopes of the store are read at once."""

KEPT_S = 30 * SECONDS_PER_DAY
"""How old holdings become at least (61/STATUS "Storing live messages")."""

REMOVE_EVERY_S = 3600.0
"""How often it is looked for holdings that may go."""


@dataclass(frozen=True, slots=True)
class OwnerSettings:
    """What the settings say.

    `announce_s`: how often a link is announced. `trackers`, `peers`: what links name besides the torrent.
    """

    announce_s: float = 8 * 3600.0
    trackers: tuple[str, ...] = ()
    peers: tuple[Address, ...] = ()


class OwnedCommunity:
    """One community of ours while the service runs.

    `holdings`: None while they cannot be used: what is published is not concerned. `record`: as it was read last.
    `announced`: what was announced last. `not_served`, `not_held`: what is wrong with what is published, and with the
    holdings; "" if nothing is.
    """

    def __init__(self, folder: CommunityFolder, torrents: TorrentProcess, announcer: Announcer) -> None:
        self.folder = folder
        self.holdings: Holdings | None = None
        self.record: Community | None = None
        self.announced: Announced | None = None
        self.not_served = ""
        self.not_held = ""
        self.publisher = Publisher(folder, torrents)
        self._announcer = announcer
        self._key: PrivateKey | None = None
        self._announced_here = False
        self._removed_at: float | None = None
        self._sent = SentPieces()

    @property
    def is_on(self) -> bool:
        """Whether it is switched on, as far as is known."""
        return self.record is not None and self.record.is_enabled

    @property
    def problem(self) -> str:
        """What is wrong; "" if nothing is."""
        return self.not_served or self.not_held

    async def look(self, now: float, settings: OwnerSettings) -> None:
        """Do what is due.

        Args:
            now: Unix seconds.
        Raises:
            CommunityError, StoreError: some of it could not be done.
        """
        self.record = await asyncio.to_thread(self.folder.read)
        if not self.record.is_enabled:
            await self.publisher.stop()
            return
        if self._key is None:
            self.announced = await asyncio.to_thread(read_announced, self.folder.announced)
            self._sent = await asyncio.to_thread(self._read_sent)
            self._key = await asyncio.to_thread(self.folder.read_key)
        if await self.publisher.publish():
            self._removed_at = None
        await self._announce(self._key, now, settings)
        if self._removed_at is None or abs(now - self._removed_at) >= REMOVE_EVERY_S:
            await self._remove_holdings(self.record, now)
            self._removed_at = now
        self._check_heard(self.record, now)

    def _check_heard(self, record: Community, now: float) -> None:
        """Check that the mailserver takes the topics of all channels: what it does not take is in no archive."""
        topics = self._announcer.topics
        if topics is None:
            return
        for channel in record.channels:
            if channel.topic not in topics and (channel.until is None or now < channel.until):
                said = f"channel {channel.name}, topic 0x{channel.topic.hex()}"
                raise CommunityError(f"the mailserver does not take {said}: see its --archive-topics")

    async def progress(self, now: float, traffic: TorrentTraffic) -> CommunityProgress:
        """How far its history is.

        Args:
            now: Unix seconds.
            traffic: of its torrents.
        """
        record, seeded, announced = self.record, self.publisher.seeded, self.announced
        return owned_progress(
            self.folder,
            self.publisher.entries,
            seeded_bytes=0 if seeded is None else seeded.data_bytes,
            announced=announced,
            sent=self._sent,
            is_on=self.is_on,
            late_weeks=0 if record is None or not self.is_on else await self._late_weeks(record, int(now)),
            traffic=traffic,
            problem=self.problem,
        )

    async def note_sent(self, blocks: Mapping[int, int], now: float) -> None:
        """Remember what peers have got from us: how many blocks of each piece of what is seeded.

        Args:
            now: Unix seconds.
        Raises:
            CommunityError: it cannot be written.
        """
        info = self.publisher.seeded
        if not blocks or info is None:
            return
        self._sent.add(blocks, int(now), len(info.data_pieces))
        try:
            await asyncio.to_thread(self._sent.write, self.folder.sent)
        except OSError as error:
            raise CommunityError(f"cannot write {self.folder.sent}: {error.strerror or error}") from error

    def _read_sent(self) -> SentPieces:
        try:
            return SentPieces.read(self.folder.sent)
        except DecodeError as error:
            log.warning("counts of what was sent begin anew community=%s cause=%r", self.folder.path.name, str(error))
            return SentPieces()
        except OSError as error:
            raise CommunityError(f"cannot read {self.folder.sent}: {error.strerror or error}") from error

    async def _late_weeks(self, record: Community, now: int) -> int:
        """How many weeks have ended after the newest archive, or after the community was registered, without one.

        A week without messages has no archive in the format of status-go, so there only those count of which an
        envelope is held.
        """
        entries, holdings = self.publisher.entries, self.holdings
        ended = ended_ranges(max((each.time_range.upper for each in entries), default=record.registered), now)
        if record.format_name == SPEC or holdings is None:
            return len(ended)
        try:
            return sum([await holdings.holds_any(each) for each in ended])
        except StoreError:  # `look` says so
            return len(ended)

    async def _announce(self, key: PrivateKey, now: float, settings: OwnerSettings) -> None:
        info = self.publisher.seeded
        if info is None:
            return
        last = self.announced
        is_due = (
            not self._announced_here  # since the start: members may have missed it while we were away
            or last is None
            or last.info_hash != info.info_hash
            or abs(now - last.posted_at) >= settings.announce_s
        )
        if is_due:
            link = MagnetLink(info.info_hash, info.name, settings.trackers, settings.peers)
            self.announced = await self._announcer.announce(
                self.folder.announced, self.folder.id, key, link.encode(), info.info_hash, info.data_bytes
            )
            self._announced_here = True
            self._removed_at = None

    async def _remove_holdings(self, record: Community, now: float) -> None:
        """Remove what is old, in an archive or in none ever, and distributed: seeded now, and its link was posted."""
        info, announced, holdings = self.publisher.seeded, self.announced, self.holdings
        if info is None or announced is None or announced.info_hash != info.info_hash or holdings is None:
            return
        keys = await asyncio.to_thread(self._published_keys, info.data_bytes)
        removal = await asyncio.to_thread(Removal, record, self.publisher.entries, keys)
        removed = await holdings.remove(int(now - KEPT_S), removal.may_go)
        if removed:
            log.info("holdings removed community=%s envelopes=%d", self.folder.path.name, removed)

    def _published_keys(self, data_bytes: int) -> frozenset[bytes]:
        try:
            archives = decode_ids(self.folder.ids.read_bytes())
        except (FileNotFoundError, DecodeError):  # the next run of the job makes it again
            return frozenset()
        except OSError as error:
            raise CommunityError(f"cannot read {self.folder.ids}: {error.strerror or error}") from error
        return frozenset(
            archive.keys[at : at + HASH_PREFIX_BYTES]
            for archive in archives
            if archive.offset + archive.size <= data_bytes
            for at in range(0, len(archive.keys), HASH_PREFIX_BYTES)
        )


class OwnerService:
    """All communities of ours. `run` has to run, or `look` to be called."""

    def __init__(
        self,
        communities: Path,
        torrents: TorrentProcess,
        feed: FeedClient,
        arrivals: ArrivalLog,
        settings: OwnerSettings,
        wall_clock: Callable[[], float],
    ) -> None:
        self.communities: dict[Path, OwnedCommunity] = {}
        self.problem = ""
        """Why communities cannot be found, or the store cannot be followed; "" if they can."""
        self._folder = communities
        self._torrents = torrents
        self._announcer = Announcer(feed, wall_clock)
        self._arrivals = arrivals
        self._settings = settings
        self._wall_clock = wall_clock
        self._open = contextlib.AsyncExitStack()

    @property
    def problems(self) -> list[str]:
        """What is wrong."""
        return [text for text in (self.problem, *(each.problem for each in self.communities.values())) if text]

    async def run(self) -> None:
        """Serve until cancelled."""
        try:
            while True:
                await self.look()
                await asyncio.sleep(LOOK_S)
        finally:
            await self.close()

    async def look(self) -> None:
        """Do all that is due."""
        now = self._wall_clock()
        problem = await _problem_of(self._find())
        for each in self.communities.values():
            each.not_served = _changed(each.not_served, await _problem_of(each.look(now, self._settings)), each.folder)
        self.problem = _changed(self.problem, problem or await _problem_of(self._follow()))

    async def close(self) -> None:
        """Close what is open. What is seeded ends with the torrent process."""
        await self._open.aclose()

    async def _find(self) -> None:
        """Take up communities that are new."""
        for folder in await asyncio.to_thread(lambda: [*owned(self._folder)]):
            if folder.path not in self.communities:
                each = OwnedCommunity(folder, self._torrents, self._announcer)
                await self._hold(each, self._open_holdings(each))
                self.communities[folder.path] = each
                log.info("community served community=%s", folder.path.name)

    async def _open_holdings(self, each: OwnedCommunity) -> None:
        each.holdings = await self._open.enter_async_context(open_holdings(each.folder.holdings))

    async def _hold(self, each: OwnedCommunity, work: Awaitable[object]) -> bool:
        """Do something with the holdings of a community; whether that has failed."""
        problem = await _problem_of(work)
        if problem:
            each.not_held = _changed(each.not_held, problem, each.folder)
        return bool(problem)

    async def _follow(self) -> None:
        """Put what has arrived in the store into the holdings of all communities that are on.

        Holdings that fail are left alone until the next look. The others do not wait for them.
        """
        failed = {
            each
            for each in self.communities.values()
            if each.holdings is None and await self._hold(each, self._open_holdings(each))
        }
        while await self._follow_step(failed):
            pass
        for each in self.communities.values():
            if each not in failed:
                each.not_held = ""

    async def _follow_step(self, failed: set[OwnedCommunity]) -> bool:
        """Read the store once, from where the last of them is; return whether there may be more."""
        followed = {
            each: each.holdings
            for each in self.communities.values()
            if each.is_on and each.holdings is not None and each not in failed
        }
        if not followed:
            return False
        identity = next(iter(followed.values())).progress.identity
        of_store = {each: held for each, held in followed.items() if held.progress.identity == identity}
        behind = min(held.progress.arrival for held in of_store.values())
        try:
            arrived = await self._arrivals.after(behind, STEP_ENVELOPES, of=identity)
        except OtherStore as error:
            for each, held in of_store.items():
                log.info("holdings follow a new store community=%s", each.folder.path.name)
                if await self._hold(each, held.begin_anew(error.identity)):
                    failed.add(each)
            return True
        for each, held in followed.items():
            # Those not `of_store` are of the store that was there before.
            if each not in of_store and await self._hold(each, held.begin_anew(identity)):
                failed.add(each)
        envelopes, damaged = await asyncio.to_thread(arrived.decode)
        if damaged:
            log.warning("damaged envelopes are not held envelopes=%d", damaged)
        now = int(self._wall_clock())
        for each, held in of_store.items():
            if held.progress.arrival < arrived.end:
                assert each.record is not None, "it is on"
                of_it = await asyncio.to_thread(_messages_of, each.record, envelopes)
                if await self._hold(each, held.take(of_it, arrived.end, each.record.topics, now)):
                    failed.add(each)
        return arrived.end > behind or len(of_store) < len(followed)


async def _problem_of(work: Awaitable[object]) -> str:
    """Why something could not be done; "" if it could."""
    try:
        await work
    except (CommunityError, StoreError) as error:
        return str(error)
    return ""


def _changed(before: str, now: str, folder: CommunityFolder | None = None) -> str:
    """The problem that there is now; it is logged when it is new."""
    if now and now != before:
        log.error("community not served community=%s error=%r", "-" if folder is None else folder.path.name, now)
    return now


def _messages_of(community: Community, arrived: Sequence[ArrivedEnvelope]) -> Sequence[ArrivedEnvelope]:
    """Those that may be messages of a community. In the format of status-go these are the ones that a key of their
    channel opens: no other is ever archived, and anybody may post on its topics."""
    if community.format_name == SPEC:
        return arrived
    keys = community.keys
    return [each for each in arrived if opened_by_one_of(keys.get(each.envelope.topic, ()), each.envelope) is not None]
