"""The muxers of js-libp2p, the library of js-waku, in a process of Node.js: see `oracle/oracle.mjs`.

`npm ci --prefix tests/libp2p/oracle` installs them.
"""

import asyncio
import contextlib
import os
import shutil
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

ORACLE = Path(__file__).parent / "oracle"
INSTALL = "npm ci --prefix tests/libp2p/oracle"


def require_js_libp2p() -> None:
    """Skip the test where the muxers are not installed; in CI that fails it."""
    if shutil.which("node") is None:
        missing = "no node: on Debian, apt-get install nodejs npm"
    elif not (ORACLE / "node_modules").exists():
        missing = f"no muxers of js-libp2p: {INSTALL}"
    else:
        return
    if os.environ.get("CI"):
        pytest.fail(missing)
    pytest.skip(missing)


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
async def js_muxer(kind: str, folder: Path, *, is_dialer: bool) -> AsyncIterator[JsMuxer]:
    """A muxer of one kind, which opens streams or sends back what comes on them."""
    connected: asyncio.Future[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = (
        asyncio.get_running_loop().create_future()
    )
    path = folder / "wire"
    server = await asyncio.start_unix_server(lambda *streams: connected.set_result(streams), path)
    direction = "outbound" if is_dialer else "inbound"
    process = await asyncio.create_subprocess_exec(
        "node", ORACLE / "oracle.mjs", kind, direction, path, stdout=asyncio.subprocess.PIPE
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
