"""The accept loop: every connection gets a task, within limits."""

import asyncio
import logging
from collections.abc import Awaitable, Callable

from mailserver.codec.keys import NodeId, PrivateKey
from mailserver.errors import DisconnectReason
from mailserver.net.connection import Connection, session_config
from mailserver.net.pipe import Pipe
from mailserver.waku.packets import StatusOptions

log = logging.getLogger(__name__)

MAX_PENDING = 512
"""Most connections that have not finished their handshake. When there are more, the oldest of them is dropped:
strangers who open connections and say nothing push out each other, and whoever takes less than a moment gets in."""

BACKLOG = 512

Serve = Callable[[Connection], Awaitable[None]]


class Listener:
    """Accepts connections and runs `serve` for each in a task of its own."""

    def __init__(
        self,
        key: PrivateKey,
        client_id: str,
        status: StatusOptions,
        *,
        max_peers: int,
        serve: Serve,
    ) -> None:
        self._key = key
        self._client_id = client_id
        self._status = status
        self._max_peers = max_peers
        self._serve = serve
        self._tasks: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None
        self._stopping = False
        self._port = 0
        self._connections: set[Connection] = set()
        self._pending: dict[Connection, None] = {}  # oldest first

    async def start(self, host: str, port: int) -> int:
        """Listen; return the port, which is the one given unless that is 0.

        Raises:
            OSError: the address cannot be had.
        """
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(lambda: Pipe(self._on_connected), host, port, backlog=BACKLOG)
        self._port = int(self._server.sockets[0].getsockname()[1])
        return self._port

    def stop(self) -> None:
        """Stop accepting; connections that are being served go on."""
        self._stopping = True
        if self._server is not None:
            self._server.close()

    async def join(self) -> None:
        """Wait until every connection has ended."""
        while self._tasks:
            await asyncio.wait(self._tasks)

    def _on_connected(self, pipe: Pipe) -> None:
        self._drop_pending()
        config = session_config(self._key, self._client_id, listen_port=self._port, refuse=self._refuse)
        connection = Connection(pipe, config, self._status)
        self._pending[connection] = None
        task = asyncio.get_running_loop().create_task(self._run(connection), name=f"peer {pipe.address}")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _run(self, connection: Connection) -> None:
        if self._stopping:  # accepted in the very moment: who says goodbye to the others does not know of it
            connection.abort("we are quitting")
            return
        self._connections.add(connection)
        try:
            await self._serve(connection)
        except Exception:
            # A fault of ours that this peer has hit upon must not end the service for all the others.
            log.exception("internal error peer=%s", connection)
            connection.abort("internal error")
        finally:
            self._connections.discard(connection)
            self._pending.pop(connection, None)

    def _refuse(self, node_id: NodeId) -> DisconnectReason | None:
        open_count = sum(connection.is_open for connection in self._connections)
        return DisconnectReason.TOO_MANY_PEERS if open_count >= self._max_peers else None

    def _drop_pending(self) -> None:
        """Make room for one more that has not finished its handshake."""
        if len(self._pending) < MAX_PENDING:
            return
        self._pending = {connection: None for connection in self._pending if not connection.is_open}
        if len(self._pending) >= MAX_PENDING:
            oldest = next(iter(self._pending))
            del self._pending[oldest]
            oldest.abort("too many handshakes at once")
