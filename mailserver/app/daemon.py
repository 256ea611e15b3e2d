"""The daemon: the order in which its parts start and stop, and what signals do.

Each part is a context manager: it runs as long as its context is entered. `wiring` puts together what serves peers.
"""

import asyncio
import contextlib
import logging
import platform
import signal
import sqlite3
import time
from collections.abc import AsyncIterator, Callable
from functools import partial
from pathlib import Path

from mailserver import __version__
from mailserver.api.dialects import Dialect
from mailserver.api.dispatch import Dispatcher
from mailserver.api.filters import Filters
from mailserver.api.keys import KeyStore
from mailserver.api.methods import KNOWN_ERRORS, all_methods
from mailserver.app import policy
from mailserver.app.config import Config
from mailserver.app.control import CONTROL_ERRORS, ArchiveMethods, CatchupMethods, ControlSocket, StatusMethods
from mailserver.app.history import History, open_history
from mailserver.app.logs import RecentError, RecentErrors, recent_errors
from mailserver.app.process import background, listen, raise_file_limit
from mailserver.app.rpc import serve_rpc
from mailserver.app.upkeep import UpkeepTasks, look_after
from mailserver.app.wiring import Reload, Server, catchup_settings
from mailserver.app.workers import Worker, running_of, share_seen
from mailserver.catchup.page_rules import Wrong
from mailserver.catchup.progress import SourceProgress, SourceState
from mailserver.codec.keys import Enode, PrivateKey
from mailserver.data_dir.folder import load_or_make_key, locked, write_enode
from mailserver.data_dir.own_store import open_own_store
from mailserver.errors import StartupError
from mailserver.feed_socket.frames import FEED_FILE
from mailserver.feed_socket.server import FeedServer
from mailserver.history.id_lists import IdLists
from mailserver.live.intake import Clock
from mailserver.metrics.figures import CatchupFigures
from mailserver.metrics.registry import Metrics
from mailserver.monitoring.health import Health
from mailserver.monitoring.last_day import LastDay
from mailserver.monitoring.last_day_file import LastDayFile, history_file
from mailserver.monitoring.state import Monitoring
from mailserver.monitoring.status import LoggedError
from mailserver.monitoring.watch import Watch
from mailserver.net.dialer import StaticPeers
from mailserver.peers.node import Node
from mailserver.store.message_ids import StoreWithIds
from mailserver.store.sqlite.store import SqliteStore
from mailserver.waku.acceptance import Acceptance
from mailserver.worker_socket.server import WriterServer

log = logging.getLogger(__name__)

ENODE_INTERVAL_S = 5.0
"""How often a failed write of the enode file is repeated."""

STOP_TIMEOUT_S = 2.0
"""How long peers have to receive their confirmations and our Disconnect before their connections are cut."""


async def run_daemon(config: Config, reload: Reload, clock: Clock = time.time, *, worker: Worker | None = None) -> None:
    """Run until SIGTERM or SIGINT. SIGHUP applies changed settings.

    Args:
        clock: the present, Unix seconds. All that is judged, stored, answered and shown goes by it.
        worker: which of several processes this is, that have their settings and the data directory in common.
    Raises:
        StartupError: the data directory, the key or the port cannot be used.
        StoreError: the store cannot be opened.
    """
    raise_file_limit()
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    if worker is not None:
        config, reload = policy.of_worker(config, worker.number), _of_worker(reload, worker.number)
        loop.add_reader(worker.lifeline, _on_orphaned, worker.lifeline, stop)
    is_first = worker is None or worker.number == 0
    with recent_errors() as recent, locked(config.data_dir) if worker is None else contextlib.nullcontext():
        key = load_or_make_key(config.data_dir)
        named, config = config, policy.without_ourselves(config, key.public_key)
        settings, metrics = catchup_settings(config), Metrics()
        async with (
            open_own_store(config.data_dir, config.network_topic, config.store, is_first=is_first) as store,
            look_after(config, settings, store, metrics, clock, is_first=is_first, failed=stop.set) as upkeep,
            _store_for_others(config, store, worker),
            _answer(config, store, metrics, failed=stop.set) as history,
            _serve(
                config, key, store, history, settings.acceptance, upkeep, metrics, clock, worker, failed=stop.set
            ) as server,
            _monitor(
                config, store, history, server, upkeep, metrics, recent, clock, worker, failed=stop.set
            ) as monitoring,
            _hear_others(server, failed=stop.set),
            _take_commands(config, upkeep, monitoring, history, settings.acceptance, clock),
            _serve_gateways(config, server),
            _serve_rpc(config, server.node, history.lists, clock, failed=stop.set),
        ):
            loop.add_signal_handler(signal.SIGHUP, _on_reload, server, reload, upkeep)
            if config != named:
                server.node.log_own_enode()
            async with _show_enode(config.data_dir, server.node.enode, is_first=is_first, failed=stop.set):
                log.info("listening enode=%s store=%s", server.node.enode, store.location)
                if worker is not None:
                    worker.ready()
                await stop.wait()
                log.info("stopping")
    log.info("stopped")


