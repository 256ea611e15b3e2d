"""The rooms of `mailserver/`: imports point down, no modules import each other in a circle, protocols do no I/O.

A room is a folder of `mailserver/` or a file beside them; a new file in a known room needs no change here.
"""

import ast
from collections.abc import Iterator
from graphlib import TopologicalSorter
from pathlib import Path, PurePosixPath

import pytest

ROOT = Path(__file__).parent.parent

ORDER = (
    ("__init__", "errors", "units"),
    ("codec", "limits/buckets", "limits/fair_queue"),
    ("leveldb", "libp2p", "rlpx", "waku"),
    ("mail", "ids", "reconcile"),
    ("waku2", "wakuid"),
    ("communities",),
    ("files", "limits", "metrics"),
    ("handoff", "torrents"),
    ("net", "store"),
    ("archive", "store/engine"),
    ("archive/access", "archive/index"),
    ("archive/reading", "store/leveldb", "store/postgres", "store/sqlite"),
    ("store/sqlite/repair", "gateway/index"),
    ("client", "live"),
    ("feed_socket", "history", "moving", "upkeep"),
    ("catchup", "community", "peers", "worker_socket"),
    ("community/member", "community/owner"),
    ("community/status",),
    ("api", "data_dir", "gateway", "monitoring"),
    ("app",),
    ("doctor",),
    ("commands",),
    ("__main__",),
)
"""Each room sees those of the lines above its own, and itself."""

LAYERS = {room: layer for layer, rooms in enumerate(ORDER) for room in rooms}

# Of these rooms an importer sees only the modules named, or none: net knows peers and their packets, but no envelopes;
# what answers, receives and fetches history knows what a store is, but no engine.
NARROW: dict[tuple[str, str], tuple[str, ...]] = {
    ("net", "waku"): ("mailserver.waku.peer", "mailserver.waku.packets"),
    ("net", "mail"): (),
    ("mail", "rlpx"): (),
    ("ids", "rlpx"): (),
    ("reconcile", "rlpx"): (),
    ("reconcile", "waku"): (),
    ("waku2", "rlpx"): (),
    ("waku2", "mail"): (),
    ("waku2", "reconcile"): (),
    ("communities", "libp2p"): (),
    ("communities", "mail"): (),
    ("communities", "reconcile"): (),
    ("communities", "rlpx"): (),
    ("communities", "waku2"): ("mailserver.waku2.fields",),
    ("communities", "wakuid"): (),
    ("api", "catchup"): (),
    ("archive/access", "net"): (),
    ("archive/access", "store"): (),
    ("archive/index", "net"): (),
    ("archive/index", "store"): (),
    ("archive/reading", "net"): (),
    ("history", "store"): ("mailserver.store.interface", "mailserver.store.message_ids"),
    ("history", "store/postgres"): (),
    ("history", "store/sqlite"): (),
    ("live", "store"): ("mailserver.store.interface", "mailserver.store.others"),
    ("live", "store/postgres"): (),
    ("live", "store/sqlite"): (),
    ("feed_socket", "store"): (),
    ("moving", "store/leveldb"): (),
    ("moving", "store/postgres"): (),
    ("moving", "store/sqlite"): (),
    ("feed_socket", "store/postgres"): (),
    ("feed_socket", "store/sqlite"): (),
    ("worker_socket", "store"): ("mailserver.store.interface",),
    ("worker_socket", "store/engine"): (),
    ("worker_socket", "store/postgres"): (),
    ("worker_socket", "store/sqlite"): (),
    ("catchup", "store"): ("mailserver.store.interface", "mailserver.store.message_ids"),
    ("catchup", "store/postgres"): (),
    ("catchup", "store/sqlite"): (),
    ("archive", "net"): (),
    ("gateway/index", "archive"): (),
    ("gateway/index", "archive/reading"): (),
    ("gateway/index", "net"): (),
    ("gateway/index", "store"): (
        "mailserver.store.arrivals",
        "mailserver.store.interface",
        "mailserver.store.message_ids",
    ),
    ("gateway/index", "store/engine"): ("mailserver.store.engine.fair_pool", "mailserver.store.engine.work"),
    ("gateway/index", "store/sqlite"): ("mailserver.store.sqlite.connections", "mailserver.store.sqlite.worker"),
    ("history", "store/engine"): (),
    ("live", "store/engine"): (),
    ("feed_socket", "store/engine"): (),
    ("catchup", "store/engine"): (),
    ("store/engine", "archive"): (),
    ("store/engine", "net"): (),
    ("store/leveldb", "archive"): (),
    ("store/leveldb", "net"): (),
    ("store/postgres", "archive"): (),
    ("store/postgres", "net"): (),
    ("store/postgres", "store/sqlite"): (),
    ("store/sqlite", "archive"): (),
    ("store/sqlite", "net"): (),
    ("store/sqlite/repair", "archive"): (),
    ("store/sqlite/repair", "archive/access"): (),
    ("store/sqlite/repair", "archive/reading"): (),
    ("store/sqlite/repair", "net"): (),
}
EXPORT_SEES = (
    "mailserver.app.logs",
    "mailserver.archive",
    "mailserver.catchup.ledger",
    "mailserver.codec.keccak",
    "mailserver.codec.protobuf",
    "mailserver.codec.varint",
    "mailserver.communities",
    "mailserver.community.owner",
    "mailserver.data_dir.running",
    "mailserver.errors",
    "mailserver.files",
    "mailserver.handoff",
    "mailserver.ids",
    "mailserver.store.engine.row_check",
    "mailserver.store.postgres.job",
    "mailserver.store.sqlite.handoff",
    "mailserver.store.sqlite.schema",
    "mailserver.units",
    "mailserver.waku.envelope",
    "mailserver.waku.payload",
    "mailserver.__version__",
)

