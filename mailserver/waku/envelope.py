"""Envelopes: decoding that keeps the received bytes, hash, proof of work (6/WAKU1 "Envelope").

An envelope is `[expiry, ttl, topic, data, nonce]`. Its bytes are stored and served unchanged. So an Envelope has the
bytes, the numbers that were read from them, and the offsets of its parts.
"""

import struct
from typing import NamedTuple, NewType

from mailserver.codec import rlp
from mailserver.codec.keccak import keccak256, running_keccak
from mailserver.errors import DecodeError

Topic = NewType("Topic", bytes)
"""4 bytes that tell roughly what an envelope is about."""

EnvelopeHash = NewType("EnvelopeHash", bytes)
"""Keccak-256 of an envelope's RLP as received: 32 bytes."""

TOPIC_BYTES = 4
HASH_BYTES = 32
NONCE_BYTES = 8
MAX_U32 = 0xFFFF_FFFF

MAX_ENVELOPES_PER_PACKET = 8192
"""Most envelopes in one packet. Sealed data is padded to 256 bytes and more, so 1.5 MB hold 5,300 honest ones."""

MAX_ENVELOPES_PER_LONG_PACKET = 65_536
"""The same for a packet of 16 MiB, which holds no more envelopes of 256 bytes."""

PART_ENVELOPES = 256
PART_BYTES = 256 * 1024
"""How much of a long packet is read at once. With envelopes of 1 kB it takes 3.1 ms. One envelope may be longer."""

MIN_SEALED_BYTES = 256
"""Sealed data is padded to at least this many bytes (7/WAKU-DATA). Shorter data is not a message."""


class TooManyEnvelopes(DecodeError):
    """A packet that is read part by part holds more envelopes than it may."""


class Envelope(NamedTuple):
    """One envelope. `expiry` is Unix time in seconds, `ttl` seconds.

    `body_at`, `data_at` and `nonce_at` are offsets into `raw`: of the first field, of the data field's
    content, and of the nonce field.
    """

    raw: bytes
    expiry: int
    ttl: int
    topic: Topic
    nonce: int
    body_at: int
    data_at: int
    nonce_at: int

    @property
    def created(self) -> int:
        """When the sender claims to have made the envelope: expiry - ttl; below 0 in a forged one."""
        return self.expiry - self.ttl

    @property
    def data(self) -> bytes:
        """The sealed payload (7/WAKU-DATA)."""
        return self.raw[self.data_at : self.nonce_at]

    def hash(self) -> EnvelopeHash:
        """Keccak-256 of the bytes as received. It is computed at each call."""
        return EnvelopeHash(keccak256(self.raw))

    def pow(self, ahead: int = 0) -> float:
        """Proof of work of the envelope.

            pow = 2 ** leading-zero-bits(keccak(rlp([expiry, ttl, topic, data]) || nonce)) / (size * ttl)

        where the nonce is 8 bytes, big-endian, and size the length of that RLP.

        Args:
            ahead: seconds by which the envelope was created after our now, else 0. The deployed node then counts
                `ttl + ahead + 1`.
        """
        body = self.raw[self.body_at : self.nonce_at]
        body = rlp.list_prefix(len(body)) + body
        digest = keccak256(body + self.nonce.to_bytes(NONCE_BYTES, "big"))
        return pow_of(digest, len(body), self.ttl + ahead + 1 if ahead > 0 else self.ttl)


def pow_of(digest: bytes, size: int, ttl: int) -> float:
    """Return 2 ** leading-zero-bits(digest) / (size * ttl). A ttl of 0 counts as 1, so that this is finite."""
    zero_bits = 256 - int.from_bytes(digest, "big").bit_length()
    return float(2**zero_bits) / size / (ttl or 1)


def encode_envelope(expiry: int, ttl: int, topic: bytes, data: bytes, nonce: int) -> Envelope:
    """Build an envelope from its fields."""
    fields = [rlp.encode_uint(expiry), rlp.encode_uint(ttl), topic, data, rlp.encode_uint(nonce)]
    return decode_envelope(rlp.encode(fields))


def find_nonce(
    expiry: int, ttl: int, topic: bytes, data: bytes, *, target: float, first_nonce: int, attempts: int
) -> int | None:
    """Try `attempts` nonces from `first_nonce` on; return the first whose proof of work reaches `target`, or None.

    On average it takes size * ttl * target attempts of 2 us each.
    """
    body = rlp.encode([rlp.encode_uint(expiry), rlp.encode_uint(ttl), topic, data])
    prefix = running_keccak(body)
    for nonce in range(first_nonce, first_nonce + attempts):
        attempt = prefix.copy()
        attempt.update(nonce.to_bytes(NONCE_BYTES, "big"))
        if pow_of(attempt.digest(), len(body), ttl) >= target:
            return nonce
    return None


