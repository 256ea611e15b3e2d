"""Two mailservers, a stream of posts, one compaction, and status pages to look at: `make demo`, ended by Ctrl-C.

It stands beside the docs because it shows what they describe; it measures nothing and checks nothing. Everything that
it makes is in a temporary folder, which it removes at the end. All ports are on loopback.
"""

import asyncio
import contextlib
import itertools
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from mailserver.client.mail_client import connect
from mailserver.client.sealing import seal_envelope
from mailserver.codec.keys import Enode
from mailserver.commands.arguments import read_topic
from mailserver.data_dir.folder import read_enode
from mailserver.store.interface import NewEnvelope
from mailserver.store.sqlite.schema import STORE_FILE
from mailserver.store.sqlite.store import open_store
from mailserver.waku.payload import key_from_password

CHAT = "demo"
"""A public chat: its name gives the topic, and the key that seals its messages."""

_, TOPIC = read_topic(CHAT)
KEY = key_from_password(CHAT)

YESTERDAYS_ENVELOPES = 500
"""North begins with these in its store. South fetches them, and the compaction archives them."""

POST_EVERY_S = 0.5
TOLD_EVERY = 60
"""One line is printed for this many posts."""

TTL_S = 60
DAY_S = 86_400
START_TIMEOUT_S = 30.0
STOP_TIMEOUT_S = 15.0

BIN = Path(sys.executable).parent


class DemoFailed(Exception):
    """A mailserver did not start; the text is its log."""


@dataclass(frozen=True)
class Mailserver:
    """A running mailserver: its files, and the addresses where it and its status page are reached."""

    name: str
    data_dir: Path
    settings: Path
    process: asyncio.subprocess.Process
    enode: Enode
    page: str

    @property
    def store(self) -> Path:
        """The store's file."""
        return self.data_dir / STORE_FILE


def main() -> int:
    """Run the demo until SIGINT, SIGTERM or SIGHUP; return the exit code."""
    try:
        asyncio.run(_run_until_signal())
    except asyncio.CancelledError:
        return 0
    except DemoFailed as error:
        print(error, file=sys.stderr)
    return 1


async def _run_until_signal() -> None:
    demo = asyncio.ensure_future(_demo())
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        asyncio.get_running_loop().add_signal_handler(number, demo.cancel)
    await demo


async def _demo() -> None:
    folder = Path(tempfile.mkdtemp(prefix="waku-mailserver-demo-"))
    try:
        await _store_yesterday(folder / "north")
        async with _mailserver(folder, "north") as north, _mailserver(folder, "south") as south:
            _introduce(north, south)
            _introduce(south, north)
            _say(_what_to_look_at(north, south))
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(_post(north, south))
                tasks.create_task(_compact(folder, north, south))
    finally:
        shutil.rmtree(folder)
        _say(f"\nstopped, and removed {folder}")


