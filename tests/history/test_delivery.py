"""mailserver.history.delivery, with a real store; what it sends is taken down in order."""

import asyncio
import contextlib
import logging
import sqlite3
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

from mailserver.codec import aes, rlp
from mailserver.codec.keccak import keccak256
from mailserver.errors import ConnectionLost, Rejection, RequestRejected, StoreError
from mailserver.history import delivery as delivery_module
from mailserver.history import requests as requests_module
from mailserver.history.delivery import MAX_REQUEST_BYTES, Delivery, DeliverySettings
from mailserver.limits.admission import NOBODY_ALLOWED, Allowed
from mailserver.limits.request_quotas import (
    ENVELOPE_BURST_MINUTES,
    LEAST_PAGE_COST,
    REQUEST_BURST_MINUTES,
    WORK_PER_ENVELOPE,
    Requester,
    RequestLimiter,
    RequestLimits,
)
from mailserver.mail.completion import NO_ENVELOPE, Completion, CompletionFormat, Failure, decode_completion
from mailserver.mail.packing import TARGET_PACKET_BYTES
from mailserver.mail.request import MAX_REQUEST_TOPICS, Cursor, RequestId
from mailserver.metrics.registry import Metrics
from mailserver.store.interface import GoesOn, Page, Payer, Query, Raws
from mailserver.store.sqlite import search as search_module
from mailserver.store.sqlite.reader import RowReader
from mailserver.store.sqlite.store import SqliteStore, open_store
from mailserver.waku.bloom import FULL_BLOOM, bloom_of
from mailserver.waku.envelope import LEAST_SEALED_BYTES, MAX_U32, Envelope, EnvelopeHash, Topic, decode_envelopes, mine
from mailserver.waku.packets import MAX_PACKET_BYTES, PacketCode
from mailserver.waku.payload import MAX_PADDING_BYTES, seal_asymmetric, seal_symmetric
from tests.history.answered import Client
from tests.mailservers import (
    NEWS,
    NO_REQUEST_LIMITS,
    NOW,
    PASSWORD_KEY,
    SPORT,
    Clock,
    deployed_fields,
    fill,
    in_order,
    make_envelope,
    make_envelopes,
    sealed_request,
)
from tests.pairs import digest, private_key
from tests.properties import settings
from tests.waiting import DEADLINE_S, turns, until

KEY = private_key("mailserver")
SETTINGS = DeliverySettings(PASSWORD_KEY, KEY, max_limit=50)
CLEAR_ID = b"0123456789abcdef0123456789abcdef"
ANOTHER_TOPIC = Topic(b"\x01\x02\x03\x04")


def requester_of(
    limits: RequestLimits,
    *,
    name: str = "client",
    limiter: RequestLimiter | None = None,
    allowed: Allowed = NOBODY_ALLOWED,
) -> Requester:
    """One who has these limits."""
    limiter = limiter or RequestLimiter(limits, NO_REQUEST_LIMITS, allowed)
    return limiter.requester("192.0.2.1", private_key(name).public_key)


@dataclass
class Desk:
    """A delivery, its store, and a client."""

    store: SqliteStore
    delivery: Delivery
    requester: Requester = field(default_factory=lambda: requester_of(NO_REQUEST_LIMITS))
    client: Client = field(default_factory=Client)

    @property
    def sent(self) -> list[tuple[PacketCode, bytes]]:
        return self.client.sent

    def with_settings(self, settings: DeliverySettings) -> "Desk":
        """Another one over the same store."""
        return Desk(self.store, Delivery(self.store, settings, Clock(), metrics=Metrics()))

    async def answer(
        self, payload: bytes, requester: Requester | None = None, *, max_packet_bytes: int = TARGET_PACKET_BYTES
    ) -> Completion | Failure:
        """Have a request answered; return how the client reads the completion."""
        self.client = Client()
        outcome = await self.delivery.answer(
            payload, self.client, requester or self.requester, max_packet_bytes=max_packet_bytes
        )
        codes = [code for code, _ in self.sent]
        assert codes == [PacketCode.P2P_MESSAGE] * (len(codes) - 1) + [PacketCode.P2P_REQUEST_COMPLETE]
        heard = decode_completion(self.sent[-1][1])
        assert heard == outcome
        return heard

    @property
    def packets(self) -> list[list[Envelope]]:
        """The envelopes of each packet of the last answer."""
        return [decode_envelopes(payload) for _, payload in self.sent[:-1]]

    @property
    def envelopes(self) -> list[Envelope]:
        return [envelope for packet in self.packets for envelope in packet]


