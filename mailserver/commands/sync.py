"""`waku-mailserver sync`: fetch missing envelopes, through the running daemon or, if there is none, without it."""

import argparse
from datetime import UTC, datetime
from typing import Any

import uvloop

from mailserver.api.params import Json
from mailserver.app.config import Config
from mailserver.app.control import SYNC, call_daemon
from mailserver.app.logs import set_up_logging
from mailserver.app.wiring import catchup_settings
from mailserver.catchup.command import Show, complaints, is_complete, overview, report, run_once
from mailserver.catchup.progress import Progress
from mailserver.codec.keys import Enode
from mailserver.commands.arguments import checked, read_time
from mailserver.commands.output import complain
from mailserver.commands.settings import add_settings, config_of
from mailserver.commands.terminal import progress_bar
from mailserver.data_dir.folder import DataDirInUse, locked, read_enode
from mailserver.data_dir.own_store import open_own_store
from mailserver.errors import ConfigError, StartupError


def add(parser: argparse.ArgumentParser) -> None:
    """Take the arguments of `sync`."""
    add_settings(parser, only={"data_dir", "password", "min_pow", "request_pow", "archive_topics"})
    parser.add_argument(
        "--from",
        dest="sources",
        action="append",
        type=checked(Enode.parse),
        default=[],
        metavar="ENODE",
        help="a mailserver to fetch from; repeatable (default: the trusted peers of the settings)",
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
    sources = tuple(arguments.sources) or _others(config)
    if not sources:
        raise ConfigError("no mailserver to fetch from: give --from ENODE, or set trusted_peers")
    now = int(datetime.now(UTC).timestamp())
    if arguments.since > now:
        raise ConfigError(f"--since {arguments.since} is in the future")
    until = now if arguments.until is None else arguments.until
    if arguments.since > until:
        raise ConfigError(f"--since {arguments.since} is after --until {until}")
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


def _others(config: Config) -> tuple[Enode, ...]:
    """The trusted peers of the settings, except this mailserver itself: one settings file may serve a whole fleet."""
    try:
        own = read_enode(config.data_dir).node_id
    except StartupError:  # this data directory has never been run
        return config.trusted_enodes
    return tuple(enode for enode in config.trusted_enodes if enode.node_id != own)


async def _catch_up(
    config: Config, sources: tuple[Enode, ...], since: int, until: int, show: Show
) -> tuple[Progress, ...]:
    """Let the daemon fetch what is missing; if none is running, fetch it here."""

    def read(progress: Any) -> tuple[Progress, ...]:
        return tuple(Progress.from_json(source) for source in progress)

    set_up_logging("warning")
    try:
        with locked(config.data_dir):
            async with open_own_store(config.data_dir, config.network_topic) as store:
                settings = catchup_settings(config, sources)
                return await run_once(store, config.data_dir, settings, since, until, show=show)
    except DataDirInUse:
        params: dict[str, Json] = {"sources": [str(source) for source in sources], "since": since, "until": until}
        result = await call_daemon(config.data_dir, SYNC, params, lambda progress: show(read(progress)))
        return read(result)
