"""mailserver.waku2: the packets, beside bytes that @waku/proto has made, and others that are written by hand."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mailserver.codec.protobuf import write_bytes, write_number, write_packed
from mailserver.errors import DecodeError
from mailserver.ids.waku_message import MAX_MESSAGE_BYTES, MAX_META_BYTES, WakuMessage
from mailserver.waku2.fields import (
    MAX_ID_FIELDS,
    MAX_OTHER_FIELDS,
    MAX_READ_TOPICS,
    MAX_REQUEST_ID_BYTES,
    MAX_STATUS_TEXT_BYTES,
    request_id_of,
)
from mailserver.waku2.filter_packets import (
    FilterSubscribeRequest,
    FilterSubscribeResponse,
    FilterSubscribeType,
    MessagePush,
    decode_filter_subscribe_request,
    encode_message_push,
)
from mailserver.waku2.lightpush import LightPushRequest, LightPushResponse, PushRequest, PushResponse, PushRpc
from mailserver.waku2.metadata import MAX_SHARDS, Metadata, decode_metadata
from mailserver.waku2.old_filter import (
    MAX_OTHER_FILTER_FIELDS,
    MAX_PUSHED_MESSAGES,
    FilterRequest,
    FilterRpc,
    OldMessagePush,
    decode_filter_rpc,
    encode_old_push,
    encode_pushing_rpc,
)
from mailserver.waku2.store_query import (
    MAX_QUERY_BYTES,
    MAX_READ_HASHES,
    StoreQueryRequest,
    StoreQueryResponse,
    WakuMessageKeyValue,
    decode_store_query_response,
)
from tests.data import load
from tests.waku2.packets import (
    BARE,
    FULL,
    KINDS,
    PUBSUB,
    RECORDED,
    Packet,
    decode,
    drawn_packets,
    hash_of,
)

VECTORS: dict[str, str] = load("waku2/packets.json")

WRITTEN_OTHERWISE = {"old_unsubscribe", "metadata"}
"""A false `subscribe`, which we write and they leave out; shards, which we write in another field, too."""


@pytest.mark.parametrize("name", VECTORS)
def test_packet_of_another_implementation_is_read(name: str) -> None:
    expected = RECORDED[name]

    assert decode(type(expected), bytes.fromhex(VECTORS[name])) == expected


@pytest.mark.parametrize("name", sorted(set(VECTORS) - WRITTEN_OTHERWISE))
def test_packet_has_the_bytes_of_another_implementation(name: str) -> None:
    assert RECORDED[name].encode().hex() == VECTORS[name]


@given(drawn_packets)
def test_packet_is_decoded_as_it_was_encoded(packet: Packet) -> None:
    assert decode(type(packet), packet.encode()) == packet


@given(
    drawn_packets, st.integers(16, 50) | st.integers(60, 2**29 - 1), st.integers(0, 2**64 - 1), st.binary(max_size=9)
)
def test_unknown_fields_are_skipped(packet: Packet, number: int, value: int, data: bytes) -> None:
    known = {20, 21}
    if number in known:
        number += 1000
    unknown = write_number(number, value) + write_bytes(number, data)

    assert decode(type(packet), unknown + packet.encode() + unknown) == packet


@pytest.mark.parametrize("name", VECTORS)
def test_every_truncation_is_refused_or_is_a_packet_that_ends_between_two_fields(name: str) -> None:
    data, kind = bytes.fromhex(VECTORS[name]), type(RECORDED[name])

    for length in range(len(data)):
        try:
            packet = decode(kind, data[:length])
        except DecodeError:
            continue
        assert decode(kind, packet.encode()) == packet
        assert packet != RECORDED[name]


@given(st.sampled_from(list(KINDS)), st.binary(max_size=80))
def test_random_bytes_are_a_packet_or_refused(kind: type[Packet], data: bytes) -> None:
    try:
        packet = decode(kind, data)
    except DecodeError:
        return
    assert decode(kind, packet.encode()) == packet


@given(st.sampled_from(sorted(VECTORS)), st.data())
def test_changed_bytes_are_a_packet_or_refused(name: str, draw: st.DataObject) -> None:
    data, kind = bytearray.fromhex(VECTORS[name]), type(RECORDED[name])
    data[draw.draw(st.integers(0, len(data) - 1))] ^= draw.draw(st.integers(1, 255))

    try:
        packet = decode(kind, bytes(data))
    except DecodeError:
        return
    assert decode(kind, packet.encode()) == packet


# What deployed clients expect


def test_request_without_a_type_is_a_ping() -> None:
    assert decode_filter_subscribe_request(b"") == FilterSubscribeRequest("", FilterSubscribeType.SUBSCRIBER_PING)


def test_fields_that_clients_demand_are_written_even_if_they_are_empty() -> None:
    """nwaku's clients refuse answers without them, as proto3 would leave them out."""
    assert FilterSubscribeResponse("", 0).encode() == bytes.fromhex("0a00 5000")
    assert StoreQueryResponse("", 0, "").encode() == bytes.fromhex("0a00 5000 5a00")
    assert LightPushResponse("", 0).encode() == bytes.fromhex("0a00 5000")
    assert PushRpc("", response=PushResponse(False)).encode() == bytes.fromhex("0a00 1a02 0800")
    assert FilterRpc("", FilterRequest(False)).encode() == bytes.fromhex("0a00 1202 0800")


