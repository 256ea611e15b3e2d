"""The daemon: what is wired to what, in which order it starts and stops, and signals."""

import asyncio
import contextlib
import logging
import platform
import resource
import signal
import sqlite3
import sys
import time
from collections.abc import AsyncIterator

from mailserver import __version__
from mailserver.codec.keys import Enode, PrivateKey
from mailserver.config import Config
from mailserver.datadir import load_or_make_key, locked, write_enode
from mailserver.errors import StartupError
from mailserver.mail.completion import CompletionFormat
from mailserver.net.connection import Connection
from mailserver.net.listener import Listener
from mailserver.services.archive import Archive
from mailserver.services.delivery import Delivery, DeliverySettings
from mailserver.services.peer import ServedPeer
from mailserver.services.pruning import Pruning, PruningSettings
from mailserver.store.envelopes import EnvelopeStore, open_store
from mailserver.store.retention import CapacityRetention, Retention, SizeRetention, TimeRetention
from mailserver.store.schema import STORE_FILE
from mailserver.waku.acceptance import Acceptance, Requirements
from mailserver.waku.bloom import FULL_BLOOM
from mailserver.waku.packets import NO_RATE_LIMITS, StatusOptions
from mailserver.waku.payload import key_from_password

log = logging.getLogger(__name__)

STOP_TIMEOUT_S = 3.0
"""How long peers have to take their confirmations and our Disconnect, before their connections are cut."""

CLIENT_ID = f"waku-mailserver/v{__version__}/{sys.platform}/python{platform.python_version()}"
"""How we call ourselves in Hello."""


async def run_daemon(config: Config) -> None:
    """Run until SIGTERM or SIGINT.

    Raises:
        StartupError: the data directory, the key or the port is not as it must be.
        StoreError: the store cannot be opened.
    """
    _raise_file_limit()
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    with locked(config.data_dir):
        key = load_or_make_key(config.data_dir)
        async with (
            open_store(config.data_dir / STORE_FILE) as store,
            _prune(config, store),
            _serve(config, key, store) as enode,
        ):
            write_enode(config.data_dir, enode)
            log.info("listening enode=%s store=%s", enode, config.data_dir / STORE_FILE)
            await stop.wait()
            log.info("stopping")
    log.info("stopped")


@contextlib.asynccontextmanager
async def _serve(config: Config, key: PrivateKey, store: EnvelopeStore) -> AsyncIterator[Enode]:
    """Accept and serve peers as long as the context is entered; yield where."""
    archive = Archive(store, Acceptance(Requirements(config.min_pow)), time.time)
    settings = DeliverySettings(
        symmetric_key=key_from_password(config.password),
        key=key,
        max_limit=config.max_request_limit,
        min_request_pow=config.min_request_pow,
        allow_clear=config.allow_clear_requests,
        completion_format=CompletionFormat(config.completion_format),
    )
    delivery = Delivery(store, settings, time.time)
    peers: set[ServedPeer] = set()

    async def serve(connection: Connection) -> None:
        peer = ServedPeer(connection, archive, delivery)
        peers.add(peer)
        try:
            await peer.run()
        finally:
            peers.discard(peer)

    log.info("starting version=%s python=%s sqlite=%s", __version__, platform.python_version(), sqlite3.sqlite_version)
    listener = Listener(key, CLIENT_ID, _status(config), max_peers=config.max_peers, serve=serve)
    host, port = config.listen_address
    try:
        port = await listener.start(host, port)
    except OSError as error:
        raise StartupError(f"cannot listen on {config.listen}: {error.strerror or error}") from error
    except UnicodeError as error:  # a label of the name is empty, or longer than 63 characters
        raise StartupError(f"cannot listen on {config.listen}: not a host name") from error
    try:
        yield Enode(key.public_key, config.advertised_host, port)
    finally:
        listener.stop()
        await _stop(list(peers), listener)


@contextlib.asynccontextmanager
async def _prune(config: Config, store: EnvelopeStore) -> AsyncIterator[None]:
    """Keep the store within its limits as long as the context is entered."""
    limits: list[Retention] = []
    if config.retention_days:
        limits.append(TimeRetention(config.retention_days))
    if config.retention_envelopes:
        limits.append(CapacityRetention(config.retention_envelopes))
    if config.retention_bytes:
        limits.append(SizeRetention(config.retention_bytes))
    settings = PruningSettings(
        tuple(limits), archive_before_prune=config.archive_before_prune, has_archive=bool(config.archive)
    )
    if not limits:
        yield
        return
    pruning = Pruning(store, config.data_dir / STORE_FILE, settings, time.time)
    running = asyncio.create_task(pruning.run(), name="pruning")
    try:
        yield
    finally:
        pruning.stop()
        await running


def _status(config: Config) -> StatusOptions:
    """What a mailserver announces: no limits yet, but all the numbers, as deployed clients expect them."""
    return StatusOptions(
        pow_requirement=config.min_pow,
        bloom=FULL_BLOOM,
        light_node=False,
        confirmations=True,
        packet_rate_limits=NO_RATE_LIMITS,
        byte_rate_limits=NO_RATE_LIMITS,
    )


async def _stop(peers: list[ServedPeer], listener: Listener) -> None:
    """Let every peer's packets be confirmed, say goodbye, and cut who does not leave in time."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(STOP_TIMEOUT_S):
            await asyncio.gather(*(peer.stop() for peer in peers))
            await listener.join()
    for peer in peers:
        peer.cut()
    await listener.join()


def _raise_file_limit() -> None:
    """Allow as many open files as the system lets us: each peer takes one, and 1,024 is a common default."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
