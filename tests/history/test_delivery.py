"""mailserver.history.delivery: what is found, pages and packets, what it costs, and faults of ours."""

import asyncio
import contextlib
import logging
import sqlite3
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from mailserver.codec import rlp
from mailserver.codec.keccak import keccak256
from mailserver.errors import ConnectionLost, Rejection, StoreError
from mailserver.history import delivery as delivery_module
from mailserver.history import requests as requests_module
from mailserver.history.delivery import Delivery
from mailserver.limits.request_quotas import WORK_PER_ENVELOPE, RequestLimits
from mailserver.mail.completion import NO_ENVELOPE, Completion, Failure
from mailserver.mail.packing import TARGET_PACKET_BYTES
from mailserver.mail.request import Cursor, RequestId
from mailserver.metrics.registry import Metrics
from mailserver.net.sessions import Code
from mailserver.store.engine import search as search_module
from mailserver.store.interface import GoesOn, Page, Payer, Query, Raws
from mailserver.store.sqlite.reader import RowReader
from mailserver.store.sqlite.store import open_store
from mailserver.waku.bloom import FULL_BLOOM, bloom_of
from mailserver.waku.envelope import MAX_U32, MIN_SEALED_BYTES, Envelope, EnvelopeHash, mine
from mailserver.waku.packets import MAX_PACKET_BYTES, PacketCode
from mailserver.waku.payload import MAX_PADDING_BYTES, seal_asymmetric
from tests.history.answered import Client
from tests.history.desk import (
    KEY,
    SETTINGS,
    Desk,
    Time,
    clear_request,
    come_back_in,
    completion_of,
    cursor_at,
    request_id,
    requester_of,
)
from tests.mailservers import (
    NEWS,
    NO_REQUEST_LIMITS,
    NOW,
    SPORT,
    Clock,
    deployed_fields,
    fill,
    in_order,
    make_envelope,
    make_envelopes,
    sealed_request,
)
from tests.pairs import private_key
from tests.waiting import turns, until

# What is found


async def test_answer_goes_from_newest_to_oldest_byte_for_byte(desk: Desk) -> None:
    envelopes = make_envelopes(10)
    await fill(desk.store, envelopes[::-1])
    request = sealed_request(deployed_fields())

    outcome = await desk.answer(request.raw)

    assert [envelope.raw for envelope in desk.envelopes] == [envelope.raw for envelope in envelopes]
    assert outcome == completion_of(request, envelopes[-1])


async def test_nothing_found_is_a_completion_with_a_zero_hash(desk: Desk) -> None:
    request = sealed_request(deployed_fields())

    assert await desk.answer(request.raw) == Completion(request_id(request), EnvelopeHash(bytes(32)))
    assert desk.packets == []


async def test_topics_win_over_the_bloom_filter(desk: Desk) -> None:
    news, sport = make_envelopes(3), make_envelopes(3, first=10, topic=SPORT)
    await fill(desk.store, news + sport)

    await desk.answer(sealed_request(deployed_fields(topics=[SPORT], bloom=bloom_of([NEWS]))).raw)

    assert desk.envelopes == sport


@pytest.mark.parametrize("bloom", [b"", bytes(10), FULL_BLOOM])
async def test_bloom_beside_topics_may_be_anything(desk: Desk, bloom: bytes) -> None:
    await fill(desk.store, make_envelopes(3))

    outcome = await desk.answer(sealed_request(deployed_fields(bloom=bloom)).raw)

    assert isinstance(outcome, Completion)
    assert len(desk.envelopes) == 3


async def test_bloom_filter_finds_its_topics_only(desk: Desk) -> None:
    news, sport = make_envelopes(3), make_envelopes(3, first=10, topic=SPORT)
    await fill(desk.store, news + sport)

    await desk.answer(sealed_request(deployed_fields(topics=[], bloom=bloom_of([SPORT]))).raw)

    assert desk.envelopes == sport


async def test_full_bloom_filter_finds_everything(desk: Desk) -> None:
    everything = make_envelopes(3) + make_envelopes(3, first=10, topic=SPORT)
    await fill(desk.store, everything)

    await desk.answer(sealed_request(deployed_fields(topics=[], bloom=FULL_BLOOM)).raw)

    assert desk.envelopes == in_order(everything)


