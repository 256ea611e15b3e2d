"""The command line: `waku-mailserver run | sync | request | post | enode | stats`.

Exit codes: 0 done; 1 it could not be done, one line on stderr says why; 2 wrong usage or settings; 130 interrupted.
"""

import argparse
import gc
import io
import json
import os
import sys
from collections.abc import Sequence
from dataclasses import asdict, fields
from datetime import UTC, datetime
from typing import Any

import uvloop

from mailserver import __version__
from mailserver.arguments import checked, read_cursor, read_limit, read_pow, read_text, read_time, read_topic, read_ttl
from mailserver.client import connect, seal_envelope
from mailserver.codec.keys import Enode
from mailserver.config import Config, config_file, load_config, parse_value
from mailserver.control import SYNC, call_daemon
from mailserver.daemon import run_daemon, sync_settings
from mailserver.datadir import DataDirInUse, locked, read_enode
from mailserver.errors import ConfigError, MailserverError
from mailserver.logs import LogFormat, log_failure, set_up_logging
from mailserver.mail.request import MailRequest, RequestId
from mailserver.output import FORMATS, Printer, printable
from mailserver.rpc.params import Json
from mailserver.server import CLIENT_ID
from mailserver.store.envelopes import open_store, read_stats
from mailserver.store.schema import STORE_FILE
from mailserver.sync.command import ProgressLine, Show, is_complete, report, run_once
from mailserver.sync.progress import Progress
from mailserver.waku.bloom import FULL_INTEREST, Interest
from mailserver.waku.payload import key_from_password

DEFAULT_HISTORY_S = 24 * 3600
"""How far back `request` asks if --from is not given: a day, as deployed clients do."""


GC_THRESHOLDS = (5_000, 5, 16)
"""When the daemon's cyclic garbage is collected. A pool full of envelopes is 200,000 objects, none of them garbage,
which take 55 ms to look through: CPython's own 700, 10, 10 did that so often that it took 40 % of the CPU in a flood of
small packets. The garbage that there is, some 80 objects of each connection that ended, goes after 5,000 of them."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command; return its exit code."""
    arguments = _parser().parse_args(argv)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # payloads may hold what the terminal's encoding does not
    try:
        code = int(arguments.command(arguments) or 0)
        sys.stdout.flush()
    except ConfigError as error:
        _complain(str(error))
        return 2
    except MailserverError as error:
        _complain(str(error))
        return 1
    except KeyboardInterrupt:
        return 130
    except OSError as error:  # whatever else has a file is translated: it is our output that cannot be written
        if not isinstance(error, BrokenPipeError):  # whoever read it has seen enough: not worth a word
            _complain(f"cannot write the output: {error.strerror}")
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    return code


def _complain(text: str) -> None:
    if not log_failure(text):
        print(f"waku-mailserver: {printable(text)}", file=sys.stderr)  # a node's words may be part of it


def _run(arguments: argparse.Namespace) -> None:
    config = _config(arguments)
    set_up_logging(config.log_level, LogFormat(config.log_format))
    gc.freeze()  # what has been imported stays: it is never looked through
    gc.set_threshold(*GC_THRESHOLDS)
    uvloop.run(run_daemon(config, lambda: _config(arguments)))


def _request(arguments: argparse.Namespace) -> None:
    topics = frozenset(topic for _, topic in arguments.topic)
    end = arguments.to_time or int(datetime.now(UTC).timestamp())
    request = MailRequest(
        RequestId(bytes(32)),
        lower=max(end - DEFAULT_HISTORY_S, 0) if arguments.from_time is None else arguments.from_time,
        upper=arguments.to_time or 0,
        interest=Interest(topics=topics) if topics else FULL_INTEREST,
        limit=arguments.limit,
        cursor=arguments.cursor,
    )
    opening_key = None if arguments.sym_key_password is None else key_from_password(arguments.sym_key_password)

    async def ask() -> None:
        with Printer(arguments.format, opening_key) as printer:
            async with connect(arguments.enode, CLIENT_ID) as client:
                ask_pages = client.request_all if arguments.all else client.request
                completion = await ask_pages(request, key_from_password(arguments.password), printer.show)
            printer.finish(completion)

    uvloop.run(ask())


