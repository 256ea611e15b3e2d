"""History requests, their answers, and a mailserver's whole way from the one to the other."""

import asyncio
from collections.abc import Iterator
from functools import cache

from mailserver.codec import rlp
from mailserver.errors import DecodeError, Rejection, RequestRejected
from mailserver.history.delivery import Delivery, DeliverySettings
from mailserver.limits.admission import EMPTY_ALLOWLIST
from mailserver.limits.request_quotas import RequestLimiter
from mailserver.mail.completion import Completion, CompletionFormat, Failure, decode_completion
from mailserver.mail.packing import cut
from mailserver.mail.request import (
    MAX_REQUEST_TOPICS,
    ClearRequest,
    Cursor,
    MailRequest,
    RequestId,
    SealedRequest,
    decode_clear,
    decode_fields,
    decode_request,
    encode_fields,
)
from mailserver.metrics.registry import Metrics
from mailserver.store.interface import Query
from mailserver.waku.bloom import FULL_BLOOM, bloom_of
from mailserver.waku.envelope import (
    HASH_BYTES,
    MAX_U32,
    EnvelopeHash,
    Topic,
    decode_envelopes,
    encode_envelope,
    packet_bytes,
)
from mailserver.waku.packets import MAX_PACKET_BYTES, PacketCode
from mailserver.waku.payload import MAX_PADDING_BYTES, open_asymmetric, open_symmetric, seal_asymmetric
from tests.data import load
from tests.fuzz.choices import Choices
from tests.fuzz.stores import image_of, store_in_memory
from tests.fuzz.target import Target
from tests.history.answered import Client
from tests.mailservers import (
    NEWS,
    NO_REQUEST_LIMITS,
    NOW,
    PASSWORD_KEY,
    SPORT,
    Clock,
    deployed_fields,
    make_envelope,
    sealed_request,
    stored,
)
from tests.pairs import digest, private_key
from tests.store.samples import answer

REQUEST_ID = RequestId(bytes(range(32)))
HASH = EnvelopeHash(bytes(range(100, 132)))


# Requests


def fuzz_request(data: bytes) -> None:
    """A request is an envelope or in the clear, or refused; in the clear it is read or rejected."""
    try:
        request = decode_request(data)
    except DecodeError:
        return
    if isinstance(request, SealedRequest):
        assert request.envelope.raw == data
        assert request.request_id == RequestId(request.envelope.hash())
        return
    assert isinstance(request, ClearRequest)
    try:
        _check(decode_clear(request))
    except RequestRejected as error:
        assert error.message


def fuzz_fields(data: bytes) -> None:
    """What is inside a sealed request is read or rejected, and reads the same when it is written again."""
    try:
        request = decode_fields(REQUEST_ID, data)
    except RequestRejected as error:
        assert error.message
        return
    _check(request)
    assert decode_fields(REQUEST_ID, encode_fields(request)) == request


def _check(request: MailRequest) -> None:
    assert 0 <= request.lower <= MAX_U32
    assert 0 <= request.limit <= MAX_U32
    topics = request.interest.topics
    assert len(request.interest.bloom) == len(FULL_BLOOM) if topics is None else 0 < len(topics) <= MAX_REQUEST_TOPICS
    for now in (0, NOW, MAX_U32):
        try:
            lower, upper = request.bounds(now)
        except RequestRejected:
            assert request.upper < request.lower
        else:
            assert 0 <= lower <= upper <= MAX_U32


def request_seeds() -> Iterator[bytes]:
    """Recorded ones, and every field in the clear."""
    yield from _recorded(126)
    numbers = [rlp.encode_uint(number) for number in (NOW - 100, NOW, 10)]
    yield rlp.encode([REQUEST_ID, *numbers, Cursor(NOW, HASH).encode(), FULL_BLOOM, [NEWS, SPORT]])
    yield sealed_request(b"").raw


def _recorded(code: int) -> Iterator[bytes]:
    for packet in load("packets.json")["packets"]:
        if packet["code"] == code:
            yield bytes.fromhex(packet["payload"])


