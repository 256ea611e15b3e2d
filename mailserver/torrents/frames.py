"""What the service and its torrent process say to each other, over the standard streams of the process.

A frame is a length (4 bytes, big-endian, of what follows) and a JSON object. Info hashes are in hexadecimal digits,
info dictionaries in base64, pieces are lists of [first, behind the last]. The service asks

    {"id": 0, "op": "start", "settings"}                             -> {"port"}; the first one
    {"id": 1, "op": "add", "info", "folder", "seed", "trackers", "peers"}  -> {}, once it is known what is there
    {"id": 2, "op": "metadata", "info_hash", "trackers", "peers"}    -> {"info"}, once a peer has sent it
    {"id": 3, "op": "fetch", "info_hash", "pieces"}                  -> {}, once they are on disk
    {"id": 4, "op": "forget", "request": 3}                          no answer: nobody waits for that request any more
    {"id": 5, "op": "drop", "info_hash"}                             -> {}, once nothing of the torrent is open
    {"id": 6, "op": "statistics"}                                    -> {"memory_bytes", "torrents": [..]}
    {"id": 7, "op": "sent", "info_hash"}                             -> {"pieces": [[piece, blocks], ..]} since then
    {"id": 8, "op": "ping"}                                          -> {}
    {"id": 9, "op": "stop"}                                          -> {}, once all is on disk; then it ends

Answers are {"id", "result": {..}} or {"id", "error": a `Fault`, "text"}, in any order. While a fetch is under way,
{"id", "event": "progress", "missing": how many pieces, "wrong": how many came} say how far it is.
"""

import asyncio
import base64
import json
from collections.abc import Iterable
from typing import Any, TypeAlias

Frame: TypeAlias = dict[str, Any]

MAX_FRAME_BYTES = 16 * 1024 * 1024
"""Two and a half times the largest info dictionary in base64."""

_LENGTH_BYTES = 4


def encode_frame(frame: Frame) -> bytes:
    """One frame as bytes."""
    body = json.dumps(frame, separators=(",", ":")).encode()
    assert len(body) <= MAX_FRAME_BYTES
    return len(body).to_bytes(_LENGTH_BYTES, "big") + body


async def read_frame(reader: asyncio.StreamReader) -> Frame | None:
    """Read one frame; None at the end of the stream, which may come amidst a frame.

    Raises:
        ValueError: it is longer than MAX_FRAME_BYTES, or no JSON object.
    """
    try:
        length = int.from_bytes(await reader.readexactly(_LENGTH_BYTES), "big")
        if length > MAX_FRAME_BYTES:
            raise ValueError(f"frame of {length} bytes")
        frame = json.loads(await reader.readexactly(length))
    except (asyncio.IncompleteReadError, ConnectionError):
        return None
    if not isinstance(frame, dict):
        raise ValueError("frame is no object")
    return frame


def encode_bytes(data: bytes) -> str:
    """Bytes within a frame."""
    return base64.b64encode(data).decode()


def decode_bytes(text: str) -> bytes:
    """The bytes again.

    Raises:
        ValueError: it is no base64.
    """
    return base64.b64decode(text, validate=True)


def encode_pieces(pieces: Iterable[range]) -> list[list[int]]:
    """Ranges of pieces within a frame."""
    return [[each.start, each.stop] for each in pieces]


def decode_pieces(ranges: Iterable[Iterable[int]]) -> set[int]:
    """All pieces of the ranges."""
    return {piece for first, stop in ranges for piece in range(first, stop)}