@pytest.fixture
async def desk(tmp_path: Path) -> AsyncIterator[Desk]:
    async with open_store(tmp_path / "mailserver.db") as store:
        yield Desk(store, Delivery(store, SETTINGS, Clock(), metrics=Metrics()))


def request_id(envelope: Envelope) -> RequestId:
    return RequestId(envelope.hash())


def completion_of(request: Envelope, last: Envelope | None, cursor: Cursor | None = None) -> Completion:
    return Completion(request_id(request), NO_ENVELOPE if last is None else last.hash(), cursor)


def cursor_at(envelope: Envelope) -> Cursor:
    return Cursor(envelope.created, envelope.hash())


def clear_request(**changes: rlp.Encodable) -> bytes:
    """A request in the clear: `[id, lower, upper, limit, cursor, bloom, topics]`."""
    fields: dict[str, rlp.Encodable] = {
        "id": CLEAR_ID,
        "lower": b"",
        "upper": b"",
        "limit": b"",
        "cursor": b"",
        "bloom": b"",
        "topics": [NEWS],
    }
    return rlp.encode(list((fields | changes).values()))


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


# Forms


async def test_form_of_the_specification_is_read(desk: Desk) -> None:
    envelopes = make_envelopes(3)
    await fill(desk.store, envelopes)
    lower, upper, limit = rlp.encode_uint(NOW - 100), rlp.encode_uint(NOW), b"\x02"
    forms: list[list[rlp.Encodable]] = [
        [lower, upper, FULL_BLOOM, limit],
        [lower, upper, FULL_BLOOM, limit, b""],
        [lower, upper, b"", limit, b"", [NEWS]],
        [b"\x00" + lower[:3], upper, FULL_BLOOM, b"\x00\x00\x00\x02"],
    ]

    for form in forms:
        request = sealed_request(rlp.encode(form))

        assert await desk.answer(request.raw) == completion_of(request, envelopes[1], cursor_at(envelopes[1]))
        assert desk.envelopes == envelopes[:2]


async def test_cursor_in_the_form_of_the_specification_is_followed(desk: Desk) -> None:
    envelopes = make_envelopes(3)
    await fill(desk.store, envelopes)
    cursor = cursor_at(envelopes[0]).encode()

    await desk.answer(sealed_request(rlp.encode([b"", b"", FULL_BLOOM, b"", cursor])).raw)

    assert desk.envelopes == envelopes[1:]


async def test_request_in_the_clear_is_answered_under_its_own_id(desk: Desk) -> None:
    envelopes = make_envelopes(3)
    await fill(desk.store, envelopes)

    outcome = await desk.answer(clear_request())

    assert outcome == Completion(RequestId(CLEAR_ID), envelopes[-1].hash())
    assert desk.envelopes == envelopes


async def test_request_in_the_clear_is_refused_where_that_is_set(desk: Desk) -> None:
    strict = desk.with_settings(replace(SETTINGS, allow_clear=False))

    outcome = await strict.answer(clear_request())

    assert outcome == Failure(RequestId(CLEAR_ID), Rejection.CLEAR_REFUSED.value)


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
    monkeypatch.setattr("mailserver.history.delivery.MAX_REMEMBERED_REQUESTS", 2)
    requests = [request_to_our_key(number=number) for number in range(3)]
    for request in requests:
        await desk.answer(request.raw)

    replayer = requester_of(NO_REQUEST_LIMITS, name="replayer")
    outcomes = [await desk.answer(request.raw, replayer) for request in reversed(requests)]

    assert [type(outcome) for outcome in outcomes] == [Failure, Failure, Completion]


async def test_signed_request_is_answered_like_any_other(desk: Desk) -> None:
    await fill(desk.store, make_envelopes(1))
    data = seal_symmetric(
        deployed_fields(),
        PASSWORD_KEY,
        nonce=bytes(12),
        padding=bytes(MAX_PADDING_BYTES),
        signing_key=private_key("client"),
    )

    await desk.answer(mine(NOW + 50, 50, bytes(4), data, target=0.0).raw)

    assert len(desk.envelopes) == 1


