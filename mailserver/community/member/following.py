"""A member of one community at work: mailservers in, links and messages sorted out, the newest link fetched.

A link that is newer ends the download of the one before: the pieces that came are the same in its torrent. If a link
brings nothing, the next one is waited for, and the same one is tried again now and then, in case its seeds were away.
"""

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass

from mailserver.client.sealing import open_envelope
from mailserver.codec.keys import Enode
from mailserver.communities.channels import id_text
from mailserver.communities.links import AnnouncedLink, ForeignLink, NewestLink, open_link
from mailserver.community.member.fetching import CannotFetch, Fetched, Fetcher, OnProgress
from mailserver.community.member.history import MemberHistory, open_history
from mailserver.community.member.joined import Joined, MemberFolder, MembershipError
from mailserver.community.member.mailserver import FAILURES, Mailserver
from mailserver.community.member.records import HistoryMessage
from mailserver.errors import DecodeError, StoreError
from mailserver.ids.envelopes import message_of
from mailserver.ids.muid import NoId
from mailserver.mail.request import MAX_REQUEST_TOPICS
from mailserver.torrents.client import TorrentProcess
from mailserver.waku.acceptance import MAX_AHEAD_S
from mailserver.waku.envelope import Envelope, Topic

log = logging.getLogger(__name__)

RETRY_S = 1800.0
"""How long after a failure a link is tried again."""

MAX_GIVEN = 16
"""How many links that were given by hand wait at most to be tried."""

TURN_S = 0.01
"""After so long, others go on before the next envelope is opened. Anybody may post in the special channel, and a page
may have 4,000 links of foreigners, each with two signatures."""

MAX_CLOCK_AHEAD_MS = 86_400_000
"""How far ahead the clock of a link may be: one from the far future would hide all links that follow."""


@dataclass(frozen=True, slots=True)
class MemberSettings:
    """What is the same for all communities of a process.

    `mailservers`: whom to ask for a community that names none. `password_key`: what requests are sealed with.
    """

    mailservers: tuple[Enode, ...]
    password_key: bytes
    network_topic: str
    client_id: str
    wall_clock: Callable[[], float]