def _of_worker(reload: Reload, number: int) -> Reload:
    return lambda: policy.of_worker(reload(), number)


def _on_orphaned(lifeline: int, stop: asyncio.Event) -> None:
    """The supervisor has gone: nobody would start us again, or stop us."""
    asyncio.get_running_loop().remove_reader(lifeline)
    log.error("supervisor has gone, the worker stops")
    stop.set()


def _on_reload(server: Server, reload: Reload, upkeep: UpkeepTasks | None) -> None:
    config = server.reload(reload)
    if upkeep is not None:
        upkeep.pruning.change(policy.pruning(config))


@contextlib.asynccontextmanager
async def _serve(
    config: Config,
    key: PrivateKey,
    store: StoreWithIds,
    history: History,
    acceptance: Acceptance,
    upkeep: UpkeepTasks | None,
    metrics: Metrics,
    clock: Clock,
    worker: Worker | None,
    failed: Callable[[], None],
) -> AsyncIterator[Server]:
    """Accept and serve peers; call `failed` if that is no longer possible."""
    log.info("starting version=%s python=%s sqlite=%s", __version__, platform.python_version(), sqlite3.sqlite_version)
    catchup = None if upkeep is None else upkeep.catchup
    server = Server(config, key, store, history.lists, acceptance, catchup, metrics, clock)
    if catchup is not None:
        catchup.watch(server.contacts)
    if worker is None:
        port = await listen(server.listener.start, "listen", config.listen)
    else:
        port = await server.listener.start_on(worker.sockets)
    static_peers = StaticPeers(server.dial, server.serve, lambda node_id: server.peers.find(node_id) is not None)
    server.node.listening(
        (config.listen_address[0], port), Enode(key.public_key, config.advertised_host, port), static_peers
    )
    if upkeep is None:
        static_peers.stop()  # the first worker dials them
    async with background(server.relay.run(), failed=failed):
        static_peers.follow(config.static_enodes)
        try:
            yield server
        finally:
            server.listener.stop()
            static_peers.stop()
            await _say_goodbye(server)
            await static_peers.join()


@contextlib.asynccontextmanager
async def _store_for_others(config: Config, store: StoreWithIds, worker: Worker | None) -> AsyncIterator[None]:
    """Store what other workers take in, if we are the one that writes a file for all."""
    if worker is None or worker.number or not isinstance(store, SqliteStore):
        yield
        return
    writer = WriterServer(store)
    store.share(writer.others, writer.tell)
    await writer.start(config.data_dir)
    try:
        yield
    finally:
        await writer.stop()


@contextlib.asynccontextmanager
async def _hear_others(server: Server, failed: Callable[[], None]) -> AsyncIterator[None]:
    """Take in what other mailservers put into the store, if it can have any."""
    if server.others is None:
        yield
        return
    await server.others.begin()
    async with background(server.others.run(), failed=failed):
        yield


@contextlib.asynccontextmanager
async def _answer(
    config: Config, store: StoreWithIds, metrics: Metrics, failed: Callable[[], None]
) -> AsyncIterator[History]:
    """Have what answers history requests as long as the context is entered."""
    with open_history(config, store, metrics) as history:
        async with background(history.prepare(), failed=failed):
            yield history


@contextlib.asynccontextmanager
async def _show_enode(
    data_dir: Path, enode: Enode, *, is_first: bool, failed: Callable[[], None]
) -> AsyncIterator[None]:
    """Write the enode file, if it is ours to write. If the disk is full, write it later: only commands read it, so
    peers can be served."""
    if not is_first:
        yield
        return
    try:
        write_enode(data_dir, enode)
    except StartupError as error:
        log.error("enode not written error=%r", str(error))
        async with background(_write_enode_later(data_dir, enode), failed=failed):
            yield
        return
    yield


async def _write_enode_later(data_dir: Path, enode: Enode) -> None:
    while True:
        await asyncio.sleep(ENODE_INTERVAL_S)
        with contextlib.suppress(StartupError):
            await asyncio.to_thread(write_enode, data_dir, enode)
            log.info("enode written enode=%s", enode)
            return