# Completions


async def test_completion_is_a_byte_string_of_64_bytes_and_100_with_a_cursor(desk: Desk) -> None:
    envelopes = make_envelopes(3)
    await fill(desk.store, envelopes)
    whole, part = sealed_request(deployed_fields()), sealed_request(deployed_fields(limit=2))

    await desk.answer(whole.raw)
    without = rlp.decode(desk.sent[-1][1])
    await desk.answer(part.raw)
    cursor = rlp.decode(desk.sent[-1][1])

    last = envelopes[1]
    assert without == whole.hash() + envelopes[-1].hash()
    assert cursor == part.hash() + last.hash() + last.created.to_bytes(4, "big") + last.hash()


async def test_completion_is_a_list_where_that_is_set(desk: Desk) -> None:
    envelopes = make_envelopes(3)
    await fill(desk.store, envelopes)
    listing = desk.with_settings(replace(SETTINGS, completion_format=CompletionFormat.LIST))
    request = sealed_request(deployed_fields(limit=2))

    await listing.answer(request.raw)

    last = envelopes[1]
    assert rlp.decode(listing.sent[-1][1]) == [request.hash(), last.hash(), cursor_at(last).encode()]


async def test_failure_is_a_byte_string_in_both_formats(desk: Desk) -> None:
    request = sealed_request(b"no list")
    expected = b"ERROR=" + request.hash() + Rejection.MALFORMED.value.encode()

    for form in CompletionFormat:
        failing = desk.with_settings(replace(SETTINGS, completion_format=form))
        await failing.answer(request.raw)

        assert rlp.decode(failing.sent[-1][1]) == expected


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
    "data_bytes", [[300] * 600, [1000] * 600, [100_000, *[200] * 599], [*[LEAST_SEALED_BYTES] * 500, *[5000] * 100]]
)
async def test_packets_are_as_full_as_they_may_be_however_long_envelopes_are(desk: Desk, data_bytes: list[int]) -> None:
    envelopes = [make_envelope(number, data_bytes=size) for number, size in enumerate(data_bytes)]
    await fill(desk.store, envelopes)
    large = desk.with_settings(replace(SETTINGS, max_limit=1000))

    await large.answer(sealed_request(deployed_fields()).raw)

    assert large.envelopes == in_order(envelopes)
    sizes = [len(payload) for _, payload in large.sent[:-1]]
    assert sum(sizes) / TARGET_PACKET_BYTES > 0.75 * (len(sizes) - 2)  # but for the last, and where lengths change
    # A turn is for what came of it, once there is something to go by.
    assert sum(large.client.turns) == pytest.approx(sum(map(len, (payload for _, payload in large.sent))), rel=0.35)


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
        async def turn(self, size: int) -> None:
            await super().turn(size)
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
        def send(self, code: PacketCode, payload: bytes) -> None:
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
        async def turn(self, size: int) -> None:
            await asyncio.Event().wait()

    request = sealed_request(deployed_fields()).raw
    stuck = [asyncio.create_task(desk.delivery.answer(request, Never(), desk.requester)) for _ in range(8)]
    outcome = await asyncio.wait_for(desk.answer(sealed_request(deployed_fields()).raw), 10)

    assert isinstance(outcome, Completion)
    assert len(desk.envelopes) == 50
    for task in stuck:
        task.cancel()
    await asyncio.gather(*stuck, return_exceptions=True)


# Refusals

