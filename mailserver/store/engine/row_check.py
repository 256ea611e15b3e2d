"""What a row of the store must be: the envelope that its other columns describe. Every check for damage uses this."""

from mailserver.errors import DecodeError
from mailserver.store.engine.keys import HASH_PREFIX_BYTES
from mailserver.waku.envelope import Envelope, EnvelopeHash, decode_envelope


def decode_and_compare(created: int, topic: bytes, key_hash: bytes, raw: bytes) -> tuple[Envelope, EnvelopeHash]:
    """Decode a row and compare it with its columns; return the envelope and its whole hash.

    Raises:
        DecodeError: `raw` is no envelope, or a different one (because a bit has turned on the disk, say). `str()` says
            which.
    """
    try:
        envelope = decode_envelope(raw)
    except DecodeError as error:
        raise DecodeError(f"undecodable: {error}") from error
    full_hash = envelope.hash()
    if full_hash[:HASH_PREFIX_BYTES] != key_hash:
        raise DecodeError("its hash is different")
    if envelope.topic != topic or envelope.created != created:
        raise DecodeError("its topic or time is different")
    return envelope, full_hash
