"""mailserver.waku.acceptance: every rule at its boundary, then all of them at once."""

import math
from dataclasses import replace
from typing import Any, NamedTuple

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from mailserver.waku.acceptance import MAX_ENVELOPE_BYTES, MAX_FORMER, Acceptance, Requirements, Verdict
from mailserver.waku.bloom import EMPTY_BLOOM, FULL_INTEREST, Interest, bloom_of
from mailserver.waku.envelope import Envelope, Topic, encode_envelope, encode_envelopes
from tests.properties import settings

NOW = 1_800_000_000
TTL = 50

NEWS = Topic(b"\x9a\xcb\x04\x42")
SPORT = Topic(b"\xf0\xc5\x34\x1e")

NO_POW = Requirements(min_pow=0.0)
ONLY_NEWS = Interest(topics=frozenset({NEWS}))
ONLY_SPORT = Interest(topics=frozenset({SPORT}))


def envelope_of(*, created: int = NOW, ttl: int = TTL, topic: Topic = NEWS, data: bytes = b"data") -> Envelope:
    return encode_envelope(created + ttl, ttl, topic, data, 7)


def judged(envelope: Envelope, requirements: Requirements = NO_POW, now: float = NOW) -> Verdict:
    return Acceptance(requirements).judge(envelope, now)


# What the sender is told


@pytest.mark.parametrize(
    ("verdict", "code"),
    [
        (Verdict.ACCEPTED, None),
        (Verdict.EXPIRED, None),
        (Verdict.VERY_OLD, 1),
        (Verdict.FROM_THE_FUTURE, 1),
        (Verdict.FORGED_TIME, 2),
        (Verdict.OVERSIZE, 2),
        (Verdict.LOW_POW, 2),
        (Verdict.UNWANTED_TOPIC, 2),
        (Verdict.TOPIC_LIMIT, 2),
    ],
)
def test_wrong_clock_is_error_1_and_an_invalid_envelope_error_2(verdict: Verdict, code: int | None) -> None:
    assert verdict.code == code


def test_every_verdict_has_its_code_stated_above() -> None:
    assert len(Verdict) == 9


# Time


@pytest.mark.parametrize(
    ("ahead", "verdict"),
    [
        (-1, Verdict.ACCEPTED),
        (0, Verdict.ACCEPTED),
        (1, Verdict.ACCEPTED),
        (10, Verdict.ACCEPTED),
        (11, Verdict.FROM_THE_FUTURE),
        (1_000_000, Verdict.FROM_THE_FUTURE),
    ],
)
def test_envelope_may_be_created_10_seconds_ahead(ahead: int, verdict: Verdict) -> None:
    assert judged(envelope_of(created=NOW + ahead)) is verdict


@pytest.mark.parametrize(
    ("expired_ago", "verdict"),
    [
        (-1, Verdict.ACCEPTED),
        (0, Verdict.ACCEPTED),
        (1, Verdict.EXPIRED),
        (20, Verdict.EXPIRED),
        (21, Verdict.VERY_OLD),
        (NOW, Verdict.VERY_OLD),
    ],
)
def test_envelope_expired_up_to_20_seconds_ago_is_late_and_later_very_old(expired_ago: int, verdict: Verdict) -> None:
    envelope = encode_envelope(NOW - expired_ago, 0, NEWS, b"data", 7)

    assert judged(envelope) is verdict


@pytest.mark.parametrize(
    ("expiry", "now", "verdict"),
    [
        (NOW - 1, NOW - 0.01, Verdict.ACCEPTED),
        (NOW - 1, NOW, Verdict.EXPIRED),
        (NOW - 21, NOW - 0.01, Verdict.EXPIRED),
        (NOW - 21, NOW, Verdict.VERY_OLD),
        (NOW + 11, NOW + 0.99, Verdict.FROM_THE_FUTURE),
        (NOW + 11, NOW + 1.0, Verdict.ACCEPTED),
    ],
)
def test_clock_counts_in_whole_seconds(expiry: int, now: float, verdict: Verdict) -> None:
    assert judged(encode_envelope(expiry, 0, NEWS, b"data", 7), now=now) is verdict


@pytest.mark.parametrize(
    ("ttl", "verdict"),
    [(NOW, Verdict.ACCEPTED), (NOW + 1, Verdict.FORGED_TIME), (2**32 - 1, Verdict.FORGED_TIME)],
)
def test_envelope_created_before_1970_is_forged(ttl: int, verdict: Verdict) -> None:
    assert judged(encode_envelope(NOW, ttl, NEWS, b"data", 7)) is verdict


