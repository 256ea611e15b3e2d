"""Messages of envelopes, made many at once."""

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from mailserver.communities.formats import CommunityMessage
from mailserver.communities.spec_format import SpecFormat
from mailserver.errors import DecodeError
from mailserver.ids.muid import DEFAULT_NETWORK_TOPIC, NoId
from mailserver.waku.envelope import Topic, decode_envelope, encode_envelope
from spark_export.community_messages import sealed_messages
from tests.properties import settings

FORM = SpecFormat(DEFAULT_NETWORK_TOPIC)

ENVELOPES = st.builds(
    lambda created, ttl, topic, data, nonce: encode_envelope(created + ttl, ttl, Topic(topic), data, nonce).raw,
    st.integers(0, 2**31) | st.just(0),
    st.sampled_from([1, 50, 127, 128, 100_000]),
    st.binary(min_size=4, max_size=4),
    st.binary(max_size=400) | st.binary(min_size=256, max_size=300),
    st.integers(0, 2**64 - 1) | st.integers(0, 300),
)


def one_by_one(raw: bytes) -> CommunityMessage | None:
    try:
        return FORM.message_of(decode_envelope(raw))
    except (DecodeError, NoId):
        return None


@given(st.lists(ENVELOPES | st.binary(max_size=300), max_size=20))
@settings(max_examples=300)
def test_messages_are_those_that_the_format_makes_one_by_one(raws: Sequence[bytes]) -> None:
    assert sealed_messages(DEFAULT_NETWORK_TOPIC, raws) == [one_by_one(raw) for raw in raws]


def test_usual_envelopes_are_made_in_columns_and_others_one_by_one() -> None:
    usual = [encode_envelope(1_700_000_000 + n, 50, Topic(b"abcd"), bytes(300), 2**40 + n).raw for n in range(3)]
    unusual = encode_envelope(1_700_000_000, 500, Topic(b"abcd"), b"x", 1).raw

    for raws in (usual, [usual[0], unusual, b"damaged", usual[1]]):
        assert sealed_messages(DEFAULT_NETWORK_TOPIC, raws) == [one_by_one(raw) for raw in raws]
