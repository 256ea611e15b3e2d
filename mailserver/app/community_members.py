"""The member's half of `community serve`, and `community fetch`: the work for the communities that were joined."""

import asyncio
import contextlib
import logging
import time
from pathlib import Path

from mailserver.app.client_id import CLIENT_ID
from mailserver.app.communities_config import CommunitiesConfig
from mailserver.codec.keys import Enode
from mailserver.communities.channels import CommunityId, id_text
from mailserver.community.member.fetching import Fetched, OnProgress
from mailserver.community.member.following import Member, MemberSettings, open_member
from mailserver.community.member.joined import MemberFolder, MembershipError, memberships
from mailserver.community.member.leaving import finish_all
from mailserver.data_dir.folder import read_enode
from mailserver.errors import StartupError, StoreError
from mailserver.live.intake import Clock
from mailserver.torrents.client import TorrentProcess
from mailserver.waku.payload import key_from_password

log = logging.getLogger(__name__)

LOOK_INTERVAL_S = 10.0
"""How often to look for communities that were joined, or whose record was changed."""

PAUSE_S = 60.0
"""How long to leave a community alone whose files cannot be used."""


class Members:
    """The communities that were joined, while `run` runs.

    `members` are those whose files are open, `problems` says why others are not followed. `problem`: why the files of
    communities that were left are still there; "" if they are not.

    Args:
        torrents: shared with the owner's half.
        clock: the present, Unix seconds.
    """

    def __init__(self, config: CommunitiesConfig, torrents: TorrentProcess, clock: Clock) -> None:
        self._config = config
        self._torrents = torrents
        self._clock = clock
        self.members: dict[MemberFolder, Member] = {}
        self.problems: dict[MemberFolder, str] = {}
        self.problem = ""

    async def run(self) -> None:
        """Work for all communities that were joined, and those that are joined meanwhile. Only cancelling ends this."""
        settings = await member_settings(self._config, self._clock)
        running: dict[MemberFolder, tuple[int, asyncio.Task[None]]] = {}
        problem = ""
        async with asyncio.TaskGroup() as group:
            while True:
                try:
                    there = await asyncio.to_thread(_joined, self._config.data_dir)
                    problem = ""
                except MembershipError as error:
                    if str(error) != problem:
                        log.error("communities cannot be read error=%r", str(error))
                    problem, there = str(error), {folder: changed for folder, (changed, _) in running.items()}
                for folder, (changed, task) in [*running.items()]:
                    if there.get(folder) != changed:
                        task.cancel()
                        await asyncio.wait([task])
                        del running[folder]
                        self.problems.pop(folder, None)
                for folder, changed in there.items():
                    if folder not in running:
                        running[folder] = changed, group.create_task(self._keep_following(folder, settings))
                await self._finish_leaving()
                await asyncio.sleep(LOOK_INTERVAL_S)

    async def _finish_leaving(self) -> None:
        """Remove what is not kept of communities that were left, at any time."""
        try:
            done = await asyncio.to_thread(finish_all, self._config.data_dir)
        except MembershipError as error:
            if str(error) != self.problem:
                log.error("files of communities not removed error=%r", str(error))
            self.problem = str(error)
            return
        self.problem = ""
        for folder in done:
            log.info("community left community=%s", id_text(folder.community))

    def fetch_now(self, community: CommunityId, uri: str | None) -> None:
        """Have a history fetched now: see `Member.fetch_now`.

        Raises:
            MembershipError: nobody works for this community.
        """
        member = next((each for folder, each in self.members.items() if folder.community == community), None)
        if member is None:
            raise MembershipError(
                f"community {id_text(community)} is not followed: it was not joined, or not {LOOK_INTERVAL_S:g} s ago, "
                "or its files cannot be used"
            )
        member.fetch_now(uri)

    async def _keep_following(self, folder: MemberFolder, settings: MemberSettings) -> None:
        while True:
            try:
                async with open_member(folder, self._torrents, settings) as member:
                    log.info("following community=%s", id_text(folder.community))
                    self.members[folder] = member
                    self.problems.pop(folder, None)
                    await member.follow(lambda step, done, total: None)
            except* (MembershipError, StoreError) as errors:
                cause = str(_first(errors))
                if cause != self.problems.get(folder):
                    log.error("community not followed community=%s error=%r", id_text(folder.community), cause)
                self.problems[folder] = cause
            finally:
                self.members.pop(folder, None)
            await asyncio.sleep(PAUSE_S)


async def fetch_community(
    config: CommunitiesConfig, folder: MemberFolder, uri: str | None, on_progress: OnProgress
) -> tuple[Fetched, list[str]]:
    """Fetch the history of one community once: see `Member.fetch_once`.

    Raises:
        CannotFetch: not all came.
        CommunityBusy: `community serve` does it.
        MembershipError: it was not joined.
        StartupError: the torrent process cannot start.
        StoreError: the history cannot be read or written.
    """
    settings = await member_settings(config, time.time)
    async with TorrentProcess(config.torrents) as torrents, open_member(folder, torrents, settings) as member:
        return await member.fetch_once(uri, on_progress)


async def member_settings(config: CommunitiesConfig, clock: Clock) -> MemberSettings:
    """What is the same for all members of a process."""
    return MemberSettings(
        mailservers=await asyncio.to_thread(_own_mailserver, config.data_dir),
        password_key=await asyncio.to_thread(key_from_password, config.password),
        network_topic=config.network_topic,
        client_id=CLIENT_ID,
        wall_clock=clock,
    )


def _own_mailserver(data_dir: Path) -> tuple[Enode, ...]:
    """The mailserver of this data directory, if it has ever been run."""
    try:
        return (read_enode(data_dir),)
    except StartupError:
        return ()


def _joined(data_dir: Path) -> dict[MemberFolder, int]:
    """The communities that were joined, and when what was said of each was written, in nanoseconds."""
    found = {}
    for folder in memberships(data_dir):
        with contextlib.suppress(FileNotFoundError):  # it was just left
            found[folder] = folder.record.stat().st_mtime_ns
    return found


def _first(errors: BaseExceptionGroup[BaseException]) -> BaseException:
    """The first error of a group; all of one group have the same cause, as a rule."""
    error: BaseException = errors
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error
