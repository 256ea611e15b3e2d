"""Clients that post to a mailserver until it is gone, and one that asks for all it has."""

import asyncio
import contextlib
import random
import time
from collections.abc import Sequence

from bench.data import envelope
from bench.wire import Wire, connect
from mailserver.client.mail_client import connect as connect_client
from mailserver.codec.keccak import keccak256
from mailserver.codec.keys import Enode
from mailserver.errors import ConnectionLost
from mailserver.mail.request import MailRequest, RequestId
from mailserver.waku.bloom import Interest
from mailserver.waku.envelope import Envelope, Topic, encode_envelopes
from mailserver.waku.packets import MessageResponse, PacketCode, decode_batch_acknowledged
from mailserver.waku.payload import key_from_password
from tests.faults.kills.promises import Promises

WINDOW_PACKETS = 4
"""So many packets of one connection wait for their confirmation at a time."""

MAX_ENVELOPES = 1000
"""One connection sends no more: stores live for many rounds, and all of a store is read after each."""

IDLE_S = 2.0

PASSWORD_KEY = key_from_password("status-offline-inbox")
TOPICS = tuple(Topic(bytes([number, 1, 2, 3])) for number in range(20))
CLIENT_ID = "tests/faults"
PAGE_LIMIT = 1000


class Flood:
    """Posts new envelopes by several connections, each packets of its own size, and takes down what is confirmed."""

    def __init__(
        self, promises: Promises, rng: random.Random, per_packet: Sequence[int], limit: int = MAX_ENVELOPES
    ) -> None:
        self._promises = promises
        self._rng = rng
        self._per_packet = per_packet
        self._limit = limit
        self._last = time.monotonic()
        self.wrong: list[str] = []

    async def run(self, enode: Enode) -> None:
        """Flood until all connections are lost."""
        await asyncio.gather(*(self._post(enode, size) for size in self._per_packet))

    async def _post(self, enode: Enode, per_packet: int) -> None:
        with contextlib.suppress(ConnectionLost, OSError):  # killed before we were there
            async with connect(enode) as (wire, _):
                await _Poster(wire, self, per_packet, self._limit // per_packet).run()

    def is_over(self) -> bool:
        """Whether it seems to have sent all that it may: nothing has been confirmed for IDLE_S."""
        return time.monotonic() > self._last + IDLE_S

    def packet(self, per_packet: int) -> dict[bytes, bytes]:
        """The next packet, taken down as sent."""
        now = time.time()
        raws = [envelope(int(now), self._rng.choice(TOPICS), self._rng) for _ in range(per_packet)]
        envelopes = {keccak256(raw): raw for raw in raws}
        self._promises.send(envelopes, now)
        return envelopes

    def confirm(self, envelopes: dict[bytes, bytes], response: MessageResponse | None) -> None:
        """Take down a packet as confirmed, both by its Message Response and by Batch Acknowledged."""
        self._last = time.monotonic()
        if response is None:
            self.wrong.append("a packet was acknowledged without a Message Response")
            return
        refused = {error.hash for error in response.errors}
        if refused:
            self.wrong.append(f"{len(refused)} envelopes were refused: {response.errors[0].description}")
        self._promises.confirm(envelopes.keys() - refused, time.time())


class _Poster:
    """One connection."""

    def __init__(self, wire: Wire, flood: Flood, per_packet: int, packets: int) -> None:
        self._wire = wire
        self._flood = flood
        self._per_packet = per_packet
        self._left = packets
        self._waiting: dict[bytes, dict[bytes, bytes]] = {}
        self._responses: dict[bytes, MessageResponse] = {}
        self._lost = asyncio.Event()

    async def run(self) -> None:
        self._wire.on_packet = self._on_packet
        self._wire.on_lost = lambda error: self._lost.set()
        for _ in range(WINDOW_PACKETS):
            self._send()
        self._wire.flush()
        await self._lost.wait()

    def _send(self) -> None:
        if self._left:
            self._left -= 1
            envelopes = self._flood.packet(self._per_packet)
            payload = encode_envelopes(list(envelopes.values()))
            self._waiting[keccak256(payload)] = envelopes
            self._wire.send(PacketCode.MESSAGES, payload)

    def _on_packet(self, code: int, payload: bytes) -> None:
        if code == PacketCode.MESSAGE_RESPONSE:
            response = MessageResponse.decode(payload)
            if response is not None:
                self._responses[response.batch_hash] = response
        elif code == PacketCode.BATCH_ACKNOWLEDGED:
            batch_hash = decode_batch_acknowledged(payload)
            self._flood.confirm(self._waiting.pop(batch_hash), self._responses.pop(batch_hash, None))
            self._send()


async def all_history(enode: Enode) -> list[tuple[bytes, bytes]]:
    """Ask as an honest client does for everything, page by page by the cursors; return (hash, raw) as they came."""
    found: list[tuple[bytes, bytes]] = []

    def on_envelopes(envelopes: Sequence[Envelope]) -> None:
        found.extend((sealed.hash(), sealed.raw) for sealed in envelopes)

    request = MailRequest(RequestId(bytes(32)), 0, 0, Interest(), limit=PAGE_LIMIT)
    async with connect_client(enode, CLIENT_ID) as client:
        await client.request_all(request, PASSWORD_KEY, on_envelopes)
    return found