# Size


def test_envelope_that_fits_a_packet_alone_is_accepted_and_a_byte_more_is_not() -> None:
    overhead = len(envelope_of(data=bytes(1_000_000)).raw) - 1_000_000
    largest = envelope_of(data=bytes(MAX_ENVELOPE_BYTES - overhead))
    oversize = envelope_of(data=bytes(MAX_ENVELOPE_BYTES - overhead + 1))

    # Deployed clients disconnect above 1 MiB.
    assert len(encode_envelopes([largest.raw])) == 1024 * 1024
    assert len(oversize.raw) == len(largest.raw) + 1
    assert judged(largest) is Verdict.ACCEPTED
    assert judged(oversize) is Verdict.OVERSIZE


def test_envelope_of_the_longest_length_is_accepted_and_a_byte_more_is_not() -> None:
    envelope = envelope_of(data=bytes(1000))
    size = len(envelope.raw)

    assert judged(envelope, Requirements(0.0, max_envelope_bytes=size)) is Verdict.ACCEPTED
    assert judged(envelope, Requirements(0.0, max_envelope_bytes=size - 1)) is Verdict.OVERSIZE


def test_longest_length_is_what_a_packet_takes_unless_it_is_said() -> None:
    assert Requirements(0.0).max_envelope_bytes == MAX_ENVELOPE_BYTES


def test_length_is_told_before_topic_and_proof_of_work_and_after_the_clock() -> None:
    demanding = Requirements(math.inf, ONLY_SPORT, max_envelope_bytes=1)

    assert judged(envelope_of(topic=NEWS), demanding) is Verdict.OVERSIZE
    assert judged(envelope_of(topic=NEWS, created=NOW + 11), demanding) is Verdict.FROM_THE_FUTURE


def test_change_of_the_length_has_no_grace_period() -> None:
    envelope = envelope_of(ttl=LONG_TTL, data=bytes(1000))
    size = len(envelope.raw)
    acceptance = Acceptance(Requirements(0.0))

    acceptance.change(Requirements(0.0, max_envelope_bytes=size - 1), NOW)
    shorter = acceptance.judge(envelope, NOW)
    acceptance.change(Requirements(0.0, max_envelope_bytes=size), NOW)

    assert shorter is Verdict.OVERSIZE
    assert acceptance.judge(envelope, NOW) is Verdict.ACCEPTED


def test_change_of_the_length_does_not_cut_short_the_grace_of_the_others() -> None:
    envelope = envelope_of(ttl=LONG_TTL)
    low, high = envelope.pow(), envelope.pow() * 2
    acceptance = Acceptance(Requirements(low, ONLY_NEWS))

    acceptance.change(Requirements(high, ONLY_SPORT), NOW)
    acceptance.change(Requirements(high, ONLY_SPORT, max_envelope_bytes=1000), NOW + 5)

    assert acceptance.judge(envelope, NOW + 9.99) is Verdict.ACCEPTED
    assert acceptance.judge(envelope, NOW + 10) is Verdict.UNWANTED_TOPIC


# Proof of work


def test_proof_of_work_at_the_minimum_is_enough_and_just_below_is_not() -> None:
    envelope = envelope_of()
    exact = envelope.pow()

    assert judged(envelope, Requirements(exact)) is Verdict.ACCEPTED
    assert judged(envelope, Requirements(math.nextafter(exact, math.inf))) is Verdict.LOW_POW


@pytest.mark.parametrize("ahead", [1, 5, 10])
def test_proof_of_work_of_an_envelope_from_ahead_counts_the_time_and_a_second_more(ahead: int) -> None:
    envelope = envelope_of(created=NOW + ahead)
    adjusted = envelope.pow(ahead)

    assert adjusted == pytest.approx(envelope.pow() * TTL / (TTL + ahead + 1))
    assert judged(envelope, Requirements(adjusted)) is Verdict.ACCEPTED
    assert judged(envelope, Requirements(math.nextafter(adjusted, math.inf))) is Verdict.LOW_POW


@pytest.mark.parametrize("age", [0, 1, 49])
def test_proof_of_work_of_an_envelope_of_now_or_earlier_counts_its_ttl(age: int) -> None:
    envelope = envelope_of(created=NOW - age)

    assert judged(envelope, Requirements(envelope.pow())) is Verdict.ACCEPTED


# Interest