def mine(expiry: int, ttl: int, topic: bytes, data: bytes, *, target: float, first_nonce: int = 0) -> Envelope:
    """Find a nonce from `first_nonce` on whose proof of work reaches `target`, however long it takes."""
    at, attempts = first_nonce, 100_000
    while (nonce := find_nonce(expiry, ttl, topic, data, target=target, first_nonce=at, attempts=attempts)) is None:
        at += attempts
    return encode_envelope(expiry, ttl, topic, data, nonce)


def decode_envelope(raw: bytes) -> Envelope:
    """Decode one envelope that fills `raw`.

    Raises:
        DecodeError: not canonical RLP, not five fields of the right kinds, or bytes left over.
    """
    envelope, end = _scan(raw, 0, len(raw))
    if end != len(raw):
        raise DecodeError("envelope is followed by other bytes", got=len(raw), limit=end)
    return envelope


def decode_envelopes(payload: bytes) -> list[Envelope]:
    """Decode the payload of Messages or P2P Message, `[envelope, ...]`.

    Raises:
        DecodeError: any of them does not decode, or there are more than MAX_ENVELOPES_PER_PACKET.
    """
    is_list, at, end = rlp.header(payload, 0, len(payload))
    if not is_list or end != len(payload):
        raise DecodeError("packet is not one list of envelopes")
    envelopes = []
    while at < end:
        envelope, at = _scan(payload, at, end)
        envelopes.append(envelope)
        if len(envelopes) > MAX_ENVELOPES_PER_PACKET:
            raise DecodeError("packet holds too many envelopes", limit=MAX_ENVELOPES_PER_PACKET)
    return envelopes


class EnvelopeReader:
    """Reads the payload of a Messages packet part by part, so that other tasks can run in between."""

    def __init__(self, payload: bytes | bytearray, *, max_envelopes: int = MAX_ENVELOPES_PER_LONG_PACKET) -> None:
        """Read the header.

        Args:
            payload: bytes, or of a long packet a bytearray.
            max_envelopes: how many it may hold.
        Raises:
            DecodeError: the payload is not one list.
        """
        is_list, at, self._end = rlp.header(payload, 0, len(payload))
        if not is_list or self._end != len(payload):
            raise DecodeError("packet is not one list of envelopes")
        self._payload = payload
        self._max_envelopes = max_envelopes
        self._at = at
        self._count = 0
        self._keccak = running_keccak(bytes(payload[:at]))

    def read(self) -> list[Envelope]:
        """Decode the next envelopes; return [] at the end.

        Raises:
            DecodeError: one does not decode.
            TooManyEnvelopes: there are more than there may be.
        """
        envelopes: list[Envelope] = []
        start = at = self._at
        while at < self._end and at - start < PART_BYTES and len(envelopes) < PART_ENVELOPES:
            envelope, at = self._read_one(at)
            envelopes.append(envelope)
        self._count += len(envelopes)
        if self._count > self._max_envelopes:
            raise TooManyEnvelopes("packet holds too many envelopes", limit=self._max_envelopes)
        self._keccak.update(bytes(self._payload[start:at]))
        self._at = at
        return envelopes

    def _read_one(self, at: int) -> tuple[Envelope, int]:
        if isinstance(self._payload, bytes):
            return _scan(self._payload, at, self._end)
        _, _, stop = rlp.header(self._payload, at, self._end)
        return decode_envelope(bytes(self._payload[at:stop])), stop

    @property
    def size(self) -> int:
        """The length of the payload, in bytes."""
        return len(self._payload)

    def payload_hash(self) -> bytes:
        """Keccak-256 of the payload, once all of it has been read. Confirmations name it."""
        return self._keccak.digest()


def count_envelopes(payload: bytes) -> int:
    """Return the most envelopes that `decode_envelopes` could have to decode. It takes a fifth of the time.

    It never raises: it stops counting at an item that is cut off, or longer than the packet.
    """
    count = 0
    try:
        _, at, end = rlp.header(payload, 0, len(payload))
        while at < end and count <= MAX_ENVELOPES_PER_PACKET:
            count += 1
            if payload[at] == _USUAL_HEADS[0] and at + 2 < end:
                at += 3 + (payload[at + 1] << 8 | payload[at + 2])
            else:
                at = rlp.header(payload, at, end)[2]
    except DecodeError:
        pass
    return count


