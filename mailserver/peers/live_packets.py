"""The live envelopes that one peer sends. They wait for a turn and for memory, are decoded, stored, and confirmed.

Packets that came together are judged and stored together; each has its own confirmation. How much one peer may have
waiting for the disk is bounded here. At a bound, reading from this peer pauses; other peers are not affected.
"""

import asyncio
import contextlib
import logging
from collections.abc import Container, Sequence
from dataclasses import dataclass

from mailserver.codec.keys import NodeId
from mailserver.errors import ConnectionLost, DecodeError, DisconnectReason, StoreError
from mailserver.limits.admission import groups_of
from mailserver.limits.intake_bounds import PART_WORK, QUANTUM_BYTES, RESERVED_BYTES, IntakeBounds, PacketCost
from mailserver.limits.loop_scheduler import WorkBudget
from mailserver.limits.packet_rates import PacketMeter
from mailserver.limits.send_rate import SendRate
from mailserver.live.intake import Clock, Intake
from mailserver.metrics.registry import Metrics
from mailserver.net.connection import Connection
from mailserver.net.inbound import Event, Inbound
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
"""How many packets, envelopes, and bytes of envelopes of one peer may wait for the disk: enough for some transactions.
At any of these bounds, we stop reading from the peer. The batch that reaches the bound is still taken."""

PARTS_TOGETHER = 4
"""How many parts of a long packet are stored together: at most 1,024 envelopes, half of what a transaction may hold."""

CONFIRMED_BYTES = 200
"""About how long the two frames are that confirm a packet, on the wire."""

LAST_CONFIRMATIONS_S = 1.0
"""Before a peer is disconnected for a fault, this is how long we wait to confirm what it sent before: a few
transactions."""


@dataclass(frozen=True, slots=True)
class LiveServices:
    """What is needed to take live envelopes in. `trusted`: peers whose expired envelopes are counted."""

    intake: Intake
    bounds: IntakeBounds
    trusted: Container[NodeId]
    clock: Clock
    metrics: Metrics


