"""The node and its keys (9/WAKU-RPC): version, settings, trusted peers; symmetric keys and key pairs.

Where deployed nodes use another name, both names work: maxEnvelopeSize and maxMessageSize, envelopes and messages.
"""

from mailserver.api.caller import Call
from mailserver.api.dispatch import Method
from mailserver.api.errors import ErrorCode, RpcError
from mailserver.api.keys import KeyStore
from mailserver.api.params import (
    MAX_FLOAT,
    Fields,
    Invalid,
    Json,
    encode_hex,
    encode_public_key,
    enode,
    hex_bytes,
    identifier,
    number,
    private_key,
    text,
    whole,
)
from mailserver.peers.node import Node
from mailserver.waku.acceptance import MAX_ENVELOPE_BYTES
from mailserver.waku.payload import SYMMETRIC_KEY_BYTES

VERSION = "1.0"
"""Version of the protocol, 6/WAKU1, as deployed nodes write it."""

MAX_PASSWORD_CHARS = 4096
"""Longest password. Its length matters only for the first hash; the rounds after that take the same time for any."""


class NodeMethods:
    """The node: its version, and what it demands of envelopes."""

    def __init__(self, node: Node) -> None:
        self._node = node

    def table(self) -> dict[str, Method]:
        """The methods by name."""
        return {
            "waku_version": Method(self._version),
            "waku_info": Method(self._info),
            "waku_setMinPoW": Method(self._set_min_pow, ("minPow",)),
            "waku_setMaxEnvelopeSize": Method(self._set_max_envelope_size, ("size",)),
            "waku_setMaxMessageSize": Method(self._set_max_envelope_size, ("size",)),
            "waku_markTrustedPeer": Method(self._mark_trusted_peer, ("enode",)),
        }

    async def _version(self, params: Fields, call: Call) -> Json:
        return VERSION

    async def _info(self, params: Fields, call: Call) -> Json:
        requirements = self._node.requirements
        envelopes, size = self._node.live_usage()
        return {
            "minPow": requirements.min_pow,
            "maxEnvelopeSize": requirements.max_envelope_bytes,
            "maxMessageSize": requirements.max_envelope_bytes,
            "memory": size,
            "envelopes": envelopes,
            "messages": envelopes,
        }

    async def _set_min_pow(self, params: Fields, call: Call) -> Json:
        self._node.set_min_pow(params.required("minPow", number(0, MAX_FLOAT)))
        return True

    async def _set_max_envelope_size(self, params: Fields, call: Call) -> Json:
        self._node.set_max_envelope_bytes(params.required("size", _envelope_size))
        return True

    async def _mark_trusted_peer(self, params: Fields, call: Call) -> Json:
        """The peer need not be connected. It is trusted whenever it connects."""
        self._node.mark_trusted(params.required("enode", enode).node_id)
        return True


def _envelope_size(value: Json) -> int:
    """A maximum size of envelopes."""
    try:
        return whole(1, MAX_ENVELOPE_BYTES)(value)
    except Invalid as error:
        longest = f"{MAX_ENVELOPE_BYTES} bytes are what fits into a packet of 1 MiB"
        raise Invalid(f"{error.problem}; {longest}") from error


class KeyMethods:
    """The keys that the node holds for its users."""

    def __init__(self, keys: KeyStore) -> None:
        self._keys = keys

    def table(self) -> dict[str, Method]:
        """The methods by name."""
        return {
            "waku_newKeyPair": Method(self._new_key_pair),
            "waku_addPrivateKey": Method(self._add_private_key, ("privateKey",)),
            "waku_deleteKeyPair": Method(self._delete_key_pair, ("id",)),
            "waku_hasKeyPair": Method(self._has_key_pair, ("id",)),
            "waku_getPublicKey": Method(self._get_public_key, ("id",)),
            "waku_getPrivateKey": Method(self._get_private_key, ("id",)),
            "waku_newSymKey": Method(self._new_sym_key),
            "waku_addSymKey": Method(self._add_sym_key, ("key",)),
            "waku_generateSymKeyFromPassword": Method(self._generate_sym_key_from_password, ("password",)),
            "waku_hasSymKey": Method(self._has_sym_key, ("id",)),
            "waku_getSymKey": Method(self._get_sym_key, ("id",)),
            "waku_deleteSymKey": Method(self._delete_sym_key, ("id",)),
        }

    async def _new_key_pair(self, params: Fields, call: Call) -> Json:
        return self._keys.new_pair()

    async def _add_private_key(self, params: Fields, call: Call) -> Json:
        return self._keys.add_pair(params.required("privateKey", private_key).secret)

    async def _delete_key_pair(self, params: Fields, call: Call) -> Json:
        """True, or an error if there is no such key pair. waku_deleteSymKey returns false in that case."""
        if not self._keys.delete_pair(params.required("id", identifier)):
            raise RpcError(ErrorCode.NOT_FOUND, "no key pair has this id")
        return True

    async def _has_key_pair(self, params: Fields, call: Call) -> Json:
        return self._keys.has_pair(params.required("id", identifier))

    async def _get_public_key(self, params: Fields, call: Call) -> Json:
        return encode_public_key(self._keys.pair(params.required("id", identifier)).public_key)

    async def _get_private_key(self, params: Fields, call: Call) -> Json:
        return encode_hex(self._keys.pair(params.required("id", identifier)).secret)

    async def _new_sym_key(self, params: Fields, call: Call) -> Json:
        return self._keys.new_symmetric()

    async def _add_sym_key(self, params: Fields, call: Call) -> Json:
        key = params.required("key", hex_bytes(SYMMETRIC_KEY_BYTES, SYMMETRIC_KEY_BYTES))
        return self._keys.add_symmetric(key)

    async def _generate_sym_key_from_password(self, params: Fields, call: Call) -> Json:
        return await self._keys.from_password(params.required("password", text(MAX_PASSWORD_CHARS)))

    async def _has_sym_key(self, params: Fields, call: Call) -> Json:
        return self._keys.has_symmetric(params.required("id", identifier))

    async def _get_sym_key(self, params: Fields, call: Call) -> Json:
        return encode_hex(self._keys.symmetric(params.required("id", identifier)))

    async def _delete_sym_key(self, params: Fields, call: Call) -> Json:
        return self._keys.delete_symmetric(params.required("id", identifier))
