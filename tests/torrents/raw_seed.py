"""A peer that dials, or is dialled, says that it has all pieces, and sends what a test wants: what no libtorrent would.

As much of BEP 3, BEP 9 and BEP 10 as that takes.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable

from mailserver.torrents import bencode
from mailserver.torrents.info import TorrentInfo

PROTOCOL = b"\x13BitTorrent protocol"
EXTENSIONS = bytes([0, 0, 0, 0, 0, 0x10, 0, 0])
PEER_ID = b"-XX0001-" + b"x" * 12

UNCHOKE, BITFIELD, REQUEST, PIECE, EXTENDED = 1, 5, 6, 7, 20
OUR_METADATA = 3
METADATA_PIECE_BYTES = 16 * 1024

Block = Callable[[int, int, int], bytes | None]
"""What is sent for piece, offset and size; None: nothing."""


class RawSeed:
    """One peer, as the other side sees it.

    Args:
        info_hash: of the torrent that it says to have.
        pieces: how many that has.
        block: what it sends for a request.
        metadata: what it sends as the info dictionary; None: it has none.
    """

    def __init__(self, info_hash: bytes, pieces: int, block: Block, metadata: bytes | None = None) -> None:
        self.requested: list[int] = []
        """The pieces of the blocks that were asked for."""
        self.hello = b""
        """The handshake of the other side, 68 bytes."""
        self.extensions: bencode.Value = {}
        """Its handshake of the extension protocol."""
        self.metadata_parts: list[int] = []
        """The parts of its metadata that it has sent."""
        self._info_hash = info_hash
        self._pieces = pieces
        self._block = block
        self._metadata = metadata

    @contextlib.asynccontextmanager
    async def dialling(self, port: int, host: str, our_host: str) -> AsyncIterator[None]:
        """Dial until the other side has the torrent, and whenever it hangs up."""
        task = asyncio.create_task(self._dial(port, host, our_host))
        try:
            yield
        finally:
            task.cancel()
            await asyncio.wait([task])

    @contextlib.asynccontextmanager
    async def listening(self, our_host: str) -> AsyncIterator[int]:
        """Wait for the other side to dial, as often as it does; yield the port."""

        async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            try:
                await self._talk(reader, writer)
            except (asyncio.IncompleteReadError, ConnectionError):
                pass  # it has hung up
            finally:
                writer.close()

        async with await asyncio.start_server(talk, our_host, 0) as server:
            yield server.sockets[0].getsockname()[1]

    async def _dial(self, port: int, host: str, our_host: str) -> None:
        while True:
            reader, writer = await asyncio.open_connection(host, port, local_addr=(our_host, 0))
            try:
                await self._talk(reader, writer)
            except (asyncio.IncompleteReadError, ConnectionError):
                await asyncio.sleep(0.02)  # it does not have the torrent yet, or has banned us
            finally:
                writer.close()

    async def _talk(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(PROTOCOL + EXTENSIONS + self._info_hash + PEER_ID)
        self.hello = await reader.readexactly(68)
        handshake: dict[bytes, bencode.Value] = {b"m": {b"ut_metadata": OUR_METADATA}}
        if self._metadata is not None:
            handshake[b"metadata_size"] = len(self._metadata)
        self._send(writer, EXTENDED, b"\0" + bencode.encode(handshake))
        bits = (1 << self._pieces) - 1 << -self._pieces % 8
        self._send(writer, BITFIELD, bits.to_bytes((self._pieces + 7) // 8, "big"))
        self._send(writer, UNCHOKE)
        while True:
            size = int.from_bytes(await reader.readexactly(4), "big")
            message = await reader.readexactly(size)
            if message[:1] == bytes([REQUEST]):
                self._on_request(writer, message[1:])
            elif message[:2] == bytes([EXTENDED, 0]):
                self.extensions = bencode.decode(message[2:])
            elif message[:2] == bytes([EXTENDED, OUR_METADATA]) and self._metadata is not None:
                self._on_metadata(writer, message[2:])

    def _on_request(self, writer: asyncio.StreamWriter, body: bytes) -> None:
        piece, offset, size = (int.from_bytes(body[at : at + 4], "big") for at in (0, 4, 8))
        self.requested.append(piece)
        if (block := self._block(piece, offset, size)) is not None:
            self._send(writer, PIECE, body[:8] + block)

    def _on_metadata(self, writer: asyncio.StreamWriter, body: bytes) -> None:
        asked = bencode.decode(body)
        assert isinstance(asked, dict)
        assert isinstance(self.extensions, dict)
        number, theirs = asked[b"piece"], self.extensions[b"m"]
        assert isinstance(number, int)
        assert isinstance(theirs, dict)
        assert isinstance(theirs[b"ut_metadata"], int)
        assert self._metadata is not None
        answer: dict[bytes, bencode.Value] = {
            b"msg_type": 1,
            b"piece": number,
            b"total_size": len(self._metadata),
        }
        part = self._metadata[number * METADATA_PIECE_BYTES : (number + 1) * METADATA_PIECE_BYTES]
        self.metadata_parts.append(number)
        self._send(writer, EXTENDED, bytes([theirs[b"ut_metadata"]]) + bencode.encode(answer) + part)

    @staticmethod
    def _send(writer: asyncio.StreamWriter, kind: int, body: bytes = b"") -> None:
        if writer.is_closing():
            raise ConnectionResetError
        writer.write((1 + len(body)).to_bytes(4, "big") + bytes([kind]) + body)


def silent(piece: int, offset: int, size: int) -> bytes | None:
    """Nothing is sent."""
    return None


def wrong(piece: int, offset: int, size: int) -> bytes | None:
    """Bytes are sent that are not those of the piece."""
    return b"\xee" * size


def liar(info: TorrentInfo) -> RawSeed:
    """A peer that sends wrong pieces of a torrent."""
    return RawSeed(info.info_hash, len(info.pieces), wrong, info.info)