EXPORT_ONLY = {"cronsim", "numpy", "py4j", "pyarrow", "pyspark"}  # the extra `export`, which the daemon does without
ARCHIVE_ONLY = {"numpy", "pyarrow"}  # but for these, the extra `archive`, in the rooms that it is for
ARCHIVE_ROOMS = {"archive/access", "archive/index", "archive/reading"}

OF_ONE_ROOM = {
    "asyncpg": "store/postgres",  # the extra `postgres`
    "google_crc32c": "leveldb",  # the extra `leveldb`
    "libtorrent": "torrents",  # the extra `communities`, for a process of its own
}

LAST_PURE_LAYER = LAYERS["communities"]  # time and randomness come as arguments, results leave as values
IMPURE = {
    "aiosqlite",
    "asyncpg",
    "asyncio",
    "logging",
    "os.urandom",
    "random",
    "secrets",
    "socket",
    "sqlite3",
    "time",
    "uvloop",
}


def room_of(path: str) -> str:
    """`mailserver/waku/bloom.py` -> `waku`; `mailserver/errors.py` -> `errors`."""
    names = PurePosixPath(path).with_suffix("").parts[1:]
    return _longest(names) or names[0]


def room_named(target: str) -> str:
    """The room that a dotted name lies in; what is in none is a name of the package itself."""
    return _longest(tuple(target.split(".")[1:])) or "__init__"


def _longest(names: tuple[str, ...]) -> str | None:
    candidates = ("/".join(names[:count]) for count in range(len(names), 0, -1))
    return next((name for name in candidates if name in LAYERS), None)


def within(target: str, module: str) -> bool:
    return target == module or target.startswith(f"{module}.")


