"""mailserver.peers.request_queue: questions about message ids, over whole connections, from peers that keep no rule."""

import asyncio
from collections.abc import Coroutine
from typing import Any, cast

import pytest

from mailserver.codec.keys import NodeId
from mailserver.errors import DisconnectReason, Rejection, RemoteProtocolError
from mailserver.history.id_conversation import IdConversation
from mailserver.ids.envelopes import envelope_muid
from mailserver.ids.muid import DEFAULT_NETWORK_TOPIC, Muid
from mailserver.limits import intake_bounds
from mailserver.limits.intake_bounds import RESERVED_BYTES, IntakeBounds
from mailserver.limits.request_quotas import RequestLimits
from mailserver.limits.send_rate import SendRate
from mailserver.mail.packing import TARGET_PACKET_BYTES
from mailserver.peers.request_queue import CONCURRENCY_RETRY_S, MAX_WAITING_REQUESTS, RequestQueue
from mailserver.rlpx.capabilities import Capability
from mailserver.waku.packets import PACKET_CODE_COUNT, PacketCode
from mailserver.wakuid.answers import Answer, Done, Envelopes, Refused, Terms, decode_answer
from mailserver.wakuid.packets import (
    ID_PACKET_CODE_COUNT,
    MAX_FETCHED_IDS,
    MAX_QUESTION_BYTES,
    QUESTIONS,
    WAKUID,
    IdPacketCode,
    What,
)
from mailserver.wakuid.questions import Fetch, Open, Query, Question
from tests.history.answered import Client
from tests.mailservers import (
    Mailserver,
    deployed_fields,
    fill,
    make_envelope,
    make_envelopes,
    make_large_envelopes,
    running_mailserver,
    sealed_request,
)
from tests.peers.served.serving import hear_answer
from tests.raw_peer import WAKU, Hangup, RawPeer
from tests.store.samples import EVER
from tests.waiting import DEADLINE_S, until

BOTH = (WAKU, WAKUID)


@pytest.fixture
async def raw(mailserver: Mailserver) -> RawPeer:
    return await joined(mailserver)


async def joined(mailserver: Mailserver) -> RawPeer:
    """A peer that speaks both capabilities."""
    return await (await mailserver.dial_silent()).greet(capabilities=BOTH)


def packet(raw: RawPeer, question: Question) -> bytes:
    return raw.packet(PACKET_CODE_COUNT + question.code, question.encode())


async def hear(raw: RawPeer) -> Answer:
    heard = await raw.hear_packet()
    return decode_answer(IdPacketCode(heard.code - PACKET_CODE_COUNT), heard.payload)


async def reason_for_hangup(raw: RawPeer) -> DisconnectReason | None:
    try:
        while True:
            await raw.hear_packet()
    except Hangup as hangup:
        return hangup.reason


async def open_access(raw: RawPeer) -> None:
    raw.write(packet(raw, Open(1)))
    assert isinstance(await hear(raw), Terms)


def fetch(number: int, *muids: Muid) -> Fetch:
    return Fetch(number, DEFAULT_NETWORK_TOPIC, muids)


async def test_peer_that_has_only_the_new_capability_is_useless(mailserver: Mailserver) -> None:
    silent = await mailserver.dial_silent()

    await silent.greet(status=None, capabilities=[WAKUID])

    assert await reason_for_hangup(silent) is DisconnectReason.USELESS_PEER


async def test_peer_with_a_later_version_is_served_as_any_other(mailserver: Mailserver) -> None:
    later = await mailserver.dial_silent()
    await later.greet(capabilities=(WAKU, Capability("wakuid", 2)))

    later.say(PacketCode.P2P_REQUEST, sealed_request(deployed_fields()).raw)
    await hear_answer(later)


async def test_question_before_status_ends_the_connection(mailserver: Mailserver) -> None:
    early = await mailserver.dial_silent()
    await early.greet(status=None, capabilities=BOTH)

    early.write(packet(early, Open(1)))

    assert await reason_for_hangup(early) is DisconnectReason.SUBPROTOCOL_ERROR


async def test_history_and_ids_are_answered_one_after_another(mailserver: Mailserver, raw: RawPeer) -> None:
    envelopes = make_envelopes(3)
    await fill(mailserver.store, envelopes)
    await open_access(raw)
    muid = envelope_muid(DEFAULT_NETWORK_TOPIC, envelopes[1])

    raw.write(
        packet(raw, fetch(2, muid)),
        raw.packet(PacketCode.P2P_REQUEST, sealed_request(deployed_fields()).raw),
        packet(raw, fetch(3)),
    )

    assert await hear(raw) == Envelopes(2, [envelopes[1]])
    assert await hear(raw) == Done(2)
    assert (await hear_answer(raw))[0] == envelopes
    assert await hear(raw) == Done(3)