def test_push_of_an_encoded_message_is_the_packet() -> None:
    assert encode_message_push(FULL.encode(), PUBSUB) == MessagePush(FULL, PUBSUB).encode()
    assert (
        encode_pushing_rpc("id-5", encode_old_push(FULL.encode()))
        == FilterRpc("id-5", push=OldMessagePush((FULL,))).encode()
    )


def test_shards_are_written_in_both_fields() -> None:
    """As nwaku: 1 cluster_id, 2 each shard by itself, 3 packed."""
    assert Metadata(1, (0, 4, 300)).encode().hex() == "0801" + "1000100410ac02" + "1a040004ac02"
    assert Metadata(1, (0, 4, 300)).encode().hex().startswith(VECTORS["metadata"])
    assert Metadata(None).encode() == b""


@pytest.mark.parametrize(
    ("data", "shards"),
    [
        ("1a03 0102 05", (1, 2, 5)),
        ("1005 1a02 0102", (1, 2)),
        ("1a02 0102 1005", (1, 2)),
        ("1202 0304", (3, 4)),
        ("1003 1004", (3, 4)),
        ("1801 1802", (1, 2)),
        ("1003 1202 0405", (3, 4, 5)),
        ("1a00 1003", (3,)),
        ("1a03 0180 02", (1, 256)),
        ("", ()),
    ],
)
def test_shards_are_read_from_either_field_packed_or_not(data: str, shards: tuple[int, ...]) -> None:
    assert decode_metadata(bytes.fromhex("0801" + data)) == Metadata(1, shards)


def test_message_of_a_page_comes_with_its_topic_or_not_at_all() -> None:
    message, topic = write_bytes(2, FULL.encode()), write_bytes(3, PUBSUB.encode())
    for parts, expected in [
        (b"", WakuMessageKeyValue(hash_of(1))),
        (message, WakuMessageKeyValue(hash_of(1))),
        (topic, WakuMessageKeyValue(hash_of(1))),
        (message + topic, WakuMessageKeyValue(hash_of(1), FULL, PUBSUB)),
    ]:
        packet = write_bytes(20, write_bytes(1, hash_of(1)) + parts)
        assert decode_store_query_response(packet).messages == (expected,)
    assert WakuMessageKeyValue(hash_of(1), FULL).encode() == WakuMessageKeyValue(hash_of(1)).encode()


# Bounds


def test_as_much_as_a_service_takes_fits_into_a_request() -> None:
    topics = tuple(f"{number:01024}" for number in range(100))
    hashes = tuple(hash_of(number % 256) for number in range(MAX_READ_HASHES))
    query = StoreQueryRequest("i" * MAX_REQUEST_ID_BYTES, True, "p" * 255, topics, 1, 2, hashes, hash_of(1), True, 100)

    assert len(query.encode()) < MAX_QUERY_BYTES
    assert decode(StoreQueryRequest, query.encode()) == query