def imported(path: str, source: str) -> Iterator[tuple[int, str]]:
    """Line and full dotted name of each import, wherever in the file, and of each `os.` name used."""
    package = PurePosixPath(path).parent.parts
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Import(names=names):
                for alias in names:
                    yield node.lineno, alias.name
            case ast.ImportFrom(module=module, names=names, level=level):
                base = [*package[: len(package) - level + 1]] if level else []
                for alias in names:
                    yield node.lineno, ".".join([*base, *([module] if module else []), alias.name])
            case ast.Attribute(value=ast.Name(id="os"), attr=attr):
                yield node.lineno, f"os.{attr}"


def fault(path: str, target: str) -> str | None:
    """Why the file may not import the name, or None."""
    inside, importer = PurePosixPath(path).parts[0], room_of(path)
    package = target.partition(".")[0]

    if inside == "spark_export":
        forbidden = package == "mailserver" and not any(within(target, module) for module in EXPORT_SEES)
        return f"spark_export sees only {EXPORT_SEES} of mailserver" if forbidden else None
    if package == "spark_export":
        return "mailserver never sees spark_export"
    layer = LAYERS[importer]
    if package in EXPORT_ONLY and not (importer in ARCHIVE_ROOMS and package in ARCHIVE_ONLY):
        return f"mailserver does without {package}"
    if OF_ONE_ROOM.get(package, importer) != importer:
        return f"only {OF_ONE_ROOM[package]} sees {package}"
    if package != "mailserver":
        forbidden = layer <= LAST_PURE_LAYER and any(within(target, name) for name in IMPURE)
        return f"layer {layer} does no I/O" if forbidden else None

    imported_room = room_named(target)
    pair = (importer, imported_room)
    if pair in NARROW and not any(within(target, module) for module in NARROW[pair]):
        return f"{importer} sees only {NARROW[pair]} of {imported_room}"
    if importer == imported_room or LAYERS[imported_room] < layer:
        return None
    return f"{importer} (layer {layer}) may not see {imported_room}"


def faults(path: str, source: str) -> list[str]:
    """All that a file imports against the rules, as `path:line: name: why`; `path` starts at the project."""
    return [
        f"{path}:{line}: {target}: {why}"
        for line, target in imported(path, source)
        if (why := fault(path, target)) is not None
    ]


def files() -> list[str]:
    return sorted(
        file.relative_to(ROOT).as_posix()
        for package in ("mailserver", "spark_export")
        for file in (ROOT / package).rglob("*.py")
    )


def test_every_module_lies_in_a_room() -> None:
    rooms = {room_of(path) for path in files() if path.startswith("mailserver/")}

    assert rooms == LAYERS.keys()


def test_no_modules_import_each_other_in_a_circle() -> None:
    modules = {path.removesuffix(".py").removesuffix("/__init__").replace("/", "."): path for path in files()}
    seen = {
        module: {
            name for _, target in imported(path, (ROOT / path).read_text("utf-8")) if (name := _module(target, modules))
        }
        for module, path in modules.items()
    }

    order = list(TopologicalSorter({module: names - {module} for module, names in seen.items()}).static_order())

    assert len(order) == len(modules)


def _module(target: str, modules: dict[str, str]) -> str | None:
    """The module that a dotted name of an import is, or is in; a package is what is in its `__init__`."""
    return next((name for name in (target, target.rpartition(".")[0]) if name in modules), None)


def test_imports_point_down() -> None:
    found = [line for path in files() for line in faults(path, (ROOT / path).read_text(encoding="utf-8"))]

    assert not found, "\n".join(found)


@pytest.mark.parametrize(
    ("folder", "limit"),
    [("mailserver", 400), ("spark_export", 400), ("bench", 400), ("docs", 400), ("tests", 800)],
)
def test_no_module_is_too_long_to_be_read_at_once(folder: str, limit: int) -> None:
    lines = {
        path.relative_to(ROOT).as_posix(): len(path.read_bytes().splitlines()) for path in (ROOT / folder).rglob("*.py")
    }

    assert lines
    assert [f"{path}: {count} lines" for path, count in lines.items() if count > limit] == []