class LivePackets:
    """The live envelopes of one connection.

    `late_envelopes`: how many expired envelopes the peer has sent, if it is trusted. `refused_bytes`: the length of a
    long packet that was refused because it holds too many envelopes; 0 if there was none.
    """

    def __init__(self, connection: Connection, services: LiveServices, number: int, send_rate: SendRate) -> None:
        """Start with nothing taken.

        Args:
            number: the number of the connection.
            send_rate: counts the confirmations that are sent.
        """
        self._connection = connection
        self._services = services
        self._number = number
        self._send_rate = send_rate
        self._decoding = WorkBudget(services.bounds.decoding, QUANTUM_BYTES)
        self._packets = self._envelopes = self._bytes = 0  # taken, and not confirmed yet
        self._confirmed = asyncio.Event()
        self._memory_bytes = 0
        self._is_stopping = False
        self.late_envelopes = 0
        self.refused_bytes = 0

    async def next_batch(self, inbound: Inbound, headroom: tuple[float, float]) -> PacketBatch:
        """Take packets that came together, once it is this peer's turn to decode, and there is memory for them.

        The caller gives the batch's memory back: with `release`, except for packets that it hands to `start_storing`.

        Args:
            headroom: see `PacketBatch`.
        """
        memory = self._services.bounds.envelopes
        # While memory is short, the batch is small enough that a peer with nothing waiting gets memory for it at once.
        max_memory = RESERVED_BYTES if memory.is_short else MAX_UNCONFIRMED_BYTES
        batch = PacketBatch(inbound, max_memory=max_memory, headroom=headroom)
        if self._is_stopping:
            batch.memory = 0
            return batch
        if batch.work:
            await self._decoding.take(PART_WORK if batch.is_large else batch.work)
        if batch.memory:
            while self._is_full:
                self._confirmed.clear()
                await self._confirmed.wait()
            await memory.acquire(batch.memory, is_first=not self._memory_bytes)
            self._memory_bytes += batch.memory
        return batch

    async def decode(self, batch: PacketBatch, inbound: Inbound) -> list[Event]:
        """Decode a batch; of a large packet, each part when it is this peer's turn."""
        return await batch.decode_large(inbound, self._decoding.take) if batch.is_large else batch.decode(inbound)

    @property
    def _is_full(self) -> bool:
        """Whether as much waits for the disk as may."""
        return (
            self._packets >= MAX_UNCONFIRMED_PACKETS
            or self._envelopes >= MAX_UNCONFIRMED_ENVELOPES
            or self._bytes >= MAX_UNCONFIRMED_BYTES
        )

    def release(self, memory: int) -> None:
        """Give back memory, in bytes, of packets that are done with."""
        if memory:
            self._memory_bytes -= memory
            self._services.bounds.envelopes.release(memory)

    def start_storing(
        self, packets: list[MessagesReceived], memory: int, meter: PacketMeter, tasks: asyncio.TaskGroup
    ) -> None:
        """Start to store and confirm packets, in a task.

        Args:
            memory: how many bytes they hold; the task releases them.
            meter: says whether the peer is exempt from the limits of topics.
            tasks: the group of the task.
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
        meter: PacketMeter,
        received_at: float,
    ) -> None:
        try:
            responses = await self._store(packets, meter)
            # One transaction may hold thousands of packets.
            await self._services.bounds.confirming.yield_if_busy(CONFIRMED_BYTES * len(packets), self)
            self._confirm(responses, received_at)
        except StoreError:
            pass  # the writer has logged it; the sender sends again, as it gets no confirmation
        except ConnectionLost:
            pass  # the sender has gone; its envelopes are stored
        finally:
            self._packets -= len(packets)
            self._envelopes -= envelopes
            self._bytes -= size
            self.release(memory)
            self._confirmed.set()

    async def store_long(self, reader: EnvelopeReader, meter: PacketMeter) -> None:
        """Store a long packet of a named peer, part by part, and confirm it when all of it is on disk."""
        errors: list[EnvelopeError] = []
        received_at = asyncio.get_running_loop().time()
        try:
            while not self._is_stopping:
                envelopes = await self._read_some(reader)
                if not envelopes:
                    self._confirm([MessageResponse(reader.payload_hash(), tuple(errors))], received_at)
                    return
                response = await self._store_part(envelopes, meter)
                errors += response.errors[: MAX_ENVELOPES_PER_PACKET - len(errors)]
        except TooManyEnvelopes as error:
            self.refused_bytes = reader.size
            self._connection.disconnect(DisconnectReason.SUBPROTOCOL_ERROR, f"MESSAGES: {error}")
        except DecodeError as error:
            self._connection.disconnect(DisconnectReason.SUBPROTOCOL_ERROR, f"MESSAGES: {error}")
        except (StoreError, ConnectionLost):
            pass  # as for any packet: it is not confirmed, or the sender has gone

    async def _read_some(self, reader: EnvelopeReader) -> list[Envelope]:
        """Decode the next parts of a long packet, which are stored together; return [] at the end."""
        envelopes: list[Envelope] = []
        for _ in range(PARTS_TOGETHER):
            await self._decoding.take(PART_BYTES)
            part = reader.read()
            if not part:
                break
            envelopes += part
        return envelopes

    async def _store_part(self, envelopes: list[Envelope], meter: PacketMeter) -> MessageResponse:
        self._count_late(envelopes)
        memory = PacketCost.of_envelopes(len(envelopes), sum(len(envelope.raw) for envelope in envelopes)).memory
        await self._services.bounds.envelopes.acquire(memory, is_first=not self._memory_bytes)
        self._memory_bytes += memory
        try:
            # The parts have no hash of their own: only the whole packet is confirmed.
            (response,) = await self._store([MessagesReceived(envelopes, b"")], meter)
            return response
        finally:
            self.release(memory)

    async def wait_confirmed(self) -> None:
        """Wait until all packets that were taken are confirmed."""
        while self._packets:
            self._confirmed.clear()
            await self._confirmed.wait()

    async def wait_confirmed_briefly(self) -> None:
        """Wait for the same, but at most LAST_CONFIRMATIONS_S."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(LAST_CONFIRMATIONS_S):
                await self.wait_confirmed()

    async def stop(self) -> None:
        """Take no more packets, and wait until all that were taken are confirmed."""
        self._is_stopping = True
        await self.wait_confirmed()

    def _count_late(self, envelopes: Sequence[Envelope]) -> None:
        if self._connection.node_id in self._services.trusted:
            now = self._services.clock()  # they are judged only a moment later
            self.late_envelopes += sum(envelope.expiry <= now for envelope in envelopes)

    async def _store(self, packets: Sequence[MessagesReceived], meter: PacketMeter) -> list[MessageResponse]:
        return await self._services.intake.take(
            packets,
            peer=self._number,
            subnet=groups_of(self._connection.host).subnet,
            is_limited=not meter.is_exempt,
        )

    def _confirm(self, responses: Sequence[MessageResponse], received_at: float) -> None:
        """Tell the peer that packets are on disk. This waits for no rate limit: it sends little, as a rule. Errors are
        longer than the shortest envelopes, but there are no more of them, and nothing is read of a peer that does not
        read them.

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
