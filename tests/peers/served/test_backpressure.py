"""mailserver.peers.live_packets: what may wait for the disk or a turn, and who is held back for it."""

import asyncio
import contextlib
import random
import sqlite3
from itertools import pairwise
from pathlib import Path

import pytest

from mailserver.codec.keccak import keccak256
from mailserver.errors import DisconnectReason
from mailserver.limits.intake_bounds import IntakeBounds, PacketCost
from mailserver.peers import live_packets as live_module
from mailserver.peers.live_packets import MAX_UNCONFIRMED_ENVELOPES
from mailserver.rlpx import liveness as liveness_module
from mailserver.rlpx import session as session_module
from mailserver.store.engine.put_queue import MAX_GROUP_ROWS
from mailserver.waku.envelope import Topic
from mailserver.waku.packets import PacketCode, StatusOptions
from tests.mailservers import (
    Mailserver,
    deployed_fields,
    make_envelope,
    make_large_envelopes,
    running_mailserver,
    sealed_request,
)
from tests.peers.served.serving import EMPTY_LIST, NOTHING_WANTED, ask, confirmation, everything, messages, write_lock
from tests.raw_peer import RawPeer
from tests.waiting import until


async def flood(raw: RawPeer, payloads: list[bytes]) -> None:
    """Send packets as fast as they are taken."""
    for payload in payloads:
        raw.say(PacketCode.MESSAGES, payload)
        await raw.writer.drain()


async def hear_confirmations(raw: RawPeer, count: int) -> set[bytes]:
    """Wait for so many confirmations; return what they are about."""
    return {payload[1:] for code, payload in await raw.hear_packets(2 * count) if code == PacketCode.BATCH_ACKNOWLEDGED}


@pytest.mark.slow
async def test_flood_faster_than_the_disk_is_held_back_and_confirmed_in_the_end(
    mailserver: Mailserver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live_module, "MAX_UNCONFIRMED_ENVELOPES", 100)
    monkeypatch.setattr(session_module, "HANDSHAKE_TIMEOUT_S", 1.5)
    monkeypatch.setattr(liveness_module, "IDLE_TIMEOUT_S", 2.0)
    monkeypatch.setattr(liveness_module, "PING_INTERVAL_S", 0.1)
    raw, other = await mailserver.dial(), await mailserver.dial()
    payloads = [messages(*make_large_envelopes(20, 2000)) for _ in range(100)]

    with write_lock(mailserver):
        flooding = asyncio.create_task(flood(raw, payloads))
        # Longer than a silent peer may take, and the flood stands still all the while.
        deadline = asyncio.get_running_loop().time() + 2.5
        while asyncio.get_running_loop().time() < deadline:
            await ask(other, sealed_request(deployed_fields()).raw)
        held_back = not flooding.done()

    assert held_back
    assert await hear_confirmations(raw, len(payloads)) == {keccak256(payload) for payload in payloads}
    await flooding
    assert len(await everything(mailserver)) == 2000


async def test_packets_of_one_peer_that_wait_for_the_disk_are_bounded_in_bytes(
    mailserver: Mailserver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live_module, "MAX_UNCONFIRMED_BYTES", 400_000)
    raw = await mailserver.dial()
    payloads = [messages(envelope) for envelope in make_large_envelopes(40, 100_000)]
    taken: list[bytes] = []

    async def flood_and_count() -> None:
        for payload in payloads:
            await flood(raw, [payload])
            taken.append(payload)

    with write_lock(mailserver):
        flooding = asyncio.create_task(flood_and_count())
        while await grows(taken, within_s=0.4):
            pass
        held = len(taken)

    assert held <= 20
    assert await hear_confirmations(raw, len(payloads)) == {keccak256(payload) for payload in payloads}
    await flooding


async def test_envelope_of_one_peer_does_not_wait_for_all_that_another_has_sent_before(mailserver: Mailserver) -> None:
    flooder, honest = await mailserver.dial(), await mailserver.dial()
    payloads = [messages(*map(make_envelope, range(at, at + 100))) for at in range(0, 3000, 100)]
    lone = messages(make_envelope(10_000))

    with write_lock(mailserver):
        await flood(flooder, payloads)
        await until(lambda: mailserver.store.queued[0] == 3000)
        honest.say(PacketCode.MESSAGES, lone)
        await until(lambda: mailserver.store.queued[0] == 3001)
    assert await honest.hear_confirmation() == confirmation(lone)
    for _ in payloads:
        await flooder.hear_confirmation()

    with contextlib.closing(sqlite3.connect(mailserver.path)) as connection:
        ((before,),) = connection.execute(
            "SELECT count(*) FROM envelopes WHERE seq < (SELECT seq FROM envelopes WHERE raw = ?)",
            (make_envelope(10_000).raw,),
        )
    assert before <= 2 * MAX_GROUP_ROWS  # it is in the transaction after the one that had begun


