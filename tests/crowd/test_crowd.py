"""The short form of the crowd of light clients, and what its verdict goes by."""

from dataclasses import replace

import pytest

from mailserver.ids.envelopes import content_topic_of
from mailserver.ids.waku_message import WakuMessage
from mailserver.waku2.filter_packets import encode_message_push
from tests.crowd.__main__ import main
from tests.crowd.crowd import MAX_GATEWAY_BYTES, Got, Result, Sample, digest_of
from tests.mailservers import NEWS, SPORT

MB = 10**6
USUAL = Sample(at=0.0, rss_bytes=80 * MB, peak_bytes=90 * MB, files=30, clients=5, subscribers=5, unread_bytes=0)


@pytest.mark.integration
def test_crowd_comes_and_goes_and_nothing_is_lost_or_grows(capsys: pytest.CaptureFixture[str]) -> None:
    code = main(["--quick"])

    said = capsys.readouterr().out
    assert code == 0, said
    assert "nothing was lost, and nothing grew" in said
    for way in ("goodbye", "vanished", "unsubscribed", "garbage", "silent", "reads nothing", "members", "sent 200"):
        assert f"'{way}'" in said


def test_push_that_is_missing_comes_twice_or_was_not_asked_for_is_found() -> None:
    messages = [WakuMessage(b"%d" % number, content_topic_of(NEWS)) for number in range(4)]
    pushes = [encode_message_push(each.encode(), "/waku/2/rs/1/4") for each in messages]
    got = Got()
    got.add([*pushes[:3], pushes[2]])

    assert got.faults({digest_of(b"0"), digest_of(b"2")}, [NEWS]) == ["1 pushes came twice"]
    assert got.faults({digest_of(b"0"), digest_of(b"3")}, [SPORT]) == [
        "1 of 2 pushes are missing",
        "1 pushes came twice",
        "there were pushes of 1 other topics",
    ]


@pytest.mark.parametrize(
    ("last", "why"),
    [
        (replace(USUAL, peak_bytes=MAX_GATEWAY_BYTES + MB), "the gateway took 301 MB"),
        (replace(USUAL, rss_bytes=100 * MB), "the gateway grew from 80 to 100 MB"),
        (replace(USUAL, files=39), "open files: 30 at first, 39 in the end"),
    ],
)
def test_what_grows_is_found(last: Sample, why: str) -> None:
    result = Result(samples=[*[USUAL] * 6, *[last] * 3])

    assert result.broken() == [why]
    assert why in result.as_text()


def test_what_is_not_given_back_is_found() -> None:
    result = Result(samples=[USUAL] * 9, left={"gateway_clients": 2.0, "gateway_unread_bytes": 0.0}, lost=["a push"])

    assert result.broken() == ["a push", "gateway_clients is 2 when all have left"]