SEALED_FAULTS: dict[str, tuple[bytes, Rejection]] = {
    "not RLP": (b"\xff\xff", Rejection.MALFORMED),
    "nothing": (b"", Rejection.MALFORMED),
    "a string": (rlp.encode(b"request"), Rejection.MALFORMED),
    "an empty list": (b"\xc0", Rejection.MALFORMED),
    "three fields": (rlp.encode([b"", b"", FULL_BLOOM]), Rejection.MALFORMED),
    "RLP bomb": (b"\xc1" * 200, Rejection.MALFORMED),
    "lower is a list": (rlp.encode([[], b"", FULL_BLOOM, [NEWS], b"", b"", b""]), Rejection.MALFORMED),
    "upper of 5 bytes": (rlp.encode([b"", b"\x01" * 5, FULL_BLOOM, [NEWS], b"", b"", b""]), Rejection.MALFORMED),
    "limit is a list": (rlp.encode([b"", b"", FULL_BLOOM, [NEWS], [], b"", b""]), Rejection.MALFORMED),
    "bloom of 63 bytes": (deployed_fields(topics=[], bloom=bytes(63)), Rejection.BAD_BLOOM),
    "bloom of 65 bytes": (deployed_fields(topics=[], bloom=bytes(65)), Rejection.BAD_BLOOM),
    "bloom is a list": (rlp.encode([b"", b"", [], [], b"", b"", b""]), Rejection.MALFORMED),
    "topic of 3 bytes": (deployed_fields(topics=[NEWS, b"abc"]), Rejection.BAD_TOPIC),
    "topic of 5 bytes": (deployed_fields(topics=[b"abcde"]), Rejection.BAD_TOPIC),
    "topic is a list": (rlp.encode([b"", b"", b"", [[NEWS]], b"", b"", b""]), Rejection.BAD_TOPIC),
    "neither topics nor bloom": (deployed_fields(topics=[]), Rejection.EMPTY_FILTER),
    "lower above upper": (deployed_fields(lower=11, upper=10), Rejection.BAD_RANGE),
    "lower beyond now": (deployed_fields(lower=NOW + 61), Rejection.BAD_RANGE),
    "cursor of 35 bytes": (deployed_fields(cursor=bytes(35)), Rejection.BAD_CURSOR),
    "cursor of 37 bytes": (deployed_fields(cursor=bytes(37)), Rejection.BAD_CURSOR),
    "cursor is a list": (rlp.encode([b"", b"", b"", [NEWS], b"", [b"x"], b""]), Rejection.BAD_CURSOR),
    "too many topics": (
        deployed_fields(topics=[n.to_bytes(4, "big") for n in range(MAX_REQUEST_TOPICS + 1)]),
        Rejection.TOO_MANY_TOPICS,
    ),
}


@pytest.mark.parametrize("fault", SEALED_FAULTS)
async def test_sealed_request_that_is_wrong_is_told_so_under_its_id(desk: Desk, fault: str) -> None:
    plaintext, rejection = SEALED_FAULTS[fault]
    request = sealed_request(plaintext)

    assert await desk.answer(request.raw) == Failure(request_id(request), rejection.value)
    assert isinstance(await desk.answer(sealed_request(deployed_fields()).raw), Completion)


async def test_as_many_topics_as_the_specification_allows_are_taken(desk: Desk) -> None:
    topics = [n.to_bytes(4, "big") for n in range(MAX_REQUEST_TOPICS - 1)]
    envelopes = make_envelopes(2)
    await fill(desk.store, envelopes)

    outcome = await desk.answer(sealed_request(deployed_fields(topics=[*topics, NEWS])).raw)

    assert isinstance(outcome, Completion)
    assert desk.envelopes == envelopes


async def test_request_sealed_with_another_password_is_told_so(desk: Desk) -> None:
    request = sealed_request(deployed_fields(), key=digest("another password"))

    assert await desk.answer(request.raw) == Failure(request_id(request), Rejection.UNDECRYPTABLE.value)


@pytest.mark.parametrize("size", [0, 11, 12, 27, 28, 112, 113, 300])
async def test_envelope_with_anything_inside_is_undecryptable(desk: Desk, size: int) -> None:
    request = make_envelope(1, data_bytes=size)

    assert await desk.answer(request.raw) == Failure(request_id(request), Rejection.UNDECRYPTABLE.value)


async def test_proof_of_work_is_asked_of_sealed_requests_only(desk: Desk) -> None:
    strict = desk.with_settings(replace(SETTINGS, min_request_pow=0.01))
    lazy = sealed_request(deployed_fields(), ttl=50)
    worked = mine(NOW + 50, 50, bytes(4), lazy.data, target=0.01)

    assert await strict.answer(lazy.raw) == Failure(request_id(lazy), Rejection.POW_TOO_LOW.value)
    assert isinstance(await strict.answer(worked.raw), Completion)
    assert isinstance(await strict.answer(clear_request()), Completion)


