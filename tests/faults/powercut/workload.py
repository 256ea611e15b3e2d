"""What is done to a mailserver while all that it writes is recorded, and what it has promised meanwhile."""

import asyncio
import contextlib
import random
import time
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from mailserver.codec.keys import Enode
from mailserver.rlpx.handshake import Initiator
from mailserver.waku.envelope import Envelope, Topic
from mailserver.waku.packets import PacketCode
from tests.faults.powercut.recorder import Entry, Kind, Recorder
from tests.faults.powercut.replay import POSIX, Disk, FileSystem
from tests.integration.daemons import PROGRAM, Daemon, run_command, running_daemon
from tests.mailservers import NEWS, SPORT, make_envelope
from tests.pairs import entropy, private_key
from tests.raw_peer import RawPeer, envelope_list, read_handshake_packet
from tests.waiting import DEADLINE_S

SMALL = (PROGRAM[0], "-m", "tests.faults.powercut.small")
DATA = "data"
"""The data folder, in the folder that is recorded. It is not there at first."""

COMMAND_DEADLINE_S = 600.0
"""Spark's nights take ten seconds, and minutes where others want the processor, too."""

TOPICS = (NEWS, SPORT, Topic(b"\x00\x00\x00\x01"))
SIZES = (100, 100, 600, 600, 600, 3000, 20_000)
"""Bytes of data; the last one takes pages of its own."""


@dataclass(frozen=True, slots=True)
class Confirmation:
    """These envelopes were confirmed when process `pid`, of this data folder, had sent so many bytes to `port`."""

    data_dir: Path
    pid: int
    port: int
    bytes: int
    envelopes: tuple[Envelope, ...]


@dataclass(frozen=True, slots=True)
class Promise:
    """From entry `since` on, which is when it was sent, these envelopes are in the store of this data folder."""

    data_dir: Path
    since: int
    envelopes: tuple[Envelope, ...]


@dataclass
class Recording:
    """What is being recorded, from now on; `folder` is as it was before.

    Args:
        promises: what its file system promises.
        sent: everything that was sent to the mailserver, confirmed or not.
    """

    recorder: Recorder
    choice: random.Random
    promises: FileSystem = POSIX
    sent: list[Envelope] = field(default_factory=list)
    confirmations: list[Confirmation] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.disk = Disk(self.folder, self.promises)
        self._numbers = iter(range(self.choice.randrange(1 << 30), 1 << 31))
        self._clients = 0

    @property
    def folder(self) -> Path:
        """What is recorded."""
        return self.recorder.folder

    @property
    def data_dir(self) -> Path:
        """The mailserver's folder."""
        return self.folder / DATA

    @contextlib.contextmanager
    def daemon(self, *flags: str, data_dir: Path | None = None, program: Sequence[str] = SMALL) -> Iterator[Daemon]:
        """Run the mailserver with small limits, or another program that becomes it, recorded."""
        with running_daemon(
            data_dir or self.data_dir,
            "--min-pow",
            "0",
            *flags,
            environment=self.recorder.environment,
            program=program,
        ) as daemon:
            yield daemon

    def run(self, *arguments: object, program: Sequence[str] = PROGRAM) -> str:
        """Run a command, recorded; return what it prints."""
        done = run_command(
            *arguments, program=program, environment=self.recorder.environment, within_s=COMMAND_DEADLINE_S
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    def envelopes(self, count: int) -> list[Envelope]:
        """So many new envelopes, created now."""
        now = int(time.time())
        return [
            make_envelope(
                next(self._numbers),
                created=now - self.choice.randrange(20),
                topic=self.choice.choice(TOPICS),
                data_bytes=self.choice.choice(SIZES),
            )
            for _ in range(count)
        ]

    async def post(self, daemon: Daemon, packets: Mapping[int, int], *, clients: int = 3) -> None:
        """Send packets of new envelopes, and some of them once more, by several clients at once.

        Args:
            packets: of so many envelopes, so many packets.
        """
        sizes = [size for size, count in packets.items() for _ in range(count)]
        self.choice.shuffle(sizes)
        await asyncio.gather(*(self._post(daemon, sizes[number::clients]) for number in range(clients)))

    async def _post(self, daemon: Daemon, sizes: Sequence[int]) -> None:
        self._clients += 1
        async with _connected(daemon.enode, f"client {self._clients}") as (peer, reader):
            _, port = peer.writer.get_extra_info("sockname")
            for size in sizes:
                again = [self.choice.choice(self.sent)] if self.sent and self.choice.random() < 0.2 else []
                envelopes = (*self.envelopes(size), *again)
                self.sent += envelopes
                peer.say(PacketCode.MESSAGES, envelope_list([envelope.raw for envelope in envelopes]))
                while (await peer.hear_packet()).code == PacketCode.MESSAGES:
                    pass
                self.confirmations.append(
                    Confirmation(daemon.data_dir, daemon.process.pid, port, reader.count, envelopes)
                )
                while (await peer.hear_packet()).code == PacketCode.MESSAGES:
                    pass


def promises(entries: Sequence[Entry], confirmations: Sequence[Confirmation]) -> list[Promise]:
    """When each confirmation was sent: with the bytes that complete it."""
    waiting: dict[tuple[int, int], list[Confirmation]] = {}
    for confirmation in confirmations:
        waiting.setdefault((confirmation.pid, confirmation.port), []).append(confirmation)
    sent: dict[tuple[int, int], int] = {}
    found = []
    for at, entry in enumerate(entries):
        place = (entry.pid, entry.a)
        if entry.kind is not Kind.SEND or place not in waiting:
            continue
        sent[place] = sent.get(place, 0) + entry.b
        while waiting[place] and waiting[place][0].bytes <= sent[place]:
            confirmation = waiting[place].pop(0)
            found.append(Promise(confirmation.data_dir, at, confirmation.envelopes))
    assert not any(waiting.values()), "a confirmation that was heard was not seen to be sent"
    return found


class _Counted(asyncio.StreamReader):
    """Knows how much was read."""

    count = 0

    async def readexactly(self, n: int) -> bytes:
        data = await super().readexactly(n)
        self.count += len(data)
        return data


@contextlib.asynccontextmanager
async def _connected(enode: Enode, name: str) -> AsyncIterator[tuple[RawPeer, _Counted]]:
    loop = asyncio.get_running_loop()
    reader = _Counted(loop=loop)
    protocol = asyncio.StreamReaderProtocol(reader, loop=loop)
    async with asyncio.timeout(DEADLINE_S):
        transport, _ = await loop.create_connection(lambda: protocol, enode.host, enode.port)
    writer = asyncio.StreamWriter(transport, protocol, reader, loop)
    initiator = Initiator(private_key(name), enode.node_id, entropy(name))
    writer.write(initiator.auth)
    peer = RawPeer(reader, writer, private_key(name), initiator.receive_ack(await read_handshake_packet(reader)))
    try:
        yield await peer.greet(), reader
    finally:
        await peer.close()