def _post(arguments: argparse.Namespace) -> int:
    topic_text, topic = arguments.topic
    key = key_from_password(topic_text if arguments.sym_key_password is None else arguments.sym_key_password)

    async def post() -> int:
        async with connect(arguments.enode, CLIENT_ID) as client:
            envelope = await seal_envelope(
                arguments.payload.encode(),
                key,
                topic,
                ttl=arguments.ttl,
                min_pow=client.settings.pow_requirement if arguments.pow is None else arguments.pow,
                now=int(datetime.now(UTC).timestamp()),
            )
            response = await client.post([envelope])
        for error in response.errors:
            _complain(f"envelope refused: {error.description} (code {error.code})")
        if response.errors:
            return 1
        print(f"confirmed {envelope.hash().hex()}")
        return 0

    return uvloop.run(post())


def _sync(arguments: argparse.Namespace) -> int:
    config = _config(arguments)
    sources = tuple(arguments.sources) or config.trusted_enodes
    if not sources:
        raise ConfigError("no mailserver to fetch from: give --from ENODE, or trusted_peers")
    until = int(datetime.now(UTC).timestamp()) if arguments.until is None else arguments.until
    if arguments.since > until:
        raise ConfigError(f"--since {arguments.since} is after --until {until}")
    with ProgressLine(until - arguments.since) as line:
        progress = uvloop.run(_catch_up(config, sources, arguments.since, until, line.show))
    print(report(progress, as_json=arguments.json))
    return 0 if is_complete(progress) else 1


async def _catch_up(
    config: Config, sources: tuple[Enode, ...], since: int, until: int, show: Show
) -> tuple[Progress, ...]:
    """Have the daemon fetch what is missing; where none runs, do it."""

    def read(progress: Any) -> tuple[Progress, ...]:
        return tuple(Progress.from_json(source) for source in progress)

    try:
        with locked(config.data_dir):
            set_up_logging("warning")
            async with open_store(config.data_dir / STORE_FILE) as store:
                settings = sync_settings(config, sources)
                return await run_once(store, config.data_dir, settings, since, until, show=show)
    except DataDirInUse:
        params: dict[str, Json] = {"sources": [str(source) for source in sources], "since": since, "until": until}
        result = await call_daemon(config.data_dir, SYNC, params, lambda progress: show(read(progress)))
        return read(result)


def _enode(arguments: argparse.Namespace) -> None:
    print(read_enode(_config(arguments).data_dir))


def _stats(arguments: argparse.Namespace) -> None:
    stats = uvloop.run(read_stats(_config(arguments).data_dir / STORE_FILE))
    if arguments.json:
        print(json.dumps(asdict(stats)))
        return
    for name, value in asdict(stats).items():
        if name in ("oldest", "newest") and value is not None:
            value = datetime.fromtimestamp(value, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")  # noqa: PLW2901
        print(f"{name:<10} {'-' if value is None else value}")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="waku-mailserver", description="A mailserver for Waku v1 networks.")
    parser.add_argument("--version", action="version", version=f"waku-mailserver {__version__}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    _add_run(commands.add_parser("run", help="run the mailserver", description="Run the mailserver."))
    _add_request(
        commands.add_parser(
            "request",
            help="ask a mailserver for history",
            description="Ask any mailserver, ours or a Go one, for history.",
        )
    )
    _add_post(
        commands.add_parser(
            "post", help="post an envelope", description="Seal a payload, post it, and wait until the node confirms it."
        )
    )
    _add_sync(
        commands.add_parser(
            "sync",
            help="fetch what a store lacks from other mailservers",
            description="Fetch the envelopes that a store lacks from other mailservers, ours or Go ones. "
            "A running mailserver does it itself, in the background; this command then shows how far it is.",
        )
    )
    enode_help = "print the enode URL of a data directory's mailserver"
    enode = commands.add_parser("enode", help=enode_help, description=enode_help.capitalize() + ".")
    _add_settings(enode, only={"data_dir"})
    enode.set_defaults(command=_enode)
    stats_help = "say what is in the store, also beside a running daemon"
    stats = commands.add_parser("stats", help=stats_help, description=stats_help.capitalize() + ".")
    _add_settings(stats, only={"data_dir"})
    stats.add_argument("--json", action="store_true", help="as one JSON object; times in Unix seconds")
    stats.set_defaults(command=_stats)
    return parser


def _add_run(parser: argparse.ArgumentParser) -> None:
    parser.epilog = (
        "Each setting is also an environment variable (--min-pow: MAILSERVER_MIN_POW) and a key of the file (min_pow). "
        "Flags go before variables, these before the file. MAILSERVER_CONFIG is the variable of --config."
    )
    _add_settings(parser, only={setting.name for setting in fields(Config)})
    parser.set_defaults(command=_run)


def _add_sync(parser: argparse.ArgumentParser) -> None:
    _add_settings(parser, only={"data_dir", "password", "min_pow", "archive_topics"})
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
        "--since", required=True, type=read_time, metavar="TIME", help="created from then on: Unix seconds or ISO 8601"
    )
    parser.add_argument(
        "--until", type=read_time, metavar="TIME", help="created until then: Unix seconds or ISO 8601 (default: now)"
    )
    parser.add_argument("--json", action="store_true", help="how it ended, as JSON")
    parser.set_defaults(command=_sync)