async def test_answers_and_unknown_packets_that_nobody_asked_for_are_passed_over(
    mailserver: Mailserver, raw: RawPeer
) -> None:
    for code in range(ID_PACKET_CODE_COUNT):
        if code not in QUESTIONS:
            raw.write(raw.packet(PACKET_CODE_COUNT + code, b"\xc0"))
    await open_access(raw)


async def test_question_that_does_not_decode_is_refused_by_its_number(raw: RawPeer) -> None:
    await open_access(raw)
    raw.write(raw.packet(PACKET_CODE_COUNT + IdPacketCode.QUERY, b"\xc2\x07\xc0"))
    raw.write(raw.packet(PACKET_CODE_COUNT + IdPacketCode.QUERY, b"no list"))
    raw.write(raw.packet(PACKET_CODE_COUNT + IdPacketCode.FETCH, bytes(MAX_QUESTION_BYTES + 1)))

    answers = [await hear(raw) for _ in range(3)]

    assert [(answer.request_id, getattr(answer, "rejection", None)) for answer in answers] == [
        (7, Rejection.MALFORMED),
        (0, Rejection.MALFORMED),
        (0, Rejection.MALFORMED),
    ]


async def test_questions_beyond_those_that_may_wait_are_refused(mailserver: Mailserver) -> None:
    await fill(mailserver.store, make_large_envelopes(20, 100_000))
    stuck = await joined(mailserver)
    await open_access(stuck)
    everything = Query(2, DEFAULT_NETWORK_TOPIC, *EVER)
    stuck.say(PacketCode.P2P_REQUEST, sealed_request(deployed_fields()).raw)  # whose answer fills the buffers

    stuck.write(*(packet(stuck, everything) for _ in range(MAX_WAITING_REQUESTS + 3)))
    refused: list[Answer] = []
    answered = 0
    while len(refused) + answered < MAX_WAITING_REQUESTS + 3:
        heard = await stuck.hear_packet()
        if heard.code >= PACKET_CODE_COUNT:
            answer = decode_answer(IdPacketCode(heard.code - PACKET_CODE_COUNT), heard.payload)
            if isinstance(answer, Refused):
                refused.append(answer)
            answered += isinstance(answer, Done)

    assert len(refused) == 3
    for each in refused:
        assert isinstance(each, Refused)
        assert (each.rejection, each.retry_after_s) == (Rejection.TOO_MANY_WAITING, CONCURRENCY_RETRY_S)


async def test_questions_have_a_budget_of_their_own(mailserver: Mailserver) -> None:
    """Long questions that wait leave the memory for history requests alone, and give theirs back."""
    bounds = mailserver.services.bounds
    await fill(mailserver.store, make_large_envelopes(20, 100_000))
    stuck = await joined(mailserver)
    request = sealed_request(deployed_fields()).raw
    stuck.say(PacketCode.P2P_REQUEST, request)
    long = fetch(2, *([Muid(bytes(64))] * MAX_FETCHED_IDS))

    stuck.write(*(packet(stuck, long) for _ in range(8)))
    await until(lambda: bounds.questions.used_bytes == 8 * len(long.encode()))
    used = bounds.requests.used_bytes
    mailserver.connections[0].abort("the test")
    await mailserver.tasks[0]

    assert used == len(request)
    assert bounds.questions.used_bytes == bounds.requests.used_bytes == 0


async def test_question_takes_memory_until_its_answer_has_ended(mailserver: Mailserver, raw: RawPeer) -> None:
    used = mailserver.services.bounds.questions
    envelopes = make_large_envelopes(20, 100_000)
    await fill(mailserver.store, envelopes)
    await open_access(raw)
    names = [envelope_muid(DEFAULT_NETWORK_TOPIC, each) for each in envelopes]
    questions = [packet(raw, fetch(number, *names)) for number in (2, 3)]
    size = len(fetch(2, *names).encode())

    raw.write(*questions)  # of which the first has an answer that fills the buffers
    await until(lambda: used.used_bytes == 2 * size)
    while await hear(raw) != Done(3):
        pass
    await until(lambda: used.used_bytes == 0)


