"""A tracker on loopback (BEP 3 "trackers", BEP 23): it remembers who announces, and tells everybody of all others."""

import asyncio
import contextlib
import ipaddress
from collections.abc import AsyncIterator
from urllib.parse import parse_qs

from mailserver.torrents import bencode


class Tracker:
    """The tracker. It knows peers by the address that they dial from."""

    def __init__(self) -> None:
        self.url = ""
        self.requests: list[bytes] = []
        """Head of each request."""
        self.events: list[str] = []
        """What peers said of themselves: started, stopped, completed, or nothing."""
        self._peers: dict[tuple[str, int], None] = {}

    @contextlib.asynccontextmanager
    async def running(self, host: str) -> AsyncIterator["Tracker"]:
        """Serve on a free port."""
        server = await asyncio.start_server(self._answer, host)
        async with server:
            self.url = f"http://{host}:{server.sockets[0].getsockname()[1]}/announce"
            yield self

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        self.requests.append(head)
        query = parse_qs(head.split()[1].partition(b"?")[2].decode("latin-1"))
        host = writer.get_extra_info("peername")[0]
        self.events.append(query.get("event", [""])[0])
        others = b"".join(
            ipaddress.ip_address(each).packed + port.to_bytes(2, "big") for each, port in self._peers if each != host
        )
        self._peers[host, int(query["port"][0])] = None
        body = bencode.encode({b"interval": 1800, b"peers": others})
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\nConnection: close\r\n\r\n%s" % (len(body), body))
        await writer.drain()
        writer.close()