@pytest.mark.parametrize(
    ("interest", "verdict"),
    [
        (FULL_INTEREST, Verdict.ACCEPTED),
        (Interest(bloom=bloom_of([NEWS, SPORT])), Verdict.ACCEPTED),
        (Interest(bloom=bloom_of([SPORT])), Verdict.UNWANTED_TOPIC),
        (Interest(bloom=EMPTY_BLOOM), Verdict.UNWANTED_TOPIC),
        (Interest(topics=frozenset({NEWS, SPORT})), Verdict.ACCEPTED),
        (Interest(topics=frozenset({SPORT})), Verdict.UNWANTED_TOPIC),
        (Interest(topics=frozenset()), Verdict.UNWANTED_TOPIC),
        (Interest(topics=frozenset({SPORT}), bloom=bloom_of([NEWS])), Verdict.UNWANTED_TOPIC),
    ],
    ids=[
        "full",
        "bloom",
        "other bloom",
        "no bloom",
        "topics",
        "other topics",
        "no topics",
        "topics over bloom",
    ],
)
def test_topic_must_be_in_the_interest_or_the_bloom(interest: Interest, verdict: Verdict) -> None:
    assert judged(envelope_of(topic=NEWS), Requirements(0.0, interest)) is verdict


# Grace period: `judge` and `change` are given times; nothing waits


def test_requirements_in_force_are_those_of_the_last_change() -> None:
    first, second = Requirements(0.1), Requirements(0.2, ONLY_NEWS)
    acceptance = Acceptance(first)
    before = acceptance.requirements

    acceptance.change(second, NOW)

    assert before == first
    assert acceptance.requirements == second


LONG_TTL = 600
"""For envelopes that stay alive through a grace period."""


@pytest.mark.parametrize(
    ("after", "verdict"),
    [
        (0.0, Verdict.ACCEPTED),
        (9.99, Verdict.ACCEPTED),
        (10.0, Verdict.LOW_POW),
        (10.01, Verdict.LOW_POW),
    ],
)
def test_previous_proof_of_work_is_enough_for_10_seconds(after: float, verdict: Verdict) -> None:
    envelope = envelope_of(ttl=LONG_TTL)
    acceptance = Acceptance(Requirements(envelope.pow()))

    acceptance.change(Requirements(envelope.pow() * 2), NOW)

    assert acceptance.judge(envelope, NOW + after) is verdict


@pytest.mark.parametrize(
    ("step", "verdict"),
    [(-1, Verdict.ACCEPTED), (-3600, Verdict.LOW_POW), (-365 * 86_400, Verdict.LOW_POW), (3600, Verdict.LOW_POW)],
)
def test_clock_that_is_stepped_prolongs_no_grace_period(step: int, verdict: Verdict) -> None:
    envelope = envelope_of(created=NOW + step, ttl=LONG_TTL)
    acceptance = Acceptance(Requirements(envelope.pow()))

    acceptance.change(Requirements(envelope.pow() * 2), NOW)

    assert acceptance.judge(envelope, NOW + step) is verdict


def test_proof_of_work_below_the_previous_minimum_is_too_low_in_the_grace_period_too() -> None:
    envelope = envelope_of(ttl=LONG_TTL)
    acceptance = Acceptance(Requirements(math.nextafter(envelope.pow(), math.inf)))

    acceptance.change(Requirements(envelope.pow() * 2), NOW)

    assert acceptance.judge(envelope, NOW + 1) is Verdict.LOW_POW


@pytest.mark.parametrize("after", [0.0, 9.99, 10.0])
def test_lower_minimum_holds_from_its_change_on(after: float) -> None:
    envelope = envelope_of(ttl=LONG_TTL)
    acceptance = Acceptance(Requirements(envelope.pow() * 2))

    acceptance.change(Requirements(envelope.pow()), NOW)

    assert acceptance.judge(envelope, NOW + after) is Verdict.ACCEPTED


@pytest.mark.parametrize(
    ("before", "then"),
    [(ONLY_NEWS, ONLY_SPORT), (Interest(bloom=bloom_of([NEWS])), Interest(bloom=bloom_of([SPORT])))],
    ids=["topics", "bloom"],
)
@pytest.mark.parametrize(
    ("after", "verdict"),
    [
        (0.0, Verdict.ACCEPTED),
        (9.99, Verdict.ACCEPTED),
        (10.0, Verdict.UNWANTED_TOPIC),
        (10.01, Verdict.UNWANTED_TOPIC),
    ],
)
def test_previous_interest_is_wanted_for_10_seconds(
    before: Interest, then: Interest, after: float, verdict: Verdict
) -> None:
    acceptance = Acceptance(Requirements(0.0, before))

    acceptance.change(Requirements(0.0, then), NOW)

    assert acceptance.judge(envelope_of(ttl=LONG_TTL, topic=NEWS), NOW + after) is verdict
    assert acceptance.judge(envelope_of(ttl=LONG_TTL, topic=SPORT), NOW + after) is Verdict.ACCEPTED


