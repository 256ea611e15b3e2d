"""A delivery over a real store, and a client that takes its answers down."""

from dataclasses import dataclass, field

from mailserver.codec import rlp
from mailserver.errors import Rejection
from mailserver.history.delivery import Delivery, DeliverySettings
from mailserver.limits.admission import EMPTY_ALLOWLIST, Allowlist
from mailserver.limits.request_quotas import Requester, RequestLimiter, RequestLimits
from mailserver.mail.completion import NO_ENVELOPE, Completion, Failure, decode_completion
from mailserver.mail.packing import TARGET_PACKET_BYTES
from mailserver.mail.request import Cursor, RequestId
from mailserver.metrics.registry import Metrics
from mailserver.net.sessions import Code
from mailserver.store.sqlite.store import SqliteStore
from mailserver.waku.envelope import Envelope, decode_envelopes
from mailserver.waku.packets import PacketCode
from tests.history.answered import Client
from tests.mailservers import NEWS, NO_REQUEST_LIMITS, PASSWORD_KEY, Clock
from tests.pairs import private_key

KEY = private_key("mailserver")
SETTINGS = DeliverySettings(PASSWORD_KEY, KEY, max_limit=50)
CLEAR_ID = b"0123456789abcdef0123456789abcdef"


def requester_of(
    limits: RequestLimits,
    *,
    name: str = "client",
    limiter: RequestLimiter | None = None,
    allowed: Allowlist = EMPTY_ALLOWLIST,
) -> Requester:
    """One who has these limits."""
    limiter = limiter or RequestLimiter(limits, NO_REQUEST_LIMITS, allowed)
    return limiter.requester("192.0.2.1", private_key(name).public_key)


@dataclass
class Desk:
    """A delivery, its store, and a client."""

    store: SqliteStore
    delivery: Delivery
    requester: Requester = field(default_factory=lambda: requester_of(NO_REQUEST_LIMITS))
    client: Client = field(default_factory=Client)

    @property
    def sent(self) -> list[tuple[Code, bytes]]:
        return self.client.sent

    def with_settings(self, settings: DeliverySettings) -> "Desk":
        """Another one over the same store."""
        return Desk(self.store, Delivery(self.store, settings, Clock(), metrics=Metrics()))

    async def answer(
        self, payload: bytes, requester: Requester | None = None, *, max_packet_bytes: int = TARGET_PACKET_BYTES
    ) -> Completion | Failure:
        """Have a request answered; return how the client reads the completion."""
        self.client = Client()
        outcome = await self.delivery.answer(
            payload, self.client, requester or self.requester, max_packet_bytes=max_packet_bytes
        )
        codes = [code for code, _ in self.sent]
        assert codes == [PacketCode.P2P_MESSAGE] * (len(codes) - 1) + [PacketCode.P2P_REQUEST_COMPLETE]
        heard = decode_completion(self.sent[-1][1])
        assert heard == outcome
        return heard

    @property
    def packets(self) -> list[list[Envelope]]:
        """The envelopes of each packet of the last answer."""
        return [decode_envelopes(payload) for _, payload in self.sent[:-1]]

    @property
    def envelopes(self) -> list[Envelope]:
        return [envelope for packet in self.packets for envelope in packet]


def request_id(envelope: Envelope) -> RequestId:
    return RequestId(envelope.hash())


def completion_of(request: Envelope, last: Envelope | None, cursor: Cursor | None = None) -> Completion:
    return Completion(request_id(request), NO_ENVELOPE if last is None else last.hash(), cursor)


def cursor_at(envelope: Envelope) -> Cursor:
    return Cursor(envelope.created, envelope.hash())


def clear_request(**changes: rlp.Encodable) -> bytes:
    """A request in the clear: `[id, lower, upper, limit, cursor, bloom, topics]`."""
    fields: dict[str, rlp.Encodable] = {
        "id": CLEAR_ID,
        "lower": b"",
        "upper": b"",
        "limit": b"",
        "cursor": b"",
        "bloom": b"",
        "topics": [NEWS],
    }
    return rlp.encode(list((fields | changes).values()))


@dataclass
class Time:
    """Monotonic seconds, which stand still unless they are moved: buckets do not fill by themselves."""

    now: float = 1000.0


def come_back_in(seconds: int) -> str:
    """What a client over its limit is told."""
    return f"{Rejection.RATE_LIMITED.value}: come back in {seconds} s"
