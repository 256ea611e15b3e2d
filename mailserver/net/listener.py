"""The accept loop: every connection gets a task, within limits."""

import asyncio
import logging
from collections.abc import Callable

from mailserver.codec.keys import NodeId, PrivateKey
from mailserver.errors import DisconnectReason
from mailserver.limits.admission import Admission
from mailserver.limits.frame_bounds import FrameBounds
from mailserver.net.connection import Connection
from mailserver.net.guard import Serve, run_guarded
from mailserver.net.pipe import Pipe
from mailserver.net.sessions import session_config
from mailserver.rlpx.session_config import Refuse
from mailserver.waku.packets import StatusOptions

log = logging.getLogger(__name__)

MAX_PENDING = 512
"""Most connections that have not finished their handshake. When there are more, the oldest of them is dropped:
strangers who open connections and say nothing push out each other, and whoever takes less than a moment gets in."""

BACKLOG = 512
"""Connections that the kernel may hold while the loop is busy: five seconds' worth of `AdmissionLimits.per_second`."""

_NO_FAILURE = frozenset(
    {
        DisconnectReason.TOO_MANY_PEERS,
        DisconnectReason.ALREADY_CONNECTED,
        DisconnectReason.TCP_ERROR,  # we cut it, to make room or because we stop
    }
)
"""Ends of a handshake that are not its peer's fault."""


class Listener:
    """Accepts connections and runs `serve` for each in a task of its own."""

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
        """Describe our side.

        Args:
            status: says what is announced to a peer that connects now.
            refuse: says why a peer that has shown who it is, is not wanted.
            is_named: whether the operator has named a peer, so that its packets may be long.
            admission: decides by address, before that.
            bounds: that all connections share, those that we dial too; None for some of its own.
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
        self._server: asyncio.Server | None = None
        self._stopping = False
        self._port = 0
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
        self._drop_pending()
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
            if self._stopping:  # accepted in the very moment: who says goodbye to the others does not know of it
                connection.abort("we are quitting")
                return
            await run_guarded(self._serve, connection)
        finally:
            self._pending.pop(connection, None)
            self._judge_handshake(connection)
            self._admission.release(connection.host)

    def _judge_handshake(self, connection: Connection) -> None:
        """Tell who fails at the handshake from who connects and goes, as a probe of a monitor does."""
        closed, now = connection.closed, asyncio.get_running_loop().time()
        if connection.opened_at is not None:
            self._admission.succeeded(connection.host)
            self._admission.served(connection.host, now - connection.opened_at)
        elif closed is None or closed.reason in _NO_FAILURE:
            pass
        elif connection.received_bytes or closed.reason is not None:
            self._admission.failed(connection.host, now)

    def _drop_pending(self) -> None:
        """Make room for one more that has not finished its handshake."""
        if len(self._pending) < MAX_PENDING:
            return
        self._pending = {connection: None for connection in self._pending if not connection.is_open}
        if len(self._pending) >= MAX_PENDING:
            oldest = next(iter(self._pending))
            del self._pending[oldest]
            oldest.abort("too many handshakes at once")
