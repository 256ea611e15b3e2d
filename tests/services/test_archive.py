"""mailserver.services.archive, with a real store and a clock of the test's."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from mailserver.errors import StoreError
from mailserver.services.archive import Archive
from mailserver.store.envelopes import EnvelopeStore, open_store
from mailserver.store.reader import Query
from mailserver.waku.acceptance import MAX_AHEAD_S, MAX_EXPIRED_S, Acceptance, Requirements, Verdict
from mailserver.waku.bloom import FULL_INTEREST, Interest
from mailserver.waku.envelope import MAX_U32, Envelope, encode_envelope
from mailserver.waku.packets import MAX_PACKET_BYTES, EnvelopeError, EnvelopeErrorCode, MessageResponse
from tests.mailservers import NEWS, NOW, SPORT, Clock, in_order, make_envelope, make_envelopes
from tests.waiting import turns

HASH = bytes(range(32))
EVERYTHING = Query(0, MAX_U32, FULL_INTEREST)


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[EnvelopeStore]:
    async with open_store(tmp_path / "mailserver.db") as store:
        yield store


def archive_of(store: EnvelopeStore, *, min_pow: float = 0.0, interest: Interest = FULL_INTEREST) -> Archive:
    return Archive(store, Acceptance(Requirements(min_pow, interest)), Clock())


async def all_in(store: EnvelopeStore) -> list[bytes]:
    """Everything that is stored, newest first."""
    page = await store.find(EVERYTHING, 100_000)
    return await store.read(page.keys)


def refused(envelope: Envelope, verdict: Verdict) -> EnvelopeError:
    """What the sender is told."""
    assert verdict.code is not None
    return EnvelopeError(envelope.hash(), verdict.code, verdict.value)


async def test_acceptable_envelopes_are_stored_as_received_and_confirmed(store: EnvelopeStore) -> None:
    envelopes = make_envelopes(5)

    response = await archive_of(store).take(envelopes, HASH)

    assert response == MessageResponse(HASH)
    assert await all_in(store) == [envelope.raw for envelope in in_order(envelopes)]


async def test_time_of_reception_is_our_clock_and_of_creation_the_senders_claim(store: EnvelopeStore) -> None:
    envelope = make_envelope(1, created=NOW - 7)

    await archive_of(store).take([envelope], HASH)

    page = await store.find(EVERYTHING, 1)
    assert page.keys[0].created == NOW - 7


async def test_empty_packet_is_confirmed(store: EnvelopeStore) -> None:
    assert await archive_of(store).take([], HASH) == MessageResponse(HASH)


async def test_duplicates_are_confirmed_and_stored_once(store: EnvelopeStore) -> None:
    archive, envelope = archive_of(store), make_envelope(1)

    first = await archive.take([envelope, envelope], HASH)
    second = await archive.take([envelope], HASH)

    assert first == second == MessageResponse(HASH)
    assert await all_in(store) == [envelope.raw]


async def test_bad_envelopes_are_reported_in_order_and_the_others_stored(store: EnvelopeStore) -> None:
    good = [make_envelope(number) for number in range(2)]
    future = make_envelope(10, created=NOW + MAX_AHEAD_S + 1)
    old = make_envelope(11, created=NOW - MAX_EXPIRED_S - 51, ttl=50)
    forged = encode_envelope(NOW, NOW + 1, NEWS, b"data", 0)
    unwanted = make_envelope(12, topic=SPORT)
    huge = make_envelope(13, data_bytes=MAX_PACKET_BYTES)
    archive = archive_of(store, interest=Interest(topics=frozenset({NEWS})))

    response = await archive.take([future, good[0], old, forged, unwanted, good[1], huge], HASH)

    assert response == MessageResponse(
        HASH,
        (
            refused(future, Verdict.FROM_THE_FUTURE),
            refused(old, Verdict.VERY_OLD),
            refused(forged, Verdict.FORGED_TIME),
            refused(unwanted, Verdict.UNWANTED_TOPIC),
            refused(huge, Verdict.OVERSIZE),
        ),
    )
    codes = [error.code for error in response.errors]
    time_sync, invalid = EnvelopeErrorCode.TIME_SYNC, EnvelopeErrorCode.INVALID
    assert codes == [time_sync, time_sync, invalid, invalid, invalid]
    assert await all_in(store) == [envelope.raw for envelope in in_order(good)]


async def test_low_proof_of_work_is_reported(store: EnvelopeStore) -> None:
    envelope = make_envelope(1)

    response = await archive_of(store, min_pow=1000.0).take([envelope], HASH)

    assert response.errors == (refused(envelope, Verdict.LOW_POW),)
    assert await all_in(store) == []


@pytest.mark.parametrize("late", [1, MAX_EXPIRED_S])
async def test_late_envelope_is_dropped_without_a_word(store: EnvelopeStore, late: int) -> None:
    envelope = make_envelope(1, created=NOW - 50 - late, ttl=50)

    response = await archive_of(store).take([envelope], HASH)

    assert response == MessageResponse(HASH)
    assert await all_in(store) == []


async def test_long_packet_leaves_others_their_turn(store: EnvelopeStore) -> None:
    late = make_envelope(1, created=NOW - 60, ttl=50)
    taking = asyncio.create_task(archive_of(store).take([late] * 4096, HASH))

    await turns(3)

    assert not taking.done()
    assert await taking == MessageResponse(HASH)


async def test_every_envelope_of_a_long_packet_is_judged_and_stored(store: EnvelopeStore) -> None:
    envelopes = [make_envelope(number, data_bytes=10) for number in range(2500)]
    future = make_envelope(1, created=NOW + MAX_AHEAD_S + 1)

    response = await archive_of(store).take([*envelopes, future], HASH)

    assert [error.hash for error in response.errors] == [future.hash()]
    assert len(await all_in(store)) == 2500


async def test_nothing_is_confirmed_that_could_not_be_stored(tmp_path: Path) -> None:
    async with open_store(tmp_path / "mailserver.db") as store:
        archive = archive_of(store)

    with pytest.raises(StoreError):
        await archive.take([make_envelope(1)], HASH)


async def test_clock_is_read_anew_for_each_packet(store: EnvelopeStore) -> None:
    clock = Clock()
    archive = Archive(store, Acceptance(Requirements(0.0)), clock)
    envelope = make_envelope(1)

    clock.now = NOW - 60
    early = await archive.take([envelope], HASH)
    clock.now = NOW
    in_time = await archive.take([envelope], HASH)

    assert [error.code for error in early.errors] == [EnvelopeErrorCode.TIME_SYNC]
    assert in_time.errors == ()