def _add_request(parser: argparse.ArgumentParser) -> None:
    _add_node(parser)
    parser.add_argument(
        "--password", type=read_text, default=Config().password, help="the mailserver's password (default: %(default)s)"
    )
    parser.add_argument(
        "--topic",
        action="append",
        type=checked(read_topic),
        default=[],
        metavar="NAME_OR_0xHEX",
        help="a topic by its name or as 0x and 8 hex digits; repeatable (default: all topics)",
    )
    parser.add_argument(
        "--from",
        dest="from_time",
        type=read_time,
        metavar="TIME",
        help="Unix seconds or ISO 8601 (default: 24 h before --to)",
    )
    parser.add_argument(
        "--to", dest="to_time", type=read_time, metavar="TIME", help="Unix seconds or ISO 8601 (default: now)"
    )
    parser.add_argument(
        "--limit",
        type=read_limit,
        default=0,
        metavar="N",
        help="most envelopes per request (default: the mailserver's own)",
    )
    parser.add_argument("--all", action="store_true", help="follow the cursors to the end")
    parser.add_argument("--cursor", type=checked(read_cursor), metavar="HEX", help="go on where an answer ended")
    parser.add_argument(
        "--sym-key-password", type=read_text, metavar="PW", help="open payloads with the key from this password"
    )
    parser.add_argument(
        "--format", choices=FORMATS, default="table", help="default: %(default)s; raw is hex of RLP, a line each"
    )
    parser.set_defaults(command=_request)


def _add_post(parser: argparse.ArgumentParser) -> None:
    _add_node(parser)
    parser.add_argument(
        "--topic",
        required=True,
        type=checked(read_topic),
        metavar="NAME_OR_0xHEX",
        help="the topic, by its name or as 0x and 8 hex digits",
    )
    parser.add_argument("--payload", required=True, type=read_text, metavar="TEXT", help="what to seal")
    parser.add_argument(
        "--sym-key-password",
        type=read_text,
        metavar="PW",
        help="seal with the key from this password (default: the topic as given)",
    )
    parser.add_argument("--ttl", type=read_ttl, default=60, metavar="S", help="seconds to live (default: %(default)s)")
    parser.add_argument(
        "--pow", type=read_pow, metavar="X", help="proof of work to reach (default: what the node asks for)"
    )
    parser.set_defaults(command=_post)


def _add_node(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "enode", metavar="ENODE", type=checked(Enode.parse), help="the node's URL: enode://<128 hex digits>@host:port"
    )


def _add_settings(parser: argparse.ArgumentParser, only: set[str]) -> None:
    """Add --config, and a flag for each of these settings. Values stay text: `load_config` judges them all alike."""
    parser.add_argument("--config", metavar="FILE", help="TOML file with settings (default: none)")
    for setting in fields(Config):
        if setting.name not in only:
            continue
        flag = "--" + setting.name.replace("_", "-")
        help_text = setting.metadata["help"].replace("%", "%%")
        if setting.default not in ("", ()):  # then the text says what nothing means
            default = ",".join(map(str, setting.default)) if isinstance(setting.default, tuple) else setting.default
            help_text += f" (default: {default})"
        if setting.type is bool:
            parser.add_argument(flag, action=argparse.BooleanOptionalAction, default=None, help=help_text)
        else:
            parser.add_argument(flag, metavar=str(setting.name).upper(), help=help_text)


def _config(arguments: argparse.Namespace) -> Config:
    flags: dict[str, Any] = {}
    for setting in fields(Config):
        value = getattr(arguments, setting.name, None)
        if isinstance(value, str):
            value = parse_value("--" + setting.name.replace("_", "-"), value, setting.type)
        flags[setting.name] = value
    return load_config(flags, os.environ, config_file(arguments.config, os.environ))
