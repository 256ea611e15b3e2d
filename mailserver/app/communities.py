"""`community serve`: one process for all communities of a data directory, of which we are owner or member.

It reads the daemon's store, and posts through the feed socket. When the daemon is down, torrents are seeded and fetched
all the same. BitTorrent is in a process of its own, which both halves share.
"""

import asyncio
import contextlib
import logging
import os
import platform
import signal
import time
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from mailserver import __version__
from mailserver.api.communities import COMMUNITY_ERRORS, CommunityMethods
from mailserver.app.communities_config import CommunitiesConfig
from mailserver.app.community_members import Members
from mailserver.app.community_watch import CommunityWatch
from mailserver.app.process import background, raise_file_limit
from mailserver.app.rpc import serve_rpc
from mailserver.app.service_monitor import monitored
from mailserver.community.folder import COMMUNITIES_FOLDER, make_communities_folder
from mailserver.community.owner.service import OwnerService, OwnerSettings
from mailserver.data_dir.folder import DataDirInUse
from mailserver.data_dir.own_store import follow_own_store
from mailserver.errors import StartupError
from mailserver.feed_socket.client import FeedClient
from mailserver.feed_socket.frames import Role
from mailserver.files import open_descriptor, read_holder, try_lock, write_holder
from mailserver.live.intake import Clock
from mailserver.metrics.communities import communities_registry
from mailserver.torrents.client import TorrentProcess

log = logging.getLogger(__name__)

LOCK_FILE = "serve.lock"

_SECONDS_PER_HOUR = 3600


@dataclass(frozen=True, slots=True)
class Serving:
    """What runs: the owner's half, and the torrent process that both halves share.

    `rpc_port`: of JSON-RPC; None if that is off.
    """

    owners: OwnerService
    torrents: TorrentProcess
    rpc_port: int | None


async def run_communities(config: CommunitiesConfig) -> None:
    """Run until SIGTERM or SIGINT.

    Raises:
        StartupError: the folder is in use or cannot be written, or the torrent process cannot start.
    """
    raise_file_limit()
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    async with serve_communities(config, time.time, failed=stop.set):
        await stop.wait()
        log.info("stopping")
    log.info("stopped")


@contextlib.asynccontextmanager
async def serve_communities(
    config: CommunitiesConfig, clock: Clock, failed: Callable[[], None]
) -> AsyncIterator[Serving]:
    """Serve all communities as long as the context is entered.

    Args:
        clock: the present, Unix seconds.
        failed: called if a part ends by a fault of ours.
    Raises:
        StartupError: as `run_communities`.
    """
    folder = config.data_dir / COMMUNITIES_FOLDER
    with _locked(folder):
        log.info("starting communities version=%s python=%s", __version__, platform.python_version())
        feed = FeedClient(config.data_dir, role=Role.COMMUNITIES)
        async with (
            TorrentProcess(config.torrents) as torrents,
            follow_own_store(config.data_dir, config.network_topic, config.store) as arrivals,
        ):
            settings = owner_settings(config)
            owners = OwnerService(folder, torrents, feed, arrivals, settings, clock)
            members = Members(config, torrents, clock)
            watch = CommunityWatch(folder, torrents, owners, members, feed, settings.announce_s, clock)
            log.info("torrents listening port=%d", torrents.port)
            async with (
                background(feed.run(), failed=failed),
                background(_read(feed), failed=failed),
                background(owners.run(), failed=failed),
                background(members.run(), failed=failed),
                background(watch.run(), failed=failed),
                monitored(config.metrics, communities_registry(watch.figures), watch.problems),
                _serve_rpc(config, members, clock) as rpc_port,
            ):
                yield Serving(owners, torrents, rpc_port)


@contextlib.asynccontextmanager
async def _serve_rpc(config: CommunitiesConfig, members: Members, clock: Clock) -> AsyncIterator[int | None]:
    """Serve JSON-RPC, if the settings say so; yield the port."""
    if not config.rpc:
        yield None
        return

    methods = CommunityMethods(config.data_dir, config.network_topic, members.fetch_now, clock)
    async with serve_rpc(config.rpc, config.rpc_token_file, methods.table(), COMMUNITY_ERRORS) as port:
        yield port


def owner_settings(config: CommunitiesConfig) -> OwnerSettings:
    """What the owner's half is told."""
    return OwnerSettings(config.announce_hours * _SECONDS_PER_HOUR, config.trackers, config.advertised)


async def _read(feed: FeedClient) -> None:
    """Leave alone what comes: live envelopes of our channels come from the store. Answers to posts come behind it."""
    while True:
        await feed.next()


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Be the only one who serves this folder. The kernel drops the lock with the process."""
    with contextlib.ExitStack() as stack:
        try:
            make_communities_folder(folder)
            descriptor = stack.enter_context(open_descriptor(folder / LOCK_FILE, os.O_RDWR | os.O_CREAT))
            if not try_lock(descriptor):
                raise DataDirInUse(
                    f"another process (pid {read_holder(descriptor)}) serves the communities in {folder}"
                )
            write_holder(descriptor)
        except OSError as error:
            raise StartupError(f"cannot write {folder}: {error.strerror or error}") from error
        yield
