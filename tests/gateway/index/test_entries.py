"""mailserver.gateway.index.entries: the entries of a page, and what is pushed, made in one go."""

import contextlib
import sqlite3
from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from mailserver.gateway.index.entries import encoded_messages, stored_entries
from mailserver.gateway.index.values import EncodedMessage, StoredEntry
from mailserver.ids.envelopes import NS, message_of
from mailserver.ids.muid import DEFAULT_NETWORK_TOPIC, NoId
from mailserver.ids.waku_message import MessageHash
from mailserver.waku.envelope import Envelope, encode_envelope
from mailserver.waku.envelope_rows import read_fields
from tests.gateway.index.worlds import envelope, envelopes, stored

NOTHING = MessageHash(bytes(32))

anything = st.builds(
    lambda created, ttl, topic, data, nonce: encode_envelope(created + ttl, ttl, topic, data, nonce),
    st.one_of(st.integers(0, 300), st.integers(0, 2**32 - 1 - 2**16)),
    st.integers(1, 2**16),
    st.binary(min_size=4, max_size=4),
    st.one_of(st.binary(max_size=300), st.integers(0, 20_000).map(bytes)),
    st.integers(0, 2**64 - 1),
)


def name_of(each: Envelope, network_topic: str) -> MessageHash:
    try:
        return message_of(each).hash(network_topic)
    except NoId:
        return NOTHING


def step_by_step(some: Sequence[Envelope], network_topic: str) -> list[StoredEntry | None]:
    """The same by what it does in one go."""
    entries: list[StoredEntry | None] = []
    for each in some:
        try:
            entries.append(stored(message_of(each), network_topic))
        except NoId:
            entries.append(None)
    return entries


@given(st.lists(anything, max_size=5), st.sampled_from([DEFAULT_NETWORK_TOPIC, "/waku/2/rs/0/0", "ü"]))
def test_entries_are_those_of_the_messages(some: list[Envelope], network_topic: str) -> None:
    names = [name_of(each, network_topic) for each in some]

    entries = stored_entries(network_topic, names, [each.raw for each in some])

    assert entries == step_by_step(some, network_topic)


@given(st.lists(anything, max_size=5), st.sampled_from([DEFAULT_NETWORK_TOPIC, "/waku/2/rs/0/0", "ü"]))
def test_what_is_pushed_are_the_messages(some: list[Envelope], network_topic: str) -> None:
    all_fields = read_fields(b"".join(each.raw for each in some), [len(each.raw) for each in some])
    expected: list[EncodedMessage | None] = []
    for each in some:
        try:
            message = message_of(each)
        except NoId:
            expected.append(None)
        else:
            name, encoded = message.hash(network_topic), message.encode()
            expected.append(EncodedMessage(name, message.content_topic, each.created * NS, encoded))

    with contextlib.closing(sqlite3.connect(":memory:")) as connection:
        connection.execute("CREATE TABLE originals (envelope)")
        found = encoded_messages(
            connection,
            network_topic,
            [(fields, each.hash()) for fields, each in zip(all_fields, some, strict=True) if fields is not None],
        )

    assert found == expected


def test_envelope_that_is_damaged_or_another_has_no_entry() -> None:
    some = envelopes(4)
    names = [name_of(each, DEFAULT_NETWORK_TOPIC) for each in some]
    raws = [each.raw for each in some]
    raws[0], raws[2] = raws[0][:-1], raws[3]

    entries = stored_entries(DEFAULT_NETWORK_TOPIC, names, raws)

    assert entries == [None, stored(message_of(some[1])), None, stored(message_of(some[3]))]


def test_message_of_another_network_topic_has_no_entry() -> None:
    name = name_of(envelope(1), "/waku/2/rs/0/0")

    assert stored_entries(DEFAULT_NETWORK_TOPIC, [name], [envelope(1).raw]) == [None]