async def test_request_envelope_without_times_is_taken_as_some_clients_send_it(desk: Desk) -> None:
    request = sealed_request(deployed_fields(), ttl=0)

    assert (request.expiry, request.ttl) == (0, 0)
    assert isinstance(await desk.answer(request.raw), Completion)


CLEAR_FAULTS: dict[str, tuple[bytes, Rejection]] = {
    "bloom of 63 bytes": (clear_request(topics=[], bloom=bytes(63)), Rejection.BAD_BLOOM),
    "topics is a string": (clear_request(topics=b"topics"), Rejection.MALFORMED),
    "topic of 3 bytes": (clear_request(topics=[b"abc"]), Rejection.BAD_TOPIC),
    "neither topics nor bloom": (clear_request(topics=[]), Rejection.EMPTY_FILTER),
    "lower above upper": (clear_request(lower=b"\x02", upper=b"\x01"), Rejection.BAD_RANGE),
    "cursor of 1 byte": (clear_request(cursor=b"\x01"), Rejection.BAD_CURSOR),
    "limit of 5 bytes": (clear_request(limit=b"\x01" * 5), Rejection.MALFORMED),
}


@pytest.mark.parametrize("fault", CLEAR_FAULTS)
async def test_clear_request_that_is_wrong_is_told_so_under_its_id(desk: Desk, fault: str) -> None:
    payload, rejection = CLEAR_FAULTS[fault]

    assert await desk.answer(payload) == Failure(RequestId(CLEAR_ID), rejection.value)


GARBAGE = [
    b"",
    b"\x80",
    b"\xc0",
    b"\xff" * 10,
    b"\xc1" * 1000,
    b"\xbf" + b"\xff" * 8,
    rlp.encode([b""] * 5),
    rlp.encode([CLEAR_ID] * 6),
    rlp.encode([CLEAR_ID[:31]] * 7),
    b"\xf9\x0b\xb8" + b"\x80" * 3000,
    bytes(MAX_REQUEST_BYTES + 1),
]


@pytest.mark.parametrize("payload", GARBAGE, ids=lambda payload: f"{len(payload)} bytes of {payload[:2].hex()}")
async def test_garbage_is_told_so_under_the_hash_of_the_packet(desk: Desk, payload: bytes) -> None:
    expected = Failure(RequestId(keccak256(payload)), Rejection.MALFORMED.value)

    assert await desk.answer(payload) == expected


async def test_every_truncation_of_each_form_is_answered(desk: Desk) -> None:
    plaintext = deployed_fields(lower=1, upper=NOW, bloom=FULL_BLOOM, limit=3, cursor=bytes(36))
    payloads = [clear_request()[:end] for end in range(len(clear_request()))]
    payloads += [sealed_request(plaintext[:end]).raw for end in range(len(plaintext))]
    sealed = sealed_request(plaintext).raw
    payloads += [sealed[:end] for end in range(0, len(sealed), 7)]

    for payload in payloads:
        assert isinstance(await desk.answer(payload), Failure)


async def test_refusal_carries_the_id_of_a_request_that_is_readable(desk: Desk) -> None:
    request = sealed_request(deployed_fields())
    rejected = RequestRejected(Rejection.TOO_MANY_WAITING, retry_after_s=7)

    for payload in (request.raw, clear_request(), b"\xff"):
        await desk.delivery.refuse(payload, rejected, desk.client, desk.requester.node_id)

    message = Rejection.TOO_MANY_WAITING.value + ": come back in 7 s"
    assert {code for code, _ in desk.sent} == {PacketCode.P2P_REQUEST_COMPLETE}
    assert [decode_completion(payload) for _, payload in desk.sent] == [
        Failure(request_id(request), message),
        Failure(RequestId(CLEAR_ID), message),
        Failure(RequestId(keccak256(b"\xff")), message),
    ]


# Limits. What they are is tested with `limits.request_quotas`; here, what they do to requests.


@dataclass
class Time:
    """Monotonic seconds, which stand still unless they are moved: buckets do not fill by themselves."""

    now: float = 1000.0