async def test_both_bounds_are_inclusive(desk: Desk) -> None:
    envelopes = make_envelopes(10)
    await fill(desk.store, envelopes)

    await desk.answer(sealed_request(deployed_fields(lower=NOW - 6, upper=NOW - 3)).raw)

    assert desk.envelopes == envelopes[3:7]


async def test_upper_0_means_now_and_a_minute_more(desk: Desk) -> None:
    within, beyond = make_envelope(1, created=NOW + 60), make_envelope(2, created=NOW + 61)
    await fill(desk.store, [within, beyond])

    await desk.answer(sealed_request(deployed_fields(upper=0)).raw)

    assert desk.envelopes == [within]


async def test_upper_may_be_the_last_second_there_is(desk: Desk) -> None:
    last = make_envelope(1, created=MAX_U32 - 50, ttl=50)
    await fill(desk.store, [last])
    request = sealed_request(deployed_fields(upper=MAX_U32, lower=MAX_U32 - 100))

    assert await desk.answer(request.raw) == completion_of(request, last)
    assert desk.envelopes == [last]


# Requests to our public key


def request_to_our_key(*, number: int = 0, expiry: int = NOW + 50, ttl: int = 50) -> Envelope:
    data = seal_asymmetric(
        deployed_fields(),
        KEY.public_key,
        ephemeral_key=private_key("ephemeral"),
        iv=bytes(16),
        padding=bytes(MAX_PADDING_BYTES),
        signing_key=private_key("client"),
    )
    return mine(expiry, ttl, bytes(4), data, target=0.0, first_nonce=number)


async def test_request_sealed_to_our_public_key_is_opened(desk: Desk) -> None:
    envelopes = make_envelopes(3)
    await fill(desk.store, envelopes)
    request = request_to_our_key()

    assert await desk.answer(request.raw) == completion_of(request, envelopes[-1])
    assert desk.envelopes == envelopes


async def test_request_to_our_public_key_is_answered_to_whoever_made_it_and_to_nobody_else(desk: Desk) -> None:
    await fill(desk.store, make_envelopes(3))
    request, other = request_to_our_key(), request_to_our_key(number=1)
    replayer = requester_of(NO_REQUEST_LIMITS, name="replayer")

    assert isinstance(await desk.answer(request.raw), Completion)
    assert await desk.answer(request.raw, replayer) == Failure(request_id(request), Rejection.REPLAYED.value)
    assert desk.envelopes == []
    assert isinstance(await desk.answer(request.raw), Completion)  # its own peer may have lost the answer
    assert isinstance(await desk.answer(other.raw, replayer), Completion)


async def test_request_that_all_can_read_is_answered_to_all(desk: Desk) -> None:
    request = sealed_request(deployed_fields())

    for name in ("client", "another"):
        answer = await desk.answer(request.raw, requester_of(NO_REQUEST_LIMITS, name=name))
        assert isinstance(answer, Completion)


async def test_old_request_to_our_public_key_is_answered(desk: Desk) -> None:
    """Phones have wrong clocks, and the deployed mailserver does not look at the time of a request."""
    old = request_to_our_key(expiry=NOW - 365 * 86_400)
    without_time = request_to_our_key(expiry=0, ttl=0)  # as the Nim client makes them

    assert isinstance(await desk.answer(old.raw), Completion)
    assert isinstance(await desk.answer(without_time.raw), Completion)