class Member:
    """The work for one community. Made by `open_member`; `follow` does it on and on, `fetch_once` once."""

    def __init__(self, joined: Joined, history: MemberHistory, fetcher: Fetcher, settings: MemberSettings) -> None:
        self._joined = joined
        self._history = history
        self._fetcher = fetcher
        self._settings = settings
        self._name = id_text(joined.community)
        self._special = joined.special
        self._newest = NewestLink()
        self._changed = asyncio.Event()
        self._listed = asyncio.Event()
        self._given: deque[str] = deque()
        self._is_asked = False
        self._others_went_on = 0.0
        self._finished: AnnouncedLink | None = None
        self.ignored = 0
        """Messages of the special channel that the community has not signed."""

    @property
    def info_hash(self) -> bytes | None:
        """Of the torrent that is fetched, or offered to peers; None if there is none."""
        torrent = self._fetcher.torrent
        return None if torrent is None else torrent.info_hash

    def offered(self) -> set[int] | None:
        """Which pieces of its torrent peers get from us: see `Fetcher.offered`."""
        return self._fetcher.offered()

    async def follow(self, on_progress: OnProgress) -> None:
        """Ask mailservers, listen to them, and fetch. Only cancelling ends this.

        Raises:
            StoreError: the history cannot be read.
        """
        await self._resume()
        link = (await self._history.known()).link
        self._newest = NewestLink(link)
        async with asyncio.TaskGroup() as group:
            group.create_task(self._follow_mailservers())
            await self._fetch_newest(link, on_progress)

    async def fetch_once(self, uri: str | None, on_progress: OnProgress) -> tuple[Fetched, list[str]]:
        """Ask each mailserver once, and fetch the newest link; return what came, and which mailservers failed.

        Args:
            uri: fetch this link, and ask no mailserver.
        Raises:
            CannotFetch: not all came, or there is no link.
            StoreError: the history cannot be read or written.
        """
        fetched, failed = await self._resume(), list[str]()
        if uri is None:
            on_progress("asking mailservers", 0, None)
            failed = await self._ask_once(await self._topics())
            uri = await self._newest_uri(on_progress)
        return fetched + await self._fetcher.fetch(uri, on_progress), failed

    def fetch_now(self, uri: str | None = None) -> None:
        """Let `follow` try the newest link at once, though it has failed a while ago, or was fetched.

        Args:
            uri: a link to be tried before, once, whoever has given it.
        Raises:
            MembershipError: MAX_GIVEN links wait already.
        """
        if uri is None:
            self._finished = None
        elif uri not in self._given:
            if len(self._given) >= MAX_GIVEN:
                raise MembershipError(f"{MAX_GIVEN} links wait already to be tried")
            self._given.append(uri)
        self._is_asked = True
        self._changed.set()

    async def take(self, envelopes: Sequence[Envelope]) -> None:
        """Take what mailservers send: links, and messages of channels.

        Raises:
            StoreError: it cannot be kept.
        """
        messages = []
        latest = self._settings.wall_clock() + MAX_AHEAD_S
        for envelope in envelopes:
            await self._let_others_go_on()
            if envelope.topic == self._special.topic:
                await self._take_link(envelope)
            elif envelope.created <= latest:
                with contextlib.suppress(NoId):
                    messages.append(self._message(envelope))
        if messages:
            await self._history.put_recent(messages)

    async def _let_others_go_on(self) -> None:
        """Wait a turn, if they had none for TURN_S: live envelopes come one by one, and may come without end."""
        now = asyncio.get_running_loop().time
        if now() - self._others_went_on >= TURN_S:
            await asyncio.sleep(0)
            self._others_went_on = now()

    async def _resume(self) -> Fetched:
        fetched = await self._fetcher.resume()
        if fetched.imported:
            log.info(
                "history imported community=%s archives=%d messages=%d",
                self._name,
                fetched.imported,
                fetched.messages,
            )
        return fetched

    async def _topics(self) -> frozenset[Topic]:
        """What to ask mailservers for: the channels that were named, and those that archives list."""
        listed = await self._history.listed_topics(MAX_REQUEST_TOPICS)
        topics = dict.fromkeys([self._special.topic, *self._joined.topics, *listed])
        return frozenset([*topics][:MAX_REQUEST_TOPICS])

    def _mailservers(self, topics: frozenset[Topic]) -> list[Mailserver]:
        settings = self._settings
        return [
            Mailserver(
                enode,
                topics,
                settings.password_key,
                settings.client_id,
                self._history,
                self.take,
                settings.wall_clock,
            )
            for enode in self._joined.mailservers or settings.mailservers
        ]

    async def _follow_mailservers(self) -> None:
        """Follow all mailservers; begin anew when archives list other channels than before."""
        while True:
            topics = await self._topics()
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(mailserver.follow()) for mailserver in self._mailservers(topics)]
                while True:
                    self._listed.clear()
                    if not await self._topics() <= topics:
                        break
                    await self._listed.wait()
                for task in tasks:
                    task.cancel()

    async def _ask_once(self, topics: frozenset[Topic]) -> list[str]:
        mailservers = self._mailservers(topics)
        results = await asyncio.gather(*(mailserver.ask_once() for mailserver in mailservers), return_exceptions=True)
        failed = []
        for mailserver, result in zip(mailservers, results, strict=True):
            if isinstance(result, FAILURES):
                failed.append(f"{mailserver.enode.host}:{mailserver.enode.port}: {result}")
            elif isinstance(result, BaseException):
                raise result
        return failed

    async def _newest_uri(self, on_progress: OnProgress) -> str:
        """Wait until no other link can be expected; the one that was known before counts, too."""
        on_progress("waiting for later links", 0, None)
        while self._newest.next_timer() is not None:
            self._changed.clear()
            await self._until_due()
            self._newest.handle_timer(asyncio.get_running_loop().time())
        link = (await self._history.known()).link
        if link is None:
            raise CannotFetch("no mailserver has a magnet link of this community", is_final=False)
        return link.uri

    async def _fetch_newest(self, link: AnnouncedLink | None, on_progress: OnProgress) -> None:
        """Fetch the newest link, whenever there is one, and whenever that is asked for."""
        loop = asyncio.get_running_loop()
        async with asyncio.TaskGroup() as group:
            task = group.create_task(self._keep_fetching(link, on_progress))
            while True:
                self._changed.clear()
                await self._until_due()
                newest = self._newest.handle_timer(loop.time())
                if newest is None and not self._is_asked:
                    continue
                link, self._is_asked = newest or link, False
                task.cancel()
                await asyncio.wait([task])
                task = group.create_task(self._keep_fetching(link, on_progress))

    async def _until_due(self) -> None:
        """Wait until the wait for other links is over, or there are others."""
        due = self._newest.next_timer()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout_at(due):
                await self._changed.wait()

    async def _keep_fetching(self, link: AnnouncedLink | None, on_progress: OnProgress) -> None:
        """Try the links that were given once each, and then the newest one until it is fetched, or cannot be used."""
        while self._given:
            with contextlib.suppress(CannotFetch):
                await self._fetch(self._given[0], on_progress)
            self._given.popleft()  # not before: if a newer link cancels this, it is tried again
        while link is not None and link != self._finished:
            try:
                await self._fetch(link.uri, on_progress)
                self._finished = link
            except CannotFetch as error:
                if error.is_final:
                    self._finished = link
                else:
                    await asyncio.sleep(RETRY_S)

    async def _fetch(self, uri: str, on_progress: OnProgress) -> None:
        """Try a link.

        Raises:
            CannotFetch: not all came, or it could not be written.
        """
        try:
            fetched = await self._fetcher.fetch(uri, on_progress)
        except StoreError as error:
            log.error("history cannot be written community=%s error=%r", self._name, str(error))
            raise CannotFetch(str(error), is_final=False) from error
        finally:
            self._listed.set()
        log.info(
            "history fetched community=%s downloaded=%d imported=%d messages=%d refused=%d",
            self._name,
            fetched.downloaded,
            fetched.imported,
            fetched.messages,
            fetched.refused,
        )

    async def _take_link(self, envelope: Envelope) -> None:
        assert self._special.key is not None, "it is a public chat"
        now = self._settings.wall_clock()
        try:
            link = open_link(open_envelope(envelope, self._special.key).payload, self._joined.community)
            if link.clock > now * 1000 + MAX_CLOCK_AHEAD_MS:
                raise ForeignLink("magnet link is of the far future", got=link.clock)
        except DecodeError as error:
            self.ignored += 1
            log.debug("message of a special channel ignored community=%s cause=%r", self._name, str(error))
            return
        await self._history.note_link(link, int(now))
        if self._newest.receive(link, asyncio.get_running_loop().time()):
            log.info("magnet link received community=%s clock=%d", self._name, link.clock)
        self._changed.set()

    def _message(self, envelope: Envelope) -> HistoryMessage:
        """What history keeps of an envelope: no wrapper, and still sealed.

        Raises:
            NoId: it was created before 1970 began.
        """
        message = message_of(envelope)
        assert message.timestamp is not None, "an envelope says when it was created"
        return HistoryMessage(
            message.timestamp,
            message.hash(self._settings.network_topic),
            message.content_topic,
            message.payload,
            meta=message.meta,
            version=message.version,
        )


@contextlib.asynccontextmanager
async def open_member(
    folder: MemberFolder, torrents: TorrentProcess, settings: MemberSettings
) -> AsyncIterator[Member]:
    """Take up the work for a community that was joined. At the end, its torrent is left.

    Raises:
        CommunityBusy: another process does it.
        MembershipError: it was not joined, or what was said cannot be read.
        StoreError: its history cannot be opened.
    """
    with folder.locked():  # first: it may be left and deleted meanwhile
        joined = await asyncio.to_thread(folder.read)
        async with open_history(folder.history) as history:
            fetcher = Fetcher(
                id_text(folder.community),
                folder.path,
                history,
                torrents,
                joined.choice,
                settings.network_topic,
                settings.wall_clock,
            )
            member = await asyncio.to_thread(Member, joined, history, fetcher, settings)
            try:
                yield member
            finally:
                await fetcher.leave()
