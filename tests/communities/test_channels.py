"""Ids, topics and keys of communities and their channels."""

import pytest

from mailserver.codec.keys import NodeId, PrivateKey
from mailserver.communities.channels import (
    Channel,
    chat_channel,
    community_id,
    id_text,
    parse_id,
    public_key_of,
    special_channel,
    universal_channel,
)
from mailserver.errors import DecodeError
from mailserver.waku.envelope import Topic
from tests.communities.making import community
from tests.data import load

VECTOR = load("communities/messages.json")["special_channel"]


def test_special_channel_is_a_public_chat_of_the_communitys_id() -> None:
    channel = special_channel(parse_id(VECTOR["community"]))

    assert channel.name == VECTOR["chat_id"]
    assert channel.topic.hex() == VECTOR["topic"]
    assert channel.key == bytes.fromhex(VECTOR["key"])
    assert channel.content_topic == f"/waku/1/0x{VECTOR['topic']}/rfc26"


def test_every_community_has_its_own_special_and_universal_channels() -> None:
    ids = [community(number).id for number in (1, 2)]

    assert len({channel.key for each in ids for channel in (special_channel(each), universal_channel(each))}) == 4


def test_channel_of_a_chat_may_have_a_name() -> None:
    named, unnamed = chat_channel("chat", "General"), chat_channel("chat")

    assert (named.name, unnamed.name) == ("General", "chat")
    assert (named.content_topic, named.key) == (unnamed.content_topic, unnamed.key)


@pytest.mark.parametrize("number", range(6))
def test_id_is_the_compressed_public_key(number: int) -> None:
    key = community(number).key

    assert public_key_of(community_id(key.public_key)) == key.public_key
    assert parse_id(id_text(community_id(key.public_key))) == community_id(key.public_key)


def test_id_is_read_in_either_case_and_written_in_lower_case() -> None:
    text = id_text(community().id)

    assert id_text(parse_id(f"0x{text[2:].upper()}")) == text
    assert len(text) == 68


@pytest.mark.parametrize(
    "text",
    [
        "",
        "0x",
        "0x02",
        id_text(community().id)[2:],
        id_text(community().id) + "00",
        f"0x04{'11' * 32}",
        f"0x02{'ff' * 32}",
        f"0x{'g' * 66}",
        id_text(community().id)[:-1] + " ",
    ],
)
def test_what_is_no_id_is_refused(text: str) -> None:
    with pytest.raises(DecodeError):
        parse_id(text)


def test_channel_of_waku_v2_has_no_topic_of_v1() -> None:
    assert Channel("one", "/waku/1/0x61626364/rfc26").topic == Topic(b"abcd")
    with pytest.raises(DecodeError):
        _ = Channel("other", "/app/1/name/proto").topic


def test_keys_with_even_and_odd_y_are_compressed() -> None:
    ids = {community_id(PrivateKey(bytes(31) + bytes([number])).public_key)[0] for number in range(1, 9)}

    assert ids == {2, 3}
    with pytest.raises(DecodeError):
        public_key_of(community_id(NodeId(b"\xff" * 64)))
