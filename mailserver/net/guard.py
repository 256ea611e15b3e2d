"""Keeps a fault of ours to the one connection that it hit."""

import logging
from collections.abc import Awaitable, Callable

from mailserver.net.connection import Connection

log = logging.getLogger(__name__)

Serve = Callable[[Connection], Awaitable[None]]
"""Serves a connection until it ends."""


async def run_guarded(serve: Serve, connection: Connection) -> None:
    """Serve a connection. An error of ours is logged and ends this connection, but not the service for all others."""
    try:
        await serve(connection)
    except Exception:
        log.exception("internal error peer=%s", connection)
        connection.abort("internal error")
