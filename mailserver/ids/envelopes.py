"""The ids of v1 envelopes: each envelope is mapped to one v2 message, and back.

    content topic  /waku/1/0x<topic in hex>/rfc26                     23/WAKU2-TOPICS, 15/WAKU2-BRIDGE
    payload        the data
    meta           created in ns(8) || ttl(4) || nonce(8)             big-endian
    version        1                                                  26/WAKU2-PAYLOAD, which is 7/WAKU-DATA
    timestamp      created in ns

where created = expiry - ttl. All fields of the envelope are in it, so on one network topic MUID and envelope hash name
the same things, one to one: `envelope_of` makes the envelope again. With less in meta, whoever is first to send a copy
with another ttl would suppress the original. Meta sorts by time of creation. It says nothing that the envelope does not
say in the clear, and so nothing of its sender.

`created` is from 1 to 2^32 - 1 seconds. In nanoseconds that is below 2^62.3: no sint64 overflows. An envelope that
claims to have been made at or before the first second of 1970 has no id: v2 implementations do not agree about a
timestamp of 0.
"""

import re
import struct
from binascii import hexlify
from collections.abc import Iterable
from functools import lru_cache
from hashlib import sha256
from typing import NamedTuple, cast

from mailserver.errors import DecodeError
from mailserver.ids.muid import Difference, Muid, NoId, differences, metadata_of, muid
from mailserver.ids.waku_message import MessageHash, WakuMessage
from mailserver.waku.envelope import MAX_U32, Envelope, Topic, encode_envelope
from mailserver.waku.envelope_rows import EnvelopeFields, EnvelopeRow, read_rows

NS = 1_000_000_000

ENVELOPE_VERSION = 1
"""The version of a message whose payload is sealed as in v1."""

TOPICS_KEPT = 4096
"""Of how many topics it is remembered how they are written: up to 1 MB. Some hundred are in use at a time."""

CONTENT = "network topic, topic or data"
"""What differs of an envelope whose checksum is another: nothing says which of them."""

_META = struct.Struct(">Q I Q")
_META_HEAD = struct.Struct(">Q I")
_META_PARTS = struct.Struct(">Q I 8s")
META_BYTES = _META.size
TIMESTAMP_BYTES = 8
BEFORE_TOPIC, BEHIND_TOPIC = b"/waku/1/0x", b"/rfc26"
"""What is around a topic, in hex, in its content topic."""

_CONTENT_TOPIC = re.compile("/waku/1/0x([0-9a-f]{8})/rfc26")


class EnvelopeMeta(NamedTuple):
    """What the meta of an envelope says: `created` in Unix seconds, `ttl` in seconds."""

    created: int
    ttl: int
    nonce: int


def content_topic_of(topic: Topic) -> str:
    """The content topic of a topic."""
    return _content_topic(topic)  # whose arguments no type checker checks


@lru_cache(maxsize=TOPICS_KEPT)
def _content_topic(topic: Topic) -> str:
    return f"/waku/1/0x{topic.hex()}/rfc26"


def topic_of(content_topic: str) -> Topic:
    """The topic of a content topic.

    Raises:
        DecodeError: it is not of this form, or not in lower case: there is one for each topic.
    """
    found = _CONTENT_TOPIC.fullmatch(content_topic)
    if found is None:
        raise DecodeError("content topic is none of Waku v1", got=content_topic)
    return Topic(bytes.fromhex(found[1]))


def meta_of(envelope: Envelope) -> bytes:
    """The meta of an envelope: 20 bytes.

    Raises:
        NoId: it claims to have been created at or before the first second of 1970.
    """
    if envelope.created < 1:
        raise NoId(f"an envelope that was created {envelope.created} s after the beginning of 1970 has no id")
    return _META.pack(envelope.created * NS, envelope.ttl, envelope.nonce)


def read_meta(meta: bytes) -> EnvelopeMeta:
    """Read the meta of an envelope.

    Raises:
        DecodeError: not 20 bytes, not whole seconds, or its expiry is beyond 32 bits.
    """
    if len(meta) != META_BYTES:
        raise DecodeError("meta is not that of an envelope", got=len(meta), limit=META_BYTES)
    nanoseconds, ttl, nonce = _META.unpack(meta)
    created, rest = divmod(nanoseconds, NS)
    if rest or not created:
        raise DecodeError("created is not a whole number of seconds since 1970, from 1 on", got=nanoseconds)
    if created + ttl > MAX_U32:
        raise DecodeError("expiry is beyond 32 bits", got=created + ttl, limit=MAX_U32)
    return EnvelopeMeta(created, ttl, nonce)


def message_of(envelope: Envelope) -> WakuMessage:
    """The v2 message of an envelope.

    Raises:
        NoId: as `meta_of`.
    """
    return WakuMessage(
        payload=envelope.data,
        content_topic=content_topic_of(envelope.topic),
        version=ENVELOPE_VERSION,
        timestamp=envelope.created * NS,
        meta=meta_of(envelope),
    )


