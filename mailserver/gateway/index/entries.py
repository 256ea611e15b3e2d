"""From what is read of envelopes to messages in their protobuf form: the entries of a page, or what is pushed.

What `ids.envelopes.message_of`, `WakuMessage.hash` and `encode` do one after the other is done in one go here, in half
the time: half of what a page takes are its messages.
"""

import sqlite3
import struct
from binascii import hexlify
from collections.abc import Sequence
from functools import lru_cache

from mailserver.codec import varint
from mailserver.codec.protobuf import write_bytes, write_number
from mailserver.gateway.index.mapping import originals_of
from mailserver.gateway.index.values import EncodedMessage, StoredEntry
from mailserver.ids.envelopes import (
    BEFORE_TOPIC,
    BEHIND_TOPIC,
    ENVELOPE_VERSION,
    META_BYTES,
    NS,
    content_topic_of,
    message_hashes,
)
from mailserver.ids.waku_message import MESSAGE_HASH_BYTES, MessageHash
from mailserver.waku.envelope import TOPIC_BYTES, EnvelopeHash
from mailserver.waku.envelope_rows import EnvelopeFields, read_fields

LENGTHS_KEPT = 1024
"""For so many lengths of data it is remembered how they are written. Applications pad what they send."""

SECONDS_KEPT = 1024
"""The same of so many times of creation: what is pushed was created lately."""

_META_HEAD = struct.Struct(">Q I")

_HASH_TAG = write_bytes(1, bytes(MESSAGE_HASH_BYTES))[:-MESSAGE_HASH_BYTES]
_MESSAGE_TAG = write_bytes(2, b"")[:-1]
_PAYLOAD_TAG = write_bytes(1, b"")[:-1]
_META_TAG = write_bytes(11, bytes(META_BYTES))[:-META_BYTES]
_TIMESTAMP_TAG = write_number(10, 0)[:-1]

_HEX_BYTES = 2 * TOPIC_BYTES
_TOPIC_TAG = write_bytes(2, BEFORE_TOPIC + bytes(_HEX_BYTES) + BEHIND_TOPIC)[: -_HEX_BYTES - len(BEHIND_TOPIC)]
_BEHIND_AND_VERSION = BEHIND_TOPIC + write_number(3, ENVELOPE_VERSION) + _TIMESTAMP_TAG
_OTHER_BYTES = len(_TOPIC_TAG + _BEHIND_AND_VERSION + _META_TAG) + _HEX_BYTES + META_BYTES
"""What a message takes beside its payload and the digits of its timestamp."""


def stored_entries(network_topic: str, names: Sequence[MessageHash], raws: Sequence[bytes]) -> list[StoredEntry | None]:
    """The entries of the messages of envelopes; None for an envelope that does not decode, has no message, or one with
    another hash than was expected.

    Args:
        names: the hash that each message must have.
    """
    all_fields = [*read_fields(b"".join(raws), map(len, raws))]
    behind = write_bytes(3, network_topic.encode())
    pack, nanoseconds, new = _META_HEAD.pack, varint.encode, tuple.__new__
    entries: list[StoredEntry | None] = []
    for name, found, fields in zip(names, message_hashes(network_topic, all_fields), all_fields, strict=True):
        if found != name or fields is None:
            entries.append(None)
            continue
        created, ttl, topic, data, nonce = fields
        timestamp = nanoseconds(created * NS << 1)  # what zigzag makes of a number that is not negative
        head = _message_head(len(data), len(timestamp) + _OTHER_BYTES)
        meta = pack(created * NS, ttl), nonce
        message = (head, data, _TOPIC_TAG, hexlify(topic), _BEHIND_AND_VERSION, timestamp, _META_TAG, *meta)
        encoded = b"".join((_HASH_TAG, name, *message, behind))
        entries.append(new(StoredEntry, (name, encoded)))  # half the time of a NamedTuple's own
    return entries


@lru_cache(maxsize=LENGTHS_KEPT)
def _message_head(data_bytes: int, other_bytes: int) -> bytes:
    """What stands before the data: tag and length of the message, and of its payload.

    Args:
        other_bytes: how long all other fields of the message are.
    """
    payload = _PAYLOAD_TAG + varint.encode(data_bytes)
    return _MESSAGE_TAG + varint.encode(len(payload) + data_bytes + other_bytes) + payload


def encoded_messages(
    connection: sqlite3.Connection, network_topic: str, envelopes: Sequence[tuple[EnvelopeFields, EnvelopeHash]]
) -> list[EncodedMessage | None]:
    """The messages of envelopes, in their order; None for one that has none. Their originals are looked up."""
    originals = originals_of(connection, [whole for _, whole in envelopes])
    names = message_hashes(network_topic, [fields for fields, _ in envelopes])
    pack, join, new = _META_HEAD.pack, b"".join, tuple.__new__
    messages: list[EncodedMessage | None] = []
    for (fields, whole), name in zip(envelopes, names, strict=True):
        created, ttl, topic, data, nonce = fields
        if originals and (original := originals.get(whole)) is not None:
            message = original.message(topic, data)
            own = message.hash(network_topic)
            messages.append(EncodedMessage(own, message.content_topic, original.timestamp, message.encode()))
        elif name is None:
            messages.append(None)
        else:
            timestamp = created * NS
            meta = pack(timestamp, ttl), nonce
            encoded = join((_payload_head(len(data)), data, _TOPIC_TAG, hexlify(topic), _before_meta(timestamp), *meta))
            messages.append(new(EncodedMessage, (name, content_topic_of(topic), timestamp, encoded)))
    return messages


@lru_cache(maxsize=LENGTHS_KEPT)
def _payload_head(data_bytes: int) -> bytes:
    """What stands before the data of a message."""
    return _PAYLOAD_TAG + varint.encode(data_bytes)


@lru_cache(maxsize=SECONDS_KEPT)
def _before_meta(timestamp: int) -> bytes:
    """What stands between the topic and the meta of a message."""
    return _BEHIND_AND_VERSION + varint.encode(timestamp << 1) + _META_TAG
