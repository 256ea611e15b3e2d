"""tests.faults.switch: what becomes of packets, with a chance and times that are chosen."""

import random
import struct
from collections.abc import Sequence

import pytest

from tests.faults.switch import MAX_HELD_PACKETS, Line, Lines, checksum, reset_for

ONE, OTHER = 1, 2


def packet(number: int = 0, *, source: int = ONE, target: int = OTHER, flags: int = 0x10, data: bytes = b"") -> bytes:
    """A packet of TCP from 10.77.SOURCE.1 to 10.77.TARGET.1."""
    segment = struct.pack("!HHIIBBHHH", 4000, 30303, 1000 + number, 77, 5 << 4, flags, 0, 0, 0) + data
    addresses = bytes([10, 77, source, 1, 10, 77, target, 1])
    return struct.pack("!BBHHHBBH", 0x45, 0, 20 + len(segment), 0, 0, 64, 6, 0) + addresses + segment


def carried(line: Line, packets: Sequence[bytes], *, until: float = 10.0) -> tuple[list[bytes], dict[str, int]]:
    """Send packets at the time 0 over a line; return what arrives, and the counts."""
    lines = Lines(random.Random(7))
    lines.set(ONE, OTHER, line)
    for sent in packets:
        lines.take(ONE, sent, 0.0)
    arrived = [data for target, data in lines.due(until) if target == OTHER]
    return arrived, {what: count for what, count in lines.counts.items() if count}


MANY = [packet(number) for number in range(1000)]


def test_perfect_line_carries_everything_at_once_and_in_order() -> None:
    assert carried(Line(), MANY, until=0.0) == (MANY, {"carried": 1000})


def test_cut_line_carries_nothing_and_the_other_direction_is_another_line() -> None:
    lines = Lines(random.Random(7))
    lines.set(ONE, OTHER, Line(is_cut=True))

    lines.take(ONE, packet(), 0.0)
    lines.take(OTHER, packet(source=OTHER, target=ONE), 0.0)

    assert [target for target, _ in lines.due(0.0)] == [ONE]
    assert lines.counts["cut"] == 1


def test_delay_is_kept_and_jitter_does_not_change_the_order() -> None:
    line = Line(delay_s=0.2, jitter_s=0.1)

    assert carried(line, MANY, until=0.1)[0] == []
    assert 0 < len(carried(line, MANY, until=0.29)[0]) < 1000
    assert carried(line, MANY, until=0.3)[0] == MANY


def test_shares_are_lost_repeated_and_reordered() -> None:
    lost, counts = carried(Line(loss=0.1), MANY)
    assert 50 < counts["lost"] < 150
    assert len(lost) == 1000 - counts["lost"]

    repeated, counts = carried(Line(duplication=0.1), MANY)
    assert 50 < counts["duplicated"] < 150
    assert len(repeated) == 1000 + counts["duplicated"]

    shuffled, counts = carried(Line(delay_s=0.2, jitter_s=0.1, reordering=0.1), MANY)
    assert counts["reordered"] > 50
    assert shuffled != MANY
    assert sorted(shuffled) == sorted(MANY)


def test_same_seed_does_the_same() -> None:
    line = Line(delay_s=0.2, jitter_s=0.1, loss=0.1, duplication=0.1, reordering=0.1)

    assert carried(line, MANY) == carried(line, MANY)


def test_long_packets_are_lost_on_a_narrow_line() -> None:
    short, long = packet(data=bytes(560)), packet(data=bytes(561))

    assert carried(Line(max_bytes=600), [short, long])[0] == [short]


def test_no_more_than_so_many_packets_are_held() -> None:
    arrived, counts = carried(Line(delay_s=1.0), [packet()] * (MAX_HELD_PACKETS + 5))

    assert len(arrived) == MAX_HELD_PACKETS
    assert counts["overflow"] == 5


@pytest.mark.parametrize("stray", [b"", b"\x60" + bytes(60), packet()[:19]])
def test_what_is_no_packet_of_ipv4_is_passed_over(stray: bytes) -> None:
    assert carried(Line(), [stray]) == ([], {})


@pytest.mark.parametrize(("flags", "numbers", "answer"), [(0x10, (77, 0), 0x04), (0x02, (0, 1004), 0x14)])
def test_rejected_packet_is_answered_by_a_reset_that_its_sender_believes(
    flags: int, numbers: tuple[int, int], answer: int
) -> None:
    lines = Lines(random.Random(7))
    lines.set(ONE, OTHER, Line(rejects=True))

    lines.take(ONE, packet(flags=flags, data=b"abc"), 0.0)

    ((target, reset),) = lines.due(0.0)
    assert target == ONE
    assert reset[12:20] == bytes([10, 77, OTHER, 1, 10, 77, ONE, 1])
    assert struct.unpack_from("!HHIIBB", reset, 20) == (30303, 4000, *numbers, 5 << 4, answer)
    assert checksum(reset[:20]) == 0
    assert checksum(reset[12:20] + struct.pack("!BBH", 0, 6, 20) + reset[20:]) == 0


def test_reset_is_not_answered_by_a_reset() -> None:
    assert reset_for(packet(flags=0x04)) is None