async def _store_yesterday(data_dir: Path) -> None:
    """Fill a store as if its mailserver had run yesterday: a compaction archives only days that are over."""
    data_dir.mkdir(mode=0o700)
    began = (int(time.time()) // DAY_S - 1) * DAY_S
    rows = []
    for number in range(YESTERDAYS_ENVELOPES):
        at = began + number * DAY_S // YESTERDAYS_ENVELOPES
        sealed = await seal_envelope(f"yesterday's message {number}".encode(), KEY, TOPIC, ttl=TTL_S, min_pow=0, now=at)
        rows.append(NewEnvelope(at, sealed.created, sealed.topic, sealed.hash(), sealed.raw))
    async with open_store(data_dir / STORE_FILE) as store:
        await store.put(rows)


@contextlib.asynccontextmanager
async def _mailserver(folder: Path, name: str) -> AsyncIterator[Mailserver]:
    data_dir, settings, log = folder / name, folder / f"{name}.toml", folder / f"{name}.log"
    settings.touch()
    flags = ["--data-dir", data_dir, "--config", settings, "--archive", folder / "archive"]
    flags += ["--listen", "127.0.0.1:0", "--metrics", "127.0.0.1:0"]
    with log.open("wb") as stderr:
        process = await _start("waku-mailserver", "run", *flags, stderr=stderr)
    try:
        port = await _logged(log, "serving metrics port=", process)
        await _logged(log, "listening enode=", process)
        yield Mailserver(name, data_dir, settings, process, read_enode(data_dir), f"http://127.0.0.1:{port}/")
    finally:
        await _stop(process)


async def _start(program: str, *arguments: object, stderr: IO[bytes]) -> asyncio.subprocess.Process:
    """Start one of our programs, in a session of its own: only this program gets the terminal's Ctrl-C."""
    return await asyncio.create_subprocess_exec(
        BIN / program, *map(str, arguments), stdout=stderr, stderr=stderr, start_new_session=True
    )


async def _stop(process: asyncio.subprocess.Process) -> None:
    if process.returncode is not None:
        return
    process.terminate()
    try:
        async with asyncio.timeout(STOP_TIMEOUT_S):
            await process.wait()
    except TimeoutError:
        process.kill()
        await process.wait()


async def _logged(log: Path, text: str, process: asyncio.subprocess.Process) -> str:
    """Wait for a line of a mailserver's log; return the word that follows `text` in it."""
    deadline = time.monotonic() + START_TIMEOUT_S
    while True:
        logged = log.read_text(encoding="utf-8")
        _, _, rest = logged.partition(text)
        if "\n" in rest:
            return rest.split(maxsplit=1)[0]
        if process.returncode is not None or time.monotonic() > deadline:
            raise DemoFailed(f"a mailserver did not start:\n{logged}")
        await asyncio.sleep(0.05)


def _introduce(mailserver: Mailserver, other: Mailserver) -> None:
    """Let a mailserver stay connected to the other one and fetch history from it; SIGHUP applies the new settings."""
    mailserver.settings.write_text(f'static_peers = ["{other.enode}"]\ntrusted_peers = ["{other.enode}"]\n')
    mailserver.process.send_signal(signal.SIGHUP)


def _what_to_look_at(north: Mailserver, south: Mailserver) -> str:
    command = BIN / "waku-mailserver"
    return f"""
Two mailservers run. They trust each other: each gets what the other one took.

  status pages    north {north.page}
                  south {south.page}

In another shell:

  {command} request {south.enode} --topic {CHAT} --sym-key-password {CHAT}
  {command} status --data-dir {south.data_dir}
  {command} stats --data-dir {north.data_dir}

Ctrl-C stops everything, and removes {north.data_dir.parent}.
"""


async def _post(*mailservers: Mailserver) -> None:
    """Post to each mailserver in turn."""
    async with contextlib.AsyncExitStack() as stack:
        clients = [await stack.enter_async_context(connect(mailserver.enode, "demo")) for mailserver in mailservers]
        for number in itertools.count(1):
            client = clients[number % len(clients)]
            envelope = await seal_envelope(
                f"message {number}".encode(),
                KEY,
                TOPIC,
                ttl=TTL_S,
                min_pow=client.settings.pow_requirement,
                now=int(time.time()),
            )
            await client.post([envelope])  # returns when it is on the mailserver's disk
            if number == 1 or number % TOLD_EVERY == 0:
                _say(f"posted {number}: message {number} is confirmed")
            await asyncio.sleep(POST_EVERY_S)


async def _compact(folder: Path, *mailservers: Mailserver) -> None:
    """Archive yesterday's envelopes from both stores, each envelope once; then say where to see it."""
    archive, log, report = folder / "archive", folder / "compaction.log", folder / "report.html"
    arguments = [argument for mailserver in mailservers for argument in ("--store", mailserver.store)]
    _say("compacting: Spark takes some 20 seconds to start")
    with log.open("wb") as output:
        process = await _start("spark-export", "compact", *arguments, "--archive", archive, stderr=output)
    try:
        await process.wait()
    finally:
        await _stop(process)
    if process.returncode:
        _say(f"the compaction ended with {process.returncode}:\n{log.read_text(encoding='utf-8')}")
        return
    _say(f"""compacted. To see what is archived:

  {BIN / "spark-export"} last --store {mailservers[0].store}
  {BIN / "spark-export"} report --archive {archive} --html {report}
""")


def _say(text: str) -> None:
    print(text, flush=True)


if __name__ == "__main__":
    sys.exit(main())
