"""mailserver.net.dialer, on the loopback interface."""

import asyncio
import contextlib
import socket
from collections.abc import Iterator

import pytest

from mailserver.codec.keys import Enode, NodeId
from mailserver.errors import ConnectionLost, DecodeError
from mailserver.net import dialer as dialer_module
from mailserver.net.connection import session_config
from mailserver.net.dialer import dial
from mailserver.waku.packets import StatusOptions
from mailserver.waku.peer import Event
from tests.pairs import private_key
from tests.raw_peer import RawPeer
from tests.waiting import DEADLINE_S

pytestmark = pytest.mark.integration

KEY = private_key("server")
CONFIG = session_config(private_key("dialler"), "dialler/1")
STATUS = StatusOptions(light_node=True)


@pytest.fixture
def server() -> Iterator[socket.socket]:
    """A socket that listens."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.setblocking(False)
        yield server


def enode_of(server: socket.socket, host: str = "127.0.0.1") -> Enode:
    return Enode(KEY.public_key, host, server.getsockname()[1])


async def _ignore(event: Event) -> None:
    """Whatever the peer says."""


async def test_node_is_dialled_and_knows_who_dialled(server: socket.socket) -> None:
    connection = await dial(enode_of(server), CONFIG, STATUS)
    running = asyncio.create_task(connection.run(_ignore))
    end, _ = await asyncio.wait_for(asyncio.get_running_loop().sock_accept(server), DEADLINE_S)

    raw = await (await RawPeer.accept(end)).greet()

    settings = await asyncio.wait_for(connection.ready(), DEADLINE_S)
    assert settings == connection.settings
    assert connection.client_id == "raw/1"
    assert str(connection) == f"{KEY.public_key.hex()[:8]}@127.0.0.1:{server.getsockname()[1]}"
    await raw.close()
    await asyncio.wait_for(running, DEADLINE_S)


async def test_name_of_a_host_is_looked_up(server: socket.socket) -> None:
    connection = await dial(enode_of(server, "localhost"), CONFIG, STATUS)

    connection.abort("done")
    await connection.run(_ignore)


async def test_port_where_nobody_listens_is_named(server: socket.socket) -> None:
    enode = enode_of(server)
    server.close()

    with pytest.raises(ConnectionLost, match=f"127.0.0.1:{enode.port}") as lost:
        await dial(enode, CONFIG, STATUS)

    assert "\n" not in str(lost.value)
    assert lost.value.reason is None


async def test_node_that_does_not_answer_is_given_up(server: socket.socket, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dialer_module, "DIAL_TIMEOUT_S", 0.0)

    with pytest.raises(ConnectionLost, match="no answer"):
        await dial(enode_of(server), CONFIG, STATUS)


@pytest.mark.parametrize("host", ["a..b", "x" * 70 + ".example", "."])
async def test_host_that_cannot_be_found_is_an_ordinary_error(host: str) -> None:
    with pytest.raises(ConnectionLost, match="cannot connect"):
        await dial(Enode(KEY.public_key, host, 30303), CONFIG, STATUS)


async def test_node_id_that_is_no_key_is_an_error_and_leaves_no_socket(server: socket.socket) -> None:
    enode = Enode(NodeId(bytes(64)), *server.getsockname())

    with pytest.raises(DecodeError):
        await dial(enode, CONFIG, STATUS)

    with contextlib.suppress(BlockingIOError):  # not even connected
        end, _ = server.accept()
        with end:
            end.setblocking(False)
            gone = await asyncio.wait_for(asyncio.get_running_loop().sock_recv(end, 1), 1.0)
            assert gone == b""