@contextlib.asynccontextmanager
async def _take_commands(
    config: Config,
    upkeep: UpkeepTasks | None,
    monitoring: Monitoring,
    history: History,
    acceptance: Acceptance,
    clock: Clock,
) -> AsyncIterator[None]:
    """Answer commands over the control socket, if it is ours."""
    if upkeep is None:
        yield
        return
    methods = {
        **CatchupMethods(upkeep.catchup).table(),
        **ArchiveMethods(history, acceptance, clock).table(),
        **StatusMethods(monitoring).table(),
    }
    control = ControlSocket(Dispatcher(methods, CONTROL_ERRORS))
    await control.start(config.data_dir)
    try:
        yield
    finally:
        await control.stop()


@contextlib.asynccontextmanager
async def _serve_gateways(config: Config, server: Server) -> AsyncIterator[None]:
    """Serve gateways, if the settings say so."""
    if not config.feed_socket:
        yield
        return
    feed = FeedServer(server.gateways)
    await feed.start(config.data_dir)
    log.info("serving gateways socket=%s", config.data_dir / FEED_FILE)
    try:
        yield
    finally:
        await feed.stop()


@contextlib.asynccontextmanager
async def _serve_rpc(
    config: Config, node: Node, lists: IdLists, clock: Clock, failed: Callable[[], None]
) -> AsyncIterator[None]:
    """Serve JSON-RPC, if the settings say so."""
    if not config.rpc:
        yield
        return
    filters = Filters(node.feed)
    methods = all_methods(
        node,
        KeyStore(),
        filters,
        lists,
        dialect=Dialect(config.rpc_dialect),
        request_pow=config.request_pow,
        clock=clock,
    )
    async with (
        serve_rpc(config.rpc, config.rpc_token_file, methods, KNOWN_ERRORS),
        background(filters.run(), failed=failed),
    ):
        yield


@contextlib.asynccontextmanager
async def _monitor(
    config: Config,
    store: StoreWithIds,
    answering: History,
    server: Server,
    upkeep: UpkeepTasks | None,
    metrics: Metrics,
    recent: RecentErrors,
    clock: Clock,
    worker: Worker | None,
    failed: Callable[[], None],
) -> AsyncIterator[Monitoring]:
    """Watch the state of everything; serve metrics and health, if the settings say so."""
    health = Health(
        metrics,
        lambda: len(server.peers.connected()),
        expects_compaction=bool(config.archive),
        clock=clock,
        ahead=lambda: 0.0 if upkeep is None else upkeep.proven_time.ahead_s,
        archive_problem=lambda: "" if upkeep is None else upkeep.pruning.archive_problem,
        reading_problem=answering.archive_problem,
        workers=partial(running_of, worker, config.workers),
        seen_by_any=partial(share_seen, worker),
    )
    last_day = LastDay(metrics, clock)
    last_day_file = LastDayFile(config.data_dir, last_day, history_file(0 if worker is None else worker.number))
    last_day_file.load()
    monitoring = Monitoring(
        metrics,
        Watch(store, config.data_dir, metrics.loop_lag),
        health,
        last_day,
        last_day_file,
        enode=server.node.enode,
        node=server.figures,
        sync=lambda: map(_sync_figures, () if upkeep is None else upkeep.catchup.snapshot()),
        errors=lambda: map(_logged_error, recent.snapshot()),
        clock=clock,
        workers=partial(running_of, worker, config.workers),
    )
    async with background(monitoring.run(), failed=failed), _serve_metrics(config, monitoring):
        yield monitoring


@contextlib.asynccontextmanager
async def _serve_metrics(config: Config, monitoring: Monitoring) -> AsyncIterator[None]:
    """Serve metrics, health and the status page, if the settings say so."""
    if not config.metrics:
        yield
        return
    from mailserver.monitoring.http import Monitor  # noqa: PLC0415 - as above

    monitor = Monitor(monitoring)
    log.info("serving metrics port=%d", await listen(monitor.start, "metrics", config.metrics))
    try:
        yield
    finally:
        await monitor.stop()


def _sync_figures(progress: SourceProgress) -> CatchupFigures:
    return CatchupFigures(
        source=progress.source,
        left_s=progress.left_s,
        pages=progress.pages,
        fetched=progress.fetched,
        stored=progress.stored,
        wrong={wrong.name.lower(): progress.wrong.get(wrong, 0) for wrong in Wrong},
        is_set_aside=progress.state is SourceState.SET_ASIDE,
    )


def _logged_error(error: RecentError) -> LoggedError:
    return LoggedError(error.time, error.level, error.text, error.count)


async def _say_goodbye(server: Server) -> None:
    """Confirm what every peer has sent, say goodbye, and cut connections that do not close in time."""
    served, listener = list(server.peers), server.listener
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(STOP_TIMEOUT_S):
            await asyncio.gather(*(peer.stop() for peer in served))
            await listener.join()
    for peer in served:
        peer.abort()
    await listener.join()