def encode_envelopes(raws: list[bytes]) -> bytes:
    """Encode the payload of Messages or P2P Message from the bytes of envelopes, which stay unchanged."""
    return encode_body(b"".join(raws))


def encode_body(body: bytes) -> bytes:
    """Encode the payload of Messages or P2P Message from envelopes that are already joined."""
    return rlp.list_prefix(len(body)) + body


def packet_bytes(body_bytes: int) -> int:
    """The length of the payload of a packet whose envelopes take `body_bytes`."""
    return len(rlp.list_prefix(body_bytes)) + body_bytes


_USUAL = struct.Struct(">B H B I B B 4s B H")
_USUAL_HEADS = 0xF9, 0x84, 0x84, 0xB9
"""How nearly all envelopes begin: list header, expiry, ttl, topic, and the header of 256 bytes of data or more."""


def _scan(data: bytes, at: int, end: int) -> tuple[Envelope, int]:
    """Read the envelope at `at`; return it, and where it ends. This runs for every envelope that is received.

    An envelope of the usual form is read in one step, in half the time. All others are left to `_read`.
    """
    if end - at <= _USUAL.size:
        return _read(data, at, end)
    lists, length, expiries, expiry, ttl, topics, topic, datas, size = _USUAL.unpack_from(data, at)
    nonce_at = at + _USUAL.size + size
    stop = at + 3 + length
    if (
        (lists, expiries, topics, datas) != _USUAL_HEADS
        or not (size > 0xFF and expiry > 0xFF_FFFF and 0 < ttl < 0x80)
        or not nonce_at < stop <= end
        or data[nonce_at] != 0x80 + stop - nonce_at - 1
        or stop - nonce_at - 1 > NONCE_BYTES
    ):
        return _read(data, at, end)
    nonce = data[nonce_at + 1 : stop]
    if not nonce or nonce[0] == 0 or (len(nonce) == 1 and nonce[0] < 0x80):
        return _read(data, at, end)
    fields = data[at:stop], expiry, ttl, topic, int.from_bytes(nonce, "big"), 3, _USUAL.size, nonce_at - at
    return tuple.__new__(Envelope, fields), stop  # half the time of a NamedTuple's own


def _read(data: bytes, at: int, end: int) -> tuple[Envelope, int]:
    """Read an envelope of any form, field by field."""
    header = rlp.header
    is_list, body_at, stop = header(data, at, end)
    if not is_list:
        raise DecodeError("envelope is not an RLP list")
    expiry, field_at = _u32(data, body_at, stop, "expiry")
    ttl, field_at = _u32(data, field_at, stop, "ttl")
    if field_at + 5 <= stop and data[field_at] == 0x80 + TOPIC_BYTES:
        topic = data[field_at + 1 : field_at + 5]
        field_at += 5
    else:
        raise DecodeError("topic is not 4 bytes")
    is_list, data_at, nonce_at = header(data, field_at, stop)
    if is_list:
        raise DecodeError("data of an envelope is a list")
    is_list, nonce_start, nonce_end = header(data, nonce_at, stop)
    if is_list or nonce_end - nonce_start > NONCE_BYTES:
        raise DecodeError("nonce is not an integer of 8 bytes", got=nonce_end - nonce_start, limit=NONCE_BYTES)
    if nonce_end != stop:
        raise DecodeError("envelope has other than five fields")
    if nonce_end > nonce_start and data[nonce_start] == 0:
        raise DecodeError("nonce has leading zeros")
    nonce = int.from_bytes(data[nonce_start:nonce_end], "big")
    envelope = Envelope(data[at:stop], expiry, ttl, Topic(topic), nonce, body_at - at, data_at - at, nonce_at - at)
    return envelope, stop


def _u32(data: bytes, at: int, end: int, what: str) -> tuple[int, int]:
    """Read an integer of at most 4 bytes; return it and where the next field starts."""
    if at >= end:
        raise DecodeError(f"{what} is missing")
    prefix = data[at]
    if prefix < 0x80:
        if prefix == 0:  # the integer 0 is the empty string
            raise DecodeError(f"{what} has leading zeros")
        return prefix, at + 1
    length = prefix - 0x80
    if length > 4:
        raise DecodeError(f"{what} is not an integer of 4 bytes")
    at += 1
    stop = at + length
    if stop > end:
        raise DecodeError(f"{what} is truncated")
    value = int.from_bytes(data[at:stop], "big")
    if length and (value < 0x80 or not data[at]):
        raise DecodeError(f"{what} is not in its shortest form")
    return value, stop
