"""What a task makes of the envelopes of a range."""

import random
from collections.abc import Iterable, Sequence

from hypothesis import given
from hypothesis import strategies as st

from mailserver.codec.keys import PrivateKey
from mailserver.communities.deployed_format import DeployedFormat, deployed_message
from mailserver.communities.formats import HistoryArchive
from mailserver.communities.index import DEPLOYED
from mailserver.communities.spec_format import SpecFormat
from mailserver.community.owner.appending import NewArchive
from mailserver.ids.muid import DEFAULT_NETWORK_TOPIC
from mailserver.waku.envelope import Envelope, encode_envelope
from mailserver.waku.payload import seal_symmetric
from spark_export.community_encoding import CandidateRow, RangeWork, Skipped, archives_of
from tests.community.owner.samples import ATTIC, GARDEN, TTL, channel, sealed, week
from tests.properties import settings

FORM = SpecFormat(DEFAULT_NETWORK_TOPIC)
KEY, OTHER_KEY = bytes([5]) * 32, bytes([6]) * 32
SIGNER = PrivateKey(bytes([9]) * 32)


def work(*, further: bool = False, form: str = "spec") -> RangeWork:
    topics = tuple(sorted(channel(each).content_topic for each in (GARDEN, ATTIC)))
    keys = {GARDEN: (OTHER_KEY, KEY)}
    return RangeWork(0, week(0), form, DEFAULT_NETWORK_TOPIC, topics, keys, (), needs_messages=further)


def rows(envelopes: Iterable[Envelope], order: random.Random | None = None) -> list[CandidateRow]:
    """As Spark gives them: by time of creation, and in any order within a second."""
    made = [CandidateRow(each.created, each.hash()[:16], each.raw) for each in envelopes]
    if order is not None:
        order.shuffle(made)
    return sorted(made, key=lambda row: row.created)


def made_of(envelopes: Iterable[Envelope], *, further: bool = False) -> list[NewArchive]:
    return [*archives_of(work(further=further), rows(envelopes), Skipped())]


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 30)), max_size=30), st.randoms(use_true_random=False))
@settings(max_examples=50)
def test_archives_are_the_same_in_whatever_order_rows_of_a_second_come(
    places: Sequence[tuple[int, int]], order: random.Random
) -> None:
    envelopes = [sealed(week(0).lower + second, number) for second, number in places]
    unique = {each.hash(): each for each in envelopes}.values()

    shuffled = [*archives_of(work(), rows([*envelopes, *envelopes[:3]], order), Skipped())]

    assert shuffled == made_of(unique)
    (archive,) = shuffled
    messages = FORM.decode_archive(archive.encoded.data).messages
    assert [*messages] == sorted(map(FORM.message_of, unique))
    by_message = {FORM.message_of(each).hash: each.hash()[:16] for each in unique}
    assert archive.keys == b"".join(by_message[message.hash] for message in messages)


def test_range_without_envelopes_says_so_unless_it_has_an_archive() -> None:
    (archive,) = made_of([])
    assert FORM.decode_archive(archive.encoded.data) == HistoryArchive(week(0), work().content_topics, ())

    assert made_of([], further=True) == []
    assert len(made_of([sealed(week(0).lower)], further=True)) == 1


def test_what_is_damaged_is_left_out_and_counted() -> None:
    skipped = Skipped()
    good = sealed(week(0).lower)

    (archive,) = archives_of(work(), [CandidateRow(good.created, b"k" * 16, b"damaged"), *rows([good])], skipped)

    assert skipped == Skipped(damaged=1)
    assert archive.keys == good.hash()[:16]


def test_messages_are_opened_with_the_keys_of_their_topic() -> None:
    ours = [_sealed_with(key, number, f"hello {number}".encode()) for number, key in enumerate((KEY, OTHER_KEY))]
    foreign = _sealed_with(bytes(32), 2, b"not for us")
    on_attic = sealed(week(0).lower, 3, ATTIC)
    skipped = Skipped()
    damaged = CandidateRow(week(0).lower, b"k" * 16, b"damaged")

    (archive,) = archives_of(work(form=DEPLOYED), [damaged, *rows([*ours, foreign, on_attic])], skipped)

    assert skipped == Skipped(unopened=2, damaged=1)
    decoded = DeployedFormat().decode_archive(archive.encoded.data, archive.encoded.padding)
    assert sorted(deployed_message(each).payload for each in decoded.messages) == [b"hello 0", b"hello 1"]
    assert {deployed_message(each).sig for each in decoded.messages} == {b"\x04" + SIGNER.public_key}
    assert archive.keys == b"".join(message.hash[:16] for message in decoded.messages)
    assert {message.hash for message in decoded.messages} == {each.hash() for each in ours}


def test_opened_range_without_messages_has_no_archive() -> None:
    assert [*archives_of(work(form=DEPLOYED), [], Skipped())] == []


def test_long_range_has_several_archives_each_with_its_own_keys() -> None:
    envelopes = [sealed(week(0).lower + number, number, size=1_000_000) for number in range(32)]

    archives = made_of(envelopes)

    assert [archive.encoded.messages for archive in archives] == [29, 3]
    assert b"".join(archive.keys for archive in archives) == b"".join(each.hash()[:16] for each in envelopes)
    assert [len(archive.keys) for archive in archives] == [29 * 16, 3 * 16]


def _sealed_with(key: bytes, number: int, payload: bytes) -> Envelope:
    data = seal_symmetric(payload, key, nonce=bytes([number]) * 12, padding=bytes(200), signing_key=SIGNER)
    return encode_envelope(week(0).lower + 9 + TTL, TTL, GARDEN, data, number)
