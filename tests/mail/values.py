"""Values that requests of these tests have."""

from mailserver.mail.request import Cursor, RequestId
from mailserver.waku.envelope import EnvelopeHash, Topic

MAX_U32 = 0xFFFF_FFFF
NOW = 1_795_000_000
NEWS = Topic(b"\x9a\xcb\x04\x42")
SPORT = Topic(b"\xf0\xc5\x34\x1e")
ID = RequestId(bytes(range(32)))
CURSOR = Cursor(NOW, EnvelopeHash(bytes(range(100, 132))))
CURSOR_ON_THE_WIRE = NOW.to_bytes(4, "big") + bytes(range(100, 132))
