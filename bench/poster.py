"""`python -m bench.poster`: a peer that posts new envelopes at an even rate.

Each packet is due at a moment that was known when it began: what could not be sent in time is sent as soon as it can
be. What a mailserver does not take at this rate shows in what it confirms.
"""

import asyncio
import random
import time

from bench.data import Distribution, Topics, live_envelopes
from bench.helper import HelperFailed, Read, Write, run_helper
from bench.ingest import IngestFailed, check_responses
from bench.wire import Wire, connect
from mailserver.codec.keys import Enode
from mailserver.waku.envelope import encode_envelopes
from mailserver.waku.packets import PacketCode

_MIN_SLEEP_S = 0.001
_MAX_UNSENT_BYTES = 256 * 1024


class EvenPoster:
    """Posts over one connection, until it is cancelled."""

    def __init__(self, wire: Wire, topics: Topics, *, per_packet: int, packets_per_s: float, min_pow: float) -> None:
        self._wire = wire
        self._topics = topics
        self._per_packet = per_packet
        self._packets_per_s = packets_per_s
        self._min_pow = min_pow
        self._rng = random.Random(time.time_ns())  # a mailserver that is measured twice has those of the first time
        self._responses: list[bytes] = []
        self._confirmed = 0
        wire.on_packet = self._on_packet

    async def run(self) -> None:
        """Post.

        Raises:
            ConnectionLost: the node ended the connection.
        """
        began, sent = time.perf_counter(), 0
        while True:
            due = (time.perf_counter() - began) * self._packets_per_s
            while sent <= due and self._wire.unsent_bytes < _MAX_UNSENT_BYTES:
                self._wire.send(PacketCode.MESSAGES, self._packet())
                self._wire.flush()
                sent += 1
            await asyncio.sleep(max(began + sent / self._packets_per_s - time.perf_counter(), _MIN_SLEEP_S))

    def confirmed(self) -> int:
        """How many envelopes were confirmed since it began.

        Raises:
            IngestFailed: one was refused.
        """
        check_responses(self._responses)
        self._responses.clear()
        return self._confirmed

    def _packet(self) -> bytes:
        now = int(time.time())
        return encode_envelopes(
            live_envelopes(self._per_packet, self._topics, now, min_pow=self._min_pow, rng=self._rng)
        )

    def _on_packet(self, code: int, payload: bytes) -> None:
        if code == PacketCode.BATCH_ACKNOWLEDGED:
            self._confirmed += self._per_packet
        elif code == PacketCode.MESSAGE_RESPONSE:
            self._responses.append(payload)


async def _work(read: Read, write: Write) -> None:
    """Connect as the first command says, begin at the second, and say at each how many were confirmed until when."""
    order = await read()
    topics = Topics(order["topics"], Distribution(order["distribution"]))
    async with connect(Enode.parse(order["enode"])) as (wire, settings):
        poster = EvenPoster(
            wire,
            topics,
            per_packet=order["per_packet"],
            packets_per_s=order["packets_per_s"],
            min_pow=settings.pow_requirement,
        )
        write({})
        await read()
        posting = asyncio.create_task(poster.run())
        try:
            while True:
                if posting.done():
                    posting.result()  # it only ends by an error
                write({"confirmed": poster.confirmed(), "at": time.perf_counter()})
                await read()
        except IngestFailed as error:
            raise HelperFailed(str(error)) from error
        finally:
            posting.cancel()  # before we disconnect


if __name__ == "__main__":
    run_helper(_work)
