"""Both muxers against those of js-libp2p, in both roles, with more bytes than a window."""

from pathlib import Path

import pytest

from tests.libp2p.joined import MUXERS, Side
from tests.libp2p.js_muxer import ORACLE, echo, js_muxer
from tests.node_js import require_packages

pytestmark = [pytest.mark.integration, pytest.mark.parametrize("kind", MUXERS)]

SIZES = (0, 1, 300, 70_000, 200_000, 700_000)
"""Of what is sent on each stream."""


@pytest.fixture(autouse=True)
def _js_libp2p() -> None:
    require_packages(ORACLE)


async def test_streams_that_js_opens_bring_their_bytes_and_take_them_back(kind: str, tmp_path: Path) -> None:
    side = Side(MUXERS[kind](False))

    async with js_muxer(kind, tmp_path, SIZES) as js:
        _, returned = await echo(side, js)

    assert returned == list(SIZES)
    assert sorted(len(heard.data) for heard in side.heard.values() if not heard.is_reset) == sorted(SIZES)
    assert [len(heard.data) for heard in side.heard.values() if heard.is_reset] == [300]
    assert side.going_away == ([0] if kind == "yamux" else [])
    assert side.muxer.refused_streams == 0


async def test_streams_that_we_open_bring_back_what_js_was_sent(kind: str, tmp_path: Path) -> None:
    side = Side(MUXERS[kind](True))
    data = {side.open(): bytes(size % 251 for _ in range(size)) for size in SIZES}
    reset = side.open()
    side.muxer.send(reset, b"dropped")
    side.muxer.reset(reset)
    side.heard.pop(reset)
    for stream, each in data.items():
        side.muxer.send(stream, each)
        side.muxer.close_write(stream)

    async with js_muxer(kind, tmp_path) as js:
        while not all(heard.is_closed for heard in side.heard.values()):
            await js.send(side.data_to_send())
            came = await js.receive()
            assert came, "js has closed the connection"
            side.receive(came)
            for stream in side.heard:
                side.consume(stream, 1 << 30)

    assert {stream: heard.data for stream, heard in side.heard.items()} == data
    assert side.muxer.queued_bytes == 0