@pytest.mark.parametrize(
    ("packet", "why"),
    [
        (FilterSubscribeRequest("i" * 257), "request_id is too long, got 257, limit 256"),
        (FilterSubscribeRequest("", pubsub_topic="p" * 256), "pubsub_topic is too long, got 256, limit 255"),
        (FilterSubscribeRequest("", content_topics=("c" * 1025,)), "content_topics is too long, got 1025, limit 1024"),
        (
            FilterSubscribeRequest("", content_topics=("c",) * (MAX_READ_TOPICS + 1)),
            "content_topics come too often, limit 1000",
        ),
        (
            FilterSubscribeResponse("", 1, "d" * 4097),
            f"status_desc is too long, got 4097, limit {MAX_STATUS_TEXT_BYTES}",
        ),
        (MessagePush(WakuMessage(b"", "c", meta=bytes(65)), ""), f"meta is too long, got 65, limit {MAX_META_BYTES}"),
        (FilterRpc("", FilterRequest(True, "t" * 256)), "topic is too long, got 256, limit 255"),
        (FilterRpc("", FilterRequest(True, "", ("c" * 1025,))), "contentTopic is too long, got 1025, limit 1024"),
        (
            FilterRpc("", FilterRequest(True, "", ("",) * (MAX_READ_TOPICS + 1))),
            "contentFilters come too often, limit 1000",
        ),
        (
            FilterRpc("", push=OldMessagePush((BARE,) * (MAX_PUSHED_MESSAGES + 1))),
            "messages come too often, limit 100",
        ),
        (
            StoreQueryRequest("", message_hashes=(b"",) * (MAX_READ_HASHES + 1)),
            "message_hashes come too often, limit 1000",
        ),
        (StoreQueryRequest("", message_hashes=(bytes(65),)), "message_hashes is too long, got 65, limit 64"),
        (StoreQueryRequest("", pagination_cursor=bytes(65)), "pagination_cursor is too long, got 65, limit 64"),
        (
            StoreQueryResponse("", 1, "", (WakuMessageKeyValue(hash_of(1)),) * 1001),
            "messages come too often, limit 1000",
        ),
        (
            LightPushRequest("", None, WakuMessage(bytes(MAX_MESSAGE_BYTES), "c")),
            "message is too long, got 1048839, limit 1048832",
        ),
        (PushRpc("", response=PushResponse(True, "i" * 4097)), "info is too long, got 4097, limit 4096"),
        (Metadata(1, (0,) * (MAX_SHARDS + 1)), "deprecated shards come too often, limit 1024"),
    ],
    ids=lambda value: value if isinstance(value, str) else type(value).__name__,
)
def test_packet_beyond_a_bound_is_refused_by_the_name_of_the_field(packet: Packet, why: str) -> None:
    with pytest.raises(DecodeError) as caught:
        decode(type(packet), packet.encode())

    assert str(caught.value) == why


@pytest.mark.parametrize(
    ("kind", "data", "why"),
    [
        (FilterSubscribeRequest, "1004", "filter_subscribe_type is unknown, got 4"),
        (FilterSubscribeRequest, "0a01 ff", "request_id is not UTF-8"),
        (FilterSubscribeRequest, "5201 ff", "pubsub_topic is not UTF-8"),
        (FilterSubscribeRequest, "5a01 61 5a01 ff", "content_topics is not UTF-8"),
        (MessagePush, "1200", "waku_message is missing"),
        (MessagePush, "0a00", "payload is missing"),
        (FilterRpc, "1203 1a0108", "protobuf number is truncated"),
        (FilterRpc, "1205 1a03 0a01ff", "contentTopic is not UTF-8"),
        (FilterRpc, "1a02 0a00", "payload is missing"),
        (StoreQueryResponse, "a20100", "message_hash is not 32 bytes, got 0, limit 32"),
        (
            StoreQueryResponse,
            f"a20145 0a20 {'00' * 32} c23e20 {'00' * 32}",
            "MUID is not 33 to 64 bytes, got 32, limit 64",
        ),
        (LightPushRequest, "aa0100", "payload is missing"),
        (PushRpc, "1202 1200", "payload is missing"),
        (Metadata, "1a01 80", "protobuf number is truncated"),
    ],
)
def test_packet_of_another_form_is_refused_by_the_name_of_the_field(kind: type[Packet], data: str, why: str) -> None:
    with pytest.raises(DecodeError) as caught:
        decode(kind, bytes.fromhex(data))

    assert str(caught.value) == why


