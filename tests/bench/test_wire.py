"""bench.wire: connections of peers that measure a node."""

import asyncio

import pytest

from bench.wire import connect
from mailserver.codec.keys import Enode
from mailserver.errors import ConnectionLost, DisconnectReason
from mailserver.net.sessions import random_entropy, session_config
from mailserver.rlpx.events import Opened
from mailserver.rlpx.session import Session
from tests.pairs import private_key

KEY = private_key("node")


class CurtNode(asyncio.Protocol):
    """Says Hello and goodbye in one breath."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        self.session = Session(session_config(KEY, "curt"), random_entropy, 0.0)
        self.hello: list[bytes] = []

    def data_received(self, data: bytes) -> None:
        self.session.receive_data(data, 0.0)
        if any(isinstance(event, Opened) for event in self.session.events()):
            self.session.disconnect(DisconnectReason.TOO_MANY_PEERS, "curt")
            self.transport.writelines([*self.hello, *self.session.data_to_send()])
        elif said := self.session.data_to_send():
            ack, *self.hello = said
            self.transport.write(ack)


async def test_node_that_says_hello_and_goodbye_at_once_is_a_lost_connection() -> None:
    loop = asyncio.get_running_loop()
    failures: list[str] = []
    loop.set_exception_handler(lambda _, context: failures.append(context["message"]))
    server = await loop.create_server(CurtNode, "127.0.0.1", 0)
    async with server:
        host, port = server.sockets[0].getsockname()

        with pytest.raises(ConnectionLost) as lost:
            async with connect(Enode(KEY.public_key, host, port)):
                pass

    assert lost.value.reason is DisconnectReason.TOO_MANY_PEERS
    assert failures == []
