"""What strangers say of torrents: bencoded values, info dictionaries and magnet links."""

from collections.abc import Iterator

from mailserver.errors import DecodeError
from mailserver.torrents import bencode
from mailserver.torrents.errors import LinkRefused, TorrentRefused
from mailserver.torrents.info import PIECE_BYTES, TorrentInfo
from mailserver.torrents.magnet import MAX_PEERS, MAX_TRACKERS, MagnetLink, decode_address, encode_address
from tests.fuzz.target import Target

NAME = "0x02ab"


def fuzz_bencode(data: bytes) -> None:
    """What is read is written in the same bytes."""
    try:
        value = bencode.decode(data)
    except DecodeError:
        return
    assert bencode.encode(value) == data


def bencode_seeds() -> Iterator[bytes]:
    """A value of each kind, and what is almost one."""
    yield from (b"i-3e", b"i0e", b"i03e", b"4:spam", b"0:", b"l4:spami1ee", b"d1:b0:1:a0:e")
    yield b"d3:cow3:moo4:spaml1:a1:bee"


def fuzz_info(data: bytes) -> None:
    """What is not refused has whole pieces, all hashes, and only the two files; it is made again of what it says."""
    try:
        info = TorrentInfo.decode(data)
    except TorrentRefused:
        return
    assert info.data_bytes > 0 == info.data_bytes % PIECE_BYTES
    assert len(info.pieces) == len(info.data_pieces) + len(info.index_pieces) == len(info.piece_hashes) // 20
    assert info.pieces_at(0, info.data_bytes) == info.data_pieces
    again = TorrentInfo.of(info.name, info.data_bytes, info.index_bytes, info.piece_hashes)
    assert again.info_hash == info.info_hash or b"private" in data or b"source" in data


def info_seeds() -> Iterator[bytes]:
    """Torrents, one of them private, and what is almost one."""
    info = TorrentInfo.of(NAME, 2 * PIECE_BYTES, PIECE_BYTES + 1, bytes(80)).info
    yield info
    yield TorrentInfo.of(NAME, PIECE_BYTES, 1, bytes(40)).info
    yield info[:-1] + b"7:privatei1ee"
    yield info.replace(b"5:index", b"5:Index")
    yield info.replace(b"4:data", b"7:../data")
    yield info.replace(b"i102400e", b"i16384e")


def fuzz_link(data: bytes) -> None:
    """What is read is within the bounds, and the same when it is written and read again."""
    try:
        link = MagnetLink.decode(data.decode("utf-8", errors="surrogateescape"))
    except LinkRefused:
        return
    assert len(link.info_hash) == 20
    assert len(link.trackers) <= MAX_TRACKERS
    assert len(link.peers) <= MAX_PEERS
    assert all(decode_address(encode_address(peer)) == peer for peer in link.peers)
    assert MagnetLink.decode(MagnetLink(link.info_hash, "", (), link.peers).encode()).peers == link.peers


def link_seeds() -> Iterator[bytes]:
    """Links with everything, with little, and what is almost one."""
    info_hash = bytes(range(20))
    yield MagnetLink(info_hash).encode().encode()
    yield (
        MagnetLink(
            info_hash,
            NAME,
            ("udp://tracker.example:1337/announce", "https://tracker.example/announce?a=1"),
            (("192.0.2.1", 6881), ("2001:db8::1", 6881)),
        )
        .encode()
        .encode()
    )
    link = MagnetLink(info_hash, NAME, ("http://[::1]:80/",))
    yield link.encode().encode() + b"&ws=http://192.0.2.1/&x.pe=localhost:1"
    yield b"magnet:?xt=urn:btih:" + b"g" * 40


TARGETS = {
    "bencode": Target(fuzz_bencode, bencode_seeds, max_bytes=512),
    "info": Target(fuzz_info, info_seeds, max_bytes=1024),
    "link": Target(fuzz_link, link_seeds, max_bytes=1024),
}
