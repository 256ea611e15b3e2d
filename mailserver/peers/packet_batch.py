"""A batch of packets of one peer, which are limited, decoded and handled together, and what they cost."""

from collections.abc import Awaitable, Callable

from mailserver.errors import DisconnectReason, RemoteProtocolError
from mailserver.limits.intake_bounds import LARGE_WORK, PART_WORK, QUANTUM_BYTES, PacketCost
from mailserver.net.inbound import Event, Inbound, LongMessage, is_large
from mailserver.net.sessions import WAKU
from mailserver.rlpx.events import BaseMessageReceived, MessageReceived
from mailserver.waku.envelope import Envelope

NO_COST = PacketCost(0, 0)


class PacketBatch:
    """Some packets of one read, in their order.

    `work` and `memory` are the sums over all packets; see `PacketCost`. `sizes` has an entry for each message: as how
    many bytes it counts for the rate limits. `costs` and `events` have an entry for each packet. If a packet breaks a
    rule, `events` ends before it, and `fault` has the reason and the cause. `fault` is not the exception: its traceback
    would keep the packet, of up to 16 MiB, in memory until the packets before it are confirmed.
    """

    __slots__ = ("_packets", "costs", "events", "fault", "memory", "sizes", "work")

    def __init__(self, inbound: Inbound, *, max_memory: float, headroom: tuple[float, float]) -> None:
        """Take at least one message from what has come.

        A batch is at most QUANTUM_BYTES of work, so that it delays others no longer than one packet may. A message that
        passes a rate limit ends the batch: the messages behind it wait until the peer's pause is over.

        Args:
            max_memory: how many bytes the packets may take while they wait for the disk. The first may take more.
            headroom: how many messages, and how many bytes, may come before a rate limit is passed (`Meter.headroom`).
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
            elif isinstance(message, LongMessage):  # it is alone in its batch; its cost is counted part by part
                if not self._packets:
                    self._add(message, NO_COST)
                    inbound.take()
                return
            else:
                cost = _cost_of(message)
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

    @property
    def is_large(self) -> bool:
        """Whether this is one packet of very many envelopes, for `decode_large`. There is more work than in any other
        batch, so it is alone in it."""
        if self.work <= LARGE_WORK or len(self._packets) != 1:
            return False
        message = self._packets[0]
        return not isinstance(message, LongMessage) and is_large(message, self.costs[0])

    async def decode_large(self, inbound: Inbound, wait_turn: Callable[[int], Awaitable[None]]) -> list[Event]:
        """Decode a large packet part by part.

        Args:
            wait_turn: called after each part, with as how much work the next counts.
        """
        (message,) = self._packets
        assert not isinstance(message, LongMessage), "is_large says so"
        envelopes: list[Envelope] = []
        try:
            packet = inbound.begin(message)
            while part := packet.read():
                envelopes += part
                await wait_turn(PART_WORK)
            self.events.append(packet.event(envelopes))
        except RemoteProtocolError as error:
            self.fault = error.reason, error.cause
        self._packets.clear()
        return self.events

    def decode(self, inbound: Inbound) -> list[Event]:
        """Decode the packets in order, up to the first that breaks a rule."""
        try:
            for packet in self._packets:
                self.events.append(inbound.decode(packet))
        except RemoteProtocolError as error:
            self.fault = error.reason, error.cause
        self._packets.clear()  # their envelopes are copies
        return self.events


def _cost_of(message: MessageReceived) -> PacketCost:
    if message.capability == WAKU:
        return PacketCost.of(message.code, message.payload)
    return PacketCost.of_question(len(message.payload))
