"""mailserver.net.dialer, on the loopback interface; static peers over socket pairs."""

import asyncio
import contextlib
import gc
import logging
import socket
from collections.abc import AsyncIterator, Hashable, Iterator
from dataclasses import replace

import pytest

from mailserver.codec.keys import Enode, NodeId
from mailserver.errors import ConnectionLost, DecodeError, DisconnectReason
from mailserver.limits.frame_bounds import FrameBounds
from mailserver.limits.loop_scheduler import HANDSHAKE_FRAMES, LoopScheduler
from mailserver.net import dialer as dialer_module
from mailserver.net import guard
from mailserver.net.connection import Connection
from mailserver.net.dialer import (
    FIRST_BACKOFF_S,
    JITTER,
    MAX_BACKOFF_S,
    STABLE_S,
    Backoff,
    StaticPeers,
    dial,
    jittered,
)
from mailserver.net.inbound import Event
from mailserver.net.pipe import Pipe
from mailserver.net.sessions import session_config
from mailserver.waku.packets import StatusOptions
from tests.pairs import private_key
from tests.raw_peer import RawPeer, stream_pair
from tests.waiting import DEADLINE_S, turns, until

pytestmark = pytest.mark.integration

KEY = private_key("server")
CONFIG = session_config(private_key("dialler"), "dialler/1")
STATUS = StatusOptions(light_node=True)

UNASKED = "x x"
"""No address, and none that a name server is asked for."""


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


async def test_dialled_connection_takes_turns_with_all_others(server: socket.socket) -> None:
    works: list[int] = []

    class Counted(LoopScheduler):
        async def wait_turn(self, work: int = 1, source: Hashable = None) -> None:
            works.append(work)

    connection = await dial(enode_of(server), CONFIG, STATUS, bounds=FrameBounds(Counted()))
    running = asyncio.create_task(connection.run(_ignore))
    end, _ = await asyncio.wait_for(asyncio.get_running_loop().sock_accept(server), DEADLINE_S)

    raw = await (await RawPeer.accept(end)).greet()
    await asyncio.wait_for(connection.ready(), DEADLINE_S)

    assert works[0] == HANDSHAKE_FRAMES
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


async def test_lookup_that_fails_after_the_dial_was_given_up_is_nobodys_error() -> None:
    loop = asyncio.get_running_loop()
    unheard: list[str] = []
    loop.set_exception_handler(lambda _, context: unheard.append(context["message"]))
    dialling = asyncio.create_task(dial(Enode(KEY.public_key, UNASKED, 30303), CONFIG, STATUS))
    loop.call_soon(dialling.cancel)  # right after the lookup has begun

    with pytest.raises(asyncio.CancelledError):
        await dialling
    with pytest.raises(socket.gaierror):  # by then the other one has failed, too
        await loop.getaddrinfo(UNASKED, 30303)
    await turns(3)
    gc.collect()

    assert unheard == []


@pytest.mark.parametrize("others", [[], ["127.0.0.2"], ["127.0.0.2", "127.0.0.3"]])
async def test_next_address_of_a_host_is_tried_where_one_refuses(
    server: socket.socket, monkeypatch: pytest.MonkeyPatch, others: list[str]
) -> None:
    async def two_addresses(host: str, port: int, **_: object) -> list[tuple[object, ...]]:
        assert host == "a.test"
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (it, port)) for it in (*others, "127.0.0.1")]

    monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", two_addresses)

    connection = await dial(enode_of(server, "a.test"), CONFIG, STATUS)

    end, _ = server.accept()
    end.close()
    connection.abort("done")
    await connection.run(_ignore)


async def test_node_id_that_is_no_key_is_an_error_and_leaves_no_socket(server: socket.socket) -> None:
    enode = Enode(NodeId(bytes(64)), *server.getsockname())

    with pytest.raises(DecodeError):
        await dial(enode, CONFIG, STATUS)

    with contextlib.suppress(BlockingIOError):  # not even connected
        end, _ = server.accept()
        with end:
            end.setblocking(False)
            gone = await asyncio.wait_for(asyncio.get_running_loop().sock_recv(end, 1), DEADLINE_S)
            assert gone == b""


