"""Packets that a connection receives reach its handler, one after another."""

import asyncio

import pytest

from mailserver.codec import rlp
from mailserver.errors import ConnectionLost, DisconnectReason
from mailserver.net.inbound import Event
from mailserver.waku.packets import PacketCode
from mailserver.waku.peer import BatchAcknowledged, P2PRequestReceived, PacketIgnored
from tests.net.wires import EMPTY_STATUS, UNKNOWN_CODE, Wires, goodbye, wait_at_requests
from tests.waiting import DEADLINE_S, until


async def test_packets_reach_the_handler_in_order_however_they_are_cut(wires: Wires) -> None:
    running, raw = await wires.open()
    codes = [bytes([code]) * 32 for code in range(5)]
    frames = b"".join(raw.packet(PacketCode.P2P_REQUEST, code) for code in codes)

    for at in range(0, len(frames), 7):
        raw.write(frames[at : at + 7])
        await asyncio.sleep(0)
    await until(lambda: len(running.events) == 6)

    assert running.events[1:] == [P2PRequestReceived(code) for code in codes]


async def test_next_packet_is_not_handled_before_the_handler_is_done_with_the_last(wires: Wires) -> None:
    gate = asyncio.Event()
    running, raw = await wires.open(act=wait_at_requests(gate))

    raw.write(raw.packet(PacketCode.P2P_REQUEST, b"1"), raw.packet(PacketCode.P2P_REQUEST, b"2"))
    await running.seen(P2PRequestReceived(b"1"))
    alone = P2PRequestReceived(b"2") not in running.events
    gate.set()

    assert alone
    assert await running.seen(P2PRequestReceived(b"2"))


async def test_second_status_and_unknown_packets_are_let_pass(wires: Wires) -> None:
    running, raw = await wires.open()

    raw.say(PacketCode.STATUS, EMPTY_STATUS)
    raw.say(UNKNOWN_CODE, b"whatever")
    raw.say(PacketCode.BATCH_ACKNOWLEDGED, rlp.encode(bytes(32)))

    assert await running.seen(BatchAcknowledged(bytes(32)))
    assert running.events[1:] == [PacketIgnored(0), PacketIgnored(UNKNOWN_CODE), BatchAcknowledged(bytes(32))]


async def test_what_the_peer_said_in_one_breath_with_its_goodbye_is_still_handled(wires: Wires) -> None:
    running, raw = await wires.open()

    raw.write(raw.packet(PacketCode.P2P_REQUEST, b"1"), raw.packet(PacketCode.P2P_REQUEST, b"2"), goodbye(raw))

    closed = await running.ended()
    assert (closed.reason, closed.by_peer) == (DisconnectReason.CLIENT_QUITTING, True)
    assert running.events[1:] == [P2PRequestReceived(b"1"), P2PRequestReceived(b"2")]


async def test_answer_to_what_came_with_a_goodbye_finds_nobody(wires: Wires) -> None:
    refused: list[ConnectionLost] = []

    async def answer(event: Event) -> None:
        if isinstance(event, P2PRequestReceived):
            for act in (lambda: running.connection.send(PacketCode.P2P_REQUEST_COMPLETE, b"answer"), None):
                try:
                    if act is not None:
                        act()
                    else:
                        await running.connection.drain()
                except ConnectionLost as error:
                    refused.append(error)

    running, raw = await wires.open(act=answer)

    raw.write(raw.packet(PacketCode.P2P_REQUEST, b"1"), goodbye(raw))
    await running.ended()

    assert len(refused) == 2
    assert all(str(error) for error in refused)


async def test_error_in_the_handler_comes_out_of_run_and_closes_the_socket(wires: Wires) -> None:
    class Bug(Exception):
        pass

    async def fail(event: Event) -> None:
        raise Bug

    running, raw = await wires.connect(act=fail)
    raw.write(raw.hello())
    await raw.hear()
    raw.compressed = True

    raw.say(PacketCode.STATUS, EMPTY_STATUS)

    with pytest.raises(Bug):
        await asyncio.wait_for(running.task, DEADLINE_S)
    assert await raw.at_end()
