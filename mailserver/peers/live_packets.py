"""The live envelopes that one peer sends: they wait for their turn and for memory, are stored, and confirmed.

Packets that came together are judged, stored and confirmed together; each has confirmations of its own. What a peer may
have waiting for the disk is bounded here. At a bound, reading from this peer pauses; other peers notice nothing.
"""

import asyncio
import contextlib
import logging
from collections.abc import Container, Sequence
from dataclasses import dataclass

from mailserver.codec.keys import NodeId
from mailserver.errors import ConnectionLost, DecodeError, DisconnectReason, StoreError
from mailserver.limits.admission import groups_of
from mailserver.limits.intake_bounds import QUANTUM_BYTES, RESERVED_BYTES, IntakeBounds, PacketCost
from mailserver.limits.packet_rates import Meter
from mailserver.limits.send_rate import SendRate
from mailserver.limits.turns import TurnShare
from mailserver.live.intake import Clock, Intake
from mailserver.metrics.registry import Metrics
from mailserver.net.connection import Connection
from mailserver.net.inbound import Inbound
from mailserver.peers.packet_batch import PacketBatch
from mailserver.waku.envelope import (
    MAX_ENVELOPES_PER_PACKET,
    PART_BYTES,
    Envelope,
    EnvelopeReader,
    TooManyEnvelopes,
)
from mailserver.waku.packets import EnvelopeError, MessageResponse, PacketCode, encode_batch_acknowledged
from mailserver.waku.peer import MessagesReceived

log = logging.getLogger(__name__)

MAX_UNCONFIRMED_PACKETS = 1024
MAX_UNCONFIRMED_ENVELOPES = 4000
MAX_UNCONFIRMED_BYTES = 4 * 1024 * 1024
"""Packets, envelopes and their bytes of one peer that may wait for the disk: some transactions' worth. Beyond one of
these, the peer is not read from. The batch that passes it is still taken."""

PARTS_TOGETHER = 4
"""Parts of a long packet that are stored together: as much as one transaction of the others holds, or half of that."""

CONFIRMED_BYTES = 200
"""What the two frames that confirm a packet take on the wire, about."""

LAST_CONFIRMATIONS_S = 1.0
"""How long a peer that is to be disconnected for a fault is still told of what it sent before: a few transactions."""


@dataclass(frozen=True, slots=True)
class LiveServices:
    """What live envelopes are taken in with. `trusted`: the peers of which it is counted what comes too late."""

    intake: Intake
    bounds: IntakeBounds
    trusted: Container[NodeId]
    clock: Clock
    metrics: Metrics


