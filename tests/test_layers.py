"""The layers of `mailserver/`: imports point down, and the lower three layers do no I/O.

A unit is a folder of `mailserver/` or a file beside them; a new file in a known folder needs no change here.
"""

import ast
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

import pytest

ROOT = Path(__file__).parent.parent

LAYERS = {
    "__init__": 0,
    "errors": 0,
    "codec": 1,
    "buckets": 1,
    "fair_queue": 1,
    "counters": 1,
    "units": 1,
    "rlpx": 2,
    "waku": 2,
    "mail": 2,
    "metrics": 3,
    "files": 3,  # I/O, so not lower: the store's record and the data folder are written and locked by it
    "store": 3,
    "net": 3,
    "services": 4,
    "client": 4,
    "sync": 5,
    "rpc": 5,
    "monitoring": 5,
    "config": 6,
    "control": 6,
    "datadir": 6,
    "output": 6,
    "policy": 6,
    "daemon": 6,
    "arguments": 6,
    "backup": 6,
    "own_store": 6,
    "salvage": 6,
    "doctor": 6,
    "cli": 6,
    "commands": 6,
    "server": 6,
    "logs": 6,
    "__main__": 6,
}
TOP = 6  # its files see each other; every other unit sees lower layers and itself
SIDEWAYS = {("mail", "waku"), ("store", "metrics"), ("net", "metrics"), ("store", "files")}
# Of these units an importer sees only the modules named: net knows peers and their packets, but no envelopes.
NARROW: dict[tuple[str, str], tuple[str, ...]] = {
    ("net", "waku"): ("mailserver.waku.peer", "mailserver.waku.packets"),
    ("net", "mail"): (),
}
EXPORT_SEES = (
    "mailserver.codec.keccak",
    "mailserver.store.schema",
    "mailserver.store.handover",
    "mailserver.store.compaction",
    "mailserver.store.upkeep",
    "mailserver.store.records",
    "mailserver.store.rows",
    "mailserver.waku.envelope",
    "mailserver.errors",
    "mailserver.files",
    "mailserver.logs",
    "mailserver.units",
    "mailserver.__version__",
)

