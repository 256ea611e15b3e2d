"""Envelopes of rows that were read from anywhere: those that are what was stored, and why others are not."""

from collections.abc import Sequence

from mailserver.errors import DecodeError
from mailserver.store.engine.row_check import decode_and_compare
from mailserver.store.interface import NewEnvelope
from mailserver.waku.envelope import MAX_U32, EnvelopeHash, Topic


def verified(columns: Sequence[object]) -> NewEnvelope:
    """The envelope of a row, as it was stored.

    There is nothing to compare the time of reception with, but it must be one.

    Args:
        columns: received, created, topic, prefix of the hash, raw; of a damaged row they may be of any type.
    Raises:
        DecodeError: it is not an envelope, or not the one that its columns describe.
    """
    match columns:
        case (int(received), int(created), bytes(topic), bytes(key_hash), bytes(raw)) if 0 <= received <= MAX_U32:
            _, full_hash = decode_and_compare(created, topic, key_hash, raw)
            return NewEnvelope(received, created, Topic(topic), EnvelopeHash(full_hash), raw)
    raise DecodeError("its columns are not those of an envelope")