class LivePackets:
    """The live envelopes of one connection.

    `late`: how many envelopes a trusted peer has sent that had expired. `refused_bytes`: how long a packet was that
    holds too many even for a named peer, 0 if there was none.
    """

    def __init__(self, connection: Connection, services: LiveServices, number: int, send_rate: SendRate) -> None:
        """Have taken nothing yet.

        Args:
            number: of the connection; none has been used before.
            send_rate: confirmations count there.
        """
        self._connection = connection
        self._services = services
        self._number = number
        self._send_rate = send_rate
        self._decoding = TurnShare(services.bounds.turns, QUANTUM_BYTES)
        self._packets = self._envelopes = self._bytes = 0  # that are not confirmed
        self._confirmed = asyncio.Event()
        self._memory_bytes = 0
        self._is_stopping = False
        self.late = 0
        self.refused_bytes = 0

    async def next_batch(self, inbound: Inbound, headroom: tuple[float, float]) -> PacketBatch:
        """Take packets that came together, once it is their turn to be decoded, and there is memory for them.

        Whoever takes the batch gives its memory back with `release`, less that of what goes to `start_storing`.

        Args:
            headroom: as of `PacketBatch`.
        """
        memory = self._services.bounds.envelopes
        # While memory is short, a peer that has nothing waiting need not wait with as much as it may always have.
        max_memory = RESERVED_BYTES if memory.is_short else MAX_UNCONFIRMED_BYTES
        batch = PacketBatch(inbound, max_memory=max_memory, headroom=headroom)
        if self._is_stopping:
            batch.memory = 0
            return batch
        if batch.work:
            await self._decoding.take(batch.work)
        if batch.memory:
            while self._is_full:
                self._confirmed.clear()
                await self._confirmed.wait()
            await memory.acquire(batch.memory, is_first=not self._memory_bytes)
            self._memory_bytes += batch.memory
        return batch

    @property
    def _is_full(self) -> bool:
        """Whether so much waits for the disk that nothing more is taken."""
        return (
            self._packets >= MAX_UNCONFIRMED_PACKETS
            or self._envelopes >= MAX_UNCONFIRMED_ENVELOPES
            or self._bytes >= MAX_UNCONFIRMED_BYTES
        )

    def release(self, memory: int) -> None:
        """So much of what was taken holds nothing any more."""
        if memory:
            self._memory_bytes -= memory
            self._services.bounds.envelopes.release(memory)

    def start_storing(
        self, packets: list[MessagesReceived], memory: int, meter: Meter, tasks: asyncio.TaskGroup
    ) -> None:
        """Have packets stored and confirmed.

        Args:
            memory: that they hold; it is given back afterwards.
            meter: knows whether the limits of topics hold for the peer.
            tasks: what is begun is one of these.
        """
        if self._is_stopping:
            self.release(memory)
            return
        envelopes = sum(len(packet.envelopes) for packet in packets)
        size = sum(len(envelope.raw) for packet in packets for envelope in packet.envelopes)
        self._packets += len(packets)
        self._envelopes += envelopes
        self._bytes += size
        for packet in packets:
            self._count_late(packet.envelopes)
        received_at = asyncio.get_running_loop().time()
        tasks.create_task(self._store_and_confirm(packets, envelopes, size, memory, meter, received_at))

    async def _store_and_confirm(
        self,
        packets: list[MessagesReceived],
        envelopes: int,
        size: int,
        memory: int,
        meter: Meter,
        received_at: float,
    ) -> None:
        try:
            responses = await self._store(packets, meter)
            # One transaction may hold thousands of packets.
            await self._services.bounds.confirming.wait_while_crowded(CONFIRMED_BYTES * len(packets), self)
            self._confirm(responses, received_at)
        except StoreError:
            pass  # the writer has logged it; without a confirmation the sender sends again
        except ConnectionLost:
            pass  # the sender is gone; its envelopes are stored
        finally:
            self._packets -= len(packets)
            self._envelopes -= envelopes
            self._bytes -= size
            self.release(memory)
            self._confirmed.set()

    async def store_long(self, reader: EnvelopeReader, meter: Meter) -> None:
        """Take in a long packet of a named peer, a part at a time, and confirm it once all of it is on disk."""
        errors: list[EnvelopeError] = []
        received_at = asyncio.get_running_loop().time()
        try:
            while not self._is_stopping:
                envelopes = await self._read_some(reader)
                if not envelopes:
                    self._confirm([MessageResponse(reader.payload_hash(), tuple(errors))], received_at)
                    return
                response = await self._take_part(envelopes, meter)
                errors += response.errors[: MAX_ENVELOPES_PER_PACKET - len(errors)]
        except TooManyEnvelopes as error:
            self.refused_bytes = reader.size
            self._connection.disconnect(DisconnectReason.SUBPROTOCOL_ERROR, f"MESSAGES: {error}")
        except DecodeError as error:
            self._connection.disconnect(DisconnectReason.SUBPROTOCOL_ERROR, f"MESSAGES: {error}")
        except (StoreError, ConnectionLost):
            pass  # as of any packet: it is not confirmed, or nobody is there to hear it

    async def _read_some(self, reader: EnvelopeReader) -> list[Envelope]:
        """Decode what is to be stored together of a long packet, a part at a time; none at the end."""
        envelopes: list[Envelope] = []
        for _ in range(PARTS_TOGETHER):
            await self._decoding.take(PART_BYTES)
            part = reader.read()
            if not part:
                break
            envelopes += part
        return envelopes

    async def _take_part(self, envelopes: list[Envelope], meter: Meter) -> MessageResponse:
        self._count_late(envelopes)
        memory = PacketCost.of_envelopes(len(envelopes), sum(len(envelope.raw) for envelope in envelopes)).memory
        await self._services.bounds.envelopes.acquire(memory, is_first=not self._memory_bytes)
        self._memory_bytes += memory
        try:
            # The whole packet is confirmed, not its parts.
            (response,) = await self._store([MessagesReceived(envelopes, b"")], meter)
            return response
        finally:
            self.release(memory)

    async def wait_confirmed(self) -> None:
        """Wait until nothing waits to be confirmed."""
        while self._packets:
            self._confirmed.clear()
            await self._confirmed.wait()

    async def wait_confirmed_briefly(self) -> None:
        """The same, for LAST_CONFIRMATIONS_S at most."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(LAST_CONFIRMATIONS_S):
                await self.wait_confirmed()

    async def stop(self) -> None:
        """Take nothing more, and wait until all that was taken is confirmed."""
        self._is_stopping = True
        await self.wait_confirmed()

    def _count_late(self, envelopes: Sequence[Envelope]) -> None:
        if self._connection.node_id in self._services.trusted:
            now = self._services.clock()  # they are judged a moment later
            self.late += sum(envelope.expiry <= now for envelope in envelopes)

    async def _store(self, packets: Sequence[MessagesReceived], meter: Meter) -> list[MessageResponse]:
        return await self._services.intake.take(
            packets,
            peer=self._number,
            subnet=groups_of(self._connection.host).subnet,
            is_limited=not meter.is_exempt,
        )

    def _confirm(self, responses: Sequence[MessageResponse], received_at: float) -> None:
        """Tell the peer, at once, that packets are on disk: as many confirmations go out as it sends packets.

        Raises:
            ConnectionLost: the connection has ended.
        """
        confirmations: list[tuple[PacketCode, bytes]] = []
        for response in responses:
            if response.errors:
                log.debug(
                    "envelopes refused peer=%s count=%d first=%r",
                    self._connection,
                    len(response.errors),
                    response.errors[0].description,
                )
            confirmations += (
                (PacketCode.MESSAGE_RESPONSE, response.encode()),
                (PacketCode.BATCH_ACKNOWLEDGED, encode_batch_acknowledged(response.batch_hash)),
            )
        for _, payload in confirmations:
            self._send_rate.count(len(payload))
        self._connection.send_all(confirmations)
        delay_s = asyncio.get_running_loop().time() - received_at
        for _ in responses:
            self._services.metrics.confirmation_delay.observe(delay_s)
