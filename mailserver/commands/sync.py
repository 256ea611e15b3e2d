"""`waku-mailserver sync`: fetch missing envelopes from other mailservers, or take them from the archive.

The running daemon does it, or, if there is none, the command itself.
"""

import argparse
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import uvloop

from mailserver.api.params import Json
from mailserver.app.config import Config
from mailserver.app.control_call import SYNC, SYNC_ARCHIVE, call_daemon
from mailserver.app.history import open_history
from mailserver.app.logs import set_up_logging
from mailserver.app.wiring import catchup_settings
from mailserver.catchup.command import Show, complaints, is_complete, overview, report, run_once
from mailserver.catchup.compared import Compared
from mailserver.catchup.progress import SourceProgress
from mailserver.codec.keys import Enode
from mailserver.commands.arguments import checked, read_time
from mailserver.commands.output import complain
from mailserver.commands.settings import add_settings, config_of
from mailserver.commands.terminal import progress_bar
from mailserver.data_dir.folder import DataDirInUse, locked, read_enode
from mailserver.data_dir.own_store import open_own_store
from mailserver.errors import ConfigError, StartupError
from mailserver.metrics.registry import Metrics

_OF_THE_ARCHIVE = ("archive", "answer_from_archive", "archive_reads", "archive_cache_bytes")


def add(parser: argparse.ArgumentParser) -> None:
    """Take the arguments of `sync`."""
    add_settings(
        parser,
        only={
            "data_dir",
            "store",
            "password",
            "min_pow",
            "request_pow",
            "archive_topics",
            "network_topic",
            *_OF_THE_ARCHIVE,
        },
    )
    sources = parser.add_mutually_exclusive_group()
    sources.add_argument(
        "--from",
        dest="sources",
        action="append",
        type=checked(Enode.parse),
        default=[],
        metavar="ENODE",
        help="a mailserver to fetch from; repeatable (default: the trusted peers of the settings)",
    )
    sources.add_argument(
        "--from-archive",
        action="store_true",
        help="compare the store with the archive of the settings, and store again what it lacks",
    )
    parser.add_argument(
        "--dry-run", action="store_true", help="with --from-archive: only say what store and archive lack of each other"
    )
    parser.add_argument(
        "--since",
        required=True,
        type=read_time,
        metavar="TIME",
        help="oldest creation time to fetch: Unix seconds or ISO 8601",
    )
    parser.add_argument(
        "--until",
        type=read_time,
        metavar="TIME",
        help="newest creation time to fetch: Unix seconds or ISO 8601 (default: now)",
    )
    parser.add_argument("--json", action="store_true", help="print the result as JSON")
    parser.set_defaults(command=_sync)


def _sync(arguments: argparse.Namespace) -> int:
    config = config_of(arguments)
    now = int(datetime.now(UTC).timestamp())
    if arguments.since > now:
        raise ConfigError(f"--since {arguments.since} is in the future")
    until = now if arguments.until is None else arguments.until
    if arguments.since > until:
        raise ConfigError(f"--since {arguments.since} is after --until {until}")
    if arguments.from_archive:
        return _sync_archive(config, arguments, until)
    if arguments.dry_run:
        raise ConfigError("--dry-run goes with --from-archive")
    sources = tuple(arguments.sources) or _others(config)
    if not sources:
        raise ConfigError("no mailserver to fetch from: give --from ENODE, or set trusted_peers")
    with progress_bar() as bar:
        progress = uvloop.run(
            _catch_up(
                config,
                sources,
                arguments.since,
                until,
                lambda progress: bar(*overview(progress, until - arguments.since)),
            )
        )
    print(report(progress, as_json=arguments.json))
    unasked = complaints(progress)
    for complaint in unasked:
        complain(complaint)
    return 0 if is_complete(progress) and not unasked else 1


def _sync_archive(config: Config, arguments: argparse.Namespace, until: int) -> int:
    """Compare with the archive; 1 if something is missing here afterwards."""
    with progress_bar() as bar:
        compared = uvloop.run(
            _compare(
                config,
                since=arguments.since,
                until=until,
                takes=not arguments.dry_run,
                show=lambda now: bar(*now.overview()),
            )
        )
    print(compared.report(as_json=arguments.json))
    return 0 if compared.is_complete else 1


def _others(config: Config) -> tuple[Enode, ...]:
    """The trusted peers of the settings, except this mailserver itself: one settings file may serve a whole fleet."""
    try:
        own = read_enode(config.data_dir).node_id
    except StartupError:  # this data directory has never been run
        return config.trusted_enodes
    return tuple(enode for enode in config.trusted_enodes if enode.node_id != own)


async def _catch_up(
    config: Config, sources: tuple[Enode, ...], since: int, until: int, show: Show
) -> tuple[SourceProgress, ...]:
    """Let the daemon fetch what is missing; if none is running, fetch it here."""

    def read(progress: Any) -> tuple[SourceProgress, ...]:
        return tuple(SourceProgress.from_json(source) for source in progress)

    set_up_logging("warning")
    try:
        with locked(config.data_dir):
            async with open_own_store(config.data_dir, config.network_topic, config.store) as store:
                settings = catchup_settings(config, sources)
                return await run_once(store, config.data_dir, settings, since, until, show=show)
    except DataDirInUse:
        params: dict[str, Json] = {"sources": [str(source) for source in sources], "since": since, "until": until}
        result = await call_daemon(config.data_dir, SYNC, params, lambda progress: show(read(progress)))
        return read(result)


async def _compare(
    config: Config, *, since: int, until: int, takes: bool, show: Callable[[Compared], None]
) -> Compared:
    """Let the daemon compare store and archive; if none is running, do it here."""
    set_up_logging("warning")
    try:
        with locked(config.data_dir):
            async with open_own_store(config.data_dir, config.network_topic, config.store) as store:
                with open_history(config, store, Metrics()) as history:
                    acceptance = catchup_settings(config).acceptance
                    return await history.compare(
                        acceptance, time.time, since=since, until=until, takes=takes, show=show
                    )
    except DataDirInUse:
        params: dict[str, Json] = {"since": since, "until": until, "takes": takes}

        def read(progress: Any) -> Compared:
            return Compared.from_json(progress)

        result = await call_daemon(config.data_dir, SYNC_ARCHIVE, params, lambda progress: show(read(progress)))
        return read(result)
