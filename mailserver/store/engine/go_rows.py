"""The rows of a Go mailserver, whichever database it keeps them in, as a store of ours has them.

status-go (`mailserver/db_key.go`) has a key for each envelope: when it was created (4 bytes, big-endian), its hash
(32), its topic (4); in early versions without the topic. It does not say when an envelope was received. It counts as
received when it was created, but no later than now.
"""

from mailserver.store.engine.keys import HASH_PREFIX_BYTES
from mailserver.store.moving import ReadRow, SourcePlace
from mailserver.waku.envelope import HASH_BYTES, TOPIC_BYTES

EARLY_KEY_BYTES = 36
KEY_BYTES = EARLY_KEY_BYTES + TOPIC_BYTES

_TIME_BYTES = EARLY_KEY_BYTES - HASH_BYTES


def place_of(key: bytes) -> SourcePlace:
    """The place of a row, which names its key."""
    return SourcePlace(int.from_bytes(b"\x01" + key, "big"))


def key_at(place: SourcePlace) -> bytes:
    """The key of a row; b"" before all."""
    return place.to_bytes((place.bit_length() + 7) // 8, "big")[1:]


def row_of(key: bytes, topic: bytes | None, raw: bytes | None, now: int) -> ReadRow:
    """A row as a store of ours has it; one whose key does not fit, or that is incomplete, has three columns, and is
    wrong.

    Args:
        topic: what the row says beside its key; None if it says nothing, as nothing keeps a database from having.
        raw: the envelope; None if there is none.
        now: in Unix seconds.
    """
    created = int.from_bytes(key[:_TIME_BYTES], "big")
    key_hash, key_topic = key[_TIME_BYTES:EARLY_KEY_BYTES], key[EARLY_KEY_BYTES:]
    if topic is None or raw is None:
        return ReadRow(place_of(key), [key, topic, raw], "it has no envelope, or no topic")
    if len(key_hash) != HASH_BYTES or key_topic not in (b"", topic) or len(topic) != TOPIC_BYTES:
        return ReadRow(place_of(key), [key, topic, raw])
    return ReadRow(place_of(key), [min(created, now), created, topic, key_hash[:HASH_PREFIX_BYTES], raw])
