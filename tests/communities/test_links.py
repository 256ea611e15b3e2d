"""Magnet links: signed by the community or ignored, and which one is taken when."""

from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mailserver.codec.keccak import keccak256
from mailserver.codec.keys import PrivateKey
from mailserver.codec.protobuf import write_bytes, write_number
from mailserver.communities.application import (
    ApplicationMessage,
    open_application_message,
    sign_application_message,
)
from mailserver.communities.channels import parse_id
from mailserver.communities.links import (
    COMMUNITY_ARCHIVE_MAGNETLINK,
    MAX_LINK_MESSAGE_BYTES,
    MAX_WAIT_S,
    WAIT_S,
    AnnouncedLink,
    ForeignLink,
    NewestLink,
    encode_link,
    next_clock,
    open_link,
)
from mailserver.errors import DecodeError
from tests.communities.making import community
from tests.data import load

VECTOR = load("communities/messages.json")["link"]
KEY = PrivateKey(bytes.fromhex(VECTOR["key"]))
COMMUNITY = parse_id(VECTOR["community"])
LINK = AnnouncedLink(VECTOR["clock"], VECTOR["magnet_uri"])
MESSAGE = bytes.fromhex(VECTOR["message"])


def test_link_is_that_of_another_encoder() -> None:
    assert encode_link(LINK, KEY) == MESSAGE
    assert open_link(MESSAGE, COMMUNITY) == LINK


def test_link_is_read_as_status_go_wraps_it() -> None:
    assert open_link(bytes.fromhex(VECTOR["wrapped"]), COMMUNITY) == LINK


def test_v_of_the_signature_may_be_27_or_28() -> None:
    v = MESSAGE[66]  # behind two bytes of the field, and r and s

    assert v in {0, 1}
    assert open_link(MESSAGE[:66] + bytes([v + 27]) + MESSAGE[67:], COMMUNITY) == LINK


def test_link_of_another_key_is_foreign() -> None:
    with pytest.raises(ForeignLink, match="not signed by the community"):
        open_link(encode_link(LINK, community().key), COMMUNITY)


def test_link_that_was_changed_is_foreign() -> None:
    changed = MESSAGE.replace(b"urn:btih:ab", b"urn:btih:cd")

    assert changed != MESSAGE
    with pytest.raises(ForeignLink):
        open_link(changed, COMMUNITY)


def test_link_without_a_signature_is_foreign() -> None:
    payload = bytes.fromhex(VECTOR["payload"])

    with pytest.raises(ForeignLink):
        open_link(write_bytes(2, payload) + write_number(3, COMMUNITY_ARCHIVE_MAGNETLINK), COMMUNITY)


def test_other_message_of_the_community_is_no_link() -> None:
    with pytest.raises(ForeignLink, match="no magnet link"):
        open_link(sign_application_message(b"text", 1, KEY), COMMUNITY)


@pytest.mark.parametrize(
    ("data", "why"),
    [
        pytest.param(b"\x0a", "truncated", id="truncated"),
        pytest.param(bytes(MAX_LINK_MESSAGE_BYTES + 1), "too long", id="length"),
        pytest.param(write_bytes(1, bytes(66)), "signature is too long", id="long signature"),
        pytest.param(write_bytes(1, bytes(64)) + write_number(3, 43), "signature", id="short signature"),
        pytest.param(write_bytes(1, b"\xff" * 65) + write_number(3, 43), "signature fits no key", id="no signature"),
        pytest.param(write_number(3, 43) * 32_700, "too many fields", id="fields"),
        pytest.param(write_bytes(102, write_number(3, 43) * 32_700), "too many fields", id="wrapped fields"),
        pytest.param(sign_application_message(write_number(1, 1) * 9000, 43, KEY), "many fields", id="payload fields"),
        pytest.param(sign_application_message(b"\xff", 43, KEY), "truncated", id="payload"),
        pytest.param(sign_application_message(write_bytes(2, b"\xff"), 43, KEY), "UTF-8", id="text"),
        pytest.param(sign_application_message(write_bytes(2, bytes(20_000)), 43, KEY), "magnet_uri", id="long uri"),
    ],
)
def test_what_does_not_parse_is_refused(data: bytes, why: str) -> None:
    with pytest.raises(DecodeError, match=why):
        open_link(data, COMMUNITY)