async def test_requests_whose_peers_are_remembered_are_bounded(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mailserver.history.opening.MAX_REMEMBERED_REQUESTS", 2)
    requests = [request_to_our_key(number=number) for number in range(3)]
    for request in requests:
        await desk.answer(request.raw)

    replayer = requester_of(NO_REQUEST_LIMITS, name="replayer")
    outcomes = [await desk.answer(request.raw, replayer) for request in reversed(requests)]

    assert [type(outcome) for outcome in outcomes] == [Failure, Failure, Completion]


# Limit and cursor


async def test_exact_fit_has_no_cursor(desk: Desk) -> None:
    envelopes = make_envelopes(5)
    await fill(desk.store, envelopes)
    request = sealed_request(deployed_fields(limit=5))

    assert await desk.answer(request.raw) == completion_of(request, envelopes[-1])
    assert desk.envelopes == envelopes


async def test_exactly_limit_envelopes_are_sent_and_a_cursor_if_one_more_remains(desk: Desk) -> None:
    envelopes = make_envelopes(6)
    await fill(desk.store, envelopes)
    request = sealed_request(deployed_fields(limit=5))

    assert await desk.answer(request.raw) == completion_of(request, envelopes[4], cursor_at(envelopes[4]))
    assert desk.envelopes == envelopes[:5]


@pytest.mark.parametrize("limit", [0, 51, 1000, MAX_U32])
async def test_limit_of_0_or_too_large_is_capped_and_a_cursor_returned(desk: Desk, limit: int) -> None:
    envelopes = make_envelopes(51)
    await fill(desk.store, envelopes)
    request = sealed_request(deployed_fields(limit=limit))

    assert await desk.answer(request.raw) == completion_of(request, envelopes[49], cursor_at(envelopes[49]))
    assert desk.envelopes == envelopes[:50]


@pytest.mark.parametrize("limit", [1, 2, 7, 50])
async def test_following_cursors_gives_everything_exactly_once(desk: Desk, limit: int) -> None:
    # Four envelopes in each second, so that pages end within a second, too.
    envelopes = in_order([make_envelope(number, created=NOW - number // 4) for number in range(60)])
    await fill(desk.store, envelopes)

    found: list[Envelope] = []
    pages = 0
    cursor: Cursor | None = None
    while cursor is not None or not pages:
        outcome = await desk.answer(sealed_request(deployed_fields(limit=limit, cursor=cursor)).raw)
        assert isinstance(outcome, Completion)
        found += desk.envelopes
        cursor = outcome.cursor
        pages += 1

    assert found == envelopes
    assert pages == -(-len(envelopes) // limit)


async def test_cursor_of_an_envelope_that_was_never_here_still_marks_its_place(desk: Desk) -> None:
    envelopes = make_envelopes(4)
    await fill(desk.store, envelopes)

    await desk.answer(sealed_request(deployed_fields(cursor=Cursor(NOW - 1, EnvelopeHash(bytes(32))))).raw)

    assert desk.envelopes == envelopes[2:]


async def test_cursor_behind_the_last_envelope_finds_nothing(desk: Desk) -> None:
    envelopes = make_envelopes(4)
    await fill(desk.store, envelopes)
    request = sealed_request(deployed_fields(cursor=cursor_at(envelopes[-1])))

    assert await desk.answer(request.raw) == completion_of(request, None)


# Packets


async def test_batch_0_gets_one_envelope_per_packet(desk: Desk) -> None:
    await fill(desk.store, make_envelopes(5))

    request = sealed_request(deployed_fields(batch=0))
    outcome = await desk.answer(request.raw)

    assert [len(packet) for packet in desk.packets] == [1] * 5
    assert outcome == completion_of(request, desk.envelopes[-1])


async def test_small_envelopes_share_a_packet(desk: Desk) -> None:
    await fill(desk.store, make_envelopes(50))

    await desk.answer(sealed_request(deployed_fields()).raw)

    assert [len(packet) for packet in desk.packets] == [50]


async def test_no_packet_is_longer_than_deployed_clients_take(desk: Desk) -> None:
    sizes = [10, MAX_PACKET_BYTES - 100, 20, 700_000, 400_000, 300_000, 90_000, 90_000, 90_000]
    envelopes = [make_envelope(number, created=NOW - number, data_bytes=size) for number, size in enumerate(sizes)]
    await fill(desk.store, envelopes)

    await desk.answer(sealed_request(deployed_fields()).raw)

    assert desk.envelopes == envelopes
    assert max(len(payload) for _, payload in desk.sent) <= MAX_PACKET_BYTES


@pytest.mark.parametrize(
    "data_bytes", [[300] * 600, [1000] * 600, [100_000, *[200] * 599], [*[MIN_SEALED_BYTES] * 500, *[5000] * 100]]
)
async def test_packets_are_as_full_as_they_may_be_however_long_envelopes_are(desk: Desk, data_bytes: list[int]) -> None:
    envelopes = [make_envelope(number, data_bytes=size) for number, size in enumerate(data_bytes)]
    await fill(desk.store, envelopes)
    large = desk.with_settings(replace(SETTINGS, max_limit=1000))

    await large.answer(sealed_request(deployed_fields()).raw)

    assert large.envelopes == in_order(envelopes)
    sizes = [len(payload) for _, payload in large.sent[:-1]]
    assert sum(sizes) / TARGET_PACKET_BYTES > 0.75 * (len(sizes) - 2)  # but for the last, and where lengths change
    # A turn is for what came of it, once there is something to go by; behind a long envelope, for another.
    assert sum(large.client.turns) == pytest.approx(sum(map(len, (payload for _, payload in large.sent))), rel=0.45)


async def test_tiny_envelopes_with_long_ones_between_are_not_looked_at_again_and_again(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    envelopes = [make_envelope(number, data_bytes=1 if number % 40 else 1200) for number in range(1000)]
    await fill(desk.store, envelopes)
    large = desk.with_settings(replace(SETTINGS, max_limit=1000))
    looked_at: list[int] = []
    read_some = RowReader.read

    async def counted(reader: RowReader, seqs: Sequence[int], max_bytes: int) -> Raws:
        looked_at.append(len(seqs))
        return await read_some(reader, seqs, max_bytes)

    monkeypatch.setattr(RowReader, "read", counted)

    await large.answer(sealed_request(deployed_fields()).raw)

    assert large.envelopes == in_order(envelopes)
    assert max(looked_at) <= 256
    assert sum(looked_at) <= 2 * len(envelopes)


async def test_next_packet_is_read_only_when_the_one_before_has_gone(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    await fill(desk.store, make_envelopes(50, data_bytes=60_000))
    gate = asyncio.Event()
    read: list[int] = []
    read_some = RowReader.read

    class Slow(Client):
        async def wait_turn(self, size: int) -> None:
            await super().wait_turn(size)
            if self.sent:
                await gate.wait()

    async def counted(reader: RowReader, seqs: Sequence[int], max_bytes: int) -> Raws:
        read.append(len(seqs))
        return await read_some(reader, seqs, max_bytes)

    monkeypatch.setattr(RowReader, "read", counted)
    slow = Slow()
    answering = asyncio.create_task(desk.delivery.answer(sealed_request(deployed_fields()).raw, slow, desk.requester))
    await until(lambda: len(slow.turns) == 2)
    await turns(200)
    held = len(slow.sent), len(read)
    gate.set()
    await answering

    assert held == (1, 1)
    assert len(slow.sent) == len(read) + 1 == 51


async def test_what_is_deleted_meanwhile_is_passed_over_and_the_cursor_leads_on(desk: Desk, tmp_path: Path) -> None:
    envelopes = make_envelopes(5)
    await fill(desk.store, envelopes)
    request = sealed_request(deployed_fields(limit=3, batch=0))

    class Deleting(Client):
        def send(self, code: Code, payload: bytes) -> None:
            if not self.sent:
                with contextlib.closing(sqlite3.connect(tmp_path / "mailserver.db")) as connection:
                    connection.execute("DELETE FROM envelopes WHERE created BETWEEN ? AND ?", (NOW - 2, NOW - 1))
                    connection.commit()
            super().send(code, payload)

    desk.client = Deleting()
    outcome = await desk.delivery.answer(request.raw, desk.client, desk.requester)

    assert desk.envelopes == envelopes[:1]
    assert isinstance(outcome, Completion)
    assert outcome.last_envelope_hash == envelopes[0].hash()
    assert outcome.cursor is not None
    await desk.answer(sealed_request(deployed_fields(cursor=outcome.cursor)).raw)
    assert desk.envelopes == envelopes[3:]


async def test_answer_ends_in_its_completion_also_where_its_last_envelope_is_damaged(
    desk: Desk, tmp_path: Path
) -> None:
    envelopes = make_envelopes(3)
    await fill(desk.store, envelopes)
    with contextlib.closing(sqlite3.connect(tmp_path / "mailserver.db")) as connection:
        connection.execute("UPDATE envelopes SET raw = x'c0ff' WHERE created = ?", (NOW - 1,))
        connection.commit()
    desk.client = Client()

    outcome = await desk.delivery.answer(sealed_request(deployed_fields(limit=2)).raw, desk.client, desk.requester)

    assert isinstance(outcome, Completion)
    assert outcome.last_envelope_hash == keccak256(b"\xc0\xff")
    assert outcome.cursor is not None
    assert outcome.cursor.hash[:16] == envelopes[1].hash()[:16]
    assert desk.client.sent[-1][0] is PacketCode.P2P_REQUEST_COMPLETE
    await desk.answer(sealed_request(deployed_fields(cursor=outcome.cursor)).raw)
    assert desk.envelopes == envelopes[2:]


async def test_other_requests_are_answered_while_one_client_does_not_read(desk: Desk) -> None:
    await fill(desk.store, make_envelopes(50, data_bytes=60_000))

    class Never(Client):
        async def wait_turn(self, size: int) -> None:
            await asyncio.Event().wait()

    request = sealed_request(deployed_fields()).raw
    stuck = [asyncio.create_task(desk.delivery.answer(request, Never(), desk.requester)) for _ in range(8)]
    outcome = await asyncio.wait_for(desk.answer(sealed_request(deployed_fields()).raw), 10)

    assert isinstance(outcome, Completion)
    assert len(desk.envelopes) == 50
    for task in stuck:
        task.cancel()
    await asyncio.gather(*stuck, return_exceptions=True)


@pytest.mark.parametrize("max_packet_bytes", [1, 1000, 5000])
async def test_packets_are_no_longer_than_the_client_takes_unless_an_envelope_is(
    desk: Desk, max_packet_bytes: int
) -> None:
    envelopes = make_envelopes(50, data_bytes=400)
    await fill(desk.store, envelopes)

    await desk.answer(sealed_request(deployed_fields()).raw, max_packet_bytes=max_packet_bytes)

    assert desk.envelopes == envelopes
    assert all(
        len(packet) == 1 or len(payload) <= max_packet_bytes
        for packet, (_, payload) in zip(desk.packets, desk.sent, strict=False)
    )
    size = len(envelopes[0].raw)
    assert max(map(len, desk.packets)) == max((max_packet_bytes - 3) // size, 1)


# Work of the store


@pytest.mark.parametrize("end", [StoreError("broken"), asyncio.CancelledError(), TimeoutError()], ids=repr)
async def test_what_the_store_has_done_counts_whatever_becomes_of_it(
    desk: Desk, time: Time, monkeypatch: pytest.MonkeyPatch, end: BaseException
) -> None:
    await fill(desk.store, make_envelopes(1))
    requester = requester_of(RequestLimits(envelopes_per_minute=100))  # 1,000 at once
    request = sealed_request(deployed_fields()).raw

    async def work_in_vain(query: Query, limit: int, *, payer: Payer, goes_on: GoesOn) -> Page:
        payer.charge(1000 * WORK_PER_ENVELOPE)
        raise end

    with monkeypatch.context() as patch, contextlib.suppress(asyncio.CancelledError):
        patch.setattr(desk.store, "find", work_in_vain)
        await desk.answer(request, requester)

    assert await desk.answer(request, requester) == Failure(RequestId(keccak256(request)), come_back_in(1))


def in_the_form_of_the_specification(cursor: Cursor | None, *topics: rlp.Encodable) -> bytes:
    fields: list[rlp.Encodable] = [b"", b"", bloom_of([SPORT]), b""]
    if cursor is not None or topics:
        fields.append(b"" if cursor is None else cursor.encode())
    return sealed_request(rlp.encode([*fields, *topics])).raw


FORMS_BY_BLOOM: dict[str, Callable[[Cursor | None], bytes]] = {
    "deployed": lambda cursor: sealed_request(deployed_fields(topics=[], bloom=bloom_of([SPORT]), cursor=cursor)).raw,
    "one envelope a packet": lambda cursor: (
        sealed_request(deployed_fields(topics=[], bloom=bloom_of([SPORT]), cursor=cursor, batch=0)).raw
    ),
    "specification": in_the_form_of_the_specification,
    "specification with topics": lambda cursor: in_the_form_of_the_specification(cursor, []),
    "clear": lambda cursor: clear_request(
        topics=[], bloom=bloom_of([SPORT]), cursor=b"" if cursor is None else cursor.encode()
    ),
}


@pytest.mark.parametrize("form", FORMS_BY_BLOOM)
async def test_page_by_bloom_filter_that_takes_too_much_work_ends_early_and_leads_on(
    desk: Desk, form: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, requests_module.__name__)
    monkeypatch.setattr(delivery_module, "PAGE_WORK", 0)
    monkeypatch.setattr(search_module, "MAX_ROWS", 7)
    monkeypatch.setattr(search_module, "MIN_ROWS", 7)
    monkeypatch.setattr(search_module, "MAX_PAIRS", -1)
    envelopes = [make_envelope(number, topic=SPORT if number % 50 == 9 else NEWS) for number in range(100)]
    await fill(desk.store, envelopes)
    wanted = [envelope for envelope in in_order(envelopes) if envelope.topic == SPORT]
    request = FORMS_BY_BLOOM[form]

    found: list[Envelope] = []
    cursors: list[Cursor | None] = [Cursor(NOW + 1, EnvelopeHash(bytes(32)))]
    while cursors[-1] is not None:
        outcome = await desk.answer(request(cursors[-1] if len(cursors) > 1 else None))
        assert isinstance(outcome, Completion)
        assert outcome.cursor is None or outcome.cursor < cursors[-1]
        assert (outcome.last_envelope_hash == NO_ENVELOPE) == (not desk.envelopes)
        found += desk.envelopes
        cursors.append(outcome.cursor)

    assert found == wanted
    assert len(cursors) > 10
    early = [message for message in caplog.messages if " early=yes " in message]
    assert len(early) == len(cursors) - 2


async def test_page_by_bloom_filter_that_takes_too_long_ends_early(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(delivery_module, "PAGE_TIME_S", 0.0)
    monkeypatch.setattr(search_module, "MAX_ROWS", 7)
    monkeypatch.setattr(search_module, "MIN_ROWS", 7)
    monkeypatch.setattr(search_module, "MAX_PAIRS", -1)
    await fill(desk.store, make_envelopes(100))

    early = await desk.answer(sealed_request(deployed_fields(topics=[], bloom=bloom_of([SPORT]))).raw)
    exact = await desk.answer(sealed_request(deployed_fields(topics=[SPORT, NEWS])).raw)

    assert isinstance(early, Completion)
    assert early.cursor is not None
    assert isinstance(exact, Completion)
    assert exact.cursor is not None
    assert len(desk.envelopes) == SETTINGS.max_limit


# Faults of ours, and of the connection


async def test_failing_store_is_told_to_the_client_and_logged_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with open_store(tmp_path / "mailserver.db") as store:
        desk = Desk(store, Delivery(store, SETTINGS, Clock(), metrics=Metrics()))
        (tmp_path / "mailserver.db").write_bytes(b"")
        (tmp_path / "mailserver.db-wal").write_bytes(b"")
        request = sealed_request(deployed_fields())

        outcome = await desk.answer(request.raw)

    assert outcome == Failure(request_id(request), Rejection.STORE_UNAVAILABLE.value)
    errors = [record for record in caplog.records if record.levelno >= logging.ERROR]
    assert [(record.name, record.exc_info) for record in errors] == [(requests_module.__name__, None)]


async def test_search_that_takes_too_long_is_given_up(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(delivery_module, "FIND_TIMEOUT_S", 0.0)
    await fill(desk.store, make_envelopes(3))
    request = sealed_request(deployed_fields())

    outcome = await desk.answer(request.raw)

    assert outcome == Failure(request_id(request), Rejection.STORE_UNAVAILABLE.value)
    monkeypatch.undo()
    assert isinstance(await desk.answer(request.raw), Completion)


async def test_client_that_is_gone_ends_the_answer(desk: Desk) -> None:
    await fill(desk.store, make_envelopes(3))

    class Gone(Client):
        def send(self, code: Code, payload: bytes) -> None:
            raise ConnectionLost(None, "gone")

    with pytest.raises(ConnectionLost):
        await desk.delivery.answer(sealed_request(deployed_fields()).raw, Gone(), desk.requester)
    with pytest.raises(ConnectionLost):
        await desk.delivery.answer(b"\xff", Gone(), desk.requester)
