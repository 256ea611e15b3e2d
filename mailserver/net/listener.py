"""The accept loop: each connection gets a task, within limits."""

import asyncio
import logging
import socket
from collections.abc import Callable, Sequence

from mailserver.codec.keys import NodeId, PrivateKey
from mailserver.errors import DisconnectReason
from mailserver.limits.admission import Admission
from mailserver.limits.frame_bounds import FrameBounds
from mailserver.net.connection import Connection
from mailserver.net.guard import Serve, run_guarded
from mailserver.net.pipe import Pipe
from mailserver.net.sessions import session_config
from mailserver.net.shared_port import port_of
from mailserver.rlpx.session_config import Refuse
from mailserver.waku.packets import StatusOptions

log = logging.getLogger(__name__)

MAX_PENDING = 512
"""How many connections may be in their handshake. When one more comes, the oldest is dropped. So strangers who connect
and send nothing push each other out, and a peer that does its handshake at once gets in."""

BACKLOG = 512
"""How many connections the kernel may hold while the event loop is busy: those of five seconds at the default of
`AdmissionLimits.per_second`."""

_NOT_THE_PEERS_FAULT = frozenset(
    {
        DisconnectReason.TOO_MANY_PEERS,
        DisconnectReason.ALREADY_CONNECTED,
        DisconnectReason.TCP_ERROR,  # we closed it, to make room or because we stop
    }
)
"""A handshake that ends for one of these reasons does not count as the peer's failure."""


class Listener:
    """Accepts connections, and runs `serve` for each in its own task."""

    def __init__(
        self,
        key: PrivateKey,
        client_id: str,
        *,
        status: Callable[[], StatusOptions],
        refuse: Refuse,
        is_named: Callable[[NodeId], bool] | None = None,
        admission: Admission,
        serve: Serve,
        bounds: FrameBounds | None = None,
    ) -> None:
        """Describe our side; `start` listens.

        Args:
            status: returns what we announce to a peer that connects now.
            refuse: says why we refuse a peer, once we know its node id.
            is_named: whether the operator has named a peer, so that its packets may be long.
            admission: decides before that, by address.
            bounds: shared by all connections, those that we dial included; None: these connections have their own.
        """
        self._key = key
        self._client_id = client_id
        self._status = status
        self._refuse = refuse
        self._is_named = is_named
        self._admission = admission
        self._serve = serve
        self._bounds = bounds or FrameBounds()
        self._tasks: set[asyncio.Task[None]] = set()
        self._servers: list[asyncio.Server] = []
        self._stopping = False
        self._port = 0
        self._pending: dict[Connection, None] = {}  # oldest first

    async def start(self, host: str, port: int) -> int:
        """Listen; return the port. If `port` is 0, the system chooses one.

        Raises:
            OSError: we cannot listen on the address.
        """
        loop = asyncio.get_running_loop()
        server = await loop.create_server(lambda: Pipe(self._on_connected), host, port, backlog=BACKLOG)
        self._servers.append(server)
        self._port = int(server.sockets[0].getsockname()[1])
        return self._port

    async def start_on(self, sockets: Sequence[socket.socket]) -> int:
        """Accept on sockets that listen already, on one port; return it. They are closed when this stops."""
        loop = asyncio.get_running_loop()
        for each in sockets:
            self._servers.append(await loop.create_server(lambda: Pipe(self._on_connected), sock=each, backlog=BACKLOG))
        self._port = port_of(sockets)
        return self._port

    def stop(self) -> None:
        """Stop accepting. Connections that are being served go on."""
        self._stopping = True
        for server in self._servers:
            server.close()

    @property
    def handshakes(self) -> int:
        """How many connections are in their handshake."""
        return sum(not connection.was_open for connection in self._pending)

    async def join(self) -> None:
        """Wait until every connection has ended."""
        while self._tasks:
            await asyncio.wait(self._tasks)

    def _on_connected(self, pipe: Pipe) -> None:
        loop = asyncio.get_running_loop()
        refusal = self._admission.admit(pipe.host, loop.time())
        if refusal is not None:
            log.debug("connection refused peer=%s cause=%r", pipe.address, refusal.value)
            pipe.abort()
            return
        self._limit_pending()
        config = session_config(
            self._key, self._client_id, listen_port=self._port, refuse=self._refuse, is_named=self._is_named
        )
        connection = Connection(pipe, config, self._status(), bounds=self._bounds)
        self._pending[connection] = None
        task = loop.create_task(self._run(connection), name=f"peer {pipe.address}")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _run(self, connection: Connection) -> None:
        try:
            if self._stopping:  # accepted just before: whoever disconnects the others does not know of it
                connection.abort("we are quitting")
                return
            await run_guarded(self._serve, connection)
        finally:
            self._pending.pop(connection, None)
            self._report_handshake(connection)
            self._admission.release(connection.host)

    def _report_handshake(self, connection: Connection) -> None:
        """Tell `Admission` how the handshake went. A monitor's probe that connects and goes is not a failure."""
        closed, now = connection.closed, asyncio.get_running_loop().time()
        if connection.opened_at is not None:
            self._admission.handshake_succeeded(connection.host)
            self._admission.connection_ended(connection.host, now - connection.opened_at)
        elif closed is None or closed.reason in _NOT_THE_PEERS_FAULT:
            pass
        elif connection.received_bytes or closed.reason is not None:
            self._admission.handshake_failed(connection.host, now)

    def _limit_pending(self) -> None:
        """Make room for one more connection in its handshake."""
        if len(self._pending) < MAX_PENDING:
            return
        self._pending = {connection: None for connection in self._pending if not connection.is_open}
        if len(self._pending) >= MAX_PENDING:
            oldest = next(iter(self._pending))
            del self._pending[oldest]
            oldest.abort("too many handshakes at once")
