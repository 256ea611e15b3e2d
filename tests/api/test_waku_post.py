"""mailserver.api.waku_messages: messages that are posted, relayed and stored."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from mailserver.api import waku_messages, work
from mailserver.api.dialects import Dialect
from mailserver.api.errors import ErrorCode
from mailserver.api.params import Json
from mailserver.client import sealing as client
from mailserver.waku.envelope import decode_envelopes, find_nonce
from mailserver.waku.packets import PacketCode
from mailserver.waku.payload import open_asymmetric, open_symmetric
from tests.api.messages import ALICE, KEY, NO_ID, PUBLIC_KEY, heard, post, sym_key
from tests.api.nodes import CallFailed, RunningNode, running_node
from tests.mailservers import NEWS, NOW
from tests.waiting import turns, until

pytestmark = pytest.mark.integration


async def test_posted_message_is_stored_and_relayed(running: RunningNode) -> None:
    peer = await running.dial("peer")
    key_id = await sym_key(running)

    assert await post(running, symKeyID=key_id) is True

    envelope = await heard(peer)
    assert (envelope.ttl, envelope.created, envelope.topic) == (50, NOW, NEWS)
    opened = open_symmetric(envelope.data, KEY)
    assert (opened.payload, opened.signer) == (b"hello", None)
    assert (await running.store.stats()).envelopes == 1


async def test_message_is_sealed_to_a_public_key_and_signed(running: RunningNode) -> None:
    peer = await running.dial("peer")
    signer = await running.call("waku_newKeyPair")

    await post(running, pubKey=PUBLIC_KEY, sig=signer, topic=None)

    envelope = await heard(peer)
    opened = open_asymmetric(envelope.data, ALICE)
    assert opened.payload == b"hello"
    assert opened.signer == running.keys.pair(signer).public_key
    assert envelope.topic == bytes(4)


async def test_padding_is_used_as_it_is(running: RunningNode) -> None:
    peer = await running.dial("peer")

    await post(running, symKeyID=await sym_key(running), padding="0x010203")

    assert open_symmetric((await heard(peer)).data, KEY).padding == b"\x01\x02\x03"


@pytest.mark.parametrize("payload", ["0x", ""])
async def test_payload_may_be_empty(running: RunningNode, payload: str) -> None:
    peer = await running.dial("peer")

    await post(running, symKeyID=await sym_key(running), payload=payload)

    assert open_symmetric((await heard(peer)).data, KEY).payload == b""


async def test_deployed_dialect_answers_with_the_hash(tmp_path: Path) -> None:
    async with running_node(tmp_path, dialect=Dialect.DEPLOYED) as running:
        peer = await running.dial("peer")

        posted = await post(running, symKeyID=await sym_key(running))

        assert posted == f"0x{(await heard(peer)).hash().hex()}"


async def test_members_that_deployed_clients_leave_empty_are_absent(running: RunningNode) -> None:
    peer = await running.dial("peer")
    key_id = await sym_key(running)

    await post(running, symKeyID=key_id, pubKey="0x", sig="", padding="0x", targetPeer="", ttl=0, payload="0x")

    envelope = await heard(peer)
    assert envelope.ttl == 50
    assert len(open_symmetric(envelope.data, KEY).padding) > 200


async def test_message_has_the_work_that_it_names_or_that_the_node_asks_for(tmp_path: Path) -> None:
    async with running_node(tmp_path, min_pow=0.001) as running:
        peer = await running.dial("peer")
        key_id = await sym_key(running)

        await post(running, symKeyID=key_id, powTarget=0.01)
        named = await heard(peer)
        await post(running, symKeyID=key_id, powTarget=None, powTime=None)

    assert named.pow() >= 0.01


async def test_work_below_what_the_node_asks_for_is_refused(tmp_path: Path) -> None:
    async with running_node(tmp_path, min_pow=0.01) as running:
        with pytest.raises(CallFailed) as failed:
            await post(running, symKeyID=await sym_key(running), powTarget=0.001)

    assert failed.value.code == ErrorCode.REFUSED
    assert failed.value.message == "message rejected, PoW too low: this node demands 0.01"


@pytest.mark.parametrize("pow_time", [0, 0.01])
async def test_work_that_takes_longer_than_it_may_is_given_up(running: RunningNode, pow_time: float) -> None:
    with pytest.raises(CallFailed) as failed:
        await post(running, symKeyID=await sym_key(running), powTarget=1e300, powTime=pow_time)

    assert failed.value.code == ErrorCode.TOO_MUCH_WORK


async def test_no_work_takes_longer_than_the_limit(running: RunningNode, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waku_messages, "MAX_POW_TIME_S", 0.01)

    with pytest.raises(CallFailed) as failed:
        await post(running, symKeyID=await sym_key(running), powTarget=1e300, powTime=1000, ttl=10_000)

    assert failed.value.code == ErrorCode.TOO_MUCH_WORK


async def test_only_so_many_works_are_sought_at_once_and_others_have_their_turn(running: RunningNode) -> None:
    key_id = await sym_key(running)
    works = [
        asyncio.create_task(post(running, symKeyID=key_id, powTarget=1e300, powTime=60)) for _ in range(work.MAX_WORKS)
    ]
    await turns()

    with pytest.raises(CallFailed) as failed:
        await post(running, symKeyID=key_id)

    assert failed.value.code == ErrorCode.TOO_MANY
    assert not any(task.done() for task in works)
    for task in works:
        task.cancel()
    await asyncio.wait(works)
    assert await post(running, symKeyID=key_id) is True  # there is room again


async def test_works_take_one_share_of_the_time_together(running: RunningNode, monkeypatch: pytest.MonkeyPatch) -> None:
    key_id, tries = await sym_key(running), 0

    def tried(*args: Any, **named: Any) -> int | None:
        nonlocal tries
        tries += 1
        return find_nonce(*args, **named)

    monkeypatch.setattr(client, "find_nonce", tried)
    works = [asyncio.create_task(post(running, symKeyID=key_id, powTarget=1e300, powTime=60)) for _ in range(5)]
    await until(lambda: tries >= 5)

    before = tries
    await turns(20)

    assert 0 < tries - before <= 20
    for task in works:
        task.cancel()
    await asyncio.wait(works)


async def test_message_to_one_peer_goes_to_nobody_else_and_needs_no_work(tmp_path: Path) -> None:
    async with running_node(tmp_path, min_pow=1e30) as running:
        peers = [await running.dial("other"), await running.dial("target")]
        key_id = await sym_key(running)

        for payload, peer in zip(("0x01", "0x02"), peers, strict=True):
            enode = f"enode://{peer.key.public_key.hex()}@127.0.0.1:30303"
            assert await post(running, symKeyID=key_id, targetPeer=enode, powTarget=None, payload=payload) is True

        packets = [await peer.hear_packet() for peer in peers]
        assert {packet.code for packet in packets} == {PacketCode.P2P_MESSAGE}
        opened = [open_symmetric(decode_envelopes(packet.payload)[0].data, KEY).payload for packet in packets]
        assert opened == [b"\x01", b"\x02"]
        assert (await running.store.stats()).envelopes == 0
        assert running.node.live_usage() == (0, 0)


async def test_message_to_a_peer_that_is_not_connected(running: RunningNode) -> None:
    enode = f"enode://{ALICE.public_key.hex()}@127.0.0.1:30303"

    with pytest.raises(CallFailed) as failed:
        await post(running, symKeyID=await sym_key(running), targetPeer=enode)

    assert failed.value.code == ErrorCode.PEER_UNAVAILABLE


@pytest.mark.parametrize("is_direct", [False, True])
@pytest.mark.parametrize(
    ("length", "pow_target"),
    [
        pytest.param(1000, 1e300, id="when it is sealed, before any work"),
        pytest.param(700, 0.0, id="only as an envelope"),
    ],
)
async def test_message_that_is_too_long_is_refused(
    running: RunningNode, length: int, pow_target: float, is_direct: bool
) -> None:
    await running.call("waku_setMaxEnvelopeSize", 800)  # 700 bytes take 796 sealed, and some more as an envelope
    key_id = await sym_key(running)
    target = f"enode://{(await running.dial('target')).key.public_key.hex()}@127.0.0.1:30303" if is_direct else None

    with pytest.raises(CallFailed) as failed:
        await post(
            running, symKeyID=key_id, payload=f"0x{'00' * length}", powTarget=pow_target, powTime=0, targetPeer=target
        )

    assert (failed.value.code, failed.value.message) == (ErrorCode.REFUSED, "envelope is too long")


@pytest.mark.parametrize(
    ("members", "message"),
    [
        ({"symKeyID": None}, "message.symKeyID: give either this or pubKey, not both"),
        ({"pubKey": PUBLIC_KEY}, "message.symKeyID: give either this or pubKey, not both"),
        ({"symKeyID": 1}, "message.symKeyID: not a string"),
        ({"pubKey": PUBLIC_KEY[:-2]}, "message.pubKey: 64 bytes, not 65"),
        ({"sig": 1}, "message.sig: not a string"),
        ({"ttl": -1}, "message.ttl: not between 0 and 4294967295"),
        ({"ttl": 50.0}, "message.ttl: not a whole number"),
        ({"ttl": 4294967295}, "message.ttl: the envelope would expire after 2106"),
        ({"topic": None}, "message.topic: missing"),
        ({"topic": "0x9acb04"}, "message.topic: 3 bytes, not 4"),
        ({"payload": None}, "message.payload: missing"),
        ({"payload": "hello"}, "message.payload: not bytes in hex digits after 0x"),
        ({"padding": "0x1"}, "message.padding: not bytes in hex digits after 0x"),
        ({"powTime": -1}, "message.powTime: not between 0 and 4294967295"),
        ({"powTime": "1"}, "message.powTime: not a number"),
        ({"powTarget": -1}, "message.powTarget: not between 0 and 1.79769e+308"),
        ({"powTarget": 10**400}, "message.powTarget: not between 0 and 1.79769e+308"),
        ({"targetPeer": "peer"}, "message.targetPeer: not an enode URL (enode://<128 hex digits>@host:port)"),
        ({"targetpeer": "peer"}, "message.'targetpeer': unknown"),
    ],
)
async def test_wrong_messages(running: RunningNode, members: dict[str, Json], message: str) -> None:
    key_id = await sym_key(running)

    with pytest.raises(CallFailed) as failed:
        await post(running, **{"symKeyID": key_id, **members})

    assert (failed.value.code, failed.value.message) == (ErrorCode.INVALID_PARAMS, message)


@pytest.mark.parametrize("member", ["symKeyID", "sig"])
async def test_message_with_an_unknown_key(running: RunningNode, member: str) -> None:
    key_id = await sym_key(running)

    with pytest.raises(CallFailed) as failed:
        await post(running, **{"symKeyID": key_id, member: NO_ID})

    assert failed.value.code == ErrorCode.NOT_FOUND