@pytest.fixture
def time(monkeypatch: pytest.MonkeyPatch) -> Time:
    """The time that limits go by."""
    time = Time()
    admit, take, give = Requester.admit, Requester.take, Requester.give

    def check(now: float) -> None:
        assert now == pytest.approx(asyncio.get_running_loop().time(), abs=DEADLINE_S)

    def admit_then(requester: Requester, cursor: Cursor | None, now: float) -> float:
        check(now)
        return admit(requester, cursor, time.now)

    def take_then(requester: Requester, envelopes: float, now: float) -> None:
        check(now)
        take(requester, envelopes, time.now)

    def give_then(requester: Requester, cursor: Cursor, now: float) -> None:
        check(now)
        give(requester, cursor, time.now)

    for name, then in (("admit", admit_then), ("take", take_then), ("give", give_then)):
        monkeypatch.setattr(Requester, name, then)
    return time


SIX_A_MINUTE = RequestLimits(requests_per_minute=6)
BURST = 6 * REQUEST_BURST_MINUTES


def come_back_in(seconds: int) -> str:
    """What a client over its limit is told."""
    return f"{Rejection.RATE_LIMITED.value}: come back in {seconds} s"


async def test_client_over_its_requests_is_told_when_to_come_back_and_answered_then(desk: Desk, time: Time) -> None:
    await fill(desk.store, make_envelopes(2))
    requester = requester_of(SIX_A_MINUTE)
    for number in range(BURST):
        answered = await desk.answer(sealed_request(deployed_fields(), number=number).raw, requester)
        assert isinstance(answered, Completion)
    request = sealed_request(deployed_fields(), number=BURST)

    assert await desk.answer(request.raw, requester) == Failure(request_id(request), come_back_in(10))
    assert desk.packets == []
    time.now += 3.5
    assert await desk.answer(request.raw, requester) == Failure(request_id(request), come_back_in(7))
    time.now += 6.5

    assert isinstance(await desk.answer(request.raw, requester), Completion)
    assert len(desk.envelopes) == 2


@pytest.mark.usefixtures("time")
async def test_refusal_for_the_number_of_requests_is_logged_below_the_default_level(
    desk: Desk, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, requests_module.__name__)
    requester = requester_of(SIX_A_MINUTE)

    for _ in range(BURST + 1):
        await desk.answer(clear_request(), requester)

    assert [record.levelno for record in caplog.records] == [logging.INFO] * BURST + [logging.DEBUG]
    assert f"peer={private_key('client').public_key.hex()[:8]} " in caplog.messages[-1]
    assert "10 s too early" in caplog.messages[-1]


@pytest.mark.usefixtures("time")
async def test_refused_request_in_the_clear_is_told_under_its_own_id(desk: Desk) -> None:
    requester = requester_of(SIX_A_MINUTE)
    for _ in range(BURST):
        await desk.answer(clear_request(), requester)

    assert await desk.answer(clear_request(), requester) == Failure(RequestId(CLEAR_ID), come_back_in(10))


@pytest.mark.usefixtures("time")
async def test_following_ones_own_cursors_is_no_new_request(desk: Desk) -> None:
    envelopes = make_envelopes(30)
    await fill(desk.store, envelopes)
    requester = requester_of(SIX_A_MINUTE)
    outcome = await desk.answer(sealed_request(deployed_fields(limit=1)).raw, requester)
    found = desk.envelopes
    for _ in range(BURST - 1):
        await desk.answer(sealed_request(deployed_fields(limit=1)).raw, requester)

    while isinstance(outcome, Completion) and outcome.cursor is not None:
        request = sealed_request(deployed_fields(limit=1, cursor=outcome.cursor))
        outcome = await desk.answer(request.raw, requester)
        found += desk.envelopes

    assert isinstance(outcome, Completion)
    assert found == envelopes
    fresh = sealed_request(deployed_fields())
    assert await desk.answer(fresh.raw, requester) == Failure(request_id(fresh), come_back_in(10))