def field_seeds() -> Iterator[bytes]:
    """Both forms, short and whole."""
    yield deployed_fields(lower=NOW - 100, upper=NOW, limit=10)
    yield deployed_fields(bloom=FULL_BLOOM, topics=(), cursor=Cursor(NOW, HASH), batch=0)
    yield rlp.encode([b"\0\0\0\1", b"\0\0\0\2", FULL_BLOOM, b"\5"])
    yield rlp.encode([b"\1", b"\2", FULL_BLOOM, b"\5", Cursor(NOW, HASH).encode(), [NEWS]])


# Answers


def fuzz_completion(data: bytes) -> None:
    """A completion in any form is read, and reads the same when it is written again."""
    try:
        ending = decode_completion(data)
    except DecodeError:
        return
    if isinstance(ending, Failure):
        assert decode_completion(ending.encode()) == ending
        return
    assert decode_completion(ending.encode(CompletionFormat.LIST)) == ending
    if not ending.request_id.startswith(b"ERROR="):  # in the deployed form that is an error
        assert decode_completion(ending.encode()) == ending


def completion_seeds() -> Iterator[bytes]:
    """Recorded ones, every form of ours, and one with brackets around the cursor."""
    yield from _recorded(125)
    for cursor in (None, Cursor(NOW, HASH)):
        for form in CompletionFormat:
            yield Completion(REQUEST_ID, HASH, cursor).encode(form)
    yield Failure(REQUEST_ID, "it failed").encode()
    yield rlp.encode([REQUEST_ID, HASH, [Cursor(NOW, HASH).encode()]])
    yield rlp.encode([REQUEST_ID, HASH])


def fuzz_pages(data: bytes) -> None:
    """Every envelope goes into one packet, in order; no packet is longer than it may be, or shorter than it need be."""
    choices = Choices(data)
    target = choices.pick((64, 1000, 128 * 1024, 4 * MAX_PACKET_BYTES))
    sizes: list[int] = []
    while choices.more:
        size = choices.below(1 << choices.pick((4, 8, 16, 21)))
        sizes += [size] * (1 + choices.below(16))
    packets = list(cut(sizes, target))
    assert [index for packet in packets for index in packet] == list(range(len(sizes)))
    bound = min(target, MAX_PACKET_BYTES)
    for packet in packets:
        length = packet_bytes(sum(sizes[index] for index in packet))
        assert len(packet) == 1 or length <= bound
        if packet.stop < len(sizes):
            assert packet_bytes(sum(sizes[packet.start : packet.stop + 1])) > bound
    cursor = data[: 4 + HASH_BYTES]
    try:
        assert Cursor.decode(cursor).encode() == cursor
    except DecodeError:
        assert len(cursor) < 4 + HASH_BYTES


# From a request to its answer

ENVELOPES = [
    make_envelope(number, created=NOW - 7 * number, topic=(NEWS, SPORT)[number % 3 == 0]) for number in range(40)
]
SETTINGS = DeliverySettings(PASSWORD_KEY, private_key("mailserver"), max_limit=30)
TOPICS = (NEWS, SPORT, Topic(b"none"))


def fuzz_answer(data: bytes) -> None:
    """Whatever is asked, and however it is sealed, one ending is sent, last, after what the store has of it."""
    choices = Choices(data)
    payload = _request(choices)
    max_packet_bytes = choices.pick((128 * 1024, 1000, 300))
    client = Client()
    limiter = RequestLimiter(NO_REQUEST_LIMITS, NO_REQUEST_LIMITS, EMPTY_ALLOWLIST)
    requester = limiter.requester("192.0.2.1", private_key("client").public_key)
    with store_in_memory(_image()) as store, asyncio.Runner() as runner:
        delivery = Delivery(store, SETTINGS, Clock(), metrics=Metrics())
        ending = runner.run(delivery.answer(payload, client, requester, max_packet_bytes=max_packet_bytes))
    sent = client.sent
    assert [code for code, _ in sent[:-1]] == [PacketCode.P2P_MESSAGE] * (len(sent) - 1)
    assert sent[-1] == (PacketCode.P2P_REQUEST_COMPLETE, ending.encode())
    packets = [decode_envelopes(packet) for _, packet in sent[:-1]]
    if isinstance(ending, Failure):
        assert not packets
        assert ending.message not in ("", Rejection.STORE_UNAVAILABLE.value)
        return
    request = _as_asked(payload)
    assert ending.request_id == request.request_id
    limit = min(request.limit or SETTINGS.max_limit, SETTINGS.max_limit)
    expected = answer(map(stored, ENVELOPES), Query(*request.bounds(NOW), request.interest, request.cursor))
    assert [envelope.raw for packet in packets for envelope in packet] == [row.raw for row in expected[:limit]]
    assert all(len(packet) == 1 for packet in packets) or not request.one_per_packet
    assert (ending.cursor is not None) == (len(expected) > limit)