@pytest.mark.parametrize(
    ("data", "packet"),
    [
        ("0801 1201 01 0a01 69", FilterSubscribeRequest("i")),
        ("0a01 69 0801 1001 1201 02", FilterSubscribeRequest("i", FilterSubscribeType.SUBSCRIBE)),
        ("5801 5a01 61 5d 00000000", FilterSubscribeRequest("", content_topics=("a",))),
        ("1207 1d00000000 0801", FilterRpc("", FilterRequest(True))),
        ("6201 01 69 0102030405060708", StoreQueryRequest("")),
        ("1d 00000000 1801 0a01 01", Metadata(None, (1,))),
        ("1900000000 00000000 0801", Metadata(1)),
    ],
)
def test_field_of_another_wire_type_is_an_unknown_one(data: str, packet: Packet) -> None:
    written = bytes.fromhex(data)

    assert decode(type(packet), written) == packet


HIGH = 2**64 - 2**32
"""The bits of a number of ten bytes that one of 32 bits does not have."""


@pytest.mark.parametrize(
    ("data", "packet"),
    [
        (write_number(2, HIGH + 1), FilterSubscribeRequest("", FilterSubscribeType.SUBSCRIBE)),
        (write_number(10, HIGH + 200), FilterSubscribeResponse("", 200)),
        (write_number(12, HIGH + 3), LightPushResponse("", 0, relay_peer_count=3)),
        (write_number(1, HIGH + 1) + write_number(2, HIGH + 5), Metadata(1, (5,))),
        (write_packed(3, [HIGH + 5, 2**32]), Metadata(None, (5, 0))),
    ],
)
def test_of_a_number_of_32_bits_the_low_ones_are_taken(data: bytes, packet: Packet) -> None:
    assert decode(type(packet), data) == packet


@pytest.mark.parametrize("value", [1, 2, 255, 2**64 - 1])
def test_any_number_but_0_is_true(value: int) -> None:
    query = write_number(2, value) + write_number(52, value) + write_number(1000, value)

    assert decode(StoreQueryRequest, query) == StoreQueryRequest(
        "", include_data=True, pagination_forward=True, include_muids=True
    )
    assert decode(PushRpc, write_bytes(3, write_number(1, value))) == PushRpc("", response=PushResponse(True))
    assert decode(FilterRpc, write_bytes(2, write_number(1, value))) == FilterRpc("", FilterRequest(True))


REPEATED: dict[type[Packet], Packet] = {
    FilterSubscribeRequest: FilterSubscribeRequest("", content_topics=("",) * MAX_READ_TOPICS),
    FilterRpc: FilterRpc(""),
    LightPushRequest: LightPushRequest("", "", BARE),
    Metadata: Metadata(1, (1,) * MAX_SHARDS),
    StoreQueryRequest: StoreQueryRequest(
        "", content_topics=("",) * MAX_READ_TOPICS, message_hashes=(b"",) * MAX_READ_HASHES
    ),
}
"""Requests with as many repeated fields as are read. None has all the others that its rules allow."""


@pytest.mark.parametrize("kind", REPEATED)
def test_packet_of_too_many_fields_is_refused(kind: type[Packet]) -> None:
    packet, unknown = REPEATED[kind], write_number(3000, 1)

    assert decode(kind, packet.encode() + unknown * MAX_OTHER_FIELDS) == packet
    with pytest.raises(DecodeError, match="packet has too many fields"):
        decode(kind, packet.encode() + unknown * 20 * MAX_OTHER_FIELDS)