@pytest.mark.usefixtures("time")
async def test_cursor_that_one_was_not_given_is_a_new_request(desk: Desk) -> None:
    envelopes = make_envelopes(5)
    await fill(desk.store, envelopes)
    limiter = RequestLimiter(SIX_A_MINUTE, NO_REQUEST_LIMITS, NOBODY_ALLOWED)
    mine_, others = (requester_of(SIX_A_MINUTE, name=name, limiter=limiter) for name in ("one", "another"))
    outcome = await desk.answer(sealed_request(deployed_fields(limit=2)).raw, others)
    assert isinstance(outcome, Completion)
    for _ in range(BURST):
        await desk.answer(sealed_request(deployed_fields()).raw, mine_)

    following = sealed_request(deployed_fields(cursor=outcome.cursor))

    assert await desk.answer(following.raw, mine_) == Failure(request_id(following), come_back_in(10))
    assert isinstance(await desk.answer(following.raw, others), Completion)
    assert desk.envelopes == envelopes[2:]


JUNK = {
    "undecryptable": sealed_request(deployed_fields(), key=digest("another password")).raw,
    "malformed inside": sealed_request(b"nonsense").raw,
    "neither topics nor bloom": clear_request(topics=[]),
    "no request at all": b"\xff",
}


@pytest.mark.parametrize("junk", JUNK)
@pytest.mark.usefixtures("time")
async def test_junk_counts_as_requests(desk: Desk, junk: str) -> None:
    requester = requester_of(SIX_A_MINUTE)

    outcomes = [await desk.answer(JUNK[junk], requester) for _ in range(BURST + 1)]
    honest = sealed_request(deployed_fields())

    messages = [outcome.message for outcome in outcomes if isinstance(outcome, Failure)]
    assert come_back_in(10) not in messages[:BURST]
    assert messages[BURST:] == [come_back_in(10)]
    assert await desk.answer(honest.raw, requester) == Failure(request_id(honest), come_back_in(10))


ONE_A_SECOND = RequestLimits(envelopes_per_minute=60)


async def test_what_the_store_has_to_do_counts_also_if_nothing_is_found(desk: Desk, time: Time) -> None:
    await fill(desk.store, [make_envelope(number, data_bytes=1) for number in range(2000)])
    requester = requester_of(RequestLimits(envelopes_per_minute=11))  # 110 at once, and a page costs 100 at least
    topics = [number.to_bytes(4, "big") for number in range(1, 1001)]

    request = sealed_request(deployed_fields(topics=topics)).raw  # 1,000 pairs, as much as 140 envelopes

    assert isinstance(await desk.answer(request, requester), Completion)
    assert isinstance(await desk.answer(request, requester), Failure)
    assert desk.envelopes == []


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
    monkeypatch.setattr(search_module, "LEAST_ROWS", 7)
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
    monkeypatch.setattr(search_module, "LEAST_ROWS", 7)
    monkeypatch.setattr(search_module, "MAX_PAIRS", -1)
    await fill(desk.store, make_envelopes(100))

    early = await desk.answer(sealed_request(deployed_fields(topics=[], bloom=bloom_of([SPORT]))).raw)
    exact = await desk.answer(sealed_request(deployed_fields(topics=[SPORT, NEWS])).raw)

    assert isinstance(early, Completion)
    assert early.cursor is not None
    assert isinstance(exact, Completion)
    assert exact.cursor is not None
    assert len(desk.envelopes) == SETTINGS.max_limit


ENVELOPE_BURST = 60 * ENVELOPE_BURST_MINUTES


async def test_client_over_its_envelopes_is_told_when_to_come_back_also_with_its_own_cursor(
    desk: Desk, time: Time
) -> None:
    envelopes = make_envelopes(900)
    await fill(desk.store, envelopes)
    large = desk.with_settings(replace(SETTINGS, max_limit=400))
    requester = requester_of(ONE_A_SECOND)

    first = await large.answer(sealed_request(deployed_fields()).raw, requester)
    assert isinstance(first, Completion)
    second = await large.answer(sealed_request(deployed_fields(cursor=first.cursor)).raw, requester)
    assert isinstance(second, Completion)
    third = sealed_request(deployed_fields(cursor=second.cursor))

    owed = 800 - ENVELOPE_BURST
    assert await large.answer(third.raw, requester) == Failure(request_id(third), come_back_in(owed + 1))
    time.now += owed + 1
    assert isinstance(await large.answer(third.raw, requester), Completion)
    assert large.envelopes == envelopes[800:]


