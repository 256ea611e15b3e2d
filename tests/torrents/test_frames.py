"""Frames between the service and its torrent process."""

import asyncio

import pytest

from mailserver.torrents.errors import RequestFault, TorrentFault, TorrentSuperseded
from mailserver.torrents.frames import (
    MAX_FRAME_BYTES,
    Frame,
    decode_bytes,
    decode_pieces,
    encode_bytes,
    encode_frame,
    encode_pieces,
    read_frame,
)


async def read_all(data: bytes) -> list[Frame]:
    reader = asyncio.StreamReader()
    reader.feed_data(data)
    reader.feed_eof()
    frames = []
    while (frame := await read_frame(reader)) is not None:
        frames.append(frame)
    return frames


async def test_frames_are_read_one_after_the_other() -> None:
    first: Frame = {"id": 1, "op": "fetch", "pieces": encode_pieces([range(3), range(5, 6)])}
    second: Frame = {"id": 2, "result": {"info": encode_bytes(bytes(range(256)))}}

    frames = await read_all(encode_frame(first) + encode_frame(second))

    assert frames == [first, second]
    assert decode_pieces(frames[0]["pieces"]) == {0, 1, 2, 5}
    assert decode_bytes(frames[1]["result"]["info"]) == bytes(range(256))


async def test_stream_may_end_amidst_a_frame() -> None:
    whole = encode_frame({"id": 1})

    for size in range(len(whole)):
        assert await read_all(whole[:size]) == []


async def test_frame_that_is_too_long_is_refused_before_it_is_read() -> None:
    with pytest.raises(ValueError, match="frame of 16777217 bytes"):
        await read_all((MAX_FRAME_BYTES + 1).to_bytes(4, "big"))


async def test_frame_that_is_no_object_is_refused() -> None:
    with pytest.raises(ValueError, match="no object"):
        await read_all(b"\0\0\0\2[]")
    with pytest.raises(ValueError, match=r".+"):
        await read_all(b"\0\0\0\2xx")


def test_errors_say_what_happened() -> None:
    assert str(RequestFault(TorrentFault.DISK, "no room")) == "disk: no room"
    assert str(TorrentSuperseded(bytes(20))) == f"torrent {'00' * 20} was dropped"
