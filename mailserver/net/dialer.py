"""Outbound connections."""

import asyncio

from mailserver.codec.keys import Enode
from mailserver.errors import ConnectionLost, DecodeError
from mailserver.net.connection import Connection
from mailserver.net.pipe import Pipe
from mailserver.rlpx.session import SessionConfig
from mailserver.waku.packets import StatusOptions

DIAL_TIMEOUT_S = 10.0


async def dial(enode: Enode, config: SessionConfig, status: StatusOptions) -> Connection:
    """Connect to a node; the handshake begins when the connection is run.

    Raises:
        ConnectionLost: nobody answers there within DIAL_TIMEOUT_S.
        DecodeError: the node id is no point of the curve.
    """
    try:
        async with asyncio.timeout(DIAL_TIMEOUT_S):
            loop = asyncio.get_running_loop()
            _, pipe = await loop.create_connection(Pipe, enode.host, enode.port)
    except TimeoutError as error:
        raise ConnectionLost(None, f"no answer from {enode.host}:{enode.port}") from error
    except OSError as error:
        raise ConnectionLost(None, f"cannot connect to {enode.host}:{enode.port}: {error.strerror or error}") from error
    except UnicodeError as error:  # a label of the name is empty, or longer than 63 characters
        raise ConnectionLost(None, f"cannot connect to {enode.host}:{enode.port}: not a host name") from error
    try:
        return Connection(pipe, config, status, remote_id=enode.node_id)
    except DecodeError:
        pipe.abort()
        raise
