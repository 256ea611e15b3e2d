"""mailserver.api.waku_ids: message ids over JSON-RPC."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

import pytest

from mailserver.api import dispatch, waku_ids
from mailserver.api.errors import ErrorCode
from mailserver.api.params import Json
from mailserver.history.id_search import arrival_cursor
from mailserver.ids.envelopes import content_topic_of, envelope_muid, message_of
from mailserver.ids.muid import DEFAULT_NETWORK_TOPIC, Muid, sync_id
from mailserver.ids.waku_message import WakuMessage
from mailserver.reconcile.sides import Initiator
from mailserver.reconcile.storage import MemoryStorage
from mailserver.store.engine.comparison import StoredComparison
from mailserver.store.engine.message_ids import StoredMessageIds
from mailserver.store.message_ids import Arrival, NotIndexedYet, RangeTooWide, TooManyIds
from mailserver.store.sqlite.schema import STORE_FILE
from mailserver.store.sqlite.store import open_store
from mailserver.waku.envelope import Envelope
from tests.api.nodes import CallFailed, RunningNode
from tests.mailservers import NEWS, SPORT, fill, in_order, make_envelope, make_envelopes, make_large_envelopes
from tests.reconcile.sets import Talk, received
from tests.store.samples import change

pytestmark = pytest.mark.integration

ANOTHER_NETWORK = "/waku/2/rs/1/5"


def muid(envelope: Envelope, network_topic: str = DEFAULT_NETWORK_TOPIC) -> Muid:
    return envelope_muid(network_topic, envelope)


def as_hex(data: bytes) -> str:
    return f"0x{data.hex()}"


def names(envelopes: Sequence[Envelope]) -> list[str]:
    return [as_hex(muid(envelope)) for envelope in envelopes]


async def failure(running: RunningNode, method: str, *params: Json) -> tuple[int, str]:
    with pytest.raises(CallFailed) as failed:
        await running.call(method, *params)
    return failed.value.code, failed.value.message


# Lists


@pytest.mark.parametrize("order", ["newest", "arrival"])
async def test_ids_are_listed_page_by_page(running: RunningNode, order: str) -> None:
    envelopes = make_envelopes(20)[::-1]
    await fill(running.store, envelopes)

    listed: list[str] = []
    cursor, is_all, pages = "", False, 0
    while not is_all:
        page = await running.call("waku_messageIds", {"order": order, "limit": 6, "cursor": cursor})
        listed += page["ids"]
        cursor, is_all, pages = page["cursor"], page["isAll"], pages + 1

    assert listed == names(in_order(envelopes) if order == "newest" else envelopes)
    assert pages == 4
    assert (cursor == "") == (order == "newest")


async def test_ids_are_filtered_by_topic_time_and_metadata(running: RunningNode) -> None:
    envelopes = [*make_envelopes(6), *make_envelopes(6, first=100, topic=SPORT)]
    metadata = sorted(muid(each)[32:] for each in envelopes)
    await fill(running.store, envelopes)

    async def listed(**fields: Json) -> set[str]:
        return set((await running.call("waku_messageIds", fields))["ids"])

    assert await listed() == set(names(envelopes))
    assert await listed(topics=[as_hex(NEWS)]) == set(names(envelopes[:6]))
    times = {"from": envelopes[4].created, "to": envelopes[1].created}
    assert set((await running.call("waku_messageIds", times))["ids"]) == set(names(envelopes[1:5]))
    assert await listed(metadataPrefix=as_hex(muid(envelopes[3])[32:])) == set(names(envelopes[3:4]))
    between = await listed(metadataFrom=as_hex(metadata[2]), metadataTo=as_hex(metadata[5]))
    assert between == {as_hex(muid(each)) for each in envelopes if metadata[2] <= muid(each)[32:] < metadata[5]}


async def test_filter_that_contradicts_itself_is_refused(running: RunningNode) -> None:
    contradictions: list[tuple[Json, str]] = [
        ({"from": 2, "to": 1}, "filter.from: later than to"),
        ({"metadataPrefix": "0x00", "metadataTo": "0x01"}, "filter.metadataPrefix: give either this"),
        ({"cursor": f"0x{'00' * 8}"}, "filter.cursor: cursor has the wrong length"),
        ({"cursor": f"0x{'00' * 8}", "order": "arrival"}, "filter.cursor: cursor is not of a list"),
        ({"cursor": f"0x{'ff' * 24}", "order": "arrival"}, "filter.cursor: cursor is not of a list"),
        (
            {"networkTopic": ANOTHER_NETWORK},
            f"filter.networkTopic: message ids here belong to {DEFAULT_NETWORK_TOPIC!r}",
        ),
    ]
    for fields, why in contradictions:
        code, message = await failure(running, "waku_messageIds", fields)
        assert code == ErrorCode.INVALID_PARAMS
        assert message.startswith(why)


async def test_cursor_of_another_store_has_an_error_of_its_own(running: RunningNode, tmp_path: Path) -> None:
    await fill(running.store, make_envelopes(3))
    async with open_store(tmp_path / "other.db") as other:
        await fill(other, make_envelopes(3))
        theirs = arrival_cursor(await other.identity(), Arrival(2))

    question = {"cursor": as_hex(theirs), "order": "arrival"}
    code, message = await failure(running, "waku_messageIds", question)

    assert code == ErrorCode.CURSOR_OF_ANOTHER_STORE
    assert message == "cursor is of another store, or of before this one was restored: begin anew"


# By id


async def test_envelopes_are_fetched_by_their_ids(running: RunningNode) -> None:
    envelopes = make_envelopes(5)
    await fill(running.store, envelopes)
    asked = [envelopes[3], make_envelope(99), envelopes[1], envelopes[3]]

    answer = await running.call("waku_messagesByIds", {"ids": names(asked)})

    assert answer["rest"] == []
    assert [message["id"] for message in answer["messages"]] == names([envelopes[3], envelopes[1]])
    first = envelopes[3]
    assert answer["messages"][0] == {
        "id": as_hex(muid(first)),
        "hash": as_hex(first.hash()),
        "topic": as_hex(NEWS),
        "contentTopic": content_topic_of(NEWS),
        "timestamp": first.created,
        "expiry": first.expiry,
        "ttl": first.ttl,
        "nonce": as_hex(first.nonce.to_bytes(8, "big")),
        "data": as_hex(first.data),
    }


async def most_between_turns(
    monkeypatch: pytest.MonkeyPatch, name: str, call: Callable[[], Awaitable[object]]
) -> tuple[int, int]:
    """How often a function of the module is called during a call, and how often at most before others have a turn."""
    real, counts = getattr(waku_ids, name), [0]

    def counted(*args: object) -> object:
        counts[-1] += 1
        return real(*args)

    async def tick() -> None:
        while True:
            if counts[-1]:
                counts.append(0)
            await asyncio.sleep(0)

    monkeypatch.setattr(waku_ids, name, counted)
    ticking = asyncio.create_task(tick())
    await call()
    ticking.cancel()
    return sum(counts), max(counts)


async def test_long_list_of_ids_is_made_in_parts_between_which_others_have_their_turn(
    running: RunningNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    await fill(running.store, make_envelopes(300))
    monkeypatch.setattr(dispatch, "ENCODED_TOGETHER_CHARS", 1000)

    made, together = await most_between_turns(
        monkeypatch, "encode_hex", lambda: running.call("waku_messageIds", {"order": "arrival"})
    )

    assert (made, together) == (301, 11)  # of 108 characters; the first ten with the cursor


async def test_envelopes_are_looked_at_in_parts_between_which_others_have_their_turn(
    running: RunningNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    envelopes = make_envelopes(100)
    await fill(running.store, envelopes)
    monkeypatch.setattr(waku_ids, "NAMED_TOGETHER", 8)

    made, together = await most_between_turns(
        monkeypatch, "envelope_muid", lambda: running.call("waku_messagesByIds", {"ids": names(envelopes)})
    )

    assert (made, together) == (100, 8)


async def test_ids_that_take_too_much_to_find_are_refused(
    running: RunningNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail(*_: object, **__: object) -> None:
        raise RangeTooWide

    monkeypatch.setattr(StoredMessageIds, "find", fail)

    code, message = await failure(running, "waku_messagesByIds", {"ids": [as_hex(bytes(52))]})
    assert (code, "ask for fewer" in message) == (ErrorCode.TOO_MANY, True)


async def test_what_does_not_fit_into_an_answer_is_named_and_asked_for_again(
    running: RunningNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(waku_ids, "MAX_FETCHED_BYTES", 25_000)
    envelopes = make_large_envelopes(7, 10_000)
    missing = names([make_envelope(99)])
    await fill(running.store, envelopes)

    asked, given, calls = [*missing, *names(envelopes)], list[str](), 0
    while asked:
        answer = await running.call("waku_messagesByIds", {"ids": asked})
        assert len(answer["messages"]) <= 3
        given += [message["id"] for message in answer["messages"]]
        asked, calls = answer["rest"], calls + 1

    assert given == names(envelopes)
    assert calls == 3


async def test_envelope_that_was_damaged_is_left_out_and_the_others_are_given(
    running: RunningNode, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(waku_ids, "MAX_FETCHED_BYTES", 5_000)
    envelopes = make_large_envelopes(3, 10_000)
    await fill(running.store, envelopes)
    await running.call("waku_messagesByIds", {"ids": []})  # which waits until they are indexed
    raw = bytearray(envelopes[0].raw)
    raw[5000] ^= 1  # it still decodes, and has another id
    change(tmp_path / STORE_FILE, f"UPDATE envelopes SET raw = x'{raw.hex()}' WHERE created = {envelopes[0].created}")

    first = await running.call("waku_messagesByIds", {"ids": names(envelopes)})
    second = await running.call("waku_messagesByIds", {"ids": first["rest"]})

    given = [message["id"] for answer in (first, second) for message in answer["messages"]]
    assert given == names(envelopes[1:])
    assert second["rest"] == []


async def test_ids_of_another_network_are_refused(running: RunningNode) -> None:
    query: Json = {"ids": names(make_envelopes(1)), "networkTopic": ANOTHER_NETWORK}

    assert (await failure(running, "waku_messagesByIds", query))[0] == ErrorCode.INVALID_PARAMS


async def test_store_that_is_not_indexed_says_so(running: RunningNode, monkeypatch: pytest.MonkeyPatch) -> None:
    async def fail(*_: object, **__: object) -> None:
        raise NotIndexedYet(7)

    monkeypatch.setattr(type(running.store.message_ids), "find", fail)
    code, message = await failure(running, "waku_messagesByIds", {"ids": names(make_envelopes(1))})

    assert code == ErrorCode.STORE_UNAVAILABLE
    assert "still indexing the ids of 7 envelopes" in message


# Comparing


@pytest.mark.parametrize("topics", [[], [as_hex(NEWS)]])
async def test_sets_are_compared_message_by_message(running: RunningNode, topics: list[str]) -> None:
    theirs = make_envelopes(300)
    ours = [*theirs[:120], *theirs[150:], *make_envelopes(3, first=1000)]
    await fill(running.store, theirs)
    side = Initiator(MemoryStorage((each.created, sync_id(muid(each))) for each in ours))
    held = Talk()

    message: bytes | None = side.begin()
    while message is not None:
        answer = await running.call("waku_reconcile", {"message": as_hex(message), "topics": topics})
        message = received(side, bytes.fromhex(answer["message"][2:]), held.learn)

    assert held.need == {sync_id(muid(each)) for each in theirs[120:150]}
    assert held.have == {sync_id(muid(each)) for each in ours[-3:]}


async def test_comparison_of_too_much_is_refused(running: RunningNode, monkeypatch: pytest.MonkeyPatch) -> None:
    async def fail(*_: object, **__: object) -> None:
        raise TooManyIds(50_000)

    monkeypatch.setattr(StoredComparison, "respond", fail)

    assert (await failure(running, "waku_reconcile", {"message": "0x61"}))[0] == ErrorCode.TOO_MANY


# Checking


async def test_ids_of_an_envelope_are_told_and_checked(running: RunningNode) -> None:
    envelope, other = make_envelope(1), make_envelope(1, ttl=7)
    message_hash = message_of(envelope).hash(DEFAULT_NETWORK_TOPIC)

    async def checked(**fields: Json) -> object:
        return (await running.call("waku_checkMessageId", {"envelope": as_hex(envelope.raw), **fields}))["differs"]

    assert await running.call("waku_checkMessageId", {"envelope": as_hex(envelope.raw)}) == {
        "muid": as_hex(muid(envelope)),
        "messageHash": as_hex(message_hash),
        "differs": [],
    }
    assert await checked(id=as_hex(muid(envelope))) == []
    assert await checked(id=as_hex(message_hash)) == []
    assert await checked(id=as_hex(bytes(32))) == ["message hash"]
    assert "ttl" in str(await checked(id=as_hex(muid(other))))
    elsewhere = as_hex(muid(envelope, ANOTHER_NETWORK))
    assert await checked(id=elsewhere) == ["network topic, topic or data"]
    assert await checked(id=elsewhere, networkTopic=ANOTHER_NETWORK) == []


async def test_ids_of_a_message_of_v2_are_told_and_checked(running: RunningNode) -> None:
    message = WakuMessage(b"payload", "/app/1/chat/proto", timestamp=1, meta=b"meta")
    bare = WakuMessage(b"payload", "/app/1/chat/proto", timestamp=1)

    told = await running.call("waku_checkMessageId", {"message": as_hex(message.encode())})
    wrong: Json = {"message": as_hex(message.encode()), "id": as_hex(bytes(32) + b"META")}

    assert told["messageHash"] == as_hex(message.hash(DEFAULT_NETWORK_TOPIC))
    assert told["muid"].endswith(b"meta".hex())
    assert (await running.call("waku_checkMessageId", wrong))["differs"] == [
        "meta",
        "network topic, content topic or payload",
    ]
    assert (await running.call("waku_checkMessageId", {"message": as_hex(bare.encode())}))["muid"] == ""


async def test_message_that_has_no_ids_is_refused(running: RunningNode) -> None:
    old = make_envelope(1, created=0)
    wrong: list[tuple[Json, str]] = [
        ({}, "message.envelope: give either this or message"),
        ({"envelope": as_hex(old.raw), "message": "0x00"}, "message.envelope: give either this or message"),
        ({"envelope": as_hex(old.raw)}, "message.envelope: an envelope that was created 0 s"),
        ({"envelope": "0x00"}, "message.envelope: "),
        ({"message": "0x00"}, "message.message: "),
    ]
    for fields, why in wrong:
        code, message = await failure(running, "waku_checkMessageId", fields)
        assert code == ErrorCode.INVALID_PARAMS
        assert message.startswith(why)
