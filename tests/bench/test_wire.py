"""bench.wire: connections of peers that measure a node."""

import asyncio
from collections.abc import Callable

import pytest
import uvloop

from bench.wire import CLIENT_STATUS, connect
from mailserver.codec.keys import Enode
from mailserver.errors import ConnectionLost, DisconnectReason
from mailserver.net.sessions import WAKU, random_entropy, session_config
from mailserver.rlpx.events import SessionOpened
from mailserver.rlpx.session import Session
from mailserver.waku.packets import PacketCode
from tests.pairs import private_key
from tests.waiting import DEADLINE_S

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
        if any(isinstance(event, SessionOpened) for event in self.session.events()):
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


class LeavingNode(asyncio.Protocol):
    """Says Hello and Status, and is gone."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport: asyncio.Transport = transport  # type: ignore[assignment] # uvloop's derives from nothing
        self.session = Session(session_config(KEY, "leaving"), random_entropy, 0.0)

    def data_received(self, data: bytes) -> None:
        self.session.receive_data(data, 0.0)
        opened = any(isinstance(event, SessionOpened) for event in self.session.events())
        if opened:
            self.session.send(WAKU, PacketCode.STATUS, CLIENT_STATUS.encode())
        self.transport.write(b"".join(self.session.data_to_send()))
        if opened:
            self.transport.close()


async def leave_after_the_node() -> list[ConnectionLost]:
    lost: asyncio.Queue[ConnectionLost] = asyncio.Queue()
    server = await asyncio.get_running_loop().create_server(LeavingNode, "127.0.0.1", 0)
    async with server:
        host, port = server.sockets[0].getsockname()
        async with connect(Enode(KEY.public_key, host, port)) as (wire, _):
            wire.on_lost = lost.put_nowait
            told = [await asyncio.wait_for(lost.get(), DEADLINE_S)]
    return told


@pytest.mark.parametrize("new_loop", [asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
def test_goodbye_to_a_node_that_has_left_is_not_said(new_loop: Callable[[], asyncio.AbstractEventLoop]) -> None:
    with asyncio.Runner(loop_factory=new_loop) as runner:
        told = runner.run(leave_after_the_node())

    assert [error.reason for error in told] == [None]
