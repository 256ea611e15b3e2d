"""Messages of Waku v2 for tests."""

from mailserver.ids.waku_message import WakuMessage

CONTENT_TOPIC = "/waku/1/0x01020304/rfc26"


def message(number: int, size: int = 4) -> WakuMessage:
    """A message whose payload begins with a number."""
    return WakuMessage(number.to_bytes(4).ljust(size, b"\0"), CONTENT_TOPIC, timestamp=1_700_000_000_000_000_000)
