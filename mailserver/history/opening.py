"""Opens what is sealed to this mailserver: with the password that it shares with clients, or to its public key."""

from collections import OrderedDict

from mailserver.codec.keys import NodeId, PrivateKey
from mailserver.errors import DecodeError, Rejection, RequestRejected
from mailserver.mail.request import RequestId
from mailserver.waku.envelope import Envelope
from mailserver.waku.payload import open_asymmetric, open_symmetric

MAX_REMEMBERED_REQUESTS = 8192
"""How many requests to our public key are remembered, with the peers that made them; 250 bytes per entry."""


class Opener:
    """Opens the envelopes of requests, and refuses those that others have captured."""

    def __init__(self, symmetric_key: bytes, key: PrivateKey, min_pow: float) -> None:
        """Open with these keys what has enough proof of work."""
        self._symmetric_key = symmetric_key
        self._key = key
        self._min_pow = min_pow
        self._askers: OrderedDict[RequestId, NodeId] = OrderedDict()

    def open(self, request_id: RequestId, envelope: Envelope, asker: NodeId) -> bytes:
        """Return what is in the envelope of a request.

        Args:
            asker: the peer that sent it.
        Raises:
            RequestRejected: it has too little proof of work, is not for us, or another peer sent it before.
        """
        if envelope.pow() < self._min_pow:
            raise RequestRejected(Rejection.POW_TOO_LOW)
        data = envelope.data
        try:
            return open_symmetric(data, self._symmetric_key).payload
        except DecodeError:
            pass  # not sealed with the password; perhaps to our public key
        try:
            opened = open_asymmetric(data, self._key).payload
        except DecodeError as error:
            raise RequestRejected(Rejection.UNDECRYPTABLE, str(error)) from error
        self._check_asker(request_id, asker)
        return opened

    def _check_asker(self, request_id: RequestId, asker: NodeId) -> None:
        """Refuse a request to our public key that another peer has made before.

        A peer that captured the request cannot read it, but would learn from the answer what it asks for. Requests that
        are sealed with the password need no such check: every peer that knows the password can read them anyway. Old
        requests are answered, as by deployed mailservers: the clocks of phones are wrong.
        """
        if self._askers.setdefault(request_id, asker) != asker:
            raise RequestRejected(Rejection.REPLAYED)
        if len(self._askers) > MAX_REMEMBERED_REQUESTS:
            self._askers.popitem(last=False)