LAST_PURE_LAYER = 2  # time and randomness come as arguments, results leave as values
IMPURE = {
    "aiosqlite",
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


def unit_of(path: str) -> str:
    """`mailserver/waku/bloom.py` -> `waku`; `mailserver/errors.py` -> `errors`."""
    return PurePosixPath(path).parts[1].removesuffix(".py")


def unit_named(target: str) -> str:
    """The unit that a dotted name lies in; what is no unit is a name of the package itself."""
    parts = target.split(".")
    return parts[1] if len(parts) > 1 and parts[1] in LAYERS else "__init__"


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
    inside, importer = PurePosixPath(path).parts[0], unit_of(path)
    package = target.partition(".")[0]

    if inside == "spark_export":
        forbidden = package == "mailserver" and not any(within(target, module) for module in EXPORT_SEES)
        return f"spark_export sees only {EXPORT_SEES} of mailserver" if forbidden else None
    if package == "spark_export":
        return "mailserver never sees spark_export"
    layer = LAYERS[importer]
    if package != "mailserver":
        forbidden = layer <= LAST_PURE_LAYER and any(within(target, name) for name in IMPURE)
        return f"layer {layer} does no I/O" if forbidden else None

    imported_unit = unit_named(target)
    pair = (importer, imported_unit)
    if pair in NARROW and not any(within(target, module) for module in NARROW[pair]):
        return f"{importer} sees only {NARROW[pair]} of {imported_unit}"
    below = LAYERS[imported_unit] < layer
    beside = importer == imported_unit or pair in SIDEWAYS or LAYERS[imported_unit] == layer == TOP
    return None if below or beside else f"{importer} (layer {layer}) may not see {imported_unit}"


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


def test_every_module_lies_in_a_layer() -> None:
    units = {unit_of(path) for path in files() if path.startswith("mailserver/")}

    assert units, "no file found"
    assert units <= LAYERS.keys()


def test_imports_point_down() -> None:
    found = [line for path in files() for line in faults(path, (ROOT / path).read_text(encoding="utf-8"))]

    assert not found, "\n".join(found)


@pytest.mark.parametrize(
    ("path", "source"),
    [
        ("mailserver/errors.py", "from mailserver.codec.keys import NodeId"),
        ("mailserver/errors.py", "from mailserver.buckets import TokenBucket"),
        ("mailserver/buckets.py", "from mailserver.codec.keys import NodeId"),
        ("mailserver/buckets.py", "from mailserver.net.admission import Allowed"),
        ("mailserver/buckets.py", "from time import monotonic"),
        ("mailserver/codec/keys.py", "from mailserver import buckets"),
        ("mailserver/codec/keys.py", "import mailserver.waku.envelope"),
        ("mailserver/codec/__init__.py", "from ..waku import envelope"),
        ("mailserver/rlpx/session.py", "from mailserver.waku.peer import WakuPeer"),
        ("mailserver/rlpx/session.py", "from mailserver import waku"),
        ("mailserver/rlpx/session.py", "from .. import waku"),
        ("mailserver/rlpx/session.py", "from ..waku import peer"),
        ("mailserver/waku/peer.py", "from mailserver.rlpx.session import Session"),
        ("mailserver/waku/peer.py", "from mailserver.mail.request import Cursor"),
        ("mailserver/waku/peer.py", "def late():\n    from mailserver.services import relay"),
        ("mailserver/waku/peer.py", "if TYPE_CHECKING:\n    from mailserver.config import Config"),
        ("mailserver/waku/peer.py", "from mailserver import metrics"),
        ("mailserver/waku/peer.py", "from mailserver import files"),
        ("mailserver/mail/pages.py", "from mailserver.rlpx import p2p"),
        ("mailserver/metrics.py", "from mailserver.store import schema"),
        ("mailserver/store/writer.py", "from mailserver.net.connection import Connection"),
        ("mailserver/store/writer.py", "from mailserver.config import Config"),
        ("mailserver/net/dialer.py", "from mailserver.store import schema"),
        ("mailserver/net/dialer.py", "from mailserver.waku.envelope import Envelope"),
        ("mailserver/net/dialer.py", "from mailserver.waku import envelope, peer"),
        ("mailserver/net/dialer.py", "import mailserver.waku"),
        ("mailserver/net/dialer.py", "from mailserver.mail.request import Cursor"),
        ("mailserver/services/relay.py", "from mailserver.client import MailClient"),
        ("mailserver/services/relay.py", "import mailserver.config as settings"),
        ("mailserver/services/relay.py", "from mailserver import logs"),
        ("mailserver/services/relay.py", "from mailserver.rpc.server import Server"),
        ("mailserver/services/relay.py", "from mailserver import sync"),
        ("mailserver/client.py", "from mailserver.services import quotas"),
        ("mailserver/client.py", "from mailserver.sync.ranges import Ranges"),
        ("mailserver/store/reader.py", "from mailserver.sync import ranges"),
        ("mailserver/sync/catchup.py", "from mailserver.config import Config"),
        ("mailserver/sync/command.py", "from mailserver import output"),
        ("mailserver/sync/catchup.py", "from mailserver.rpc import dispatch"),
        ("mailserver/rpc/admin.py", "from mailserver.sync.catchup import Catchup"),
        ("mailserver/rpc/server.py", "from mailserver.config import Config"),
        ("mailserver/rpc/server.py", "import mailserver.daemon"),
        ("mailserver/net/admission.py", "from mailserver.services.rates import RateLimiter"),
        ("mailserver/net/admission.py", "from mailserver.store import reader"),
        ("mailserver/daemon.py", "import spark_export"),
        ("spark_export/source.py", "from mailserver.store.reader import find"),
        ("spark_export/source.py", "from mailserver.store import envelopes"),
        ("spark_export/source.py", "from mailserver.waku import bloom"),
        ("spark_export/source.py", "from mailserver.config import Config"),
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
            "mailserver/mail/pages.py",
            "from mailserver.waku.envelope import Envelope\nfrom timeit import timeit",
        ),
        ("mailserver/store/writer.py", "import aiosqlite, asyncio, logging\nfrom mailserver import metrics"),
        ("mailserver/store/writer.py", "from mailserver.waku.envelope import Topic"),
        (
            "mailserver/net/connection.py",
            "from mailserver.waku.peer import WakuPeer\nfrom mailserver.waku import peer",
        ),
        (
            "mailserver/net/connection.py",
            "from mailserver.rlpx.session import Session\nimport mailserver.metrics",
        ),
        (
            "mailserver/services/archive.py",
            "import os\nfrom mailserver import store, net, metrics, mail, waku",
        ),
        ("mailserver/net/admission.py", "from mailserver.buckets import Buckets\nimport ipaddress"),
        (
            "mailserver/services/quotas.py",
            "from mailserver import buckets\nfrom mailserver.net import admission\nfrom mailserver.mail import request",
        ),
        (
            "mailserver/sync/catchup.py",
            "import asyncio\nfrom mailserver import client, files, net, services, store\nfrom .ranges import Ranges",
        ),
        (
            "mailserver/rpc/waku.py",
            "import aiohttp.web\nfrom mailserver import client, net, services, store\nfrom . import dispatch",
        ),
        ("mailserver/daemon.py", "from mailserver import rpc, sync, services\nfrom mailserver.buckets import Buckets"),
        ("mailserver/cli.py", "from mailserver import client, config, daemon, logs"),
        ("mailserver/__main__.py", "from mailserver.cli import main"),
        ("spark_export/source.py", "import spark_export.config\nfrom mailserver.store import schema"),
        (
            "spark_export/job.py",
            "from mailserver.store.handover import write_handover\nfrom mailserver import errors, files",
        ),
        ("spark_export/source.py", "from mailserver.waku.envelope import decode_envelope"),
        ("spark_export/source.py", "import time\nfrom mailserver.store.schema import SCHEMA_VERSION"),
    ],
)
def test_import_along_the_layers_passes(path: str, source: str) -> None:
    assert faults(path, source) == []