def test_every_truncation_is_refused() -> None:
    for end in range(len(MESSAGE)):
        with pytest.raises(DecodeError):
            open_link(MESSAGE[:end], COMMUNITY)


def test_application_message_may_have_no_signer() -> None:
    assert open_application_message(write_bytes(2, b"text")) == ApplicationMessage(None, b"text", 0)
    assert open_application_message(sign_application_message(b"text", 5, KEY)) == ApplicationMessage(
        KEY.public_key, b"text", 5
    )


def test_signature_is_over_the_keccak_of_the_payload() -> None:
    assert MESSAGE[2:67] == KEY.sign(keccak256(bytes.fromhex(VECTOR["payload"])))


def test_clock_grows_even_if_ours_was_set_back() -> None:
    assert next_clock(2000, 1000) == 2000
    assert next_clock(900, 1000) == 1001
    assert next_clock(1000, 1000) == 1001


def link(clock: int, uri: str = "magnet:?") -> AnnouncedLink:
    return AnnouncedLink(clock, uri)


def test_newest_link_is_taken_20_s_after_the_last_one_arrived() -> None:
    newest = NewestLink()

    assert newest.next_timer() is None
    assert newest.receive(link(5), 100.0)
    assert newest.receive(link(9), 110.0)
    assert not newest.receive(link(7), 115.0)  # history often comes from the newest to the oldest

    assert newest.next_timer() == 115.0 + WAIT_S
    assert newest.handle_timer(134.9) is None
    assert newest.handle_timer(135.0) == link(9)
    assert newest.next_timer() is None
    assert newest.handle_timer(200.0) is None
    assert newest.taken == link(9)


def test_old_links_begin_no_wait() -> None:
    newest = NewestLink(link(9, "magnet:?b"))

    for old in (link(8), link(9, "magnet:?b"), link(9, "magnet:?a")):
        assert not newest.receive(old, 1.0)
        assert newest.next_timer() is None


def test_same_link_that_is_announced_again_is_taken_again() -> None:
    newest = NewestLink(link(9))

    assert newest.receive(link(10), 1.0)
    assert newest.handle_timer(21.0) == link(10)


def test_of_two_links_of_the_same_time_all_members_take_the_same() -> None:
    for uris in (("a", "b"), ("b", "a")):
        newest = NewestLink()
        for uri in uris:
            newest.receive(link(5, uri), 0.0)

        assert newest.handle_timer(WAIT_S) == link(5, "b")


def test_old_links_that_are_posted_again_and_again_hold_up_nothing() -> None:
    newest, now = NewestLink(), 0.0
    newest.receive(link(9), now)

    while (taken := newest.handle_timer(now)) is None:
        newest.receive(link(3), now)
        now += 10.0

    assert taken == link(9)
    assert now == MAX_WAIT_S


def test_wait_is_over_at_once_if_its_timer_comes_late() -> None:
    newest = NewestLink()
    newest.receive(link(1), 0.0)

    newest.receive(link(2), 1000.0)

    assert newest.next_timer() == MAX_WAIT_S
    assert newest.handle_timer(1000.0) == link(2)


@dataclass(frozen=True)
class Arrival:
    """A link, and how many seconds after the one before it arrives."""

    clock: int
    after: int


@given(arrivals=st.lists(st.builds(Arrival, st.integers(0, 20), st.integers(0, 40)), min_size=1, max_size=30))
def test_links_are_taken_in_order_after_silence_and_the_last_is_the_newest_of_all(arrivals: list[Arrival]) -> None:
    newest, now, last, taken = NewestLink(), 0.0, 0.0, list[AnnouncedLink]()

    for arrival in arrivals:
        now += arrival.after
        timer = newest.next_timer()
        if timer is not None and timer <= now:
            found = newest.handle_timer(timer)
            assert found is not None
            assert timer - last >= WAIT_S or timer >= MAX_WAIT_S
            taken.append(found)
        newest.receive(link(arrival.clock), now)
        last = now
    if (timer := newest.next_timer()) is not None:
        found = newest.handle_timer(timer)
        assert found is not None
        taken.append(found)

    assert taken == sorted(set(taken))
    assert taken[-1].clock == max(arrival.clock for arrival in arrivals)
