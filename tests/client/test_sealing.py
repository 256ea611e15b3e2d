"""mailserver.client.sealing: payloads, envelopes and requests of ours."""

import asyncio

import pytest

from mailserver.client.sealing import (
    REQUEST_TOPIC,
    REQUEST_TTL_S,
    TooMuchWork,
    mine_envelope,
    seal_envelope,
    seal_request,
    seal_to_key,
    seal_to_node,
)
from mailserver.mail.request import RequestId, decode_fields
from mailserver.waku.payload import open_asymmetric, open_symmetric
from tests.client.nodes import ASK
from tests.mailservers import NEWS, PASSWORD_KEY
from tests.pairs import private_key
from tests.waiting import turns


async def test_sealed_envelope_opens_and_has_the_work_that_was_asked() -> None:
    signing_key = private_key("signer")

    envelope = await seal_envelope(
        b"hello", PASSWORD_KEY, NEWS, ttl=10, min_pow=0.002, now=1000, signing_key=signing_key
    )

    opened = open_symmetric(envelope.data, PASSWORD_KEY)
    assert (opened.payload, opened.signer) == (b"hello", signing_key.public_key)
    assert (envelope.expiry, envelope.ttl, envelope.topic) == (1010, 10, NEWS)
    assert envelope.pow() >= 0.002


async def test_work_that_outlasts_the_envelope_is_given_up() -> None:
    with pytest.raises(TooMuchWork):
        await seal_envelope(b"", PASSWORD_KEY, NEWS, ttl=0, min_pow=1e30, now=1000)


async def test_work_for_which_many_nonces_are_tried_leaves_others_their_turn() -> None:
    sealing = asyncio.create_task(seal_envelope(b"", PASSWORD_KEY, NEWS, ttl=10, min_pow=1e30, now=1000))

    await turns(3)

    assert not sealing.done()
    sealing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await sealing


async def test_same_payload_is_sealed_differently_each_time() -> None:
    sealed = {(await seal_envelope(b"", PASSWORD_KEY, NEWS, ttl=10, min_pow=0, now=1000)).data for _ in range(20)}

    assert len(sealed) == 20


def test_payload_is_sealed_to_a_public_key() -> None:
    recipient, signing_key = private_key("recipient"), private_key("signer")

    sealed = [seal_to_node(b"hello", recipient.public_key, signing_key=signing_key) for _ in range(2)]

    opened = [open_asymmetric(data, recipient) for data in sealed]
    assert {(each.payload, each.signer) for each in opened} == {(b"hello", signing_key.public_key)}
    assert sealed[0] != sealed[1]
    assert opened[0].padding != opened[1].padding
    assert len({data[1:65] for data in sealed}) == 2  # the ephemeral keys


@pytest.mark.parametrize("padding", [b"", b"\x01\x02", bytes(300)])
def test_given_padding_is_used_as_it_is(padding: bytes) -> None:
    recipient = private_key("recipient")

    symmetric = open_symmetric(seal_to_key(b"hello", PASSWORD_KEY, padding=padding), PASSWORD_KEY)
    asymmetric = open_asymmetric(seal_to_node(b"hello", recipient.public_key, padding=padding), recipient)

    assert symmetric.padding == asymmetric.padding == padding
    assert symmetric.payload == asymmetric.payload == b"hello"


def test_without_a_padding_the_plaintext_fills_a_block_with_randomness() -> None:
    paddings = [open_symmetric(seal_to_key(b"hello", PASSWORD_KEY), PASSWORD_KEY).padding for _ in range(2)]

    assert [len(padding) for padding in paddings] == [256 - 1 - 1 - 5] * 2
    assert paddings[0] != paddings[1]


async def test_sealed_data_becomes_an_envelope_with_work() -> None:
    envelope = await mine_envelope(b"data", NEWS, ttl=10, min_pow=0.5, now=1000, turn=asyncio.Lock())

    assert (envelope.data, envelope.topic, envelope.expiry, envelope.ttl) == (b"data", NEWS, 1010, 10)
    assert envelope.pow() >= 0.5


@pytest.mark.parametrize(("ttl", "limit_s", "shown"), [(1000, 0.01, "0.01"), (0, 10.0, "0")])
async def test_work_is_given_up_at_its_limit_or_when_the_envelope_expires(ttl: int, limit_s: float, shown: str) -> None:
    with pytest.raises(TooMuchWork) as given_up:
        await mine_envelope(b"data", NEWS, ttl=ttl, min_pow=1e30, now=1000, limit_s=limit_s)

    assert str(given_up.value).startswith(f"no proof of work within {shown} s: ")


async def test_works_that_share_a_turn_wait_for_it() -> None:
    turn = asyncio.Lock()
    async with turn:
        working = asyncio.create_task(mine_envelope(b"data", NEWS, ttl=10, min_pow=0.0, now=1000, turn=turn))
        await turns()
        waiting = not working.done()

    await working
    assert waiting


async def test_request_is_sealed_signed_and_has_the_work_that_is_asked() -> None:
    first, second = [await seal_request(ASK, PASSWORD_KEY, min_pow=0.01, now=1000) for _ in range(2)]

    opened = open_symmetric(first.data, PASSWORD_KEY)
    assert decode_fields(RequestId(first.hash()), opened.payload).interest == ASK.interest
    assert opened.signer is not None
    assert opened.signer != open_symmetric(second.data, PASSWORD_KEY).signer
    assert (first.created, first.ttl, first.topic) == (1000, REQUEST_TTL_S, REQUEST_TOPIC)
    assert first.pow() >= 0.01