def test_topic_of_neither_interest_is_unwanted_in_the_grace_period_too() -> None:
    acceptance = Acceptance(Requirements(0.0, ONLY_NEWS))

    acceptance.change(Requirements(0.0, ONLY_SPORT), NOW)

    assert acceptance.judge(envelope_of(topic=Topic(bytes(4))), NOW + 1) is Verdict.UNWANTED_TOPIC


def test_second_change_starts_a_grace_period_of_its_own() -> None:
    acceptance = Acceptance(Requirements(0.0, ONLY_NEWS))

    acceptance.change(Requirements(0.0, ONLY_SPORT), NOW)
    acceptance.change(Requirements(0.0, Interest(topics=frozenset())), NOW + 20)

    sport = envelope_of(ttl=LONG_TTL, topic=SPORT)
    assert acceptance.judge(sport, NOW + 29.99) is Verdict.ACCEPTED
    assert acceptance.judge(envelope_of(ttl=LONG_TTL, topic=NEWS), NOW + 29.99) is Verdict.UNWANTED_TOPIC
    assert acceptance.judge(sport, NOW + 30) is Verdict.UNWANTED_TOPIC


def test_change_of_interest_does_not_cut_short_the_grace_of_the_proof_of_work() -> None:
    envelope = envelope_of(ttl=LONG_TTL)
    low, high = envelope.pow(), envelope.pow() * 2
    acceptance = Acceptance(Requirements(low))

    acceptance.change(Requirements(high), NOW)
    acceptance.change(Requirements(high, ONLY_NEWS), NOW + 5)

    assert acceptance.judge(envelope, NOW + 9.99) is Verdict.ACCEPTED
    assert acceptance.judge(envelope, NOW + 10) is Verdict.LOW_POW


def test_second_change_does_not_cut_short_the_grace_of_the_first() -> None:
    envelope = envelope_of(ttl=LONG_TTL, topic=NEWS)
    low, high = envelope.pow(), envelope.pow() * 2
    acceptance = Acceptance(Requirements(low, ONLY_NEWS))

    acceptance.change(Requirements(high, ONLY_SPORT), NOW)
    acceptance.change(Requirements(high * 2, Interest(topics=frozenset())), NOW + 1)

    assert acceptance.judge(envelope, NOW + 9.99) is Verdict.ACCEPTED
    assert acceptance.judge(envelope, NOW + 10) is Verdict.UNWANTED_TOPIC


def test_former_requirements_are_bounded() -> None:
    envelope = envelope_of(ttl=LONG_TTL)
    acceptance = Acceptance(Requirements(envelope.pow()))

    for number in range(1, MAX_FORMER + 1):
        acceptance.change(Requirements(envelope.pow() * (number + 1)), NOW)
    still = acceptance.judge(envelope, NOW)
    acceptance.change(Requirements(1000.0), NOW)

    assert still is Verdict.ACCEPTED
    assert acceptance.judge(envelope, NOW) is Verdict.LOW_POW


class Change(NamedTuple):
    """One of our requirements becomes another."""

    field: str
    value: Any


ENVELOPES = {topic: envelope_of(ttl=LONG_TTL, topic=topic) for topic in (NEWS, SPORT)}
STEPS = st.one_of(
    st.builds(Change, st.just("min_pow"), st.sampled_from([0.0, 0.0001, 1.0])),
    st.builds(
        Change, st.just("interest"), st.sampled_from([FULL_INTEREST, ONLY_NEWS, Interest(bloom=bloom_of([SPORT]))])
    ),
    st.builds(Change, st.just("max_envelope_bytes"), st.sampled_from([1, MAX_ENVELOPE_BYTES])),
    st.sampled_from([0.5, 3.0, 9.5, 10.0]),  # seconds that pass
    st.sampled_from([NEWS, SPORT]),  # an envelope comes
)


