"""The muxers of js-libp2p, the library of js-waku, in a process of Node.js: see `oracle/oracle.mjs`."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

from mailserver.libp2p.streams import StreamId
from tests.libp2p.joined import Side

ORACLE = Path(__file__).parent / "oracle"


class JsMuxer:
    """A connection to a muxer of js-libp2p."""

    def __init__(
        self,
        process: asyncio.subprocess.Process,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> None:
        self._process = process
        self._reader = reader
        self._writer = writer

    async def receive(self) -> bytes:
        """What it says; nothing once it has ended."""
        return await self._reader.read(1 << 16)

    async def send(self, data: bytes) -> None:
        """Say something to it."""
        self._writer.write(data)
        await self._writer.drain()

    async def printed(self) -> str:
        """All that it has printed, once it has ended."""
        self._writer.close()
        assert self._process.stdout is not None
        return (await self._process.stdout.read()).decode()


@contextlib.asynccontextmanager
async def js_muxer(kind: str, folder: Path, sizes: Sequence[int] | None = None) -> AsyncIterator[JsMuxer]:
    """A muxer of one kind, which sends back what comes on streams.

    Args:
        folder: where it meets us.
        sizes: it is the dialer, and opens a stream for each, on which it sends as many bytes.
    """
    connected: asyncio.Future[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = (
        asyncio.get_running_loop().create_future()
    )
    path = folder / "wire"
    server = await asyncio.start_unix_server(lambda *streams: connected.set_result(streams), path)
    role = ["inbound"] if sizes is None else ["outbound"]
    asked = [] if sizes is None else [json.dumps(list(sizes))]
    process = await asyncio.create_subprocess_exec(
        "node", ORACLE / "oracle.mjs", kind, *role, path, *asked, stdout=asyncio.subprocess.PIPE
    )
    try:
        async with asyncio.timeout(60):
            reader, writer = await connected
            with contextlib.closing(writer):
                yield JsMuxer(process, reader, writer)
    finally:
        await process.communicate()  # it ends with its connection
        server.close()
        await server.wait_closed()


async def echo(side: Side, js: JsMuxer) -> tuple[bytes, list[int]]:
    """Send back what js sends on its streams; return all that it said, and how many bytes of each came back to it."""
    said = bytearray()
    echoed: dict[StreamId, int] = {}
    while data := await js.receive():
        said += data
        side.receive(data)
        for stream, heard in side.heard.items():
            new = bytes(heard.data[echoed.get(stream, 0) :])
            side.muxer.send(stream, new)
            side.consume(stream, len(new))
            echoed[stream] = len(heard.data)
            if heard.is_closed and not heard.is_reset:
                side.muxer.close_write(stream)
        await js.send(side.data_to_send())
    returned: list[int] = json.loads(await js.printed())
    return bytes(said), returned
