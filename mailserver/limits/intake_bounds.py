"""What all peers share when their packets are taken in: memory for what waits, and the schedulers of the work.

The bounds per peer are in `peers.live_packets` and `peers.request_queue`. These bounds are for all peers together: many
peers can take too much although each of them keeps to its own bounds.
"""

from typing import NamedTuple

from mailserver.limits.loop_scheduler import LoopScheduler
from mailserver.limits.wait_queue import WaitQueue
from mailserver.waku.envelope import MIN_SEALED_BYTES, PART_ENVELOPES, count_envelopes
from mailserver.waku.packets import PacketCode

MAX_INTAKE_BYTES = 16 * 1024 * 1024
"""Memory for live envelopes of all peers that wait for the disk: half a second's worth at full speed. When it is used
up, packets wait undecoded, in the order in which they came."""

MAX_REQUESTS_BYTES = 8 * 1024 * 1024
"""Memory for history requests of all peers, until they are answered: 8,000 requests of deployed clients. When it is
used up, a request is taken only from a peer that has no other."""

MAX_QUESTIONS_BYTES = 8 * 1024 * 1024
"""The same for questions about message ids, which may be longer: 60 of the longest. As one is decoded when it is
answered, it may take twice as much. When this is used up, a long one is refused: see RESERVED_BYTES."""

MAX_REFUSED_BYTES = 8 * 1024 * 1024
"""Memory for what was read of all peers that have not read yet that their request is refused. Nothing more is read of
them meanwhile, but 32 KiB that came compressed may be 20 times as much. When this is used up, such a peer is
disconnected: see RESERVED_BYTES."""

MAX_ANSWERS_BYTES = 8 * 1024 * 1024
"""Memory for one packet each of all answers, to history requests and to questions, which waits for its peer to read it:
128 of the longest. When it is used up, answers come in packets of RESERVED_BYTES."""

MAX_UNREAD_BYTES = 64 * 1024 * 1024
"""Memory for packets of more than TARGET_PACKET_BYTES, of one envelope each as a rule, until their peers have read
them: 500 peers that read nothing would keep 500 MB of them. When it is used up, such packets wait, first in first out;
see `peers.paced_sender`."""

RESERVED_BYTES = 16 * 1024
"""How much memory each peer may have even when the budget is used up: enough for a packet of some short messages. 500
peers that make use of it take 8 MiB."""

PACKET_MEMORY_BYTES = 4096
ENVELOPE_MEMORY_BYTES = 768
"""How much memory Python needs for a waiting packet, and for each of its envelopes, besides their bytes. If that did
not count, tiny envelopes would take 40 times as much memory as is counted for them."""

QUANTUM_BYTES = 16 * 1024
"""How much work one peer may have done before others have their turn: decoding takes 3 ms at most. A peer that sends no
more than this in a second never waits for a turn."""

LARGE_WORK = 128 * 1024
"""A packet of more work than this is decoded part by part: 512 tiny envelopes, which take 3 ms. Few packets are."""

PART_WORK = PART_ENVELOPES * MIN_SEALED_BYTES
"""As how much work each part counts."""

STRUCTURE_FACTOR = 16
"""A byte of any other packet takes up to this many times as long to decode as one of envelopes: an update with 10,000
topics takes 25 ms."""

MAX_STRUCTURE_BYTES = 4096
"""So much of a question about message ids may take that long to decode. It has no more than some thousand items, the
most of one byte each; the rest of a longer one is in ids or in a message. Requests for history are read quickly."""

_ALL = "all peers"  # one source for all tasks that wait for memory: first in, first out


