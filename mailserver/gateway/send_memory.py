"""The memory of what clients have not read yet, which all of them share."""

MAX_SEND_BYTES = 64 * 1024 * 1024
"""When clients have left so much unread, memory is scarce."""

MAX_CLIENT_BYTES = 256 * 1024
"""How much may wait for one client before its next request is answered, or more is pushed to it. The answer itself may
be longer."""

SCARCE_CLIENT_BYTES = 16 * 1024
"""The same while memory is scarce. So clients that read are served, whatever others have left."""


class SendMemory:
    """How much all clients together have left unread."""

    def __init__(self, max_bytes: int = MAX_SEND_BYTES) -> None:
        self.max_bytes = max_bytes
        self.used_bytes = 0

    def share(self) -> "SendShare":
        """Make the share of one client."""
        return SendShare(self)


class SendShare:
    """How much one client has left unread."""

    __slots__ = ("_memory", "_used")

    def __init__(self, memory: SendMemory) -> None:
        self._memory = memory
        self._used = 0

    def set(self, used: int) -> None:
        """So many bytes wait for the client now."""
        self._memory.used_bytes += used - self._used
        self._used = used

    def allows(self, queued: int) -> bool:
        """Whether more may be queued for the client, beside what waits for it now."""
        memory = self._memory
        return queued < (MAX_CLIENT_BYTES if memory.used_bytes < memory.max_bytes else SCARCE_CLIENT_BYTES)
