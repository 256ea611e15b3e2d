"""How a connection opens: Hello, Status, and what it then knows of its peer."""

import asyncio
import random

import pytest

from mailserver.codec.keys import NodeId
from mailserver.errors import DecodeError, DisconnectReason
from mailserver.limits.frame_memory import ReceiveMemory
from mailserver.net.connection import Connection
from mailserver.net.pipe import Pipe
from mailserver.net.sessions import session_config
from mailserver.rlpx import p2p
from mailserver.waku import peer as peer_module
from mailserver.waku.bloom import Interest
from mailserver.waku.envelope import Topic
from mailserver.waku.packets import MAX_TOPIC_INTEREST, PacketCode, PeerSettings, StatusOptions
from mailserver.waku.peer import STATUS_TIMEOUT_S, SettingsChanged, StatusReceived
from mailserver.wakuid.packets import WAKUID
from tests.mailservers import NEWS
from tests.net.wires import EMPTY_STATUS, KEY, LIGHT, STATUS, Wires
from tests.pairs import private_key
from tests.raw_peer import DEPLOYED_STATUS, WAKU, Packet
from tests.simulated_time import in_simulated_time, pass_time
from tests.waiting import DEADLINE_S, until


async def test_two_connections_learn_of_each_other(wires: Wires) -> None:
    dialling, dialled = await wires.join(ours=LIGHT)

    settings = await asyncio.wait_for(dialling.connection.ready(), DEADLINE_S)
    of_dialling = await asyncio.wait_for(dialled.connection.ready(), DEADLINE_S)

    assert settings == PeerSettings().updated(STATUS)
    assert settings == dialling.connection.settings
    assert of_dialling.light_node
    assert dialling.connection.client_id == "dialled/1"
    assert dialled.connection.client_id == "dialler/1"
    assert dialling.connection.is_open
    assert dialling.connection.closed is None
    assert dialled.events == [StatusReceived(of_dialling)]


async def test_status_is_the_first_packet_and_says_what_was_given(wires: Wires) -> None:
    _running, raw = await wires.connect()
    raw.write(raw.hello())
    hello = await raw.hear()
    raw.compressed = True

    first = await raw.hear_packet()

    assert p2p.Hello.decode(hello.payload).capabilities == (WAKU, WAKUID)
    assert p2p.Hello.decode(hello.payload).client_id == "server/1"
    assert first == Packet(PacketCode.STATUS, STATUS.encode())


async def test_connection_is_named_by_node_id_and_address(wires: Wires) -> None:
    running, raw = await wires.connect()
    await raw.hear()

    assert str(running.connection) == f"{raw.key.public_key.hex()[:8]}@?"


async def test_stranger_has_no_name_yet(wires: Wires) -> None:
    pipe, theirs = await wires.pipe()

    with theirs:
        assert str(Connection(pipe, session_config(KEY, "server/1"), STATUS)) == "?@?"

    pipe.abort()


async def test_dialling_a_node_id_that_is_no_key_is_an_error() -> None:
    with pytest.raises(DecodeError):
        Connection(Pipe(), session_config(KEY, "x"), STATUS, remote_id=NodeId(bytes(64)))


async def test_status_of_the_deployed_client_is_understood(wires: Wires) -> None:
    running, _raw = await wires.open()

    settings = await asyncio.wait_for(running.connection.ready(), DEADLINE_S)

    assert settings.pow_requirement == pytest.approx(0.000002)
    assert not settings.light_node
    assert not settings.confirmations


async def test_status_without_options_means_the_defaults(wires: Wires) -> None:
    running, raw = await wires.connect()

    await raw.greet(status=EMPTY_STATUS)

    assert await asyncio.wait_for(running.connection.ready(), DEADLINE_S) == PeerSettings()


async def test_peer_that_never_sends_status_is_disconnected(wires: Wires, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peer_module, "STATUS_TIMEOUT_S", 0.2)
    running, raw = await wires.connect()
    await raw.greet(status=None)

    assert await raw.hear_hangup() is DisconnectReason.PING_TIMEOUT
    assert "no Status within" in (await running.ended()).cause


@in_simulated_time
async def test_neither_pings_nor_a_status_that_trickles_keep_a_peer() -> None:
    wires = Wires()
    pinging, trickling = await wires.connect(), await wires.connect()
    for _, raw in (pinging, trickling):
        await raw.greet(status=None)
    status = trickling[1].packet(PacketCode.STATUS, DEPLOYED_STATUS)

    for second in range(int(STATUS_TIMEOUT_S)):
        assert [running.connection.closed for running, _ in (pinging, trickling)] == [None, None], second
        pinging[1].write(*(pinging[1].frame(p2p.MessageId.PING, p2p.EMPTY_PAYLOAD) for _ in range(20)))
        trickling[1].write(status[second : second + 1])
        await pass_time(1.0)

    for running, _ in (pinging, trickling):
        assert (await running.ended()).cause == f"no Status within {STATUS_TIMEOUT_S:g} s"
    await wires.close()