class PacketCost(NamedTuple):
    """What a packet will cost us, estimated from its code, its length, and the headers in it.

    `work`: the length, in bytes, of a packet of ordinary envelopes that takes as long to decode; at least its own
    length. `memory`: bytes, while its envelopes wait for the disk; 0 if it has none that do.
    """

    work: int
    memory: int

    @classmethod
    def of(cls, code: int, payload: bytes) -> "PacketCost":
        """The cost of a packet that was not decoded yet."""
        if code == PacketCode.MESSAGES:
            return cls.of_envelopes(count_envelopes(payload), len(payload))
        if code == PacketCode.P2P_MESSAGE:
            return cls.of_envelopes(count_envelopes(payload), len(payload))._replace(memory=0)
        # Requests are decoded later, and have limits of their own.
        return cls(len(payload) if code == PacketCode.P2P_REQUEST else len(payload) * STRUCTURE_FACTOR, 0)

    @classmethod
    def of_question(cls, size: int) -> "PacketCost":
        """The cost of a packet of `wakuid` of `size` bytes. It is decoded later, and its memory has its own budget."""
        return cls(size + min(size, MAX_STRUCTURE_BYTES) * (STRUCTURE_FACTOR - 1), 0)

    @classmethod
    def of_envelopes(cls, count: int, size: int) -> "PacketCost":
        """The cost of `count` envelopes of `size` bytes in all, which will wait for the disk."""
        memory = PACKET_MEMORY_BYTES + count * ENVELOPE_MEMORY_BYTES + size
        return cls(max(size, count * MIN_SEALED_BYTES), memory)


class MemoryBudget:
    """A budget of memory that all peers share. When it is used up, tasks wait, first in first out."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._waiting: WaitQueue[int] = WaitQueue(self._on_cancelled)
        self.used_bytes = 0

    @property
    def is_short(self) -> bool:
        """Whether any task waits for memory."""
        return bool(self._waiting)

    def try_acquire(self, size: int, *, is_first: bool) -> bool:
        """Take memory if there is enough; return whether it was taken. `release` gives it back.

        Args:
            is_first: the peer holds no memory yet. Then it gets up to RESERVED_BYTES even if the budget is used up.
        """
        has_room = self._has_room(size) and not self._waiting
        if has_room or (is_first and size <= RESERVED_BYTES):
            self.used_bytes += size
            return True
        return False

    async def acquire(self, size: int, *, is_first: bool) -> None:
        """Wait until there is enough memory, and take it; see `try_acquire`."""
        if not self.try_acquire(size, is_first=is_first):
            await self._waiting.wait(_ALL, size)

    def release(self, size: int) -> None:
        """Give memory back, and wake tasks for which there is enough now."""
        self.used_bytes -= size
        while (next_size := self._waiting.next_cost()) is not None and self._has_room(next_size):
            self.used_bytes += next_size
            self._waiting.wake_next(next_size)

    def _on_cancelled(self, size: int | None) -> None:
        self.release(size or 0)  # even if it was given none: a smaller one behind it may now fit

    def _has_room(self, size: int) -> bool:
        # What is larger than the budget gets in when nothing else is there, or it would wait for ever.
        return self.used_bytes + size <= self._max_bytes or not self.used_bytes


class IntakeBounds:
    """One for all peers of a node.

    `envelopes`, `requests`, `questions`: the memory for live envelopes that wait for the disk, for history requests,
    and for questions about message ids. `refused`, `answers`, `unread`: for what waits until a peer reads: what came
    with a request that is refused, packets of answers, and packets that are longer than others. `decoding`,
    `confirming`: turns at decoding packets, and at confirming what is stored.
    """

    def __init__(
        self, *, max_envelope_bytes: int = MAX_INTAKE_BYTES, max_request_bytes: int = MAX_REQUESTS_BYTES
    ) -> None:
        self.envelopes = MemoryBudget(max_envelope_bytes)
        self.requests = MemoryBudget(max_request_bytes)
        self.questions = MemoryBudget(MAX_QUESTIONS_BYTES)
        self.refused = MemoryBudget(MAX_REFUSED_BYTES)
        self.answers = MemoryBudget(MAX_ANSWERS_BYTES)
        self.unread = MemoryBudget(MAX_UNREAD_BYTES)
        self.decoding = LoopScheduler()
        self.confirming = LoopScheduler()