@pytest.mark.parametrize(
    ("path", "source"),
    [
        ("mailserver/errors.py", "from mailserver.codec.keys import NodeId"),
        ("mailserver/errors.py", "from mailserver.limits.buckets import TokenBucket"),
        ("mailserver/limits/buckets.py", "from mailserver.codec.keys import NodeId"),
        ("mailserver/limits/buckets.py", "from mailserver.limits.admission import Allowlist"),
        ("mailserver/limits/buckets.py", "from time import monotonic"),
        ("mailserver/codec/keys.py", "from mailserver.limits import buckets"),
        ("mailserver/codec/keys.py", "import mailserver.waku.envelope"),
        ("mailserver/codec/__init__.py", "from ..waku import envelope"),
        ("mailserver/rlpx/session.py", "from mailserver.waku.peer import WakuPeer"),
        ("mailserver/rlpx/session.py", "from mailserver import waku"),
        ("mailserver/rlpx/session.py", "from .. import waku"),
        ("mailserver/rlpx/session.py", "from ..waku import peer"),
        ("mailserver/waku/peer.py", "from mailserver.rlpx.session import Session"),
        ("mailserver/waku/peer.py", "from mailserver.mail.request import Cursor"),
        ("mailserver/waku/peer.py", "def late():\n    from mailserver.live import relay"),
        ("mailserver/waku/peer.py", "if TYPE_CHECKING:\n    from mailserver.app.config import Config"),
        ("mailserver/waku/peer.py", "from mailserver import metrics"),
        ("mailserver/waku/peer.py", "from mailserver import files"),
        ("mailserver/libp2p/mplex.py", "from mailserver.rlpx.session import Session"),
        ("mailserver/libp2p/mplex.py", "from mailserver.waku.envelope import Envelope"),
        ("mailserver/libp2p/yamux.py", "import asyncio"),
        ("mailserver/leveldb/journal.py", "from pathlib import Path\nimport asyncio"),
        ("mailserver/store/leveldb/files.py", "import google_crc32c"),
        ("mailserver/moving/move.py", "from mailserver.store.leveldb.go_history import GoHistory"),
        ("mailserver/mail/packing.py", "from mailserver.rlpx import p2p"),
        ("mailserver/ids/muid.py", "from mailserver.mail.request import Cursor"),
        ("mailserver/ids/muid.py", "from mailserver.rlpx import p2p"),
        ("mailserver/ids/schemas.py", "from secrets import token_bytes"),
        ("mailserver/reconcile/sides.py", "from mailserver.ids.muid import Muid"),
        ("mailserver/reconcile/sides.py", "from mailserver.waku.envelope import Envelope"),
        ("mailserver/reconcile/sides.py", "import asyncio"),
        ("mailserver/waku2/frames.py", "import asyncio"),
        ("mailserver/waku2/frames.py", "from mailserver.rlpx import framing"),
        ("mailserver/waku2/frames.py", "from mailserver.wakuid import packets"),
        ("mailserver/communities/links.py", "from mailserver.waku2.frames import FrameReader"),
        ("mailserver/communities/links.py", "from mailserver.client import sealing"),
        ("mailserver/communities/ranges.py", "import time"),
        ("mailserver/app/daemon.py", "import libtorrent"),
        ("mailserver/data_dir/own_store.py", "import asyncpg"),
        ("mailserver/live/intake.py", "from mailserver.store.postgres.store import open_store"),
        ("mailserver/store/engine/search.py", "from mailserver.store.postgres.lookups import PostgresLookups"),
        ("mailserver/store/postgres/store.py", "from mailserver.store.sqlite.schema import STORE_FILE"),
        ("mailserver/torrents/session.py", "from mailserver.store.interface import Store"),
        ("mailserver/metrics/registry.py", "from mailserver.store.sqlite import schema"),
        ("mailserver/store/sqlite/writer.py", "from mailserver.net.connection import Connection"),
        ("mailserver/store/sqlite/writer.py", "from mailserver.app.config import Config"),
        ("mailserver/net/dialer.py", "from mailserver.store.sqlite import schema"),
        ("mailserver/net/dialer.py", "from mailserver.waku.envelope import Envelope"),
        ("mailserver/net/dialer.py", "from mailserver.waku import envelope, peer"),
        ("mailserver/net/dialer.py", "import mailserver.waku"),
        ("mailserver/net/dialer.py", "from mailserver.mail.request import Cursor"),
        ("mailserver/live/relay.py", "from mailserver.client.mail_client import MailClient"),
        ("mailserver/live/relay.py", "import mailserver.app.config as settings"),
        ("mailserver/live/relay.py", "from mailserver.app import logs"),
        ("mailserver/live/relay.py", "from mailserver.api.server import Server"),
        ("mailserver/live/relay.py", "from mailserver import catchup"),
        ("mailserver/client/mail_client.py", "from mailserver.history import delivery"),
        ("mailserver/client/mail_client.py", "from mailserver.catchup.ranges import Ranges"),
        ("mailserver/history/delivery.py", "from mailserver.store.sqlite import work"),
        ("mailserver/history/delivery.py", "from mailserver.store import retention"),
        ("mailserver/live/intake.py", "from mailserver.store.sqlite.store import open_store"),
        ("mailserver/catchup/source.py", "from mailserver.store.sqlite.store import open_store"),
        ("mailserver/feed_socket/server.py", "from mailserver.store.interface import Store"),
        ("mailserver/feed_socket/client.py", "from mailserver.peers.node import Node"),
        ("mailserver/live/feed.py", "from mailserver.feed_socket import frames"),
        ("mailserver/store/sqlite/reader.py", "from mailserver.catchup import ranges"),
        ("mailserver/catchup/catchup.py", "from mailserver.app.config import Config"),
        ("mailserver/catchup/command.py", "from mailserver.commands import output"),
        ("mailserver/catchup/catchup.py", "from mailserver.api import dispatch"),
        ("mailserver/api/admin.py", "from mailserver.catchup.catchup import Catchup"),
        ("mailserver/api/server.py", "from mailserver.app.config import Config"),
        ("mailserver/api/server.py", "import mailserver.app.daemon"),
        ("mailserver/limits/admission.py", "from mailserver.net.pipe import Pipe"),
        ("mailserver/limits/admission.py", "from mailserver.store.sqlite import reader"),
        ("mailserver/store/retention.py", "from mailserver.store.sqlite.schema import SCHEMA_VERSION"),
        ("mailserver/store/sqlite/store.py", "from mailserver.store.sqlite.repair import check"),
        ("mailserver/store/sqlite/store.py", "from mailserver.archive import holdings"),
        ("mailserver/store/interface.py", "from mailserver.archive import holdings"),
        ("mailserver/archive/holdings.py", "from mailserver.net.connection import Connection"),
        ("mailserver/app/daemon.py", "from mailserver import commands"),
        ("mailserver/app/daemon.py", "import spark_export"),
        ("mailserver/archive/manifest.py", "from pyspark.sql import SparkSession"),
        ("mailserver/archive/manifest.py", "import pyarrow.parquet"),
        ("mailserver/archive/reading/scan.py", "from pyspark.sql import SparkSession"),
        ("mailserver/archive/reading/scan.py", "from mailserver.net import dialer"),
        ("mailserver/history/merged.py", "import numpy"),
        ("mailserver/archive/manifest.py", "from mailserver.upkeep import pruning"),
        ("spark_export/source.py", "from mailserver.store.sqlite.reader import find"),
        ("spark_export/source.py", "from mailserver.store.sqlite import store"),
        ("spark_export/source.py", "from mailserver.waku import bloom"),
        ("spark_export/source.py", "from mailserver.app.config import Config"),
        ("spark_export/source.py", "import mailserver"),
        ("mailserver/errors.py", "import logging"),
        ("mailserver/codec/keys.py", "import secrets"),
        ("mailserver/codec/keys.py", "import os\nkey = os.urandom(32)"),
        ("mailserver/codec/keys.py", "from os import urandom"),
        ("mailserver/rlpx/session.py", "import asyncio.streams"),
        ("mailserver/rlpx/session.py", "from asyncio import Queue"),
        ("mailserver/waku/peer.py", "from time import monotonic"),
        ("mailserver/waku/peer.py", "import random as dice"),
        ("mailserver/mail/request.py", "import socket, sqlite3"),
        ("mailserver/mail/request.py", "def late():\n    import aiosqlite"),
    ],
)
def test_import_against_the_layers_is_found(path: str, source: str) -> None:
    assert faults(path, source)


