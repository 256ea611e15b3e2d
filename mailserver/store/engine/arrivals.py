"""What the engines' logs of arrivals have in common: see `store.arrivals`."""

from collections.abc import Iterable, Sequence

from mailserver.codec.keccak import keccak256
from mailserver.errors import DecodeError
from mailserver.store.arrivals import ArrivedEnvelope
from mailserver.store.engine.keys import HASH_PREFIX_BYTES
from mailserver.store.message_ids import Arrival
from mailserver.waku.envelope import EnvelopeHash, decode_envelope

READERS = 2
"""How many statements are run at once."""

MAX_ARRIVALS_BYTES = 8 * 1024 * 1024
"""What is read at once of the order of arrival ends with the envelope that reaches this."""


def decode_arrived(
    seqs: Sequence[int], sizes: Sequence[int], prefixes: Iterable[bytes], raws: bytes
) -> tuple[list[ArrivedEnvelope], int]:
    """The envelopes of some rows in order, but for those that are damaged; and how many these are.

    Args:
        prefixes: what the rows say of the hashes. raws: the envelopes, one after the other.
    """
    found, at = [], 0
    for seq, size, prefix in zip(seqs, sizes, prefixes, strict=True):
        raw = raws[at : at + size]
        at += size
        whole = EnvelopeHash(keccak256(raw))
        if whole[:HASH_PREFIX_BYTES] != prefix:
            continue
        try:
            envelope = decode_envelope(raw)
        except DecodeError:
            continue
        found.append(ArrivedEnvelope(Arrival(seq), envelope, whole))
    return found, len(seqs) - len(found)


def fitting(sizes: Sequence[int], max_bytes: int) -> int:
    """How many of the first fit, and at least so many that one is there. Sizes of what is not there are 0."""
    total = 0
    for at, size in enumerate(sizes):
        if size and total and total + size > max_bytes:
            return at
        total += size
    return len(sizes)
