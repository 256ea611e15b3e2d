"""The elements of packets of `wakuid/1`: how each is read and written, with its bound."""

from typing import cast

from mailserver.codec import rlp
from mailserver.errors import DecodeError
from mailserver.ids.muid import MAX_NETWORK_TOPIC_BYTES, Muid, check_muid, is_muid_length
from mailserver.mail.request import MAX_REQUEST_TOPICS
from mailserver.waku.bloom import BLOOM_BYTES, FULL_INTEREST, Interest
from mailserver.waku.envelope import TOPIC_BYTES, Topic
from mailserver.wakuid.packets import MAX_FETCHED_IDS, MAX_RECONCILE_BYTES, MAX_TEXT_BYTES

FEW_ITEMS = 32
"""How many items a packet may have besides those of its list."""

_REQUEST_ID_BYTES = 8
_INTEGER_BYTES = 4


def elements(payload: bytes, count: int, max_items: int) -> list[rlp.Item]:
    """The first `count` elements of a packet.

    Raises:
        DecodeError: it is not a list, has fewer, or more than `max_items` items in all.
    """
    fields = rlp.decode_list(payload, max_items=max_items)
    if len(fields) < count:
        raise DecodeError("packet has too few elements", got=len(fields), limit=count)
    return fields[:count]


def read_request_id(payload: bytes) -> tuple[int, int, int]:
    """Read the request id of a packet, and nothing else; return it, where it ends, and where the packet does.

    Raises:
        DecodeError: the packet is not one list, or does not begin with a request id.
    """
    is_list, at, end = rlp.header(payload, 0, len(payload))
    if not is_list or end != len(payload):
        raise DecodeError("packet is not one list")
    is_list, start, at = rlp.header(payload, at, end)
    if is_list:
        raise DecodeError("request id is a list")
    return as_request_id(payload[start:at]), at, end


def as_request_id(item: rlp.Item) -> int:
    """A request id: a number of 8 bytes that whoever asks has chosen."""
    return rlp.as_uint(item, _REQUEST_ID_BYTES)


def as_u32(item: rlp.Item) -> int:
    """A number of 4 bytes."""
    return rlp.as_uint(item, _INTEGER_BYTES)


def as_network_topic(item: rlp.Item) -> str:
    """A network topic, in UTF-8."""
    return _as_string(as_short(item, MAX_NETWORK_TOPIC_BYTES, "network topic"))


def as_text(item: rlp.Item) -> str:
    """Text for people; what is not UTF-8 of it is replaced."""
    return as_short(item, MAX_TEXT_BYTES, "text").decode("utf-8", "replace")


def _as_string(data: bytes) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise DecodeError("text is not UTF-8", got=data.hex()) from error


def as_short(item: rlp.Item, max_bytes: int, what: str) -> bytes:
    """A string of at most `max_bytes`."""
    data = rlp.as_bytes(item)
    if len(data) > max_bytes:
        raise DecodeError(f"{what} is too long", got=len(data), limit=max_bytes)
    return data


def as_message(item: rlp.Item) -> bytes:
    """A message of negentropy."""
    return as_short(item, MAX_RECONCILE_BYTES, "reconciliation message")


def as_muids(item: rlp.Item) -> list[Muid]:
    """A list of MUIDs."""
    return [check_muid(rlp.as_bytes(each)) for each in at_most(rlp.as_list(item), MAX_FETCHED_IDS, "ids")]


def read_equal_muids(payload: bytes, at: int, end: int) -> list[Muid] | None:
    """Read a list of MUIDs that is the last element of a packet, as nearly all are: those of envelopes have one length.

    None: it is something else, for `as_muids` to read, or to refuse.
    """
    is_list, start, stop = rlp.header(payload, at, end)
    muids = rlp.equal_strings(payload, start, stop) if is_list and stop == end else None
    if muids is None or len(muids) > MAX_FETCHED_IDS or not is_muid_length(len(muids[0])):
        return None
    return cast(list[Muid], muids)


def at_most(items: list[rlp.Item], limit: int, what: str) -> list[rlp.Item]:
    """Return a list that may have `limit` items."""
    if len(items) > limit:
        raise DecodeError(f"too many {what}", got=len(items), limit=limit)
    return items


def as_interest(item: rlp.Item) -> Interest:
    """Topics, a bloom filter, or everything."""
    if isinstance(item, list):
        topics = at_most(item, MAX_REQUEST_TOPICS, "topics")
        return Interest(topics=frozenset(Topic(rlp.as_bytes(topic, TOPIC_BYTES)) for topic in topics))
    return Interest(bloom=rlp.as_bytes(item, BLOOM_BYTES)) if item else FULL_INTEREST


def encode_interest(interest: Interest) -> rlp.Encodable:
    """What `as_interest` reads."""
    if interest.topics is not None:
        return sorted(interest.topics)
    return b"" if interest == FULL_INTEREST else interest.bloom


def uint(value: int) -> bytes:
    """A number, to be encoded."""
    return rlp.encode_uint(value)


def encoded_uint(value: int) -> bytes:
    """A number, encoded."""
    return rlp.encode(rlp.encode_uint(value))


def list_of(*items: bytes) -> bytes:
    """Encode a list of items that are already encoded."""
    body = b"".join(items)
    return rlp.list_prefix(len(body)) + body
