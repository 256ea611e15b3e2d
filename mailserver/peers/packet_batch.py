"""Packets of one peer that are limited, decoded and acted on together, and what they cost."""

from mailserver.errors import DisconnectReason, RemoteProtocolError
from mailserver.limits.intake_bounds import QUANTUM_BYTES, PacketCost
from mailserver.net.inbound import Inbound, LongMessage
from mailserver.rlpx.events import BaseMessageReceived, MessageReceived
from mailserver.waku.peer import Event

NO_COST = PacketCost(0, 0)


class PacketBatch:
    """Some packets of one read, in their order.

    `work` and `memory` are those of all packets together, as of `Load`. `sizes` has an entry for each message: what it
    counts by the rate limits, in bytes. `costs` and `events` have one for each packet; `events` ends early where a
    packet breaks a rule, and `fault` then says which: reason and cause. It is not the exception, which would keep the
    packet in memory, up to 16 MiB of it, for as long as the peer is still told of what it sent before.
    """

    __slots__ = ("_packets", "costs", "events", "fault", "memory", "sizes", "work")

    def __init__(self, inbound: Inbound, *, max_memory: float, headroom: tuple[float, float]) -> None:
        """Take one message or more out of what has come.

        No more than is one turn's work, so that a batch holds up nobody for longer than one packet may. A message that
        passes a rate limit is the last: those behind it wait until the peer has paused for it.

        Args:
            max_memory: bytes that the packets may take while they wait for the disk; the first may take more.
            headroom: how many messages, and bytes of them, may come before a rate limit is passed (`Meter.headroom`).
        """
        free_messages, free_bytes = headroom
        self._packets: list[MessageReceived | LongMessage] = []
        self.costs: list[PacketCost] = []
        self.sizes: list[int] = []
        self.events: list[Event] = []
        self.fault: tuple[DisconnectReason, str] | None = None
        self.work = self.memory = 0
        taken = 0
        while (message := inbound.peek()) is not None:
            is_over_limit = len(self.sizes) > free_messages or taken > free_bytes
            if self.sizes and (is_over_limit or self.work >= QUANTUM_BYTES):
                return
            if isinstance(message, BaseMessageReceived):
                self.sizes.append(message.size)
            elif isinstance(message, LongMessage):  # it goes alone, and is counted as it is read, part by part
                if not self._packets:
                    self._add(message, NO_COST)
                    inbound.take()
                return
            else:
                cost = PacketCost.of(message.code, message.payload)
                is_too_much = self.work + cost.work > QUANTUM_BYTES or self.memory + cost.memory > max_memory
                if is_too_much and self._packets:
                    return
                self._add(message, cost)
            inbound.take()
            taken += self.sizes[-1]

    def _add(self, message: MessageReceived | LongMessage, cost: PacketCost) -> None:
        self._packets.append(message)
        self.costs.append(cost)
        self.work += cost.work
        self.memory += cost.memory
        self.sizes.append(max(len(message.payload), cost.work))

    def decode(self, inbound: Inbound) -> list[Event]:
        """Decode the packets, in order, up to one that breaks a rule."""
        try:
            for packet in self._packets:
                self.events.append(inbound.decode(packet))
        except RemoteProtocolError as error:
            self.fault = error.reason, error.cause
        self._packets.clear()  # their envelopes are copies
        return self.events
