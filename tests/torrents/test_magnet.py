"""Magnet links: what is taken of them, and what is not."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mailserver.torrents.errors import LinkRefused
from mailserver.torrents.magnet import (
    MAX_FIELDS,
    MAX_LINK_CHARACTERS,
    MAX_PEERS,
    MAX_TRACKERS,
    MagnetLink,
    decode_address,
    encode_address,
    is_tracker,
)

HASH = bytes(range(20))
HEX = HASH.hex()


def test_link_names_torrent_trackers_and_peers() -> None:
    link = MagnetLink(
        HASH,
        "0x02ab",
        ("udp://tracker.example:1337/announce", "https://tracker.example/announce?key=1&b=2"),
        (("192.0.2.1", 6881), ("2001:db8::1", 6881)),
    )

    assert link.encode() == (
        f"magnet:?xt=urn:btih:{HEX}&dn=0x02ab&tr=udp%3A%2F%2Ftracker.example%3A1337%2Fannounce"
        "&tr=https%3A%2F%2Ftracker.example%2Fannounce%3Fkey%3D1%26b%3D2"
        "&x.pe=192.0.2.1%3A6881&x.pe=%5B2001%3Adb8%3A%3A1%5D%3A6881"
    )
    assert MagnetLink.decode(link.encode()) == link
    assert MagnetLink.decode(MagnetLink(HASH).encode()) == MagnetLink(HASH)


def test_link_of_status_go_is_read() -> None:
    link = (
        f"magnet:?xt=urn:btih:{HEX.upper()}&dn=0x02ab&tr=udp%3A%2F%2Ftracker.opentrackr.org%3A1337%2Fannounce"
        "&tr=udp%3A%2F%2Ftracker.openbittorrent.com%3A6969%2Fannounce"
    )

    assert MagnetLink.decode(link) == MagnetLink(
        HASH,
        "0x02ab",
        ("udp://tracker.opentrackr.org:1337/announce", "udp://tracker.openbittorrent.com:6969/announce"),
    )


def test_what_could_make_us_fetch_addresses_is_left_alone() -> None:
    link = f"magnet:?xt=urn:btih:{HEX}&ws=http://192.0.2.1/&xs=http://192.0.2.1/a&as=http://192.0.2.1/b&tr=file:///etc"

    assert MagnetLink.decode(link) == MagnetLink(HASH)


def test_trackers_and_peers_beyond_the_bounds_are_left_out() -> None:
    trackers = tuple(f"udp://tracker{each}.example:1/" for each in range(MAX_TRACKERS + 2))
    peers = tuple(("192.0.2.1", 1000 + each) for each in range(MAX_PEERS + 2))

    read = MagnetLink.decode(MagnetLink(HASH, "", trackers + trackers[:1], peers).encode())

    assert (read.trackers, read.peers) == (trackers[:MAX_TRACKERS], peers[:MAX_PEERS])


@pytest.mark.parametrize(
    ("link", "cause"),
    [
        ("", "does not begin as one"),
        (f"http://example/?xt=urn:btih:{HEX}", "does not begin as one"),
        ("magnet:?dn=x", "names no torrent, or several"),
        (f"magnet:?xt=urn:btmh:1220{HEX}", "names no torrent, or several"),
        (f"magnet:?xt=urn:btih:{HEX}&xt=urn:btih:{'00' * 20}", "names no torrent, or several"),
        (f"magnet:?xt=urn:btih:{HEX[:-2]}", "has an info hash that is not 40 hexadecimal digits"),
        (f"magnet:?xt=urn:btih:{HEX[:-1]}g", "has an info hash that is not 40 hexadecimal digits"),
        (f"magnet:?xt=urn:btih:{HEX[:-2]}  ", "has an info hash that is not 40 hexadecimal digits"),
        (f"magnet:?xt=urn:btih:{'00' * 20}", "names no torrent: its info hash is zero"),
        (f"magnet:?xt=urn:btih:{HEX}" + "&x=1" * MAX_FIELDS, "has too many fields"),
        (f"magnet:?xt=urn:btih:{HEX}&dn=" + "x" * MAX_LINK_CHARACTERS, "is too long"),
    ],
)
def test_links_that_cannot_be_used_are_refused(link: str, cause: str) -> None:
    with pytest.raises(LinkRefused, match=f"magnet link {cause}"):
        MagnetLink.decode(link)


@given(st.text(max_size=200) | st.text("magnet:?xturn=bih&.pe0123456789%[]", max_size=200))
def test_any_text_is_a_link_or_refused(text: str) -> None:
    try:
        link = MagnetLink.decode(f"magnet:?xt=urn:btih:{HEX}&{text}")
    except LinkRefused:
        return

    assert MagnetLink.decode(link.encode()) == link


@pytest.mark.parametrize(
    "url",
    [
        "",
        "udp://",
        "udp://:80/",
        "ftp://tracker.example/",
        "http://tracker.example:99999/",
        "http://tracker.example:0/",
        "http://[::1/",
        "http://tracker.example/\n",
    ],
)
def test_urls_that_are_no_trackers(url: str) -> None:
    assert not is_tracker(url)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "192.0.2.1",
        "192.0.2.1:",
        "192.0.2.1:0",
        "192.0.2.1:65536",
        "192.0.2.1:1234567",
        "192.0.2.1:00008099999",
        "192.0.2.1:000080",
        "192.0.2.1:-1",
        "192.0.2.1:\N{SUPERSCRIPT TWO}",
        "localhost:80",
        "2001:db8::1:80",
        "[192.0.2.1]:80",
        "[2001:db8::1:80",
        ":80",
    ],
)
def test_texts_that_are_no_addresses(text: str) -> None:
    with pytest.raises(ValueError, match=r".+"):
        decode_address(text)


@given(st.ip_addresses().map(str), st.integers(1, 65535))
def test_addresses_are_written_and_read(host: str, port: int) -> None:
    assert decode_address(encode_address((host, port))) == (host, port)
