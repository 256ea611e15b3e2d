"""The line between a mailserver and its database: a relay on loopback that is slow, silent or cut, as a test says."""

import asyncio
import contextlib
import socket
import struct
from collections.abc import AsyncIterator
from enum import Enum

from tests.store.postgres.server import USER, Server

_AT_ONCE = 65_536
_RESET_AT_ONCE = struct.pack("ii", 1, 0)


class Way(Enum):
    """In which direction something goes."""

    THERE = "to the database"
    BACK = "from the database"


class Line:
    """A line to a server; at first it is perfect. Made by `line_to`."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._ways = {way: asyncio.Event() for way in Way}
        self._await: tuple[Way, bytes] | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._listener: asyncio.Server | None = None
        self._reserved = _bound(0)  # nobody listens there while the line is cut, and nobody else gets the port
        self.delay_s = 0.0
        """How long each piece is held, in each direction."""

    def url(self, schema: str) -> str:
        """Where a schema of the database is, by this line."""
        host, port = self._reserved.getsockname()
        return f"postgresql://{USER}@{host}:{port}/postgres?sslmode=disable&search_path={schema}"

    async def mend(self) -> None:
        """Carry everything from now on, what is held first."""
        self._await, self.delay_s = None, 0.0
        for way in self._ways.values():
            way.set()
        if self._listener is None:
            self._listener = await asyncio.start_server(self._take, sock=_bound(self._reserved.getsockname()[1]))

    def fall_silent(self) -> None:
        """Carry nothing any more, and say nothing: connections stay, new ones come about, and nobody answers."""
        for way in self._ways.values():
            way.clear()

    def fall_silent_at(self, way: Way, text: bytes) -> None:
        """Carry nothing more in this direction once this text was seen in it; on the way there, not that either."""
        self._await = way, text

    @property
    def is_silent(self) -> bool:
        """Whether one direction, at least, carries nothing."""
        return not all(way.is_set() for way in self._ways.values())

    async def cut(self) -> None:
        """Reset all connections, and refuse new ones."""
        if self._listener is not None:
            self._listener.close()
            self._listener = None
        tasks = [*self._tasks]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def close(self) -> None:
        """End it."""
        await self.cut()
        self._reserved.close()

    def _take(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.create_task(self._connect(reader, writer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _connect(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_AT_ONCE)
        with contextlib.ExitStack() as stack:
            stack.callback(writer.transport.abort)
            try:
                their_reader, their_writer = await asyncio.open_unix_connection(self._server.socket)
            except OSError:  # the server is down
                return
            stack.callback(their_writer.transport.abort)
            ways = [
                asyncio.create_task(self._carry(Way.THERE, reader, their_writer)),
                asyncio.create_task(self._carry(Way.BACK, their_reader, writer)),
            ]
            try:
                await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for way in ways:
                    way.cancel()
                await asyncio.gather(*ways, return_exceptions=True)

    async def _carry(self, way: Way, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(_AT_ONCE):
            is_awaited = self._await is not None and self._await[0] is way and self._await[1] in data
            if is_awaited and way is Way.THERE:
                self._ways[way].clear()
            await self._ways[way].wait()
            if self.delay_s:
                await asyncio.sleep(self.delay_s)  # it is what this is for
            writer.write(data)
            await writer.drain()
            if is_awaited:
                self._ways[way].clear()


@contextlib.asynccontextmanager
async def line_to(server: Server) -> AsyncIterator[Line]:
    """A line to a server for the length of a `with`."""
    line = Line(server)
    await line.mend()
    try:
        yield line
    finally:
        await line.close()


def _bound(port: int) -> socket.socket:
    bound = socket.socket()
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _AT_ONCE)  # what is held here is little
    bound.bind(("127.0.0.1", port))
    return bound
