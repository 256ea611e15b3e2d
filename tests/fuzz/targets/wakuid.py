"""The packets of `wakuid/1`, and a mailserver's whole way from questions about message ids to their answers."""

import asyncio
import contextlib
from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any, cast

from mailserver.codec import rlp
from mailserver.errors import ConnectionLost, DecodeError, LocalProtocolError, Rejection
from mailserver.history.delivery import Delivery, DeliverySettings
from mailserver.history.id_answers import IdServices, IdSettings
from mailserver.history.id_conversation import IdConversation
from mailserver.history.id_lists import IdLists
from mailserver.ids.envelopes import envelope_muid
from mailserver.ids.muid import DEFAULT_NETWORK_TOPIC, Muid, metadata_of, sync_id
from mailserver.limits.admission import EMPTY_ALLOWLIST
from mailserver.limits.intake_bounds import IntakeBounds
from mailserver.limits.request_quotas import Requester, RequestLimiter
from mailserver.limits.send_rate import SendRate
from mailserver.metrics.registry import Metrics
from mailserver.net.sessions import Code
from mailserver.peers.request_queue import RequestQueue
from mailserver.reconcile.sides import Initiator
from mailserver.reconcile.storage import MemoryStorage
from mailserver.store.message_ids import MetadataRange
from mailserver.store.sqlite.store import SqliteStore
from mailserver.waku.bloom import FULL_INTEREST, Interest, bloom_of
from mailserver.waku.envelope import MAX_U32, Topic
from mailserver.wakuid.access import encode_access
from mailserver.wakuid.answers import (
    Answer,
    Done,
    Envelopes,
    Ids,
    Reconciled,
    Refused,
    Terms,
    decode_answer,
    encode_envelopes,
)
from mailserver.wakuid.packets import MAX_QUESTION_BYTES, QUESTIONS, IdPacketCode, Order, What
from mailserver.wakuid.questions import (
    Fetch,
    FetchItems,
    Items,
    Open,
    Query,
    Question,
    Reconcile,
    decode_question,
    request_id_of,
)
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
    make_envelope,
    sealed_request,
    stored,
)
from tests.pairs import private_key

METRICS = Metrics()
"""Of all inputs: nothing here reads them, and to make them takes longer than most inputs."""

CODES = [*IdPacketCode]
ENDINGS = Terms, Refused, Reconciled, Done
ENDING_CODES = {IdPacketCode.TERMS, IdPacketCode.REFUSED, IdPacketCode.RECONCILED, IdPacketCode.DONE}

# Packets


def fuzz_packet(data: bytes) -> None:
    """A packet is a question or an answer within its bounds, and is read the same when it is written again."""
    code, payload = CODES[data[0] % len(CODES)] if data else IdPacketCode.OPEN, data[1:]
    request_id = request_id_of(payload)
    try:
        packet = decode_question(code, payload) if code in QUESTIONS else decode_answer(code, payload)
    except DecodeError:
        return
    assert packet.request_id == request_id
    again = _encoded(packet)
    assert len(again) <= max(MAX_QUESTION_BYTES, len(payload))
    read = decode_question(code, again) if code in QUESTIONS else decode_answer(code, again)
    if isinstance(packet, Refused) and isinstance(read, Refused):  # what is no UTF-8 takes more bytes, and is cut
        assert _encoded(read) == again
        assert packet.text[: len(read.text) - 1] == read.text[:-1]
        return
    assert read == packet
    assert _encoded(read) == again


def _encoded(packet: Question | Answer) -> bytes:
    if isinstance(packet, Envelopes):
        return encode_envelopes(packet.request_id, b"".join(envelope.raw for envelope in packet.envelopes))
    return packet.encode()


def packet_seeds() -> Iterator[bytes]:
    """One of each, and one of each with everything in it."""
    for question in (*QUERIES, *OTHERS, Open(2**64 - 1, ENVELOPES[0])):
        yield bytes([question.code]) + question.encode()
    for code, answer in (
        (IdPacketCode.TERMS, Terms(1, DEFAULT_NETWORK_TOPIC, 2, NOW, 3, 4, 5)),
        (IdPacketCode.REFUSED, Refused(1, Rejection.TOO_WIDE, "text", 60)),
        (IdPacketCode.IDS, Ids(1, NAMES[:3])),
        (IdPacketCode.RECONCILED, Reconciled(1, b"\x61\0\0\1" + bytes(16))),
        (IdPacketCode.DONE, Done(1, bytes(36), is_all=False)),
    ):
        yield bytes([code]) + answer.encode()
    yield bytes([IdPacketCode.ENVELOPES]) + encode_envelopes(1, b"".join(each.raw for each in ENVELOPES[:2]))
    yield bytes([IdPacketCode.REFUSED]) + rlp.encode([b"\1", b"\x7f", b"\xff" * 500, b""])


# From questions to their answers

