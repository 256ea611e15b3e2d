"""What the engines' logs of arrivals have in common: see `store.arrivals`."""

from collections.abc import Container, Iterable, Sequence

from mailserver.codec.keccak import keccak256
from mailserver.errors import DecodeError
from mailserver.store.arrivals import ArrivedEnvelope, ArrivedFields
from mailserver.store.engine.keys import HASH_PREFIX_BYTES
from mailserver.store.message_ids import Arrival
from mailserver.waku.envelope import EnvelopeHash, decode_envelope
from mailserver.waku.envelope_rows import read_fields

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
    found, damaged, end = [], 0, 0
    for seq, size, prefix in zip(seqs, sizes, prefixes, strict=True):
        at, end = end, end + size
        raw = raws[at:end]
        whole = EnvelopeHash(keccak256(raw))
        if whole[:HASH_PREFIX_BYTES] != prefix:
            damaged += 1
            continue
        try:
            envelope = decode_envelope(raw)
        except DecodeError:
            damaged += 1
            continue
        found.append(ArrivedEnvelope(Arrival(seq), envelope, whole))
    return found, damaged


def read_arrived(
    seqs: Sequence[int], sizes: Sequence[int], prefixes: Iterable[bytes], raws: bytes, known: Container[bytes] = ()
) -> tuple[list[ArrivedFields], int]:
    """What the envelopes of some rows say, in order, but for those that are known or damaged; and how many are damaged.

    Args:
        prefixes, raws: as of `decode_arrived`. known: some prefixes.
    """
    rows, end = [], 0
    for seq, size, prefix in zip(seqs, sizes, prefixes, strict=True):
        at, end = end, end + size
        if prefix not in known:
            rows.append((seq, prefix, raws[at:end]))
    wanted = [raw for *_, raw in rows]
    found = []
    for (seq, prefix, raw), fields in zip(rows, read_fields(b"".join(wanted), map(len, wanted)), strict=True):
        if fields is not None:
            whole = keccak256(raw)
            if whole[:HASH_PREFIX_BYTES] == prefix:
                found.append(ArrivedFields(Arrival(seq), EnvelopeHash(whole), fields))
    return found, len(rows) - len(found)


def count_to_known(prefixes: Sequence[bytes], known: Container[bytes]) -> int:
    """How many rows there are up to the last that is known; 0 if none is."""
    for count in range(len(prefixes), 0, -1):
        if prefixes[count - 1] in known:
            return count
    return 0


def fitting(sizes: Sequence[int], max_bytes: int) -> int:
    """How many of the first fit, and at least so many that one is there. Sizes of what is not there are 0."""
    total = 0
    for at, size in enumerate(sizes):
        if size and total and total + size > max_bytes:
            return at
        total += size
    return len(sizes)
