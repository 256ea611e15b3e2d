"""identify, `/ipfs/id/1.0.0`: whoever opens the stream is told what the other side is, in one message or several.

On the wire each message has its length before it, a varint; the one who tells closes its half behind the last. Spec:
libp2p/specs, identify. Deployed nodes may tell in several messages: fields of later ones are added, or replace.
"""

from dataclasses import dataclass

from mailserver.codec import protobuf, varint
from mailserver.errors import DecodeError

IDENTIFY = "/ipfs/id/1.0.0"

MAX_IDENTIFY_BYTES = 8 * 1024
"""Of all messages together; in js-libp2p and go-libp2p the same."""

MAX_IDENTIFY_MESSAGES = 10

_PUBLIC_KEY, _LISTEN_ADDRS, _PROTOCOLS, _OBSERVED_ADDR, _PROTOCOL_VERSION, _AGENT_VERSION = range(1, 7)
_LENGTH_BYTES = 2


@dataclass(frozen=True, slots=True)
class Identify:
    """What a node says of itself. Nothing in it is proved but what the handshake has proved before.

    `public_key` is the key's protobuf. Addresses are bytes of multiaddrs, of protocols that may not be known here;
    `observed_addr` is where the asker comes from, as it looks from here. An absent field is empty.
    """

    public_key: bytes = b""
    listen_addrs: tuple[bytes, ...] = ()
    protocols: tuple[str, ...] = ()
    observed_addr: bytes = b""
    protocol_version: str = ""
    agent_version: str = ""

    def encode(self) -> bytes:
        """The message, its length before it."""
        single = [
            (_PUBLIC_KEY, self.public_key),
            (_OBSERVED_ADDR, self.observed_addr),
            (_PROTOCOL_VERSION, self.protocol_version.encode()),
            (_AGENT_VERSION, self.agent_version.encode()),
        ]
        repeated = [(_LISTEN_ADDRS, address) for address in self.listen_addrs]
        repeated += [(_PROTOCOLS, protocol.encode()) for protocol in self.protocols]
        fields = [(number, value) for number, value in single if value] + repeated
        body = b"".join(protobuf.write_bytes(number, value) for number, value in sorted(fields, key=lambda one: one[0]))
        return varint.encode(len(body)) + body

    @classmethod
    def decode(cls, data: bytes) -> "Identify":
        """Read a message without its length, or several, one behind the other. Other fields are ignored, and so
        are those of another wire type, as other decoders do.

        Raises:
            DecodeError: malformed, too long, or a text is no UTF-8.
        """
        if len(data) > MAX_IDENTIFY_BYTES:
            raise DecodeError("identify is too long", got=len(data), limit=MAX_IDENTIFY_BYTES)
        found: dict[int, list[bytes]] = {}
        for field in protobuf.read_fields(data):
            if _PUBLIC_KEY <= field.number <= _AGENT_VERSION and isinstance(field.value, bytes):
                found.setdefault(field.number, []).append(field.value)
        last = {number: values[-1] for number, values in found.items()}
        try:
            return cls(
                public_key=last.get(_PUBLIC_KEY, b""),
                listen_addrs=tuple(found.get(_LISTEN_ADDRS, ())),
                protocols=tuple(protocol.decode() for protocol in found.get(_PROTOCOLS, ())),
                observed_addr=last.get(_OBSERVED_ADDR, b""),
                protocol_version=last.get(_PROTOCOL_VERSION, b"").decode(),
                agent_version=last.get(_AGENT_VERSION, b"").decode(),
            )
        except UnicodeDecodeError as error:
            raise DecodeError("text of identify is no UTF-8") from error


class IdentifyReader:
    """Puts together what a node tells, from bytes that come in any pieces."""

    __slots__ = ("_messages", "_received", "_told")

    def __init__(self) -> None:
        self._received = bytearray()
        self._told = b""
        self._messages = 0

    def receive_data(self, data: bytes) -> None:
        """Take bytes of the stream.

        Raises:
            DecodeError: a length is malformed, or it is more than is taken.
        """
        self._received += data
        while self._received:
            read = varint.decode(self._received, 0, _LENGTH_BYTES)
            if read is None:
                return
            length, at = read
            if len(self._told) + length > MAX_IDENTIFY_BYTES:
                raise DecodeError("identify is too long", got=len(self._told) + length, limit=MAX_IDENTIFY_BYTES)
            if len(self._received) < at + length:
                return
            self._messages += 1
            if self._messages > MAX_IDENTIFY_MESSAGES:
                raise DecodeError("identify has too many messages", limit=MAX_IDENTIFY_MESSAGES)
            self._told += bytes(self._received[at : at + length])
            del self._received[: at + length]

    def finish(self) -> Identify:
        """What was told, once the other side has closed its half.

        Raises:
            DecodeError: malformed, or the last message is not whole.
        """
        if self._received or not self._messages:
            raise DecodeError("identify is truncated", got=len(self._received))
        return Identify.decode(self._told)
