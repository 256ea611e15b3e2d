"""Packets of one peer that are limited, decoded and acted on together, and what they cost."""

from mailserver.errors import RemoteProtocolError
from mailserver.limits.intake_bounds import TURN_BYTES, Load
from mailserver.net.inbound import Inbound, Packet
from mailserver.waku.peer import Event

NO_LOAD = Load(0, 0)


class PacketBatch:
    """Some packets of one read, in their order.

    `work` and `memory` are those of all packets together, as of `Load`. `sizes` has an entry for each message: what it
    counts by the rate limits, in bytes. `loads` and `events` have one for each packet; `events` ends early where a
    packet breaks a rule, and `fault` then says which.
    """

    __slots__ = ("_packets", "events", "fault", "loads", "memory", "sizes", "work")

    def __init__(self, inbound: Inbound, *, max_memory: float) -> None:
        """Take one packet or more out of what has come.

        No more than is one turn's work, so that a batch holds up nobody for longer than one packet may.

        Args:
            max_memory: bytes that they may take while they wait for the disk; the first packet may take more.
        """
        self._packets: list[Packet] = []
        self.loads: list[Load] = []
        self.sizes: list[int] = []
        self.events: list[Event] = []
        self.fault: RemoteProtocolError | None = None
        self.work = self.memory = 0
        while self.work < TURN_BYTES and (packet := inbound.peek()) is not None:
            code, payload, size = packet
            if code is None:
                self.sizes.append(size)
            else:
                # A long packet is counted as it is read, part by part.
                load = NO_LOAD if isinstance(payload, bytearray) else Load.of(code, payload)
                if self._packets and (
                    packet.is_long or self.work + load.work > TURN_BYTES or self.memory + load.memory > max_memory
                ):
                    return
                self._packets.append(packet)
                self.loads.append(load)
                self.work += load.work
                self.memory += load.memory
                self.sizes.append(max(size, load.work))
            inbound.take()
            if packet.is_long:
                return

    def decode(self, inbound: Inbound) -> list[Event]:
        """Decode the packets, in order, up to one that breaks a rule."""
        try:
            for packet in self._packets:
                self.events.append(inbound.decode(packet))
        except RemoteProtocolError as error:
            self.fault = error
        self._packets.clear()  # their envelopes are copies
        return self.events
