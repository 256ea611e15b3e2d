"""The memory that all clients share: what they have not read yet, and what of their requests is not answered yet.

Who reads is served whatever others have left: while memory is scarce, each client's part is smaller, and if there is
too little all the same, whoever has held most for longest is disconnected.
"""

from collections.abc import Callable

MAX_SEND_BYTES = 64 * 1024 * 1024
"""When clients hold so much, memory is scarce; when they hold twice as much, one is disconnected."""

MAX_CLIENT_BYTES = 256 * 1024
"""How much may wait for one client before its next request is answered, or more is pushed to it. The answer itself may
be longer."""

SCARCE_CLIENT_BYTES = 16 * 1024
"""The same while memory is scarce."""


class SendMemory:
    """How much all clients together hold."""

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self.used_bytes = 0
        self._holding: dict[SendShare, None] = {}

    def share(self, drop: Callable[[], None]) -> "SendShare":
        """Make the share of one client.

        Args:
            drop: disconnects the client.
        """
        return SendShare(self, drop)

    def changed(self, share: "SendShare", before: int, now: float) -> None:
        """A share holds more than before, or less."""
        self.used_bytes += share.used - before
        if share.used == 0:
            self._holding.pop(share, None)
        else:
            self._holding[share] = None
        if share.used > before and self.used_bytes > 2 * self.max_bytes:
            max(self._holding, key=lambda share: share.weight(now)).drop()


class SendShare:
    """How much one client holds: `used` bytes, `since` when it holds any."""

    __slots__ = ("_memory", "drop", "since", "used")

    def __init__(self, memory: SendMemory, drop: Callable[[], None]) -> None:
        self._memory = memory
        self.drop = drop
        self.used = 0
        self.since = 0.0

    def set(self, used: int, now: float) -> None:
        """The client holds so many bytes now. This may disconnect it, or another."""
        before, self.used = self.used, used
        if not before:
            self.since = now
        if used != before:
            self._memory.changed(self, before, now)

    def allows(self, queued: int) -> bool:
        """Whether more may be queued for the client, beside what waits for it now."""
        memory = self._memory
        return queued < (MAX_CLIENT_BYTES if memory.used_bytes < memory.max_bytes else SCARCE_CLIENT_BYTES)

    def weight(self, now: float) -> float:
        """How much the client has held, times how long."""
        return self.used * (1.0 + now - self.since)
