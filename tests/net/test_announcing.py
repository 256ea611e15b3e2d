"""A connection tells its peer when what it announces changes."""

import asyncio
from dataclasses import replace

from mailserver.errors import DisconnectReason
from mailserver.rlpx.shared_payload import SharedPayload
from mailserver.waku.bloom import EMPTY_BLOOM, FULL_BLOOM
from mailserver.waku.packets import PacketCode, PeerSettings, StatusOptions
from mailserver.waku.peer import SettingsChanged
from tests.mailservers import NEWS
from tests.net.wires import EMPTY_STATUS, LIGHT, STATUS, Wires, hello, packet, reason_for
from tests.raw_peer import Packet, RawPeer
from tests.waiting import DEADLINE_S, until


async def hear_status(raw: RawPeer) -> StatusOptions:
    """Say Hello and hear Hello and Status."""
    raw.write(raw.hello())
    await raw.hear()
    raw.compressed = True
    code, payload = await raw.hear_packet()
    assert code == PacketCode.STATUS
    return StatusOptions.decode(payload)


async def test_what_changes_before_the_handshake_is_over_is_said_by_status_itself(wires: Wires) -> None:
    running, raw = await wires.connect()
    changed = replace(STATUS, pow_requirement=0.5)

    running.connection.announce(changed)
    status = await hear_status(raw)
    running.connection.send(PacketCode.P2P_REQUEST_COMPLETE, b"next")

    assert status == changed
    assert await raw.hear_packet() == Packet(PacketCode.P2P_REQUEST_COMPLETE, b"next")


async def test_what_changes_later_is_said_by_an_update_with_nothing_else_in_it(wires: Wires) -> None:
    running, raw = await wires.open()

    running.connection.announce(replace(STATUS, pow_requirement=0.5))
    running.connection.announce(replace(STATUS, pow_requirement=0.5, bloom=FULL_BLOOM))
    heard = await raw.hear_packets(2)

    assert [code for code, _ in heard] == [PacketCode.STATUS_UPDATE] * 2
    assert [StatusOptions.decode(payload) for _, payload in heard] == [
        StatusOptions(pow_requirement=0.5),
        StatusOptions(bloom=FULL_BLOOM),
    ]


async def test_update_after_a_change_before_the_handshake_says_what_is_new_since(wires: Wires) -> None:
    running, raw = await wires.connect()
    running.connection.announce(replace(STATUS, pow_requirement=0.5))
    await hear_status(raw)

    running.connection.announce(STATUS)

    code, payload = await raw.hear_packet()
    assert (code, StatusOptions.decode(payload)) == (PacketCode.STATUS_UPDATE, StatusOptions(pow_requirement=0.25))


async def test_nothing_is_said_where_nothing_has_changed(wires: Wires) -> None:
    running, raw = await wires.open()

    running.connection.announce(replace(STATUS))
    running.connection.send(PacketCode.P2P_REQUEST_COMPLETE, b"next")

    assert await raw.hear_packet() == Packet(PacketCode.P2P_REQUEST_COMPLETE, b"next")


async def test_topics_in_place_of_a_bloom_and_back_are_said_each_time(wires: Wires) -> None:
    ours = replace(STATUS, topic_interest=frozenset({NEWS}), bloom=None)
    running, raw = await wires.open(status=ours)

    for status in (STATUS, ours):
        running.connection.announce(status)

    assert [StatusOptions.decode(payload) for _, payload in await raw.hear_packets(2)] == [
        StatusOptions(bloom=EMPTY_BLOOM),
        StatusOptions(topic_interest=frozenset({NEWS})),
    ]


async def test_peer_that_is_gone_is_told_nothing(wires: Wires) -> None:
    running, _raw = await wires.open()
    running.connection.abort("gone")

    running.connection.announce(replace(STATUS, pow_requirement=0.5))

    assert (await running.ended()).cause == "gone"


async def test_two_of_our_nodes_follow_what_the_other_announces(wires: Wires) -> None:
    dialling, dialled = await wires.join()
    for running in (dialling, dialled):
        await asyncio.wait_for(running.connection.ready(), DEADLINE_S)
    changed = replace(STATUS, pow_requirement=0.5, bloom=None, topic_interest=frozenset({NEWS}))

    dialling.connection.announce(changed)
    await until(lambda: len(dialled.events) == 2)

    assert dialled.events[1] == SettingsChanged(PeerSettings().updated(changed))
    assert dialled.connection.settings == PeerSettings().updated(changed)


async def test_peer_that_becomes_a_light_node_is_of_no_use_to_another(wires: Wires) -> None:
    heard, closed = await reason_for(
        wires,
        LIGHT,
        hello,
        packet(PacketCode.STATUS, EMPTY_STATUS),
        packet(PacketCode.STATUS_UPDATE, LIGHT.encode()),
        packet(PacketCode.P2P_REQUEST, b"in the same breath"),
    )

    assert heard is closed.reason is DisconnectReason.USELESS_PEER


async def test_shared_payload_reaches_each_peer_as_it_is(wires: Wires) -> None:
    payload = SharedPayload(bytes(1000))
    peers = [await wires.open() for _ in range(2)]

    for running, _ in peers:
        running.connection.send(PacketCode.P2P_REQUEST_COMPLETE, payload)

    for _, raw in peers:
        assert await raw.hear_packet() == Packet(PacketCode.P2P_REQUEST_COMPLETE, bytes(1000))
