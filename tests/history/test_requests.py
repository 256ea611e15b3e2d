"""mailserver.history.requests: what is counted of a history request, and the line that it leaves."""

import logging

import pytest

from mailserver.errors import Rejection
from mailserver.history.requests import RequestRecord
from mailserver.mail.request import Cursor, MailRequest, RequestId
from mailserver.metrics.labels import Outcome, RequestKind
from mailserver.metrics.registry import Metrics, count_of
from mailserver.waku.bloom import FULL_INTEREST, Interest, bloom_of
from mailserver.waku.envelope import EnvelopeHash
from tests.mailservers import NEWS, SPORT
from tests.pairs import private_key

REQUEST_ID = RequestId(bytes.fromhex("c0ffee00") + bytes(28))
PEER = private_key("client").public_key
CURSOR = Cursor(7, EnvelopeHash(bytes(32)))

pytestmark = pytest.mark.usefixtures("caplog")


@pytest.fixture(autouse=True)
def everything_logged(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "mailserver.history.requests")


def record_of(interest: Interest, *, cursor: Cursor | None = None) -> RequestRecord:
    record = RequestRecord(PEER, 100.0, REQUEST_ID)
    record.asks(MailRequest(REQUEST_ID, 10, 0, interest, cursor=cursor), lower=10, upper=20, limit=30)
    return record


def test_answered_request_leaves_one_line_with_all_that_an_operator_asks(caplog: pytest.LogCaptureFixture) -> None:
    record = record_of(Interest(topics=frozenset({NEWS, SPORT})), cursor=CURSOR)
    record.found_at = 100.002
    record.sent(5, 1000, 100.004)
    record.sent(2, 500, 100.5, archived=2)
    record.outcome = Outcome.DELIVERED
    record.end(Metrics(), 100.75)

    (said,) = caplog.records
    assert said.levelno == logging.INFO
    assert said.getMessage() == (
        f"request outcome=delivered id=c0ffee00 peer={PEER.hex()[:8]} kind=topics form=sealed lower=10 upper=20 "
        "topics=2 limit=30 cursor=yes work=0 early=no envelopes=7 archived=2 bytes=1500 find_ms=2.0 first_ms=4.0 "
        "ms=750.0 cause=''"
    )


def test_line_names_no_topic(caplog: pytest.LogCaptureFixture) -> None:
    record_of(Interest(topics=frozenset({NEWS}))).end(Metrics(), 101.0)

    assert NEWS.hex() not in caplog.text


@pytest.mark.parametrize(
    ("interest", "kind"),
    [
        (Interest(topics=frozenset({NEWS})), RequestKind.TOPICS),
        (Interest(bloom=bloom_of([NEWS])), RequestKind.BLOOM),
        (FULL_INTEREST, RequestKind.EVERYTHING),
    ],
)
def test_kind_is_what_is_asked_for(interest: Interest, kind: RequestKind) -> None:
    assert record_of(interest).kind is kind


def test_all_is_counted_by_kind_and_outcome() -> None:
    metrics = Metrics()
    record = record_of(FULL_INTEREST)
    record.sent(5, 1000, 100.004)
    record.outcome = Outcome.DELIVERED
    record.end(metrics, 100.02)

    labels = "everything", "delivered"
    assert count_of(metrics.requests.labels(*labels)) == 1
    assert count_of(metrics.delivered.labels(*labels)) == 5
    assert count_of(metrics.delivered_bytes.labels(*labels)) == 1000
    value = metrics.registry.get_sample_value
    named = {"kind": "everything", "outcome": "delivered"}
    assert value("mailserver_delivery_duration_seconds_sum", named) == pytest.approx(0.02)
    assert value("mailserver_delivery_duration_seconds_bucket", {**named, "le": "0.025"}) == 1
    assert value("mailserver_delivery_duration_seconds_bucket", {**named, "le": "0.01"}) == 0
    assert value("mailserver_delivery_first_packet_seconds_sum", named) == pytest.approx(0.004)


def test_empty_answer_has_no_time_to_its_first_packet() -> None:
    metrics = Metrics()
    record = record_of(FULL_INTEREST)
    record.outcome = Outcome.DELIVERED
    record.end(metrics, 101.0)

    named = {"kind": "everything", "outcome": "delivered"}
    assert metrics.registry.get_sample_value("mailserver_delivery_first_packet_seconds_count", named) is None
    assert metrics.registry.get_sample_value("mailserver_delivery_duration_seconds_count", named) == 1


@pytest.mark.parametrize("rejection", Rejection)
def test_rejection_is_counted_and_told_once(rejection: Rejection, caplog: pytest.LogCaptureFixture) -> None:
    metrics = Metrics()
    record = RequestRecord(PEER, 100.0, REQUEST_ID)
    record.refused(rejection, "because of\nthis")
    record.outcome = Outcome.REJECTED
    record.end(metrics, 100.5)

    assert count_of(metrics.requests.labels("unreadable", "rejected")) == 1
    assert {
        reason: count_of(counter) for reason, counter in metrics.requests_rejected.items() if count_of(counter)
    } == {rejection: 1}
    (said,) = caplog.records
    assert said.levelno == (logging.DEBUG if rejection is Rejection.RATE_LIMITED else logging.INFO)
    assert r"cause='because of\nthis'" in said.getMessage()


@pytest.mark.parametrize("outcome", [Outcome.REJECTED, Outcome.LOST])
def test_what_counts_against_no_limit_stays_below_the_default_level(
    outcome: Outcome, caplog: pytest.LogCaptureFixture
) -> None:
    record = RequestRecord(PEER, 100.0, REQUEST_ID, is_counted=False)
    record.refused(Rejection.MALFORMED, "too long")
    record.outcome = outcome
    record.end(Metrics(), 100.5)

    assert [said.levelno for said in caplog.records] == [logging.DEBUG]


def test_failure_of_ours_is_an_error(caplog: pytest.LogCaptureFixture) -> None:
    record = record_of(FULL_INTEREST)
    record.refused(Rejection.STORE_UNAVAILABLE, "disk I/O error")
    record.outcome = Outcome.FAILED
    record.end(Metrics(), 100.5)

    assert [record.levelno for record in caplog.records] == [logging.ERROR]


def test_request_whose_client_goes_away_is_lost() -> None:
    metrics = Metrics()
    record = record_of(FULL_INTEREST)
    record.sent(5, 1000, 100.004)
    record.end(metrics, 101.0)

    assert count_of(metrics.requests.labels("everything", "lost")) == 1
    assert count_of(metrics.delivered.labels("everything", "lost")) == 5