ENVELOPES = [
    make_envelope(number, created=NOW - 7 * number, topic=(NEWS, SPORT)[number % 3 == 0]) for number in range(40)
]
NAMES = [envelope_muid(DEFAULT_NETWORK_TOPIC, envelope) for envelope in ENVELOPES]
ITEMS = [(envelope.created, sync_id(name)) for envelope, name in zip(ENVELOPES, NAMES, strict=True)]
KEY, ASKER = private_key("mailserver"), private_key("client").public_key
TOPICS = (NEWS, SPORT, Topic(b"none"))
QUERIES = [
    Query(1, DEFAULT_NETWORK_TOPIC, 0, MAX_U32),
    Query(
        1,
        DEFAULT_NETWORK_TOPIC,
        NOW - 100,
        NOW,
        What.ENVELOPES,
        Order.AS_ARRIVED,
        Interest(topics=frozenset({NEWS})),
        metadata_of(NAMES[30]),
        metadata_of(NAMES[2]),
        bytes(8),
        5,
    ),
]
OTHERS: list[Question] = [
    Open(1),
    Fetch(1, DEFAULT_NETWORK_TOPIC, NAMES[:3]),
    FetchItems(1, DEFAULT_NETWORK_TOPIC, [Items(0, MAX_U32, [ITEMS[3][1]]), Items(NOW, NOW, [ITEMS[4][1]])]),
    Reconcile(1, DEFAULT_NETWORK_TOPIC, 0, MAX_U32, Initiator(MemoryStorage(ITEMS[10:])).begin()),
]
MOST_QUESTIONS = 6
TURNS = 100
"""So often the loop goes round until all questions are answered: nothing waits here, but for a client that stalls."""

Asked = tuple[IdPacketCode, bytes]


class Stalling(Client):
    """A client that reads so many packets, and then no more; or it leaves."""

    def __init__(self, reads: int, *, leaves: bool) -> None:
        super().__init__()
        self._reads = reads
        self._leaves = leaves

    async def wait_turn(self, size: int) -> None:
        if len(self.turns) >= self._reads:
            if self._leaves:
                raise ConnectionLost(None, "gone")
            await asyncio.get_running_loop().create_future()
        await super().wait_turn(size)


def fuzz_answers(data: bytes) -> None:
    """Whatever is asked, each question has one ending, after what the store has of it, and leaves nothing behind.

    Where the client stops to read, or leaves, nothing more is sent; and nothing is left behind either.
    """
    choices = Choices(data)
    reads = choices.below(256)
    client = Stalling(reads >> 2, leaves=bool(reads & 2)) if reads & 1 else Client()
    opened = [(IdPacketCode.OPEN, Open(0).encode())] if choices.flag() else []
    questions = opened + [_question(choices, number) for number in range(1, 2 + choices.below(MOST_QUESTIONS))]
    bounds = IntakeBounds()
    requester = RequestLimiter(NO_REQUEST_LIMITS, NO_REQUEST_LIMITS, EMPTY_ALLOWLIST).requester("192.0.2.1", ASKER)
    with store_in_memory(_image()) as store, asyncio.Runner() as runner:
        runner.run(_ask(_queue(store, bounds), questions, client, requester))
    memory = bounds.questions, bounds.requests, bounds.refused, bounds.answers
    assert [one.used_bytes for one in memory] == [0] * len(memory)
    with contextlib.suppress(LocalProtocolError):
        requester.end()
        raise AssertionError("a request has not ended")
    answers = [decode_answer(_id_code(code), payload) for code, payload in client.sent]
    endings = [answer.request_id for answer in answers if isinstance(answer, ENDINGS)]
    asked = [request_id_of(payload) for _, payload in questions]
    assert endings == (asked[: len(endings)] if isinstance(client, Stalling) else asked)
    for answer in answers:
        if isinstance(answer, Refused):
            assert answer.rejection not in (None, Rejection.STORE_UNAVAILABLE, Rejection.NOT_INDEXED)
    if len(set(asked)) == len(asked):
        for code, payload in questions:
            _check(code, payload, [answer for answer in answers if answer.request_id == request_id_of(payload)])


def _queue(store: SqliteStore, bounds: IntakeBounds) -> RequestQueue:
    delivery = Delivery(store, DeliverySettings(PASSWORD_KEY, KEY), Clock(), metrics=METRICS)
    services = IdServices(
        lists=IdLists(store, store.message_ids),
        since=lambda: store.pruned_until + 1,
        opener=delivery.opener,
        settings=IdSettings(max_envelopes=30),
        clock=Clock(),
        metrics=METRICS,
    )
    return RequestQueue(delivery, IdConversation(services), bounds, SendRate())


async def _ask(queue: RequestQueue, questions: Sequence[Asked], client: Client, requester: Requester) -> None:
    """Ask all of them on one connection, until all are answered or the client has stopped."""
    sender = cast(Any, client)

    async def add_all() -> None:
        for code, payload in questions:
            await queue.add(code, payload, requester, sender, held_bytes=len(payload))

    tasks = [asyncio.create_task(queue.answer_all(sender)), asyncio.create_task(add_all())]
    for _ in range(TURNS):
        if _endings(client) == len(questions):
            break
        await asyncio.sleep(0)
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)
    queue.end()
    for task in tasks:
        if not task.cancelled():
            task.result()


