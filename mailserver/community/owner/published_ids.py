"""Which envelopes are in which history archive of a community: `published.ids`, made again from `data` when it differs.

Without it, each run would have to decode the whole history to find what came late. An envelope is named by the first
half of its hash, as in the store.

    magic(8)  then for each archive, in the order of `data`:
    offset(8) size(8) count(8) digest(32)  and count * 16 bytes

all big-endian; `digest` is the SHA-256 of the archive in `data`.
"""

import hashlib
import struct
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from mailserver.codec.keccak import keccak256
from mailserver.communities.formats import MAX_ARCHIVE_MESSAGES, CommunityMessage, Format
from mailserver.communities.index import SPEC, IndexEntry
from mailserver.communities.spec_format import waku_message
from mailserver.errors import DecodeError
from mailserver.ids.envelopes import read_meta, topic_of
from mailserver.store.sqlite.schema import HASH_PREFIX_BYTES
from mailserver.waku.envelope import encode_envelope

MAGIC = b"wakuids1"

_HEAD = struct.Struct(">QQQ32s")


@dataclass(frozen=True, slots=True)
class ArchiveIds:
    """The envelopes of one history archive: `keys` has HASH_PREFIX_BYTES for each, in the order of its messages."""

    offset: int
    size: int
    digest: bytes
    keys: bytes

    def encode(self) -> bytes:
        """As it stands in the file."""
        return _HEAD.pack(self.offset, self.size, len(self.keys) // HASH_PREFIX_BYTES, self.digest) + self.keys


def encode_ids(archives: Iterable[ArchiveIds]) -> bytes:
    """The whole file."""
    return b"".join([MAGIC, *(archive.encode() for archive in archives)])


def decode_ids(data: bytes) -> list[ArchiveIds]:
    """Read the file.

    Raises:
        DecodeError: it is none, or cut off.
    """
    if not data.startswith(MAGIC):
        raise DecodeError("file of published ids begins with something else")
    archives, at = [], len(MAGIC)
    while at < len(data):
        if len(data) - at < _HEAD.size:
            raise DecodeError("file of published ids is cut off", got=len(data))
        offset, size, count, digest = _HEAD.unpack_from(data, at)
        at += _HEAD.size
        end = at + count * HASH_PREFIX_BYTES
        if count > MAX_ARCHIVE_MESSAGES or end > len(data):
            raise DecodeError("file of published ids is cut off", got=len(data), limit=end)
        archives.append(ArchiveIds(offset, size, digest, data[at:end]))
        at = end
    return archives


def ids_of(form: Format, entry: IndexEntry, data: bytes) -> ArchiveIds:
    """Find out which envelopes are in an archive.

    Args:
        data: the archive.
    Raises:
        DecodeError: it does not decode.
    """
    messages = form.decode_archive(data, entry.padding).messages
    key_of = _sealed_key if form.name == SPEC else _opened_key
    return ArchiveIds(entry.offset, entry.size, hashlib.sha256(data).digest(), b"".join(map(key_of, messages)))


def load_ids(
    path: Path, form: Format, entries: Sequence[IndexEntry], archive: Callable[[IndexEntry], bytes]
) -> tuple[list[ArchiveIds], int]:
    """Read the ids of the archives that an index lists; make those again that the file lacks, or has of another one.

    Args:
        archive: reads one from `data`.
    Returns:
        The ids, an element for each entry, and how many were made again.
    Raises:
        OSError: a file cannot be read.
        DecodeError: an archive whose ids are missing does not decode.
    """
    try:
        known = {(each.offset, each.size): each for each in decode_ids(path.read_bytes())}
    except (FileNotFoundError, DecodeError):
        known = {}
    found, made = [], 0
    for entry in entries:
        data = archive(entry)
        ids = known.get((entry.offset, entry.size))
        if ids is None or ids.digest != hashlib.sha256(data).digest():
            ids = ids_of(form, entry, data)
            made += 1
        found.append(ids)
    return found, made


def _sealed_key(message: CommunityMessage) -> bytes:
    sealed = waku_message(message)
    meta = read_meta(sealed.meta)
    envelope = encode_envelope(
        meta.created + meta.ttl, meta.ttl, topic_of(sealed.content_topic), sealed.payload, meta.nonce
    )
    return keccak256(envelope.raw)[:HASH_PREFIX_BYTES]


def _opened_key(message: CommunityMessage) -> bytes:
    return message.hash[:HASH_PREFIX_BYTES]
