"""mailserver.net.turns, by itself and over mailserver.net.connection."""

import asyncio

import pytest

from mailserver.net.turns import FRAMES_AT_ONCE, FREE_FRAMES, INTERVAL_S, Pacer, Share, Turns
from mailserver.rlpx import p2p
from mailserver.waku.packets import PacketCode
from mailserver.waku.peer import P2PRequestReceived
from tests.net.test_connection import Running, Wires
from tests.raw_peer import RawPeer
from tests.waiting import until


def test_who_sends_little_does_not_wait() -> None:
    pacer = Pacer(0.0)

    frames = range(10 * FREE_FRAMES)

    assert not any(pacer.must_wait(count, count * INTERVAL_S / (FREE_FRAMES - 1)) for count in frames)


def test_who_sends_much_waits_until_the_interval_is_over() -> None:
    pacer = Pacer(0.0)

    assert not pacer.must_wait(FREE_FRAMES - 1, INTERVAL_S / 2)
    assert pacer.must_wait(FREE_FRAMES, INTERVAL_S / 2)
    assert pacer.must_wait(FREE_FRAMES * 2, INTERVAL_S * 0.9)
    assert not pacer.must_wait(FREE_FRAMES * 2, INTERVAL_S)
    assert pacer.must_wait(FREE_FRAMES * 3, INTERVAL_S * 1.5)


async def test_one_of_those_who_wait_has_its_turn_at_a_time_in_their_order() -> None:
    turns = Turns()
    had: list[tuple[str, int]] = []

    async def wait(name: str) -> None:
        await turns.wait()
        had.append((name, rounds))

    rounds = 0
    tasks = [asyncio.create_task(wait(name)) for name in "abc"]
    while len(had) < len(tasks):
        rounds += 1
        await asyncio.sleep(0)

    assert [name for name, _ in had] == ["a", "b", "c"]
    assert len({number for _, number in had}) == len(had)


def requests(running: Running) -> int:
    """How many frames have come."""
    return sum(isinstance(event, P2PRequestReceived) for event in running.events)


def flood(raw: RawPeer, count: int) -> None:
    """Send so many frames at once."""
    raw.write(*(raw.packet(PacketCode.P2P_REQUEST, b"") for _ in range(count)))


async def test_all_frames_are_opened_a_few_at_once() -> None:
    wires = Wires()
    running, raw = await wires.open()
    most = 0
    session = running.connection._session  # noqa: SLF001 - nobody else knows
    receive = session.receive_data

    def watched(data: bytes, now: float, *, max_frames: float) -> None:
        nonlocal most
        before = session.opened_frames
        receive(data, now, max_frames=max_frames)
        most = max(most, session.opened_frames - before)

    session.receive_data = watched  # type: ignore[method-assign, assignment]
    flood(raw, 100)

    await until(lambda: requests(running) == 100)

    assert most == FRAMES_AT_ONCE
    await wires.close()


async def test_single_frame_is_opened_between_those_of_who_sends_many() -> None:
    wires, turns = Wires(), Turns()
    many, many_raw = await wires.open(turns=turns)
    few, few_raw = await wires.open(turns=turns)
    flood(many_raw, 400)
    few_raw.say(PacketCode.P2P_REQUEST, b"")

    await until(lambda: requests(few) == 1)

    assert requests(many) < 400
    await until(lambda: requests(many) == 400)
    await wires.close()


async def test_pings_of_a_flood_are_all_answered() -> None:
    wires = Wires()
    _, raw = await wires.open()
    raw.write(*(raw.frame(p2p.MessageId.PING, p2p.EMPTY_PAYLOAD) for _ in range(50)))

    for _ in range(50):
        assert (await raw.hear()).message_id == p2p.MessageId.PONG
    await wires.close()


async def test_what_is_beyond_a_share_is_done_one_in_each_round_of_the_loop() -> None:
    turns = Turns()
    shares = [Share(turns, 100) for _ in range(5)]
    rounds, done = 0, []

    async def work(name: int) -> None:
        await shares[name].take(100)
        done.append((name, rounds))
        await shares[name].take(1)
        done.append((name, rounds))

    tasks = [asyncio.create_task(work(name)) for name in range(5)]
    while len(done) < 10:
        await asyncio.sleep(0)
        rounds += 1
    await asyncio.gather(*tasks)

    free, turned = done[:5], done[5:]
    assert [name for name, _ in free] == [name for name, _ in turned] == list(range(5))
    assert len({number for _, number in free}) == 1
    assert len({number for _, number in turned}) == 5


async def test_share_is_whole_again_after_a_turn_and_after_a_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    now, waited = 0.0, 0
    monkeypatch.setattr(asyncio.get_running_loop(), "time", lambda: now)

    class Counted(Turns):
        async def wait(self) -> None:
            nonlocal waited
            waited += 1

    share = Share(Counted(), 100)
    for work, at, turns in [(60, 1.0, 0), (60, 1.5, 1), (100, 1.5, 1), (1, 1.5, 2), (90, 1.9, 2), (100, 2.5, 2)]:
        now = at
        await share.take(work)
        assert waited == turns
