"""Making envelopes, and opening them: payloads are sealed with fresh randomness, and a proof of work is found.

Every envelope of ours is made here: those of the client, of the commands and of JSON-RPC.
"""

import asyncio
import contextlib
import math
import secrets
import time

from mailserver.codec.aes import GCM_NONCE_BYTES
from mailserver.codec.ecies import IV_BYTES
from mailserver.codec.keys import PUBLIC_KEY_BYTES, NodeId, PrivateKey
from mailserver.errors import MailserverError
from mailserver.mail.request import MailRequest, encode_fields
from mailserver.net.sessions import random_key
from mailserver.waku.envelope import Envelope, Topic, encode_envelope, find_nonce
from mailserver.waku.payload import (
    MAX_PADDING_BYTES,
    OpenedPayload,
    open_asymmetric,
    open_symmetric,
    seal_asymmetric,
    seal_symmetric,
)

REQUEST_TTL_S = 50
"""The ttl of request envelopes, as deployed clients set it."""

REQUEST_TOPIC = Topic(bytes(4))

_ATTEMPTS = 1000  # nonces that are tried together: 2 ms


class TooMuchWork(MailserverError):
    """The proof of work of an envelope was not found within `seconds`: its ttl, or the given limit."""

    def __init__(self, seconds: float) -> None:
        super().__init__(seconds)
        self.seconds = seconds

    def __str__(self) -> str:
        return (
            f"no proof of work within {self.seconds:g} s: ask for a lower one, or give more time (no more than the ttl)"
        )


def seal_to_key(
    payload: bytes, key: bytes, *, padding: bytes | None = None, signing_key: PrivateKey | None = None
) -> bytes:
    """Seal a payload with a symmetric key, for the data of an envelope.

    Args:
        padding: used as it is; None for so many random bytes that the plaintext fills its blocks.
    """
    return seal_symmetric(
        payload,
        key,
        nonce=secrets.token_bytes(GCM_NONCE_BYTES),
        padding=secrets.token_bytes(MAX_PADDING_BYTES) if padding is None else padding,
        exact_padding=padding is not None,
        signing_key=signing_key,
    )


def seal_to_node(
    payload: bytes, public_key: NodeId, *, padding: bytes | None = None, signing_key: PrivateKey | None = None
) -> bytes:
    """Seal a payload to a public key; otherwise like `seal_to_key`."""
    return seal_asymmetric(
        payload,
        public_key,
        ephemeral_key=random_key(),
        iv=secrets.token_bytes(IV_BYTES),
        padding=secrets.token_bytes(MAX_PADDING_BYTES) if padding is None else padding,
        exact_padding=padding is not None,
        signing_key=signing_key,
    )


async def mine_envelope(
    data: bytes,
    topic: Topic,
    *,
    ttl: int,
    min_pow: float,
    now: int,
    limit_s: float = math.inf,
    turn: asyncio.Lock | None = None,
    first_nonce: int = 0,
) -> Envelope:
    """Make an envelope around sealed data, created now, and find its proof of work.

    This takes about size * ttl * min_pow / 500,000 seconds. Other tasks get their turn every 2 ms.

    Args:
        limit_s: how long to search; never longer than `ttl`, as a node would silently drop the envelope.
        turn: shared by tasks that do this at the same time: they take turns, so that together they take those 2 ms.
        first_nonce: where to begin: the same data at the same time and from the same nonce gives the same envelope.
    Raises:
        TooMuchWork: it takes longer than that.
    """
    deadline = time.monotonic() + min(ttl, limit_s)
    expiry, at = now + ttl, first_nonce
    while True:
        async with turn or contextlib.nullcontext():
            nonce = find_nonce(expiry, ttl, topic, data, target=min_pow, first_nonce=at, attempts=_ATTEMPTS)
            # Pings are answered meanwhile, and the next task that shares the turn begins after that.
            await asyncio.sleep(0)
        if nonce is not None:
            return encode_envelope(expiry, ttl, topic, data, nonce)
        if time.monotonic() > deadline:
            raise TooMuchWork(min(ttl, limit_s))
        at += _ATTEMPTS


async def seal_envelope(
    payload: bytes,
    key: bytes,
    topic: Topic,
    *,
    ttl: int,
    min_pow: float,
    now: int,
    signing_key: PrivateKey | None = None,
    turn: asyncio.Lock | None = None,
) -> Envelope:
    """Seal a payload, and make an envelope around it with `mine_envelope`.

    Args:
        key: a symmetric key, 32 bytes, or a public key, 64.
    Raises:
        TooMuchWork: it takes longer than `ttl`.
    """
    if len(key) == PUBLIC_KEY_BYTES:
        data = seal_to_node(payload, NodeId(key), signing_key=signing_key)
    else:
        data = seal_to_key(payload, key, signing_key=signing_key)
    return await mine_envelope(data, topic, ttl=ttl, min_pow=min_pow, now=now, turn=turn)


def open_envelope(envelope: Envelope, key: bytes | PrivateKey) -> OpenedPayload:
    """Open what `seal_envelope` has sealed. What opens was sealed with this key, and is unchanged.

    Args:
        key: the symmetric key, 32 bytes, or the private key of the recipient.
    Raises:
        DecodeError: another key, damaged, or the plaintext has another form.
    """
    if isinstance(key, PrivateKey):
        return open_asymmetric(envelope.data, key)
    return open_symmetric(envelope.data, key)


async def seal_request(
    request: MailRequest, key: bytes, *, min_pow: float, now: int, turn: asyncio.Lock | None = None
) -> Envelope:
    """Seal a history request in the deployed form.

    Args:
        request: its `request_id` is ignored, and may be UNSEALED_ID.
        key: the mailserver's symmetric key, 32 bytes, or its public key, 64.
        min_pow: the proof of work that the mailserver wants.
        turn: as in `mine_envelope`.
    Raises:
        TooMuchWork: it takes longer than REQUEST_TTL_S.
    """
    # It is signed with a new key: the deployed server expects a signature, and this one tells nothing.
    return await seal_envelope(
        encode_fields(request),
        key,
        REQUEST_TOPIC,
        ttl=REQUEST_TTL_S,
        min_pow=min_pow,
        now=now,
        signing_key=random_key(),
        turn=turn,
    )
