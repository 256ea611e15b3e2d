"""mailserver.waku2.lightpush_rules: which messages are bridged, and what their senders are told."""

from dataclasses import replace

import pytest

from mailserver.ids.envelopes import NS
from mailserver.ids.waku_message import WakuMessage
from mailserver.waku2.codes import LightPushStatus
from mailserver.waku2.lightpush import LightPushResponse, PushResponse, PushRpc
from mailserver.waku2.lightpush_rules import LightPushRules, LightPushVerdict, verdict
from tests.waku2.packets import PUBSUB, TOPIC

NOW = 1_700_000_000 * NS + 5
RULES = LightPushRules(PUBSUB)
GOOD = WakuMessage(b"hello", TOPIC, version=0, timestamp=NOW)


@pytest.mark.parametrize("pubsub_topic", [PUBSUB, None, ""])
def test_message_on_a_topic_of_v1_is_bridged(pubsub_topic: str | None) -> None:
    assert RULES.judge(pubsub_topic, GOOD, NOW) == (LightPushStatus.OK, "OK")


@pytest.mark.parametrize("offset_s", [-20, 20])
def test_timestamp_may_be_20_seconds_off(offset_s: int) -> None:
    assert RULES.judge(PUBSUB, replace(GOOD, timestamp=NOW + offset_s * NS), NOW).is_success


@pytest.mark.parametrize("ephemeral", [None, False])
def test_message_that_may_be_stored_is_bridged(*, ephemeral: bool | None) -> None:
    assert RULES.judge(PUBSUB, replace(GOOD, ephemeral=ephemeral), NOW).is_success


@pytest.mark.parametrize(
    ("message", "code", "text"),
    [
        (None, 400, "message is missing"),
        (replace(GOOD, payload=bytes(150 * 1024)), 413, "the message has more than 153600 bytes"),
        (replace(GOOD, timestamp=None), 420, "timestamp is not set"),
        (replace(GOOD, timestamp=0), 420, "timestamp is not set"),
        (replace(GOOD, timestamp=-NOW), 420, "timestamp is more than 20 s off"),
        (replace(GOOD, timestamp=NOW + 20 * NS + 1), 420, "timestamp is more than 20 s off"),
        (replace(GOOD, timestamp=NOW - 20 * NS - 1), 420, "timestamp is more than 20 s off"),
        (replace(GOOD, ephemeral=True), 420, "ephemeral messages cannot be kept from being stored in Waku v1"),
        *(
            (
                replace(GOOD, content_topic=topic),
                420,
                "only content topics /waku/1/0x<8 hex digits, in lower case>/rfc26 are bridged to Waku v1",
            )
            for topic in ("", "/app/1/chat/proto", TOPIC.upper(), TOPIC + "/", "/waku/2/0xdeadbeef/rfc26")
        ),
    ],
)
def test_message_that_is_not_bridged_is_refused_with_a_code(message: WakuMessage | None, code: int, text: str) -> None:
    assert RULES.judge(PUBSUB, message, NOW) == (code, text)


def test_message_for_another_network_is_refused() -> None:
    assert RULES.judge("/waku/2/rs/1/5", GOOD, NOW) == (421, f"only {PUBSUB} is served here")


def test_size_is_a_setting() -> None:
    rules = LightPushRules(PUBSUB, len(GOOD.encode()))

    assert rules.judge(PUBSUB, GOOD, NOW).is_success
    assert rules.judge(PUBSUB, replace(GOOD, payload=b"hello!"), NOW).status == 413


def test_both_protocols_are_told_the_same() -> None:
    done, refused = verdict(LightPushStatus.OK), LightPushVerdict(LightPushStatus.INVALID_MESSAGE, "why")

    assert done.response("id") == LightPushResponse("id", 200, "OK", 1)
    assert done.response("id", 0) == LightPushResponse("id", 200, "OK", 1), "nwaku's client takes 0 as a failure"
    assert done.response("id", 7) == LightPushResponse("id", 200, "OK", 7)
    assert done.push_rpc("id") == PushRpc("id", response=PushResponse(True, "OK"))
    assert refused.response("id", 7) == LightPushResponse("id", 420, "why")
    assert refused.push_rpc("id") == PushRpc("id", response=PushResponse(False, "why"))
