"""Packets that no encoder writes so, but every decoder reads: we make of them what @waku/proto makes of them.

js-waku's decoders do not look at wire types, and of a message that comes twice they take the last: tests/waku2/
test_packets.py has both, as Protocol Buffers have them.
"""

import subprocess
from pathlib import Path

import pytest

from mailserver.codec import varint
from mailserver.codec.protobuf import write_bytes, write_number
from mailserver.waku2.filter_packets import FilterSubscribeRequest, FilterSubscribeResponse, MessagePush
from mailserver.waku2.lightpush import LightPushRequest, LightPushResponse, PushRpc
from mailserver.waku2.metadata import Metadata
from mailserver.waku2.old_filter import FilterRpc
from mailserver.waku2.store_query import StoreQueryRequest, StoreQueryResponse
from tests.node_js import ROOT, require_packages
from tests.waku2.packets import FULL, PUBSUB, RECORDED, Packet, decode

pytestmark = pytest.mark.integration

JS = ROOT / "tests/gateway/js"

GROUP = bytes.fromhex("c33e 0807 12023a29 2d01020304 31 0102030405060708 23 24 c43e")
"""A group in the place of a field 1000, with a field of each wire type and another group in it."""

TEN_BYTES = 2**64 - 2**32
"""Makes any number that is added to it one of ten bytes, whose low 32 bits are that number."""


def padded(number: int, value: int) -> bytes:
    """A number in three bytes more than it takes."""
    written = varint.encode(value)
    return varint.encode(number << 3) + written[:-1] + bytes([written[-1] | 0x80, 0x80, 0x80, 0])


MESSAGE = FULL.encode()
ID = write_bytes(1, b"id")

PACKETS: dict[str, tuple[type[Packet], bytes]] = {
    "bool of 2": (StoreQueryRequest, ID + write_number(2, 2) + write_number(52, 255)),
    "bool of ten bytes": (StoreQueryRequest, ID + write_number(2, TEN_BYTES + 1) + write_number(52, TEN_BYTES + 2)),
    "padded bools": (StoreQueryRequest, ID + padded(2, 0) + padded(52, 1)),
    "padded numbers": (StoreQueryRequest, ID + padded(12, 2_000_000_000_000) + padded(53, 25)),
    "old subscribe of 2": (FilterRpc, ID + write_bytes(2, write_number(1, 2))),
    "is_success of 3": (PushRpc, ID + write_bytes(3, write_number(1, 3))),
    "type of ten bytes": (FilterSubscribeRequest, ID + write_number(2, TEN_BYTES + 1)),
    "type of 33 bits": (FilterSubscribeRequest, ID + write_number(2, 2**32 + 2)),
    "status of ten bytes": (FilterSubscribeResponse, ID + write_number(10, TEN_BYTES + 200)),
    "status of a page of 33 bits": (StoreQueryResponse, ID + write_number(10, 2**32 + 200)),
    "relay_peer_count of ten bytes": (LightPushResponse, ID + write_number(10, 200) + write_number(12, TEN_BYTES + 3)),
    "cluster and shards of 33 bits": (Metadata, write_number(1, 2**32 + 1) + write_number(2, 2**32 + 5)),
    "version and ephemeral of ten bytes": (
        MessagePush,
        write_bytes(1, MESSAGE + write_number(3, TEN_BYTES + 1) + write_number(31, TEN_BYTES + 2)),
    ),
    "group in a message": (LightPushRequest, ID + write_bytes(21, GROUP + MESSAGE + GROUP)),
    "fields of a message that come twice": (MessagePush, write_bytes(1, MESSAGE + MESSAGE)),
    "texts and numbers that come twice": (
        StoreQueryRequest,
        ID + write_bytes(10, b"a") + write_number(53, 7) + write_bytes(10, PUBSUB.encode()) + write_number(53, 9),
    ),
}

WITH_GROUPS = {
    name: (type(packet), GROUP + packet.encode() + GROUP)
    for name, packet in RECORDED.items()
    if not isinstance(packet, Metadata)  # theirs leaves out the packed shards
    if not isinstance(packet, FilterRpc)  # theirs leaves out what is false
}


def decoded_by_js(packets: list[tuple[type[Packet], bytes]], folder: Path) -> list[str]:
    """What it has read, as it writes that."""
    asked = folder / "asked"
    asked.write_text("".join(f"{kind.__name__} {data.hex()}\n" for kind, data in packets))
    with asked.open() as lines:
        told = subprocess.run(
            ["node", JS / "decode.mjs"], stdin=lines, capture_output=True, text=True, check=True, timeout=120
        )
    return told.stdout.splitlines()


@pytest.fixture(autouse=True)
def _waku_proto() -> None:
    require_packages(JS)


@pytest.mark.parametrize("packets", [PACKETS, WITH_GROUPS], ids=["numbers", "groups"])
def test_packet_is_read_as_js_waku_reads_it(packets: dict[str, tuple[type[Packet], bytes]], tmp_path: Path) -> None:
    told = decoded_by_js([*packets.values()], tmp_path)

    theirs = dict(zip(packets, told, strict=True))
    ours = {name: decode(kind, data) for name, (kind, data) in packets.items()}
    assert "refused" not in theirs.values()
    assert {name: decode(kind, bytes.fromhex(theirs[name])) for name, (kind, _) in packets.items()} == ours