async def test_packets_of_all_peers_that_wait_for_the_disk_are_bounded_and_a_short_one_still_gets_in(
    tmp_path: Path,
) -> None:
    payloads = [messages(*map(make_envelope, range(at, at + 100))) for at in range(0, 1000, 100)]
    size = max(PacketCost.of(PacketCode.MESSAGES, payload).memory for payload in payloads)
    async with running_mailserver(tmp_path, bounds=IntakeBounds(max_envelope_bytes=3 * size)) as mailserver:
        flooders = [await mailserver.dial(status=NOTHING_WANTED) for _ in payloads]
        honest = await mailserver.dial(status=NOTHING_WANTED)
        lone = messages(make_envelope(10_000))

        with write_lock(mailserver):
            for flooder, payload in zip(flooders, payloads, strict=True):
                flooder.say(PacketCode.MESSAGES, payload)
            await until(lambda: mailserver.store.queued[0] == 300)
            honest.say(PacketCode.MESSAGES, lone)
            await until(lambda: mailserver.store.queued[0] == 301)
            assert mailserver.services.bounds.envelopes.used_bytes < 4 * size

        for raw, payload in zip([honest, *flooders], [lone, *payloads], strict=True):
            assert await raw.hear_confirmation() == confirmation(payload)
        await until(lambda: mailserver.services.bounds.envelopes.used_bytes == 0)
    assert mailserver.services.bounds.envelopes.used_bytes == 0


async def test_memory_of_packets_is_given_back_however_their_peer_ends(mailserver: Mailserver) -> None:
    undecodable = messages(make_envelope(1)) + b"\x00"
    memory = mailserver.services.bounds.envelopes

    broken, gone = await mailserver.dial(), await mailserver.dial()
    broken.say(PacketCode.MESSAGES, undecodable)
    assert await broken.hear_hangup() is DisconnectReason.SUBPROTOCOL_ERROR
    with write_lock(mailserver):
        gone.say(PacketCode.MESSAGES, messages(make_envelope(2)))
        await until(lambda: memory.used_bytes > 0)
        await gone.close()
    await asyncio.gather(*mailserver.tasks)

    assert memory.used_bytes == 0


async def test_peers_take_turns_at_what_takes_long_to_decode(mailserver: Mailserver) -> None:
    update = StatusOptions(topic_interest=frozenset(Topic(random.randbytes(4)) for _ in range(10_000))).encode()
    greedy = [await mailserver.dial() for _ in range(10)]
    honest = await mailserver.dial()
    decoded: list[int] = []
    changed = [peer.connection.settings for peer in mailserver.peers]

    def count() -> int:
        return sum(
            peer.connection.settings is not before for peer, before in zip(mailserver.peers, changed, strict=True)
        )

    for raw in greedy:
        raw.say(PacketCode.STATUS_UPDATE, update)
    honest.say(PacketCode.MESSAGES, messages(make_envelope(1)))
    while count() < len(greedy):
        await asyncio.sleep(0)
        decoded.append(count())

    assert max(after - before for before, after in pairwise([0, *decoded])) == 1  # one in each round of the loop
    assert await honest.hear_confirmation() == confirmation(messages(make_envelope(1)))


async def grows(taken: list[bytes], *, within_s: float) -> bool:
    """Wait until the list has become longer; False if it does not."""
    before = len(taken)
    with contextlib.suppress(TimeoutError):
        await until(lambda: len(taken) > before, within_s)
    return len(taken) > before


async def test_packet_with_more_envelopes_than_may_wait_is_confirmed(mailserver: Mailserver) -> None:
    raw = await mailserver.dial()
    payload = messages(*(make_envelope(number, data_bytes=20) for number in range(MAX_UNCONFIRMED_ENVELOPES + 10)))

    raw.say(PacketCode.MESSAGES, payload)
    raw.say(PacketCode.MESSAGES, EMPTY_LIST)

    heard = await raw.hear_packets(4)
    assert sorted(heard) == sorted(confirmation(payload) + confirmation(EMPTY_LIST))
