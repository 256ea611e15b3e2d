"""The vectors of 14/WAKU2-MESSAGE, and the v2 messages that they are of."""

from dataclasses import replace

from mailserver.ids.waku_message import WakuMessage

NETWORK = "/waku/2/default-waku/proto"
MESSAGE = WakuMessage(
    payload=bytes.fromhex("010203045445535405060708"),
    content_topic="/waku/2/default-content/proto",
    timestamp=0x175789BFA23F8400,
    meta=b"super-secret",
)
CHECKSUM = "69b571be3a7f4558fa4d1550f167df3f216444efe34602fbffcd8a39fff97154"
"""Of MESSAGE, computed for this project by another program."""

HASHES = (
    (MESSAGE, "64cce733fed134e83da02b02c6f689814872b1a0ac97ea56b76095c3c72bfe05"),
    (replace(MESSAGE, meta=b""), "a2554498b31f5bcdfcbf7fa58ad1c2d45f0254f3f8110a85588ec3cf10720fd8"),
    (replace(MESSAGE, meta=bytes(range(64))), "7158b6498753313368b9af8f6e0a0a05104f68f972981da42a43bc53fb0c1b27"),
    (replace(MESSAGE, payload=b""), "483ea950cb63f9b9d6926b262bb36194d3f40a0463ce8446228350bd44e96de4"),
)
"""14/WAKU2-MESSAGE "Test vectors"."""
