"""multistream-select: both sides of a stream of bytes agree on the protocol that it goes on with.

One side proposes, the other answers. Each line is its length, a text and a newline. Both say first that they speak
multistream; then each proposal is echoed, which agrees to it, or answered `na`. Spec: libp2p/specs, connections,
"multistream-select".

`ls`, the question for all protocols, is answered `na`, as go-multistream does: identify tells them, and a list has no
bound.
"""

from collections.abc import Container, Sequence
from functools import lru_cache
from typing import ClassVar

from mailserver.codec import varint
from mailserver.errors import DecodeError
from mailserver.libp2p.faults import Cause, Libp2pFault

HEADER = "/multistream/1.0.0"
NOT_AVAILABLE = "na"

MAX_LINE_BYTES = 256
"""With its newline, without its length: so much is kept of each stream whose negotiation has begun, and a peer may have
hundreds. js-libp2p and go-multistream allow 1,024, but no protocol that clients of Waku propose has more than 40."""

MAX_PROPOSALS = 10
"""How many protocols may be proposed in one negotiation. Clients propose one or two."""

_LENGTH_BYTES = 2


@lru_cache(maxsize=256)
def encode_line(text: str) -> bytes:
    """A line with its length. The few protocols that we speak are encoded once."""
    line = text.encode() + b"\n"
    return varint.encode(len(line)) + line


class _Lines:
    """Cuts lines from bytes that come in any pieces."""

    __slots__ = ("_received",)

    def __init__(self) -> None:
        self._received = bytearray()

    def feed(self, data: bytes) -> None:
        self._received += data

    def next_line(self) -> str | None:
        """Return the next line without its newline, None if it has not come as a whole.

        Raises:
            Libp2pFault: too long, of no length, without newline, or no UTF-8.
        """
        received = self._received
        try:
            read = varint.decode(received, 0, _LENGTH_BYTES)
        except DecodeError as error:
            raise Libp2pFault(Cause.BAD_LINE) from error
        if read is None:
            return None
        length, at = read
        if length > MAX_LINE_BYTES:
            raise Libp2pFault(Cause.LINE_TOO_LONG, got=length, limit=MAX_LINE_BYTES)
        end = at + length
        if len(received) < end:
            return None
        line = bytes(received[at:end])
        del received[:end]
        if not line.endswith(b"\n"):
            raise Libp2pFault(Cause.BAD_LINE)
        try:
            return line[:-1].decode()
        except UnicodeDecodeError as error:
            raise Libp2pFault(Cause.BAD_LINE) from error

    def rest(self) -> bytes:
        rest = bytes(self._received)
        self._received.clear()
        return rest

    def __len__(self) -> int:
        return len(self._received)


class Answering:
    """The side that is proposed to.

    `agreed`: the protocol, once there is one.
    """

    __slots__ = ("_lines", "_out", "_proposals", "_protocols", "_saw_header", "agreed")

    is_refused: ClassVar[bool] = False  # the other side may always go on

    def __init__(self, protocols: Container[str]) -> None:
        """Start with the protocols that we speak."""
        self.agreed: str | None = None
        self._protocols = protocols
        self._lines = _Lines()
        self._out = b""
        self._saw_header = False
        self._proposals = 0

    def data_to_send(self) -> bytes:
        """Return what is to be answered since the last call."""
        out, self._out = self._out, b""
        return out

    def receive_data(self, data: bytes) -> None:
        """Take bytes.

        Raises:
            Libp2pFault: a line is malformed, the first is not HEADER, or it is proposed too often.
        """
        self._lines.feed(data)
        while self.agreed is None and (line := self._lines.next_line()) is not None:
            if not self._saw_header:
                if line != HEADER:
                    raise Libp2pFault(Cause.NO_MULTISTREAM)
                self._saw_header = True
                self._out += encode_line(HEADER)
                continue
            self._proposals += 1
            if self._proposals > MAX_PROPOSALS:
                raise Libp2pFault(Cause.TOO_MANY_PROPOSALS, limit=MAX_PROPOSALS)
            if line in self._protocols:
                self.agreed = line
                self._out += encode_line(line)
            else:
                self._out += encode_line(NOT_AVAILABLE)

    @property
    def held_bytes(self) -> int:
        """How many bytes have come of a line that is not whole."""
        return len(self._lines)

    def rest(self) -> bytes:
        """What has come behind the negotiation, or of a line that is not whole."""
        return self._lines.rest()


class Proposing:
    """The side that proposes, one protocol after the other.

    `protocols`: what is proposed, in order. `agreed`: the protocol, once there is one. `is_refused`: the other side
    speaks none of them.
    """

    __slots__ = ("_lines", "_out", "_saw_header", "_tried", "agreed", "is_refused", "protocols")

    def __init__(self, protocols: Sequence[str]) -> None:
        """Start.

        Args:
            protocols: at least one and at most MAX_PROPOSALS, the best first.
        """
        self.agreed: str | None = None
        self.is_refused = False
        self._out = encode_line(HEADER) + encode_line(protocols[0])
        self.protocols = protocols
        self._tried = 0
        self._lines = _Lines()
        self._saw_header = False

    def data_to_send(self) -> bytes:
        """Return what is to be proposed since the last call: at the start, HEADER and the first protocol together."""
        out, self._out = self._out, b""
        return out

    def receive_data(self, data: bytes) -> None:
        """Take bytes.

        Raises:
            Libp2pFault: a line is malformed, the first is not HEADER, or another neither agrees nor refuses.
        """
        self._lines.feed(data)
        while self.agreed is None and not self.is_refused and (line := self._lines.next_line()) is not None:
            proposed = self.protocols[self._tried]
            if not self._saw_header:
                if line != HEADER:
                    raise Libp2pFault(Cause.NO_MULTISTREAM)
                self._saw_header = True
            elif line == proposed:
                self.agreed = proposed
            elif line != NOT_AVAILABLE:
                raise Libp2pFault(Cause.WRONG_ANSWER)
            elif self._tried + 1 == len(self.protocols):
                self.is_refused = True
            else:
                self._tried += 1
                self._out += encode_line(self.protocols[self._tried])

    @property
    def held_bytes(self) -> int:
        """How many bytes have come of a line that is not whole."""
        return len(self._lines)

    def rest(self) -> bytes:
        """What has come behind the negotiation, or of a line that is not whole."""
        return self._lines.rest()
