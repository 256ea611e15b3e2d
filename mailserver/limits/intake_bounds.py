"""What all peers share when packets are taken in: the memory for what waits for the disk, and turns at the work.

Each peer's own bounds are in `peers.served_peer`. These are for many peers: each may be within its own, and all of them
together too much.
"""

from typing import NamedTuple

from mailserver.limits.turns import Turns
from mailserver.limits.waiting_line import WaitingLine
from mailserver.waku.envelope import LEAST_SEALED_BYTES, count_envelopes
from mailserver.waku.packets import PacketCode

MAX_INTAKE_BYTES = 16 * 1024 * 1024
"""Memory for live envelopes of all peers that wait for the disk: half a second's worth, at full speed. Beyond it,
packets wait undecoded, in the order in which they came."""

MAX_REQUESTS_BYTES = 8 * 1024 * 1024
"""Memory for history requests of all peers that wait for their turn: 8,000 of deployed clients. Beyond it, only who
has none waiting is heard."""

RESERVED_BYTES = 16 * 1024
"""What each peer may have waiting however much all others have: a packet of some short messages. 500 peers that make
use of it take 8 MiB."""

PACKET_MEMORY_BYTES = 4096
ENVELOPE_MEMORY_BYTES = 768
"""What Python takes for a packet that waits, and for each envelope of it, beside its bytes. The tiniest would otherwise
take 40 times as much memory as they are counted with."""

TURN_BYTES = 16 * 1024
"""A peer that has sent no more in a second need not wait for its turn: its packets take no more than 3 ms."""

STRUCTURE_FACTOR = 16
"""To decode a byte of a packet other than of envelopes takes up to so many times as long: 10,000 topics, 25 ms."""

_IN_ORDER = "everybody"  # one name for all who wait for memory: they come in the order in which they asked


class Load(NamedTuple):
    """What a packet costs us before we have looked at more than the headers in it.

    `work`: how long a packet of ordinary envelopes would be that takes as much time; at least its own length.
    `memory`: in bytes, while its envelopes wait for the disk; 0 if none do.
    """

    work: int
    memory: int

    @classmethod
    def of(cls, code: int, payload: bytes) -> "Load":
        """The load of a packet that has just come."""
        if code == PacketCode.MESSAGES:
            return cls.of_envelopes(count_envelopes(payload), len(payload))
        if code == PacketCode.P2P_MESSAGE:
            return cls.of_envelopes(count_envelopes(payload), len(payload))._replace(memory=0)
        # Requests have limits of their own, and are decoded when it is their turn.
        return cls(len(payload) if code == PacketCode.P2P_REQUEST else len(payload) * STRUCTURE_FACTOR, 0)

    @classmethod
    def of_envelopes(cls, count: int, size: int) -> "Load":
        """The load of so many envelopes that are to wait for the disk, of so many bytes together."""
        memory = PACKET_MEMORY_BYTES + count * ENVELOPE_MEMORY_BYTES + size
        return cls(max(size, count * LEAST_SEALED_BYTES), memory)


class SharedMemory:
    """Memory that all peers share: who needs more than there is waits, in its turn."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._waiting: WaitingLine[int] = WaitingLine(self._on_gone)
        self.used_bytes = 0

    @property
    def is_short(self) -> bool:
        """Whether somebody waits for memory."""
        return bool(self._waiting)

    def enter_at_once(self, size: int, *, holds: bool) -> bool:
        """Take memory if there is any; return whether it was taken. `leave` gives it back.

        Args:
            holds: whether this peer has any already; who has none takes up to RESERVED_BYTES whatever others have.
        """
        has_room = self._has_room(size) and not self._waiting
        if has_room or (not holds and size <= RESERVED_BYTES):
            self.used_bytes += size
            return True
        return False

    async def enter(self, size: int, *, holds: bool) -> None:
        """Wait until there is memory, and take it, as `enter_at_once`."""
        if not self.enter_at_once(size, holds=holds):
            await self._waiting.wait(_IN_ORDER, size)

    def leave(self, size: int) -> None:
        """Give memory back."""
        self.used_bytes -= size
        while (next_size := self._waiting.next_cost()) is not None and self._has_room(next_size):
            self.used_bytes += next_size
            self._waiting.hand_on(next_size)

    def _on_gone(self, size: int | None) -> None:
        self.leave(size or 0)  # also if it had none: it may have kept others waiting

    def _has_room(self, size: int) -> bool:
        return self.used_bytes + size <= self._max_bytes or not self.used_bytes


class IntakeBounds:
    """The memory for each kind of what waits, and the turns: at decoding, and at confirming what is stored."""

    def __init__(
        self, *, max_envelope_bytes: int = MAX_INTAKE_BYTES, max_request_bytes: int = MAX_REQUESTS_BYTES
    ) -> None:
        self.envelopes = SharedMemory(max_envelope_bytes)
        self.requests = SharedMemory(max_request_bytes)
        self.turns = Turns()
        self.confirming = Turns()
