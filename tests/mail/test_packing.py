"""mailserver.mail.packing: an answer is cut where another envelope would not fit, and never reordered."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from mailserver.mail.packing import TARGET_PACKET_BYTES, cut, max_body_bytes
from mailserver.waku.acceptance import MAX_ENVELOPE_BYTES
from mailserver.waku.envelope import encode_envelopes, packet_bytes
from mailserver.waku.packets import MAX_PACKET_BYTES
from tests.properties import settings


def packets(sizes: list[int], *, target: int = TARGET_PACKET_BYTES) -> list[list[int]]:
    """The sizes in each packet."""
    return [[sizes[index] for index in packet] for packet in cut(sizes, target)]


def payload_bytes(sizes: list[int]) -> int:
    """How long a packet's payload is that holds envelopes of these sizes."""
    return len(encode_envelopes([bytes(size) for size in sizes]))


def test_no_envelopes_make_no_packets() -> None:
    assert packets([]) == []


def test_what_fits_goes_into_one_packet() -> None:
    assert packets([100, 200, 300]) == [[100, 200, 300]]


def test_packet_is_filled_exactly_to_the_target() -> None:
    # A list of 56 to 255 bytes has a header of 2.
    assert packets([49, 49], target=100) == [[49, 49]]
    assert packets([49, 50], target=100) == [[49], [50]]


def test_header_that_grows_with_the_packet_is_counted() -> None:
    # 55 bytes have a header of 1, 56 one of 2.
    assert packets([30, 25], target=56) == [[30, 25]]
    assert packets([30, 26], target=57) == [[30], [26]]
    assert packets([30, 26], target=58) == [[30, 26]]


def test_cut_begins_anew_after_each_packet() -> None:
    assert packets([60, 30, 60, 30, 60], target=95) == [[60, 30], [60, 30], [60]]


def test_envelope_above_the_target_gets_a_packet_to_itself() -> None:
    assert packets([10, 500, 10, 10], target=100) == [[10], [500], [10, 10]]
    assert packets([500], target=100) == [[500]]


def test_longest_envelope_fits_alone_in_a_packet() -> None:
    assert packets([10, MAX_ENVELOPE_BYTES, 10]) == [[10], [MAX_ENVELOPE_BYTES], [10]]
    assert payload_bytes([MAX_ENVELOPE_BYTES]) == MAX_PACKET_BYTES


@pytest.mark.parametrize("target", [MAX_PACKET_BYTES, MAX_PACKET_BYTES + 1, 100 * MAX_PACKET_BYTES])
def test_packet_is_no_longer_than_deployed_clients_take_whatever_the_target(target: int) -> None:
    half = MAX_PACKET_BYTES // 2

    assert packets([half, half - 4], target=target) == [[half, half - 4]]
    assert packets([half, half - 3], target=target) == [[half], [half - 3]]


def test_deleted_envelopes_of_no_bytes_are_kept_in_their_place() -> None:
    assert [list(packet) for packet in cut([0, 60, 0, 60, 0], 70)] == [[0, 1, 2], [3, 4]]


def test_target_leaves_room_for_many_usual_envelopes() -> None:
    (first, *_) = packets([560] * 1000)

    assert 100 < len(first) < 150
    assert payload_bytes(first) <= TARGET_PACKET_BYTES < MAX_PACKET_BYTES


@pytest.mark.parametrize("target", [1, 2, 56, 57, 58, 258, 259, 260, 65_538, 65_539, 65_540, MAX_PACKET_BYTES])
def test_most_bytes_of_a_packet_fill_it_and_no_more(target: int) -> None:
    body = max_body_bytes(target)

    assert packet_bytes(body) <= target
    assert packet_bytes(body + 1) > target
    assert max_body_bytes(10 * MAX_PACKET_BYTES) == max_body_bytes(MAX_PACKET_BYTES)


@given(st.lists(st.integers(0, 400), max_size=12), st.integers(1, 1000))
@example([], 1)
@example([0, 0], 1)
@example([1], 1)
@settings(max_examples=80)
def test_packets_hold_everything_in_order_and_as_much_as_fits(sizes: list[int], target: int) -> None:
    cuts = list(cut(sizes, target))

    assert [index for packet in cuts for index in packet] == list(range(len(sizes)))
    for packet in cuts:
        inside = sizes[packet.start : packet.stop]
        assert inside
        assert len(inside) == 1 or (payload_bytes(inside) <= target)
        if packet.stop < len(sizes):
            assert payload_bytes(sizes[packet.start : packet.stop + 1]) > target