async def test_without_memory_a_question_is_refused(
    mailserver: Mailserver, monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> None:
    monkeypatch.setattr(intake_bounds, "MAX_QUESTIONS_BYTES", 20_000)
    folder = tmp_path_factory.mktemp("short")
    async with running_mailserver(folder, bounds=IntakeBounds()) as short:
        await fill(short.store, make_large_envelopes(20, 100_000))
        stuck = await joined(short)
        await open_access(stuck)
        stuck.say(PacketCode.P2P_REQUEST, sealed_request(deployed_fields()).raw)
        stuck.write(*(packet(stuck, fetch(number, *[Muid(bytes(64))] * 200)) for number in range(2, 5)))

        outcomes: dict[int, type[Answer]] = {}
        while len(outcomes) < 3:
            heard = await stuck.hear_packet()
            if heard.code >= PACKET_CODE_COUNT:
                answer = decode_answer(IdPacketCode(heard.code - PACKET_CODE_COUNT), heard.payload)
                outcomes[answer.request_id] = type(answer)

    assert outcomes == {2: Done, 3: Refused, 4: Refused}


async def test_questions_count_against_the_requests_of_the_peer(tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.mktemp("limited")
    async with running_mailserver(folder, requests=RequestLimits(requests_per_minute=1)) as limited:
        raw = await joined(limited)
        raw.write(packet(raw, Open(1)), *(packet(raw, fetch(number)) for number in range(2, 7)))
        answers = [await hear(raw) for _ in range(6)]

    assert [type(answer) for answer in answers] == [Terms, Done, Done, Done, Done, Refused]


async def test_client_that_leaves_amid_an_answer_leaves_nothing_behind(mailserver: Mailserver) -> None:
    envelopes = make_large_envelopes(20, 100_000)
    await fill(mailserver.store, [*envelopes, make_envelope(1)])
    raw = await joined(mailserver)
    await open_access(raw)
    raw.write(packet(raw, fetch(2, *(envelope_muid(DEFAULT_NETWORK_TOPIC, each) for each in envelopes))))
    await hear(raw)

    await raw.close()
    await asyncio.wait_for(mailserver.tasks[0], DEADLINE_S)

    assert mailserver.services.bounds.questions.used_bytes == 0


async def stuck_peer(mailserver: Mailserver, *questions: Question) -> RawPeer:
    """A peer that reads nothing any more, and has as many questions as may wait, and these in addition."""
    raw = await joined(mailserver)
    await open_access(raw)
    everything = packet(raw, Query(2, DEFAULT_NETWORK_TOPIC, *EVER, What.ENVELOPES))
    raw.write(everything)
    await until(lambda: mailserver.connections[-1].is_full)
    raw.write(everything * MAX_WAITING_REQUESTS + b"".join(packet(raw, one) for one in questions))
    return raw


class Unread(Client):
    """One that reads nothing."""

    async def wait_turn(self, size: int) -> None:
        await asyncio.get_running_loop().create_future()


async def test_what_peers_have_sent_that_read_no_refusals_is_bounded_for_all_together(
    mailserver: Mailserver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(intake_bounds, "MAX_REFUSED_BYTES", 250_000)
    services, bounds = mailserver.services, IntakeBounds()

    def refused(number: int, held_bytes: int) -> Coroutine[None, None, None]:
        queue = RequestQueue(services.delivery, IdConversation(services.ids), bounds, SendRate())
        requester = services.requests.requester(f"192.0.2.{number}", NodeId(bytes([number]) * 64))
        too_long = Fetch(number, DEFAULT_NETWORK_TOPIC, []).encode() + bytes(MAX_QUESTION_BYTES)
        return queue.add(IdPacketCode.FETCH, too_long, requester, cast(Any, Unread()), held_bytes=held_bytes)

    waiting = [asyncio.create_task(refused(number, 100_000)) for number in (1, 2)]
    await until(lambda: bounds.refused.used_bytes == 200_000)
    with pytest.raises(RemoteProtocolError) as error:
        await refused(3, 100_000)
    waiting.append(asyncio.create_task(refused(4, RESERVED_BYTES)))
    await until(lambda: bounds.refused.used_bytes == 200_000 + RESERVED_BYTES)
    for task in waiting:
        task.cancel()
    await asyncio.wait(waiting)

    assert error.value.reason is DisconnectReason.SUBPROTOCOL_ERROR
    assert bounds.refused.used_bytes == 0


async def test_answers_come_in_short_packets_while_others_read_nothing(
    monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> None:
    monkeypatch.setattr(intake_bounds, "MAX_ANSWERS_BYTES", TARGET_PACKET_BYTES)
    bounds = IntakeBounds()
    envelopes = make_large_envelopes(400, 5000)
    everything = Query(2, DEFAULT_NETWORK_TOPIC, *EVER, What.ENVELOPES)
    longest = []
    async with running_mailserver(tmp_path_factory.mktemp("unread"), bounds=bounds) as mailserver:
        await fill(mailserver.store, envelopes)
        for is_alone in (False, True):
            if not is_alone:
                await stuck_peer(mailserver)
            raw = await joined(mailserver)
            await open_access(raw)
            raw.write(packet(raw, everything))
            found = 0
            sizes = []
            while not isinstance(answer := await hear(raw), Done):
                assert isinstance(answer, Envelopes)
                found += len(answer.envelopes)
                sizes.append(sum(len(each.raw) for each in answer.envelopes))
            assert found == len(envelopes)
            longest.append(max(sizes))
            mailserver.connections[0].abort("the test")
            await until(lambda: not bounds.answers.used_bytes)

    assert longest[0] <= RESERVED_BYTES < longest[1] <= TARGET_PACKET_BYTES
