"""The member's half of `community serve`, and `community fetch`: the work for the communities that were joined."""

import asyncio
import contextlib
import logging
import time
from dataclasses import dataclass, field
from pathlib import Path

from mailserver.app.communities_config import CommunitiesConfig
from mailserver.app.wiring import CLIENT_ID
from mailserver.codec.keys import Enode
from mailserver.communities.channels import id_text
from mailserver.community.member.fetching import Fetched, OnProgress
from mailserver.community.member.following import Member, MemberSettings, open_member
from mailserver.community.member.joined import MemberFolder, MembershipError, memberships
from mailserver.data_dir.folder import read_enode
from mailserver.errors import StartupError, StoreError
from mailserver.torrents.client import TorrentProcess
from mailserver.waku.payload import key_from_password

log = logging.getLogger(__name__)

LOOK_INTERVAL_S = 10.0
"""How often to look for communities that were joined, or whose record was changed."""

PAUSE_S = 60.0
"""How long to leave a community alone whose files cannot be used."""


@dataclass(slots=True)
class Followed:
    """What is followed now. `members`: while their files are open. `problems`: why others are not."""

    members: dict[MemberFolder, Member] = field(default_factory=dict)
    problems: dict[MemberFolder, str] = field(default_factory=dict)


async def run_members(config: CommunitiesConfig, torrents: TorrentProcess, followed: Followed) -> None:
    """Work for all communities that were joined, and those that are joined meanwhile. Only cancelling ends this.

    Args:
        torrents: shared with the owner's half.
        followed: kept up to date.
    """
    settings = await member_settings(config)
    running: dict[MemberFolder, tuple[int, asyncio.Task[None]]] = {}
    problem = ""
    async with asyncio.TaskGroup() as group:
        while True:
            try:
                there = await asyncio.to_thread(_joined, config.data_dir)
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
                    followed.problems.pop(folder, None)
            for folder, changed in there.items():
                if folder not in running:
                    running[folder] = changed, group.create_task(_keep_following(folder, torrents, settings, followed))
            await asyncio.sleep(LOOK_INTERVAL_S)


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
    settings = await member_settings(config)
    async with TorrentProcess(config.torrents) as torrents, open_member(folder, torrents, settings) as member:
        return await member.fetch_once(uri, on_progress)


async def member_settings(config: CommunitiesConfig) -> MemberSettings:
    """What is the same for all members of a process."""
    return MemberSettings(
        mailservers=await asyncio.to_thread(_own_mailserver, config.data_dir),
        password_key=await asyncio.to_thread(key_from_password, config.password),
        network_topic=config.network_topic,
        client_id=CLIENT_ID,
        wall_clock=time.time,
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


async def _keep_following(
    folder: MemberFolder, torrents: TorrentProcess, settings: MemberSettings, followed: Followed
) -> None:
    while True:
        try:
            async with open_member(folder, torrents, settings) as member:
                log.info("following community=%s", id_text(folder.community))
                followed.members[folder] = member
                followed.problems.pop(folder, None)
                await member.follow(lambda step, done, total: None)
        except* (MembershipError, StoreError) as errors:
            cause = str(_first(errors))
            if cause != followed.problems.get(folder):
                log.error("community not followed community=%s error=%r", id_text(folder.community), cause)
            followed.problems[folder] = cause
        finally:
            followed.members.pop(folder, None)
        await asyncio.sleep(PAUSE_S)


def _first(errors: BaseExceptionGroup[BaseException]) -> BaseException:
    """The first error of a group; all of one group have the same cause, as a rule."""
    error: BaseException = errors
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error
