"""Asking a mailserver for history (10/WAKU-USAGE "wakuext_requestMessages").

The mailserver must be a trusted peer. The call does not wait for the answer: what comes goes through the filters that
allow peer-to-peer messages. A bound of 0 is an absent one, as in deployed nodes; `timeout` and `force`, which deployed
clients send, are checked and have no effect.
"""

from mailserver.client import seal_request
from mailserver.codec.keys import NodeId
from mailserver.mail.request import CURSOR_BYTES, MAX_REQUEST_TOPICS, Cursor, MailRequest, RequestId
from mailserver.rpc.caller import Call
from mailserver.rpc.dispatch import Method
from mailserver.rpc.errors import ErrorCode, RpcError
from mailserver.rpc.params import (
    MAX_FLOAT,
    Fields,
    Json,
    enode,
    flag,
    hex_bytes,
    identifier,
    list_of,
    number,
    topic,
    whole,
)
from mailserver.rpc.sending import SendingMethods
from mailserver.services.peers import PeerInfo
from mailserver.waku.bloom import Interest
from mailserver.waku.envelope import MAX_U32, Topic

DEFAULT_RANGE_S = 24 * 3600
"""How far back a request goes that names no lower bound."""

_REQUEST = (
    "mailServerPeer",
    "from",
    "to",
    "limit",
    "cursor",
    "topic",
    "topics",
    "symKeyID",
    "timeout",
    "force",
)
_ID_OF_ENVELOPE = RequestId(bytes(32))


class HistoryMethods(SendingMethods):
    """Requests to other mailservers."""

    def table(self) -> dict[str, Method]:
        """The methods by name."""
        return {"wakuext_requestMessages": Method(self._request_messages, ("request",))}

    async def _request_messages(self, params: Fields, call: Call) -> Json:
        fields = params.object("request", _REQUEST)
        node_id = fields.required("mailServerPeer", enode).node_id
        key_id = fields.required("symKeyID", identifier)
        now = int(self._clock())
        request = _request(fields, now)
        peer, key = self._mailserver(node_id), self._keys.symmetric(key_id)
        with self._works.place() as turn:
            envelope = await seal_request(request, key, min_pow=peer.settings.pow_requirement, now=now, turn=turn)
        await self._node.request_history(peer.node_id, envelope)
        return self._sent(envelope)

    def _mailserver(self, node_id: NodeId) -> PeerInfo:
        peer = next((peer for peer in self._node.peers() if peer.node_id == node_id), None)
        if peer is None:
            raise RpcError(ErrorCode.PEER_UNAVAILABLE, "the mailserver is not connected")
        if not peer.is_trusted:
            raise RpcError(ErrorCode.PEER_UNAVAILABLE, "the mailserver is not trusted: call waku_markTrustedPeer")
        return peer


def _request(fields: Fields, now: int) -> MailRequest:
    upper = fields.optional("to", whole(0, MAX_U32), 0) or now
    lower = fields.optional("from", whole(0, MAX_U32), 0) or max(upper - DEFAULT_RANGE_S, 0)
    if lower > upper:
        raise fields.wrong("from", "later than to")
    cursor = fields.maybe("cursor", hex_bytes(CURSOR_BYTES, CURSOR_BYTES, bare=True))  # deployed ones have no 0x
    fields.maybe("timeout", number(0, MAX_FLOAT))
    fields.maybe("force", flag)
    return MailRequest(
        _ID_OF_ENVELOPE,
        lower=lower,
        upper=upper,
        interest=Interest(topics=frozenset(_topics(fields))),
        limit=fields.optional("limit", whole(0, MAX_U32), 0),
        cursor=None if cursor is None else Cursor.decode(cursor),
    )


def _topics(fields: Fields) -> list[Topic]:
    """`topics`, or, as older clients have it, the one `topic`."""
    topics = fields.maybe("topics", list_of(topic, MAX_REQUEST_TOPICS)) or []
    single = fields.maybe("topic", topic)
    if not topics and single is None:
        raise fields.wrong("topics", "missing")
    return topics or [single] if single is not None else topics