def _endings(client: Client) -> int:
    return sum(code in ENDING_CODES for code, _ in client.sent)


def _id_code(code: Code) -> IdPacketCode:
    assert isinstance(code, IdPacketCode)
    return code


def _question(choices: Choices, number: int) -> Asked:
    kind = choices.below(8)
    if kind == 0:
        return choices.pick(sorted(QUESTIONS)), choices.take(600)
    question = _of_kind(kind, choices, number)
    payload = bytearray(question.encode())
    if kind == 7:
        payload[choices.below(len(payload))] ^= 1 + choices.below(255)
    return question.code, bytes(payload)


def _of_kind(kind: int, choices: Choices, number: int) -> Question:
    network_topic = choices.pick((*[DEFAULT_NETWORK_TOPIC] * 7, "/another"))
    lower, upper = max(0, NOW - choices.below(300)), max(0, NOW - choices.below(300))
    interests = FULL_INTEREST, Interest(topics=frozenset({NEWS})), Interest(bloom=bloom_of([SPORT]))
    interest = choices.pick((*interests, Interest(topics=frozenset())))
    match kind:
        case 1:
            access = choices.pick((encode_access(ASKER), encode_access(KEY.public_key), choices.take(30)))
            return Open(number, choices.pick((None, sealed_request(access), ENVELOPES[0])))
        case 2 | 7:
            bounds = b"", *(metadata_of(choices.pick(NAMES))[: choices.below(33)] for _ in range(2))
            return Query(
                number,
                network_topic,
                lower,
                upper,
                choices.pick([*What]),
                choices.pick([*Order]),
                interest,
                choices.pick(bounds),
                choices.pick(bounds) or None,
                choices.pick((b"", b"", bytes([0] * 7 + [choices.below(50)]), choices.take(36))),
                choices.below(12),
            )
        case 3:
            names = [*(choices.pick(NAMES) for _ in range(choices.below(5))), Muid(b"m" * (33 + choices.below(32)))]
            return Fetch(number, network_topic, names)
        case 4:
            groups = []
            for _ in range(choices.below(4)):
                items = [choices.pick(ITEMS)[1] for _ in range(choices.below(4))]
                groups.append(Items(choices.pick((0, lower)), choices.pick((upper, MAX_U32)), [*items, bytes(32)]))
            return FetchItems(number, network_topic, groups)
        case _:
            first = choices.below(len(ITEMS))
            held = MemoryStorage(sorted(ITEMS[first : first + choices.below(40)]))
            message = Initiator(held).begin() if kind == 5 else choices.take(200)
            return Reconcile(number, network_topic, lower, upper, message, interest)


def _check(code: IdPacketCode, payload: bytes, answers: Sequence[Answer]) -> None:
    """What is given is what was asked for, and all of it if that is said."""
    if not any(isinstance(answer, Ids | Envelopes | Done) for answer in answers):
        return
    question = decode_question(code, payload)
    listed = [name for answer in answers if isinstance(answer, Ids) for name in answer.muids]
    given = [each for answer in answers if isinstance(answer, Envelopes) for each in answer.envelopes]
    assert all(answer.muids for answer in answers if isinstance(answer, Ids))
    assert all(answer.envelopes for answer in answers if isinstance(answer, Envelopes))
    names = listed + [envelope_muid(DEFAULT_NETWORK_TOPIC, envelope) for envelope in given]
    assert len(set(names)) == len(names)
    match question:
        case Query():
            expected = {name for number, name in enumerate(NAMES) if _is_within(question, number)}
            assert set(names) <= expected
            assert not (listed and given)
            assert len(names) <= (question.limit or len(NAMES))
            is_all = any(isinstance(answer, Done) and answer.is_all for answer in answers)
            assert not is_all or question.cursor or set(names) == expected
        case Fetch():
            assert names == [name for name in dict.fromkeys(question.muids) if name in NAMES][: len(names)]
        case FetchItems():
            assert {sync_id(name) for name in names} <= {item for group in question.groups for item in group.ids}


def _is_within(question: Query, number: int) -> bool:
    envelope, metadata = ENVELOPES[number], MetadataRange(question.low, question.high)
    is_wanted = question.interest.wants(envelope.topic) and metadata.has(metadata_of(NAMES[number]))
    return question.lower <= envelope.created <= question.upper and is_wanted


@cache
def _image() -> bytes:
    return image_of([stored(envelope) for envelope in ENVELOPES])


def answer_seeds() -> Iterator[bytes]:
    """A question of each kind, with access and without, and to clients that stop to read, or leave."""
    for reads in (0, 5, 9, 11):
        for kind in range(8):
            yield bytes([reads, kind != 3, 0, kind, 0, 1, 44, 0, 0, 0, *([kind] * 20)])
        yield bytes([reads, 1, 5]) + b"".join(
            bytes([kind, 0, 1, 44, 0, 0, kind % 3, 1, 1, 0, 2]) for kind in range(1, 7)
        )


TARGETS = {
    "packet": Target(fuzz_packet, packet_seeds, max_bytes=8192),
    "answers": Target(fuzz_answers, answer_seeds, max_bytes=512),
}
