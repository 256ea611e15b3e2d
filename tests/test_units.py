"""mailserver.units: numbers as people read them."""

import math

import pytest

from mailserver.units import delay_text, number_text, size_text, span_text


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (0, "0 B"),
        (1023, "1,023 B"),
        (1024, "1 KiB"),
        (1536, "1.5 KiB"),
        (1024**2 - 1, "1 MiB"),  # and not 1,024 KiB
        (1000**2, "976.6 KiB"),
        (300 * 1024**2, "300 MiB"),
        (5.25 * 1024**3, "5.2 GiB"),
        (3000 * 1024**4, "3,000 TiB"),
    ],
)
def test_bytes_have_units_of_powers_of_1024(size: float, text: str) -> None:
    assert size_text(size) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.000002, "0.000002"),
        (2e-06 / 3, "0.000000666667"),
        (0.0, "0"),
        (2.0, "2"),
        (1234567.0, "1234570"),
        (1e21, "1e+21"),
        (1e-300, "1e-300"),
        (1e14, "100000000000000"),
        (0.1 + 0.2, "0.3"),
        (2**32 - 1, "4294967295"),
        (-0.000002, "-0.000002"),
        (math.inf, "inf"),
    ],
)
def test_numbers_have_no_exponent(value: float, text: str) -> None:
    assert number_text(value) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.0, "0 ms"), (0.00025, "0.2 ms"), (0.012, "12 ms"), (0.99999, "1 s"), (1.25, "1.2 s"), (30.0, "30 s")],
)
def test_delays_are_milliseconds_up_to_a_second(seconds: float, text: str) -> None:
    assert delay_text(seconds) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(5, "5 s"), (119, "119 s"), (120, "2 min"), (7200, "2 h"), (47 * 3600, "47 h"), (2 * 86_400, "2 days")],
)
def test_spans_have_the_largest_unit_that_there_are_two_of(seconds: float, text: str) -> None:
    assert span_text(seconds) == text
