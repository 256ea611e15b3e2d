"""A daemon in this process, and how a test talks to it: as a peer, as a service manager, as a static peer."""

import asyncio
import contextlib
import os
import signal
import socket
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from mailserver.app.config import Config
from mailserver.app.daemon import run_daemon
from mailserver.codec import rlp
from mailserver.codec.keys import Enode
from mailserver.data_dir.folder import read_enode
from mailserver.errors import DisconnectReason
from mailserver.mail.completion import Completion, Failure, decode_completion
from mailserver.rlpx import p2p
from mailserver.waku.envelope import encode_envelopes
from mailserver.waku.packets import PacketCode, StatusOptions
from tests.mailservers import NEWS, make_envelope
from tests.pairs import private_key
from tests.raw_peer import DEPLOYED_STATUS, RawPeer
from tests.waiting import DEADLINE_S, until

STOP_WITHIN_S = 5.0
CLEAR_ID = b"0123456789abcdef0123456789abcdef"


@dataclass
class Daemon:
    """A daemon that runs in this process. `config` is what it reads when it is told to read its settings again."""

    config: Config
    task: asyncio.Task[None] = field(init=False)
    enode: Enode = field(init=False)
    raws: list[RawPeer] = field(default_factory=list)

    async def dial(self, name: str = "client") -> RawPeer:
        """Connect and do the key exchange."""
        raw = await RawPeer.dial((self.enode.host, self.enode.port), self.enode.node_id, name=name)
        self.raws.append(raw)
        return raw

    async def join(self, name: str = "client") -> RawPeer:
        """The same with Hello and Status."""
        return await (await self.dial(name)).greet()

    def read_settings(self) -> Config:
        """What the daemon calls at SIGHUP."""
        return self.config

    def reload(self, **changes: Any) -> None:
        """Change settings and send the signal that a service manager sends."""
        self.config = replace(self.config, **changes)
        os.kill(os.getpid(), signal.SIGHUP)

    async def stop(self, number: signal.Signals = signal.SIGTERM) -> float:
        """Send the signal that a service manager sends; return how long it took, in seconds."""
        started = time.monotonic()
        os.kill(os.getpid(), number)
        await asyncio.wait_for(self.task, DEADLINE_S)
        return time.monotonic() - started


@contextlib.asynccontextmanager
async def running(
    data_dir: Path,
    *,
    read_settings: Callable[[], Config] | None = None,
    clock: Callable[[], float] = time.time,
    **settings: Any,
) -> AsyncIterator[Daemon]:
    """Run a daemon on a free port. `clock`: the present, in Unix seconds."""
    daemon = Daemon(Config(data_dir=data_dir, **({"listen": "127.0.0.1:0"} | settings)))
    (data_dir / "enode").unlink(missing_ok=True)
    task = asyncio.create_task(run_daemon(daemon.config, read_settings or daemon.read_settings, clock))
    try:
        await until(lambda: task.done() or (data_dir / "enode").exists())
        if task.done():
            await task
        daemon.task, daemon.enode = task, read_enode(data_dir)
        yield daemon
    finally:
        for raw in daemon.raws:
            await raw.close()
        if not task.done():
            os.kill(os.getpid(), signal.SIGTERM)
            await asyncio.wait([task], timeout=DEADLINE_S)
            task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def ask(raw: RawPeer, payload: bytes) -> tuple[int, Completion | Failure]:
    """Ask for history; return the number of packets and the completion."""
    raw.say(PacketCode.P2P_REQUEST, payload)
    packets, completion = await raw.hear_answer()
    return len(packets), decode_completion(completion)


def clear_request(topic: bytes = NEWS) -> bytes:
    return rlp.encode([CLEAR_ID, b"", b"", b"", b"", b"", [topic]])


def fresh(number: int = 0) -> bytes:
    """The payload of Messages with one envelope of this moment."""
    return encode_envelopes([make_envelope(number, created=int(time.time())).raw])


async def hear_status(raw: RawPeer) -> StatusOptions:
    """Say Hello and Status; return the Status that comes."""
    raw.write(raw.hello())
    await raw.hear()
    raw.compressed = True
    raw.say(PacketCode.STATUS, DEPLOYED_STATUS)
    code, payload = await raw.hear_packet()
    assert code == PacketCode.STATUS
    return StatusOptions.decode(payload)


async def refusal(raw: RawPeer) -> DisconnectReason | None:
    """What the peer hears in place of Hello."""
    message_id, payload = await raw.hear()
    assert message_id == p2p.MessageId.DISCONNECT
    return p2p.decode_disconnect(payload)


def enode_of(server: socket.socket, name: str = "neighbour") -> str:
    return str(Enode(private_key(name).public_key, *server.getsockname()))


async def accept(server: socket.socket, name: str = "neighbour") -> RawPeer:
    """Be the static peer: take a call and exchange Hello and Status."""
    end, _ = await asyncio.wait_for(asyncio.get_running_loop().sock_accept(server), DEADLINE_S)
    return await (await RawPeer.accept(end, name=name)).greet()
