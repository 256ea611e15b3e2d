"""ping, `/ipfs/ping/1.0.0`: whatever 32 bytes come, the same go back, until the other side closes its half.

Spec: libp2p/specs, ping.
"""

PING = "/ipfs/ping/1.0.0"

PING_BYTES = 32

MAX_PING_STREAMS = 2
"""How many streams of it a peer may have at once: "SHOULD accept at most two"."""


class Echo:
    """The side that answers, on one stream. It keeps less than one payload."""

    __slots__ = ("_received",)

    def __init__(self) -> None:
        self._received = b""

    def receive_data(self, data: bytes) -> bytes:
        """Take bytes; return the payloads that have come as a whole, to be sent back."""
        received = self._received + data
        whole = len(received) - len(received) % PING_BYTES
        self._received = received[whole:]
        return received[:whole]