def test_field_that_comes_too_often_makes_too_many() -> None:
    request = FilterSubscribeRequest("one").encode()

    with pytest.raises(DecodeError, match="packet has too many fields, limit 67"):
        decode(LightPushRequest, request * 68)


def test_content_filter_of_too_many_fields_is_refused() -> None:
    def request(others: int) -> bytes:
        content_filter = write_bytes(1, b"c") + write_number(2, 1) * others
        return write_bytes(2, write_bytes(3, content_filter))

    assert decode_filter_rpc(request(MAX_OTHER_FILTER_FIELDS)) == FilterRpc("", FilterRequest(False, "", ("c",)))
    with pytest.raises(DecodeError, match="too many fields, limit 5"):
        decode_filter_rpc(request(MAX_OTHER_FILTER_FIELDS + 1))


def test_packed_shards_are_bounded() -> None:
    with pytest.raises(DecodeError, match="shards come too often, limit 1024"):
        decode_metadata(write_packed(3, [1] * (MAX_SHARDS + 1)))


# Answering what cannot be read


@given(st.text(max_size=60), st.binary(max_size=40))
def test_request_id_is_found_in_a_packet_that_is_damaged_behind_it(request_id: str, rest: bytes) -> None:
    data = FilterSubscribeRequest(request_id).encode() + b"\x12" + rest

    assert isinstance(request_id_of(data), str)
    assert request_id_of(FilterSubscribeRequest(request_id).encode() + b"\x5a\x7f") == request_id


def test_request_id_that_cannot_be_read_is_empty() -> None:
    for data in (b"", b"\x0a\x05ab", b"\x0a\x01\xff", b"\x08\x01", FilterSubscribeRequest("i" * 257).encode()):
        assert request_id_of(data) == ""


def test_request_id_is_sought_among_few_fields() -> None:
    request = FilterSubscribeRequest("one").encode()

    assert request_id_of(write_number(2, 0) * (MAX_ID_FIELDS - 1) + request) == "one"
    assert request_id_of(write_number(2, 0) * MAX_ID_FIELDS + request) == ""


def test_of_fields_that_come_twice_the_last_one_counts() -> None:
    twice = FilterSubscribeRequest("one", pubsub_topic="a").encode() + FilterSubscribeRequest("two").encode()

    assert decode_filter_subscribe_request(twice) == FilterSubscribeRequest("two", pubsub_topic="a")
    assert request_id_of(twice) == "two"


def test_message_that_comes_in_parts_is_what_they_add_up_to() -> None:
    """As C++, Go and Nim read it; js-waku takes the last part."""
    one, other = write_bytes(1, b"payload"), write_bytes(2, b"c") + write_number(3, 1)
    message = WakuMessage(b"payload", "c", version=1)

    def parts(number: int) -> bytes:
        return write_bytes(number, one) + write_bytes(number, other)

    assert decode(LightPushRequest, parts(21)) == LightPushRequest("", None, message)
    assert decode(MessagePush, parts(1)) == MessagePush(message, None)
    assert decode(PushRpc, write_bytes(2, write_bytes(2, one)) + write_bytes(2, write_bytes(2, other))) == PushRpc(
        "", PushRequest("", message)
    )
    assert decode(FilterRpc, write_bytes(3, b"") + write_bytes(2, b"") * 2) == FilterRpc(
        "", FilterRequest(False), OldMessagePush(())
    )
    page = write_bytes(20, write_bytes(1, hash_of(1)) + parts(2) + write_bytes(3, PUBSUB.encode()))
    assert decode_store_query_response(page).messages == (WakuMessageKeyValue(hash_of(1), message, PUBSUB),)


def test_message_in_parts_is_no_longer_than_a_whole_one() -> None:
    part = write_bytes(21, bytes(MAX_MESSAGE_BYTES // 2 + 1))

    with pytest.raises(DecodeError, match=f"message is too long, got {MAX_MESSAGE_BYTES + 2}, limit"):
        decode(LightPushRequest, part * 2)


def test_content_filter_without_a_topic_is_an_empty_one() -> None:
    assert decode_filter_rpc(bytes.fromhex("12021a00")) == FilterRpc("", FilterRequest(False, "", ("",)))