@pytest.mark.parametrize(
    ("path", "source"),
    [
        ("mailserver/__init__.py", "from importlib.metadata import version"),
        ("mailserver/errors.py", "import enum"),
        (
            "mailserver/codec/ecies.py",
            "from mailserver.codec import aes\nfrom . import keccak\nimport hmac, os.path",
        ),
        (
            "mailserver/codec/ecies.py",
            "from mailserver.errors import DecodeError\nfrom mailserver import __version__",
        ),
        ("mailserver/rlpx/session.py", "from mailserver.codec import rlp\nfrom .framing import FrameEncoder"),
        (
            "mailserver/mail/packing.py",
            "from mailserver.waku.envelope import Envelope\nfrom timeit import timeit",
        ),
        (
            "mailserver/store/sqlite/writer.py",
            "import aiosqlite, asyncio, logging\nfrom mailserver.limits import fair_queue",
        ),
        ("mailserver/store/sqlite/writer.py", "from mailserver.waku.envelope import Topic"),
        ("mailserver/archive/holdings.py", "from mailserver.store.interface import HistorySource"),
        (
            "mailserver/net/connection.py",
            "from mailserver.waku.peer import WakuPeer\nfrom mailserver.waku import peer",
        ),
        (
            "mailserver/net/connection.py",
            "from mailserver.rlpx.session import Session\nimport mailserver.metrics.registry",
        ),
        (
            "mailserver/live/intake.py",
            "import os\nfrom mailserver import limits, mail, net, waku\nfrom mailserver.store import interface",
        ),
        ("mailserver/limits/admission.py", "from mailserver.limits.buckets import Buckets\nimport ipaddress"),
        (
            "mailserver/limits/request_quotas.py",
            "from mailserver.limits import admission, buckets\nfrom mailserver.mail import request",
        ),
        (
            "mailserver/catchup/catchup.py",
            "from mailserver import client, files, live, net\nfrom mailserver.store.interface import Store",
        ),
        (
            "mailserver/api/waku.py",
            "import aiohttp.web\nfrom mailserver import client, live, net, peers, store\nfrom . import dispatch",
        ),
        (
            "mailserver/app/daemon.py",
            "from mailserver import api, catchup, peers\nfrom mailserver.limits.buckets import Buckets",
        ),
        ("mailserver/commands/cli.py", "from mailserver import app, client, doctor"),
        ("mailserver/__main__.py", "from mailserver.commands.cli import main"),
        ("spark_export/source.py", "import spark_export.config\nfrom mailserver.store.sqlite import schema"),
        (
            "spark_export/job.py",
            "from mailserver.handoff.archived import write_archived\nfrom mailserver import errors, files",
        ),
        ("spark_export/source.py", "from mailserver.waku.envelope import decode_envelope"),
        ("spark_export/publishing.py", "from mailserver.archive.archive import Archive"),
        ("spark_export/source.py", "import time\nfrom mailserver.store.sqlite.schema import SCHEMA_VERSION"),
    ],
)
def test_import_along_the_layers_passes(path: str, source: str) -> None:
    assert faults(path, source) == []
