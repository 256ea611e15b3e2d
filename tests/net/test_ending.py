"""How a connection ends, and what is heard before that."""

import asyncio
import itertools

import pytest

from mailserver.errors import ConnectionLost, DisconnectReason
from mailserver.net import connection as connection_module
from mailserver.net.connection import Connection
from mailserver.net.sessions import session_config
from mailserver.rlpx import p2p
from mailserver.rlpx.events import SessionClosed
from mailserver.waku.packets import PacketCode
from tests.net.wires import BIG, KEY, STATUS, UNKNOWN_CODE, Running, Wires
from tests.raw_peer import DEPLOYED_STATUS, Packet
from tests.waiting import DEADLINE_S


async def test_disconnect_tells_the_peer_why_and_lets_it_close_first(wires: Wires) -> None:
    running, raw = await wires.open()

    running.connection.disconnect(DisconnectReason.CLIENT_QUITTING, "we are done")
    reason = await raw.hear_hangup()
    await raw.close()

    assert reason is DisconnectReason.CLIENT_QUITTING
    assert await running.ended() == SessionClosed(DisconnectReason.CLIENT_QUITTING, by_peer=False, cause="we are done")
    assert not running.connection.is_open


async def test_everything_sent_before_disconnect_is_heard_before_it(wires: Wires) -> None:
    running, raw = await wires.open()

    for number in range(3):
        running.connection.send(PacketCode.P2P_REQUEST_COMPLETE, bytes([number]))
    running.connection.disconnect(DisconnectReason.CLIENT_QUITTING, "we are done")

    heard = [await raw.hear_packet() for _ in range(3)]
    assert heard == [Packet(PacketCode.P2P_REQUEST_COMPLETE, bytes([number])) for number in range(3)]
    assert await raw.hear_hangup() is DisconnectReason.CLIENT_QUITTING
    await raw.close()
    await running.ended()


async def test_peer_that_does_not_close_after_our_disconnect_is_cut(
    wires: Wires, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection_module, "LINGER_S", 0.02)
    running, raw = await wires.open()

    running.connection.disconnect(DisconnectReason.CLIENT_QUITTING, "we are done")

    await running.ended()
    assert await raw.at_end()


async def test_abort_closes_at_once(wires: Wires) -> None:
    running, raw = await wires.open()

    running.connection.abort("no time")

    assert await running.ended() == SessionClosed(DisconnectReason.TCP_ERROR, by_peer=False, cause="no time")
    assert await raw.hear_hangup() is None


async def test_abort_before_the_run_ends_the_run_at_once(wires: Wires) -> None:
    pipe, theirs = await wires.pipe()
    connection = Connection(pipe, session_config(KEY, "server/1"), STATUS)
    connection.abort("not wanted")

    running = Running(connection)

    assert (await running.ended()).cause == "not wanted"
    theirs.close()


async def test_peer_that_just_goes_away_ends_the_connection_without_a_reason(wires: Wires) -> None:
    running, raw = await wires.open()

    await raw.close()

    closed = await running.ended()
    assert (closed.reason, closed.by_peer) == (None, True)


@pytest.mark.parametrize("form", [b"\xc1\x08", b"\x08"], ids=["list", "bare integer"])
async def test_goodbye_of_the_peer_is_read_in_both_forms(wires: Wires, form: bytes) -> None:
    running, raw = await wires.open()

    raw.write(raw.frame(p2p.MessageId.DISCONNECT, form))

    closed = await running.ended()
    assert (closed.reason, closed.by_peer) == (DisconnectReason.CLIENT_QUITTING, True)


async def test_sending_and_waiting_after_the_end_is_told_how_it_ended(wires: Wires) -> None:
    running, _raw = await wires.open()
    running.connection.abort("gone")
    await running.ended()

    with pytest.raises(ConnectionLost, match="gone") as sending:
        running.connection.send(PacketCode.P2P_REQUEST_COMPLETE, b"")
    with pytest.raises(ConnectionLost, match="gone"):
        await running.connection.drain()
    with pytest.raises(ConnectionLost, match="gone"):
        await asyncio.wait_for(running.connection.ready(), DEADLINE_S)

    assert sending.value.reason is DisconnectReason.TCP_ERROR


async def test_cancelled_run_closes_the_socket_and_wakes_who_waits(wires: Wires) -> None:
    running, raw = await wires.connect()
    waiting = asyncio.create_task(running.connection.ready())
    await asyncio.sleep(0)

    running.task.cancel()

    with pytest.raises(asyncio.CancelledError):
        await running.task
    with pytest.raises(ConnectionLost):
        await asyncio.wait_for(waiting, DEADLINE_S)
    assert await raw.at_end()


async def test_every_truncation_of_a_conversation_ends_it_without_an_error(wires: Wires) -> None:
    heard: list[SessionClosed] = []

    # Hello and Status as they lie in the stream, cut at a few places in each part and between them.
    for cut in itertools.chain(range(0, 40, 5), range(40, 400, 45)):
        running, raw = await wires.connect()
        greeting = raw.hello()
        raw.compressed = True
        raw.write((greeting + raw.packet(PacketCode.STATUS, DEPLOYED_STATUS) + raw.packet(UNKNOWN_CODE, BIG))[:cut])
        raw.writer.write_eof()
        heard.append(await running.ended())

    assert all((closed.reason, closed.by_peer) == (None, True) for closed in heard)