# How long to wait


def test_waits_are_doubled_up_to_the_maximum() -> None:
    backoff = Backoff()

    waits = [backoff.after(0.0) for _ in range(12)]

    assert waits == [1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 60.0, 60.0, 60.0, 60.0, 60.0, 60.0]


def test_connection_that_lasted_makes_the_next_wait_the_first_one_again() -> None:
    backoff = Backoff()
    for _ in range(12):
        backoff.after(0.0)

    assert backoff.after(STABLE_S - 0.01) == MAX_BACKOFF_S
    assert [backoff.after(STABLE_S), backoff.after(0.0)] == [FIRST_BACKOFF_S, 2 * FIRST_BACKOFF_S]


def test_attempt_that_nobody_answered_is_no_connection_that_lasted() -> None:
    assert dialer_module.DIAL_TIMEOUT_S < STABLE_S


def test_wait_is_longer_or_shorter_by_half_of_itself_at_most() -> None:
    waits = [jittered(MAX_BACKOFF_S) for _ in range(1000)]

    assert JITTER == 0.5
    assert 30 <= min(waits) < 40
    assert 80 < max(waits) <= 90
    assert len(set(waits)) == len(waits)


# Static peers

ENODE = Enode(KEY.public_key, "192.0.2.1", 30303)
MOVED = replace(ENODE, host="192.0.2.2")
OTHER = Enode(private_key("other").public_key, "192.0.2.3", 30303)


class Keeper:
    """Static peers, whom they dial and what they serve: connections over socket pairs that stay open until ended.

    While `reachable` is not set, a dial waits; while `is_down`, it fails. `wait` stands for the waits between.
    """

    def __init__(self) -> None:
        self.peers = StaticPeers(self._dial, self._serve, lambda node_id: node_id in self.connected)
        self.dialled: list[Enode] = []
        self.served: list[Connection] = []
        self.cancelled = 0
        self.connected: set[NodeId] = set()
        self.reachable = asyncio.Event()
        self.reachable.set()
        self.is_down = False
        self.bug = False
        self.waits: list[float] = []
        self._ends: list[socket.socket] = []

    def wait(self, wait_s: float) -> float:
        """Note how long would be waited, in place of the jitter, and have it take no time; where nothing stops it, this
        must."""
        self.waits.append(wait_s)
        return 0.0 if len(self.waits) < 10_000 else 1000.0

    async def _dial(self, enode: Enode) -> Connection:
        self.dialled.append(enode)
        try:
            await self.reachable.wait()
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        if self.is_down:
            raise ConnectionLost(None, "nobody there")
        ours, theirs = stream_pair()
        self._ends.append(theirs)
        _, pipe = await asyncio.get_running_loop().create_connection(Pipe, sock=ours)
        return Connection(pipe, CONFIG, STATUS, remote_id=enode.node_id)

    async def _serve(self, connection: Connection) -> None:
        self.served.append(connection)
        if self.bug:
            raise ZeroDivisionError
        await connection.run(_ignore)

    async def serving(self, count: int) -> Connection:
        """Wait until so many connections have been served or are; return the last."""
        await until(lambda: len(self.served) >= count)
        return self.served[count - 1]

    async def close(self) -> None:
        self.peers.stop()
        for connection in self.served:
            connection.abort("the test is over")
        await asyncio.wait_for(self.peers.join(), DEADLINE_S)
        for end in self._ends:
            end.close()


@pytest.fixture
async def keeper(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Keeper]:
    """Waits between attempts take no time but are noted."""
    keeper = Keeper()
    monkeypatch.setattr(dialer_module, "jittered", keeper.wait)
    yield keeper
    await keeper.close()