@in_simulated_time
async def test_pings_that_are_slowed_give_no_more_time_for_status() -> None:
    wires = Wires()
    running, raw = await wires.connect(throttle=lambda size, now: 60.0)
    await raw.greet(status=None)
    raw.write(raw.frame(p2p.MessageId.PING, p2p.EMPTY_PAYLOAD))

    await pass_time(STATUS_TIMEOUT_S - 0.1)
    assert running.connection.is_open
    await pass_time(0.2)

    assert (await running.ended()).cause == f"no Status within {STATUS_TIMEOUT_S:g} s"
    await wires.close()


@in_simulated_time
async def test_time_in_which_we_have_no_memory_for_a_status_does_not_count() -> None:
    wires, memory = Wires(), ReceiveMemory(64 * 1024)
    held = memory.reserve(64 * 1024, lambda: None)
    running, raw = await wires.connect(memory=memory)
    await raw.greet(status=None)
    await pass_time(STATUS_TIMEOUT_S - 0.5)
    topics = frozenset(Topic(number.to_bytes(4, "big")) for number in range(MAX_TOPIC_INTEREST))
    raw.say(PacketCode.STATUS, StatusOptions(topic_interest=topics).encode())
    await pass_time(STATUS_TIMEOUT_S)
    assert running.connection.is_open
    assert not running.events

    memory.release(held)
    await pass_time(0.1)

    assert [type(event) for event in running.events] == [StatusReceived]
    await pass_time(2 * STATUS_TIMEOUT_S)
    assert running.connection.is_open
    await wires.close()


@in_simulated_time
async def test_peer_that_waits_for_memory_in_vain_has_what_was_left_of_its_time() -> None:
    wires, memory = Wires(), ReceiveMemory(64 * 1024)
    held = memory.reserve(64 * 1024, lambda: None)
    running, raw = await wires.connect(memory=memory)
    await raw.greet(status=None)
    await pass_time(STATUS_TIMEOUT_S - 1)
    raw.write(raw.packet(PacketCode.STATUS, random.Random(1).randbytes(40_000))[:1000])
    await pass_time(STATUS_TIMEOUT_S)

    memory.release(held)
    await pass_time(0.9)
    assert running.connection.is_open
    await pass_time(0.2)

    assert (await running.ended()).cause == f"no Status within {STATUS_TIMEOUT_S:g} s"
    await wires.close()


async def test_status_update_changes_what_holds_for_the_peer(wires: Wires) -> None:
    running, raw = await wires.open()
    before = running.connection.settings

    raw.say(PacketCode.STATUS_UPDATE, StatusOptions(topic_interest=frozenset({NEWS})).encode())
    raw.say(PacketCode.STATUS_UPDATE, EMPTY_STATUS)
    await until(lambda: len(running.events) == 3)

    after = before.updated(StatusOptions(topic_interest=frozenset({NEWS})))
    assert running.events[1:] == [SettingsChanged(after), SettingsChanged(after)]
    assert running.connection.settings.interest == Interest(topics=frozenset({NEWS}))


async def test_connection_tells_who_is_there_and_who_dialled(wires: Wires) -> None:
    dialling, dialled = await wires.join()
    before = dialled.connection.node_id, dialled.connection.was_open, dialled.connection.received_bytes
    for running in (dialling, dialled):
        await asyncio.wait_for(running.connection.ready(), DEADLINE_S)

    assert (dialling.connection.is_inbound, dialled.connection.is_inbound) == (False, True)
    assert dialling.connection.node_id == KEY.public_key
    assert dialled.connection.node_id == private_key("dialler").public_key
    assert dialling.connection.was_open
    assert dialled.connection.was_open
    assert before == (None, False, 0)
    assert dialled.connection.received_bytes > 300  # auth alone
    assert (dialled.connection.host, dialled.connection.remote_address, dialled.connection.local_address) == (
        "",
        "?",
        "?",
    )  # as of any socket pair


async def test_connection_was_open_also_when_it_no_longer_is(wires: Wires) -> None:
    running, raw = await wires.open()

    await raw.close()
    await running.ended()

    assert not running.connection.is_open
    assert running.connection.was_open


async def test_connection_that_never_opened_was_not_open(wires: Wires) -> None:
    running, raw = await wires.connect()
    await raw.hear()

    await raw.close()
    await running.ended()

    assert not running.connection.was_open
