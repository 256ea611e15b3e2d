"""The packet of metadata 1.0.0, which request and response share (66/WAKU2-METADATA; waku-proto, metadata/v1).

    1 cluster_id, 2 shards, repeated

nwaku writes the shards twice: in 2, each by itself, and in 3, packed. It reads 3 if that is there, and else 2, packed
or not. So does this: js-waku reads 2 only, and only each by itself.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from mailserver.codec.protobuf import write_number, write_packed
from mailserver.waku2.fields import read, uint32, uint32s

MAX_METADATA_BYTES = 16 * 1024
"""MAX_SHARDS, twice, five bytes and a tag each."""

MAX_SHARDS = 1024
"""As many as a cluster has (51/WAKU2-RELAY-SHARDING)."""

_METADATA = {
    1: uint32("cluster_id"),
    2: uint32s("deprecated shards", MAX_SHARDS),
    3: uint32s("shards", MAX_SHARDS),
}


@dataclass(frozen=True, slots=True)
class Metadata:
    """The cluster of a node, and the shards that it serves: a client says none."""

    cluster_id: int | None
    shards: tuple[int, ...] = ()

    def encode(self) -> bytes:
        """The protobuf form."""
        cluster_id = b"" if self.cluster_id is None else write_number(1, self.cluster_id)
        return cluster_id + _unpacked(self.shards) + write_packed(3, self.shards)


def _unpacked(shards: Iterable[int]) -> bytes:
    return b"".join(write_number(2, shard) for shard in shards)


def decode_metadata(packet: bytes) -> Metadata:
    """Decode the protobuf form.

    Raises:
        DecodeError: it has another form, or is beyond a bound.
    """
    fields = read(packet, _METADATA)
    return Metadata(fields.number("cluster_id"), fields.numbers("shards") or fields.numbers("deprecated shards"))