@pytest.mark.usefixtures("time")
async def test_pages_with_little_in_them_cost_something_too(desk: Desk) -> None:
    requester = requester_of(ONE_A_SECOND)

    for _ in range(ENVELOPE_BURST // LEAST_PAGE_COST):
        assert isinstance(await desk.answer(sealed_request(deployed_fields()).raw, requester), Completion)
    request = sealed_request(deployed_fields())

    assert await desk.answer(request.raw, requester) == Failure(request_id(request), come_back_in(1))


@pytest.mark.usefixtures("time")
@pytest.mark.parametrize("had", [200, 600])
async def test_client_that_is_gone_before_the_end_pays_for_what_it_has_had(desk: Desk, had: int) -> None:
    await fill(desk.store, make_envelopes(600))
    large = desk.with_settings(replace(SETTINGS, max_limit=600))
    requester = requester_of(ONE_A_SECOND)
    deliver_first = requester.bill(asyncio.get_running_loop().time())
    deliver_first.charge_envelopes(ENVELOPE_BURST - had, asyncio.get_running_loop().time())

    class GoneThen(Client):
        async def turn(self, size: int) -> None:
            await super().turn(size)
            if sum(len(decode_envelopes(payload)) for _, payload in self.sent) >= had:
                raise ConnectionLost(None, "gone")

    with pytest.raises(ConnectionLost):
        await large.delivery.answer(sealed_request(deployed_fields()).raw, GoneThen(), requester)
    request = sealed_request(deployed_fields())

    assert isinstance(await large.answer(request.raw, requester), Failure)


@pytest.mark.usefixtures("time")
async def test_allowed_client_is_never_sent_away(desk: Desk) -> None:
    await fill(desk.store, make_envelopes(50))
    allowed = Allowed(node_ids=frozenset({private_key("client").public_key}))
    requester = requester_of(replace(SIX_A_MINUTE, envelopes_per_minute=1), allowed=allowed)

    for _ in range(2 * BURST):
        assert isinstance(await desk.answer(sealed_request(deployed_fields()).raw, requester), Completion)


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
        def send(self, code: PacketCode, payload: bytes) -> None:
            raise ConnectionLost(None, "gone")

    with pytest.raises(ConnectionLost):
        await desk.delivery.answer(sealed_request(deployed_fields()).raw, Gone(), desk.requester)
    with pytest.raises(ConnectionLost):
        await desk.delivery.answer(b"\xff", Gone(), desk.requester)


# Whatever else

ITEMS: st.SearchStrategy[rlp.Encodable] = st.recursive(
    st.binary(max_size=70) | st.sampled_from([NEWS, FULL_BLOOM, bytes(36), CLEAR_ID, rlp.encode_uint(NOW)]),
    lambda items: st.lists(items, max_size=7),
    max_leaves=12,
)


@settings(max_examples=80, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(fields=st.lists(ITEMS, max_size=9), sealed=st.booleans())
async def test_whatever_is_asked_is_answered(desk: Desk, fields: list[rlp.Encodable], sealed: bool) -> None:
    plaintext = rlp.encode(fields)
    payload = sealed_request(plaintext).raw if sealed else plaintext

    outcome = await desk.answer(payload)

    assert outcome.request_id in (keccak256(payload), fields[0] if fields else None)


@settings(max_examples=80, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(plaintext=st.binary(max_size=300), payload=st.binary(max_size=300))
async def test_whatever_bytes_are_sealed_or_sent_are_answered(desk: Desk, plaintext: bytes, payload: bytes) -> None:
    request = sealed_request(plaintext)

    assert (await desk.answer(request.raw)).request_id == request_id(request)
    assert (await desk.answer(payload)).request_id == keccak256(payload)
    # Sealed as it is, without the form that a payload should have: flags, length and signature are random, too.
    assert isinstance(await desk.answer(sealed_as_it_is(plaintext).raw), Failure | Completion)


def sealed_as_it_is(plaintext: bytes) -> Envelope:
    """An envelope that opens with the password, but whose plaintext need not be a payload."""
    return mine(0, 0, bytes(4), aes.gcm_seal(PASSWORD_KEY, bytes(12), plaintext) + bytes(12), target=0.0)
