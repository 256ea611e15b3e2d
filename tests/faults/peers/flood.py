"""What attacks with messages are made of: peers from many addresses that send packets as fast as they are taken.

Who is disconnected comes back at once, as somebody else. What a flooder sends is made by a generator of packets, from a
seed; what it hears is counted, and not looked at.
"""

import asyncio
import contextlib
import random
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from dataclasses import dataclass, field

from bench.addresses import address
from bench.wire import CLIENT_STATUS, Wire, connect
from mailserver.codec.keys import PRIVATE_KEY_BYTES, PrivateKey
from mailserver.errors import ConnectionLost
from mailserver.mail.completion import Failure, decode_completion
from mailserver.waku.packets import PacketCode, StatusOptions
from mailserver.wakuid.packets import IdPacketCode
from tests.faults.peers.attacker import Target
from tests.faults.report import Figure

MAX_UNSENT_BYTES = 256 * 1024
"""What the mailserver does not take, a flooder does not make."""

RETRY_S = 0.05
_PAUSE_S = 0.002

Packets = Iterator[tuple[int, bytes]]
Make = Callable[[Target, random.Random], Packets]
"""Makes the packets of one flooder, code and payload, without an end."""


@dataclass(slots=True)
class Tally:
    """Of all flooders of an attack. `ended` counts disconnects by the reason that was said.

    `failures` counts the requests whose completion says that they have failed; `answers` the packets of `wakuid`.
    """

    sent: int = 0
    sent_bytes: int = 0
    failures: int = 0
    heard: Counter[int] = field(default_factory=Counter)
    answers: Counter[int] = field(default_factory=Counter)
    ended: Counter[str] = field(default_factory=Counter)

    def figures(self) -> dict[str, Figure]:
        """As a report wants them."""
        return {
            "packets": self.sent,
            "mb": self.sent_bytes / 1e6,
            "confirmed": self.heard[PacketCode.BATCH_ACKNOWLEDGED],
            "completed": self.heard[PacketCode.P2P_REQUEST_COMPLETE],
            "answered": self.heard[PacketCode.P2P_REQUEST_COMPLETE] - self.failures,
            **{IdPacketCode(code).name.lower(): count for code, count in sorted(self.answers.items())},
            **{f"ended_{reason.lower()}": count for reason, count in sorted(self.ended.items())},
        }


@contextlib.asynccontextmanager
async def joined(
    target: Target, number: int, rng: random.Random, tally: Tally, *, status: StatusOptions = CLIENT_STATUS
) -> AsyncIterator[tuple[Wire, asyncio.Event]]:
    """A peer of its own address, whose handshake is over, and what is set when it is disconnected."""
    key = PrivateKey(rng.randbytes(PRIVATE_KEY_BYTES))
    lost = asyncio.Event()

    def on_packet(code: int, payload: bytes) -> None:
        tally.heard[code] += 1
        if code == PacketCode.P2P_REQUEST_COMPLETE:
            tally.failures += isinstance(decode_completion(payload), Failure)

    def on_answer(code: int, payload: bytes) -> None:
        tally.answers[code] += 1

    def on_lost(error: ConnectionLost) -> None:
        if not lost.is_set():
            tally.ended[error.reason.name if error.reason else "silently"] += 1
        lost.set()

    async with connect(target.enode, status=status, key=key, trusting=True, source=address(number)) as (wire, _):
        wire.on_packet, wire.on_answer, wire.on_lost = on_packet, on_answer, on_lost
        yield wire, lost


async def flood(
    target: Target, make: Make, peers: int, *, status: StatusOptions = CLIENT_STATUS
) -> Mapping[str, Figure]:
    """Send what `make` makes from so many peers, as fast as it is taken, for as long as the attack goes on."""
    tally = Tally()
    deadline = asyncio.get_running_loop().time() + target.seconds

    async def one(number: int) -> None:
        rng = random.Random(f"{target.seed} {number}")
        packets = make(target, rng)
        while asyncio.get_running_loop().time() < deadline:
            with contextlib.suppress(ConnectionLost, OSError):
                async with joined(target, number, rng, tally, status=status) as (wire, lost):
                    await send(wire, lost, packets, deadline, tally)
            await asyncio.sleep(RETRY_S)

    await asyncio.gather(*(one(number) for number in range(peers)))
    return tally.figures()


async def send(wire: Wire, lost: asyncio.Event, packets: Packets, deadline: float, tally: Tally) -> None:
    """Send packets until the time is over, or the connection."""
    loop = asyncio.get_running_loop()
    while loop.time() < deadline and not lost.is_set():
        if wire.unsent_bytes >= MAX_UNSENT_BYTES:
            await asyncio.sleep(_PAUSE_S)
            continue
        code, payload = next(packets)
        is_known = isinstance(code, IdPacketCode) or code not in set(PacketCode)
        wire.send(code if is_known else PacketCode(code), payload)  # type: ignore[arg-type]
        wire.flush()
        tally.sent += 1
        tally.sent_bytes += len(payload)
        await asyncio.sleep(0)