def hold(keeper: Keeper, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the waits between attempts endless; they are noted all the same."""

    def wait(wait_s: float) -> float:
        keeper.waits.append(wait_s)
        return 1000.0

    monkeypatch.setattr(dialer_module, "jittered", wait)


async def test_static_peer_is_dialled_and_served(keeper: Keeper) -> None:
    keeper.peers.add(ENODE)

    connection = await keeper.serving(1)

    assert connection.node_id == ENODE.node_id
    assert not connection.is_inbound
    assert keeper.dialled == [ENODE]
    assert connection.closed is None


async def test_static_peer_is_dialled_again_whenever_its_connection_ends(keeper: Keeper) -> None:
    keeper.peers.add(ENODE)

    for count in range(1, 5):
        (await keeper.serving(count)).abort("lost")
    await keeper.serving(5)

    assert keeper.dialled == [ENODE] * 5
    assert keeper.waits == [1.0, 2.0, 4.0, 8.0]


async def test_peer_that_is_down_is_dialled_less_and_less_often_until_it_is_there(keeper: Keeper) -> None:
    keeper.is_down = True
    keeper.peers.add(ENODE)
    await until(lambda: len(keeper.waits) >= 11)

    keeper.is_down = False
    await keeper.serving(1)

    assert keeper.waits[:11] == [1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 60.0, 60.0, 60.0, 60.0, 60.0]


async def test_wait_after_a_stable_connection_is_the_first_one(keeper: Keeper, monkeypatch: pytest.MonkeyPatch) -> None:
    keeper.peers.add(ENODE)
    for count in range(1, 4):
        (await keeper.serving(count)).abort("lost at once")
    connection = await keeper.serving(4)

    monkeypatch.setattr(dialer_module, "STABLE_S", 0.0)  # it counts as stable however short it was
    connection.abort("lost after a while")
    await keeper.serving(5)

    assert keeper.waits[:4] == [1.0, 2.0, 4.0, 1.0]


async def test_peer_that_has_dialled_us_is_not_dialled_until_that_is_over(keeper: Keeper) -> None:
    keeper.is_down = True
    keeper.peers.add(ENODE)
    await until(lambda: len(keeper.waits) >= 5)
    keeper.connected.add(ENODE.node_id)
    await until(lambda: STABLE_S in keeper.waits)
    dialled = len(keeper.dialled)
    await until(lambda: keeper.waits.count(STABLE_S) >= 3)
    dialled_meanwhile = len(keeper.dialled) - dialled

    keeper.connected.clear()
    looked = len(keeper.waits)
    await until(lambda: len(keeper.dialled) >= dialled + 2)

    assert dialled_meanwhile == 0
    # It was there: the next waits are short ones again.
    assert [wait for wait in keeper.waits[looked:] if wait != STABLE_S][:2] == [1.0, 2.0]


async def test_fault_of_ours_in_serving_is_logged_and_the_peer_dialled_again(
    keeper: Keeper, caplog: pytest.LogCaptureFixture
) -> None:
    keeper.bug = True
    keeper.peers.add(ENODE)
    first = await keeper.serving(1)

    keeper.bug = False
    await keeper.serving(2)

    assert first.closed is not None
    assert first.closed.cause == "internal error"
    errors = [record for record in caplog.records if record.levelno >= logging.ERROR]
    assert {(record.name, record.exc_info is not None) for record in errors} == {(guard.__name__, True)}


async def test_peer_that_is_not_reached_is_said_once_and_then_at_debug(
    keeper: Keeper, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "mailserver.net.dialer")
    keeper.is_down = True

    keeper.peers.add(ENODE)
    await until(lambda: len(caplog.records) >= 3)

    peer = f"peer={ENODE.node_id.hex()[:8]}@{ENODE.host}:{ENODE.port} cause='nobody there'"
    assert [(record.levelname, record.getMessage()) for record in caplog.records[:3]] == [
        ("INFO", f"static peer not reached, it is dialled again {peer}"),
        ("DEBUG", f"static peer not reached again {peer}"),
        ("DEBUG", f"static peer not reached again {peer}"),
    ]


async def test_peer_that_is_lost_once_more_is_said_once_more(keeper: Keeper, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "mailserver.net.dialer")
    keeper.is_down = True
    keeper.peers.add(ENODE)
    await until(lambda: len(caplog.records) == 1)

    keeper.is_down = False
    connection = await keeper.serving(1)
    connection.opened_at = 0.0  # as if the handshake were over
    keeper.is_down = True
    connection.abort("gone")
    await until(lambda: len(caplog.records) == 2)

    assert caplog.records[0].getMessage() == caplog.records[1].getMessage()


async def test_peer_that_is_lost_in_the_handshake_is_said_but_not_one_that_has_dialled_us_at_once(
    keeper: Keeper, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "mailserver.net.dialer")
    keeper.peers.add(ENODE)

    for number, reason in enumerate((DisconnectReason.ALREADY_CONNECTED, DisconnectReason.REQUESTED), start=1):
        (await keeper.serving(number)).disconnect(reason, "lost")
    await until(lambda: len(caplog.records) == 1)

    assert caplog.records[0].getMessage().endswith("cause='lost'")
    assert len(keeper.served) >= 2


async def test_peer_that_is_added_twice_is_dialled_once(keeper: Keeper) -> None:
    keeper.peers.add(ENODE)
    keeper.peers.add(ENODE)
    await keeper.serving(1)
    keeper.peers.add(ENODE)
    await turns()

    assert keeper.dialled == [ENODE]


async def test_peer_that_has_moved_is_dialled_where_it_is_now(keeper: Keeper) -> None:
    keeper.is_down = True
    keeper.peers.add(ENODE)
    await until(lambda: len(keeper.dialled) >= 2)

    keeper.peers.add(MOVED)
    await turns()
    tried = len(keeper.dialled)
    await until(lambda: len(keeper.dialled) >= tried + 5)

    assert set(keeper.dialled[tried:]) == {MOVED}


async def test_connection_to_where_a_peer_was_goes_on(keeper: Keeper) -> None:
    keeper.peers.add(ENODE)
    connection = await keeper.serving(1)
    keeper.connected.add(ENODE.node_id)

    keeper.peers.add(MOVED)
    await until(lambda: STABLE_S in keeper.waits)

    assert connection.closed is None
    assert keeper.dialled == [ENODE]


async def test_peer_that_is_removed_is_not_dialled_again(keeper: Keeper) -> None:
    keeper.peers.add(ENODE)
    connection = await keeper.serving(1)

    keeper.peers.remove(ENODE.node_id)
    await turns()
    went_on = connection.closed is None
    connection.abort("lost")
    await asyncio.wait_for(keeper.peers.join(), DEADLINE_S)

    assert went_on
    assert keeper.dialled == [ENODE]
    assert keeper.waits == [1.0]  # over before it began


async def test_peer_that_is_removed_while_we_wait_is_forgotten_at_once(
    keeper: Keeper, monkeypatch: pytest.MonkeyPatch
) -> None:
    hold(keeper, monkeypatch)
    keeper.is_down = True
    keeper.peers.add(ENODE)
    await until(lambda: keeper.waits == [1.0])

    keeper.peers.remove(ENODE.node_id)

    await asyncio.wait_for(keeper.peers.join(), DEADLINE_S)
    assert keeper.dialled == [ENODE]


async def test_peer_that_is_removed_while_it_is_dialled_is_hung_up_on(keeper: Keeper) -> None:
    keeper.reachable.clear()
    keeper.peers.add(ENODE)
    await until(lambda: keeper.dialled == [ENODE])

    keeper.peers.remove(ENODE.node_id)
    keeper.reachable.set()
    connection = await keeper.serving(1)  # whoever serves counts each connection
    await asyncio.wait_for(keeper.peers.join(), DEADLINE_S)

    assert connection.closed is not None
    assert connection.closed.reason is DisconnectReason.TCP_ERROR
    assert connection.closed.cause == "no longer wanted"
    assert keeper.dialled == [ENODE]


async def test_peer_that_is_removed_and_added_again_is_dialled_anew(keeper: Keeper) -> None:
    keeper.reachable.clear()
    keeper.peers.add(ENODE)
    await until(lambda: keeper.dialled == [ENODE])

    keeper.peers.remove(ENODE.node_id)
    keeper.peers.add(ENODE)
    await until(lambda: keeper.dialled == [ENODE, ENODE])
    keeper.reachable.set()
    await keeper.serving(2)
    await until(lambda: sum(connection.closed is None for connection in keeper.served) == 1)

    assert [connection.closed.cause for connection in keeper.served if connection.closed] == ["no longer wanted"]


async def test_peer_that_nobody_knows_is_removed_without_a_word(keeper: Keeper) -> None:
    keeper.peers.remove(ENODE.node_id)

    assert keeper.dialled == []


async def test_list_is_followed_whom_it_lacks_is_not_dialled_again(keeper: Keeper) -> None:
    keeper.peers.follow([ENODE])
    first = await keeper.serving(1)

    keeper.peers.follow([OTHER, OTHER])
    second = await keeper.serving(2)
    first.abort("lost")
    second.abort("lost")
    await keeper.serving(3)

    assert keeper.dialled == [ENODE, OTHER, OTHER]


async def test_list_that_stays_the_same_changes_nothing(keeper: Keeper) -> None:
    keeper.peers.follow([ENODE, OTHER])
    await keeper.serving(2)

    keeper.peers.follow([OTHER, ENODE])
    await turns()

    assert sorted(keeper.dialled, key=str) == sorted([ENODE, OTHER], key=str)
    assert all(connection.closed is None for connection in keeper.served)


async def test_list_that_says_where_a_peer_has_moved_is_followed_there(keeper: Keeper) -> None:
    keeper.peers.follow([ENODE])
    connection = await keeper.serving(1)

    keeper.peers.follow([MOVED])
    connection.abort("it has moved")
    await keeper.serving(2)

    assert keeper.dialled == [ENODE, MOVED]


async def test_stop_dials_nobody_any_more_and_lets_connections_go_on(keeper: Keeper) -> None:
    keeper.peers.add(ENODE)
    connection = await keeper.serving(1)

    keeper.peers.stop()
    keeper.peers.add(OTHER)
    keeper.peers.follow([OTHER])
    await turns()

    assert keeper.dialled == [ENODE]
    assert connection.closed is None


async def test_join_waits_for_connections_as_whoever_serves_them_says_goodbye(keeper: Keeper) -> None:
    keeper.peers.add(ENODE)
    connection = await keeper.serving(1)
    keeper.peers.stop()
    joining = asyncio.create_task(keeper.peers.join())
    await turns()
    waited = not joining.done()
    was_open = connection.closed is None

    connection.abort("goodbye")
    await asyncio.wait_for(joining, DEADLINE_S)

    assert waited
    assert was_open


async def test_join_gives_up_what_is_being_dialled(keeper: Keeper) -> None:
    keeper.reachable.clear()
    keeper.peers.follow([ENODE, OTHER])
    await until(lambda: len(keeper.dialled) == 2)
    keeper.peers.stop()

    await asyncio.wait_for(keeper.peers.join(), DEADLINE_S)

    assert keeper.cancelled == 2
    assert keeper.served == []


async def test_join_of_nobody_is_over_at_once(keeper: Keeper) -> None:
    await asyncio.wait_for(keeper.peers.join(), DEADLINE_S)


async def test_static_peer_is_dialled_over_a_real_port(server: socket.socket) -> None:
    served = asyncio.Event()

    async def serve(connection: Connection) -> None:
        served.set()
        await connection.run(_ignore)

    peers = StaticPeers(lambda enode: dial(enode, CONFIG, STATUS), serve, lambda _: False)
    peers.add(enode_of(server))
    end, _ = await asyncio.wait_for(asyncio.get_running_loop().sock_accept(server), DEADLINE_S)
    raw = await (await RawPeer.accept(end)).greet()
    await asyncio.wait_for(served.wait(), DEADLINE_S)

    peers.stop()
    await raw.close()

    await asyncio.wait_for(peers.join(), DEADLINE_S)