@given(steps=st.lists(STEPS, min_size=10, max_size=40))
@settings(max_examples=300)
def test_any_changes_accept_what_a_plain_model_accepts(steps: list[Change | float | Topic]) -> None:
    # In force is the last one; a value of the last 10 seconds is enough, each requirement by itself.
    now = float(NOW)
    acceptance = Acceptance(Requirements(0.001))
    history = [(now, 0.001, FULL_INTEREST)]  # since when, what
    max_bytes = MAX_ENVELOPE_BYTES

    for step in steps:
        if isinstance(step, Change):
            before = acceptance.requirements
            acceptance.change(replace(before, **{step.field: step.value}), now)
            in_force = acceptance.requirements
            max_bytes = in_force.max_envelope_bytes
            if in_force != before:
                history.append((now, in_force.min_pow, in_force.interest))
        elif isinstance(step, float):
            now += step
        else:
            envelope = ENVELOPES[step]
            ends = [since for since, _, _ in history[1:]] + [math.inf]
            # Those at the end of whose time less than 10 seconds have passed.
            valid = [entry for entry, end in zip(history, ends, strict=True) if now - end < 10.0][-MAX_FORMER - 1 :]
            accepted = (
                len(envelope.raw) <= max_bytes
                and any(interest.wants(step) for _, _, interest in valid)
                and envelope.pow() >= min(min_pow for _, min_pow, _ in valid)
            )
            assert (acceptance.judge(envelope, now) is Verdict.ACCEPTED) == accepted


# All rules together


def allowed_verdicts(envelope: Envelope, requirements: Requirements, now: int) -> set[Verdict]:
    """Every rule that the envelope breaks, each by itself; which of several is told does not matter."""
    ahead = envelope.expiry - envelope.ttl - now
    broken = {
        Verdict.FROM_THE_FUTURE: ahead > 10,
        Verdict.EXPIRED: now - 20 <= envelope.expiry < now,
        Verdict.VERY_OLD: envelope.expiry < now - 20,
        Verdict.FORGED_TIME: envelope.ttl > envelope.expiry,
        Verdict.OVERSIZE: len(envelope.raw) > requirements.max_envelope_bytes,
        Verdict.LOW_POW: envelope.pow(max(ahead, 0)) < requirements.min_pow,
        Verdict.UNWANTED_TOPIC: not requirements.interest.wants(envelope.topic),
    }
    return {verdict for verdict, is_broken in broken.items() if is_broken} or {Verdict.ACCEPTED}


@given(
    expiry=st.one_of(st.integers(-30, 80).map(lambda offset: NOW + offset), st.integers(0, 2**32 - 1)),
    ttl=st.one_of(st.integers(0, 100), st.integers(0, 2**32 - 1)),
    topic=st.sampled_from([NEWS, SPORT]),
    min_pow=st.sampled_from([0.0, 0.0001, 0.001, 0.01]),
    interest=st.sampled_from([FULL_INTEREST, ONLY_NEWS, ONLY_SPORT]),
    max_envelope_bytes=st.integers(15, 25),
)
@example(
    expiry=NOW + 60, ttl=50, topic=NEWS, min_pow=0.0, interest=FULL_INTEREST, max_envelope_bytes=MAX_ENVELOPE_BYTES
)
@example(
    expiry=NOW - 20, ttl=50, topic=NEWS, min_pow=0.0, interest=FULL_INTEREST, max_envelope_bytes=MAX_ENVELOPE_BYTES
)
@settings(max_examples=100)
def test_envelope_is_accepted_when_it_breaks_no_rule_and_else_told_one(
    expiry: int, ttl: int, topic: Topic, min_pow: float, interest: Interest, max_envelope_bytes: int
) -> None:
    envelope = encode_envelope(expiry, ttl, topic, b"data", 7)
    requirements = Requirements(min_pow, interest, max_envelope_bytes)

    assert judged(envelope, requirements) in allowed_verdicts(envelope, requirements, NOW)


@given(expiry=st.integers(NOW - 40, NOW + 80), topic=st.sampled_from([NEWS, SPORT]))
@settings(max_examples=40)
def test_wrong_clock_is_told_before_anything_else(expiry: int, topic: Topic) -> None:
    # An envelope that is late or from the future does not cost its sender the connection.
    envelope = encode_envelope(expiry, TTL, topic, b"data", 7)
    demanding = Requirements(math.inf, Interest(topics=frozenset()))

    undemanding_verdict = judged(envelope)
    demanding_verdict = judged(envelope, demanding)

    if undemanding_verdict is Verdict.ACCEPTED:
        assert demanding_verdict.code == 2
    else:
        assert demanding_verdict is undemanding_verdict