def _request(choices: Choices) -> bytes:
    match choices.below(4):
        case 0:
            return choices.take(2000)
        case 1:
            return _enclosed(choices, choices.take(600))
        case 2:
            return _enclosed(choices, rlp.encode(_fields(choices)))
        case _:
            lower, upper, bloom, topics, limit, cursor = [*_fields(choices), b"", b""][:6]
            return rlp.encode([digest("id"), lower, upper, limit, cursor, bloom, topics])


def _enclosed(choices: Choices, plaintext: bytes) -> bytes:
    if choices.flag():
        return sealed_request(plaintext).raw
    padding, to = bytes(MAX_PADDING_BYTES), SETTINGS.key.public_key
    box = seal_asymmetric(plaintext, to, ephemeral_key=private_key("ephemeral"), iv=bytes(16), padding=padding)
    return encode_envelope(NOW, 10, bytes(4), box, 0).raw


def _fields(choices: Choices) -> list[rlp.Item]:
    """In the deployed form, each as it should be, or as it should not."""
    numbers = [rlp.encode_uint(max(NOW - choices.below(400), 0)) for _ in range(2)]
    lower, upper = sorted(numbers) if choices.flag() else numbers
    topics: list[rlp.Item] = [choices.pick(TOPICS) for _ in range(choices.below(4))]
    bloom = choices.pick((FULL_BLOOM, b"", bloom_of([NEWS]), bytes(64)))
    envelope = choices.pick(ENVELOPES)
    cursor = choices.pick((b"", Cursor(envelope.created, envelope.hash()).encode(), Cursor(NOW - 50, HASH).encode()))
    fields: list[rlp.Item] = [lower, upper, bloom, topics, rlp.encode_uint(choices.below(40)), cursor, choices.take(1)]
    for _ in range(choices.below(3)):
        other: tuple[rlp.Item, ...] = (choices.take(40), [choices.take(5)], b"")
        fields[choices.below(7)] = choices.pick(other)
    return fields[: 7 - choices.below(4)]


def _as_asked(payload: bytes) -> MailRequest:
    request = decode_request(payload)
    if isinstance(request, ClearRequest):
        return decode_clear(request)
    try:
        opened = open_symmetric(request.envelope.data, SETTINGS.symmetric_key)
    except DecodeError:
        opened = open_asymmetric(request.envelope.data, SETTINGS.key)
    return decode_fields(request.request_id, opened.payload)


@cache
def _image() -> bytes:
    return image_of([stored(envelope) for envelope in ENVELOPES])


def answer_seeds() -> Iterator[bytes]:
    """A request of each kind."""
    whole = bytes([1, 200, 0, 100, 1, 2, 0, 1, 0, 3, 1, 10, 0, 0, 0, 0])
    yield from (bytes([kind, *rest]) for kind in range(1, 4) for rest in (whole, whole[:6], whole[::-1]))
    for payload in _recorded(126):
        yield b"\0" + len(payload).to_bytes(2, "big") + payload


TARGETS = {
    "request": Target(fuzz_request, request_seeds),
    "fields": Target(fuzz_fields, field_seeds),
    "completion": Target(fuzz_completion, completion_seeds, max_bytes=512),
    "pages": Target(fuzz_pages, lambda: [bytes(range(1, 40)), b"\1\2" * 20, bytes([0, 1, 1, 5, 15] * 9)], 512),
    "answer": Target(fuzz_answer, answer_seeds),
}