def message_hashes(network_topic: str, fields: Iterable[EnvelopeFields | None]) -> list[MessageHash | None]:
    """Compute the message hashes of many envelopes, given what is read of them; None for one that does not decode, or
    has no id.

    It takes a quarter of the time of `message_of` and `WakuMessage.hash`, and nobody needs to make an Envelope for it.
    """
    network, pack, join, before, behind = network_topic.encode(), _META_HEAD.pack, b"".join, BEFORE_TOPIC, BEHIND_TOPIC
    hashes: list[bytes | None] = []
    for each in fields:
        if each is None or each[0] < 1:
            hashes.append(None)
            continue
        created, ttl, topic, data, nonce = each
        head = pack(created * NS, ttl)  # of the meta; the timestamp is in it as it is hashed
        whole = join((network, data, before, hexlify(topic), behind, head, nonce, head[:TIMESTAMP_BYTES]))
        hashes.append(sha256(whole).digest())
    return cast(list[MessageHash | None], hashes)


def envelope_muid(network_topic: str, envelope: Envelope) -> Muid:
    """The MUID of an envelope: 52 bytes.

    Raises:
        NoId: as `meta_of`.
    """
    return muid(network_topic, content_topic_of(envelope.topic), meta_of(envelope), envelope.data)


def _before_topics(network_topic: str) -> bytes:
    """What stands before the topic, in hex, where a MUID is computed."""
    return network_topic.encode() + BEFORE_TOPIC


def joined_muids(
    network_topic: str, body: bytes, sizes: Iterable[int], created: Iterable[int] | None = None
) -> list[Muid | None]:
    """Compute the MUIDs of envelopes that lie one after the other; None for one that does not decode, or has no id.

    It takes four tenths of the time of `decode_envelope` and `envelope_muid`, and half of that is SHA-256.

    Args:
        sizes: the length of each, 0 for one that is not there.
        created: when each of them must have been created to have an id; None: at any time.
    """
    before, behind, join = _before_topics(network_topic), BEHIND_TOPIC, b"".join
    # One step for all of them after the other: to take all steps for each of them takes a tenth longer.
    rows = read_rows(body, sizes)
    if created is not None:
        rows = [
            row if row is not None and row[1] - row[2] == second else None
            for row, second in zip(rows, created, strict=False)
        ]
    metas = _metas(rows)
    # As `muid`, in its order; a call for each would take a tenth of the time.
    hashed = [
        join((before, hexlify(row[4]), behind, meta, row[6])) if row is not None and meta is not None else b""
        for row, meta in zip(rows, metas, strict=True)
    ]
    names = [None if meta is None else sha256(each).digest() + meta for each, meta in zip(hashed, metas, strict=True)]
    return cast(list[Muid | None], names)


def joined_metas(body: bytes, sizes: Iterable[int]) -> list[bytes | None]:
    """The metas of envelopes that lie one after the other; None for one that does not decode, or has no id."""
    return _metas(read_rows(body, sizes))


def _metas(rows: Iterable[EnvelopeRow | None]) -> list[bytes | None]:
    pack = _META_PARTS.pack
    return [None if row is None or row[1] <= row[2] else pack((row[1] - row[2]) * NS, row[2], row[8]) for row in rows]


def envelope_of(network_topic: str, name: Muid, topic: Topic, data: bytes) -> Envelope:
    """The envelope that a MUID of this network topic names, given its topic and data.

    Raises:
        DecodeError: the MUID is not that of an envelope, or the topic or the data are not those that it names.
    """
    meta = metadata_of(name)
    created, ttl, nonce = read_meta(meta)
    if differences(name, network_topic, content_topic_of(topic), meta, data):
        raise DecodeError("MUID does not name this network topic, topic and data", got=name.hex())
    return encode_envelope(created + ttl, ttl, topic, data, nonce)


def envelope_differences(network_topic: str, name: Muid, envelope: Envelope) -> tuple[str, ...]:
    """What of an envelope is not as a MUID says: the names of its fields; nothing, if it is that envelope's.

    Raises:
        NoId: as `meta_of`.
    """
    found = differences(name, network_topic, content_topic_of(envelope.topic), meta_of(envelope), envelope.data)
    fields: tuple[str, ...] = ()
    if Difference.META in found:
        try:
            said = read_meta(metadata_of(name))
        except DecodeError:  # the MUID of something else
            fields = (Difference.META.value,)
        else:
            has = EnvelopeMeta(envelope.created, envelope.ttl, envelope.nonce)
            fields = tuple(
                field for field, one, other in zip(EnvelopeMeta._fields, said, has, strict=True) if one != other
            )
    return fields + ((CONTENT,) if Difference.CONTENT in found else ())
