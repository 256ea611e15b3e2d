"""The keys that the node holds for its users: symmetric keys and key pairs, in memory, by id (9/WAKU-RPC).

They end with the process. Only the methods that return a key reveal it: no repr, error or log line does. An id is
random and reveals nothing about its key. A key that is added twice has two ids.
"""

import asyncio
import secrets
from typing import Generic, TypeVar

from mailserver.codec.keys import PrivateKey
from mailserver.errors import DecodeError, MailserverError
from mailserver.net.sessions import random_key
from mailserver.waku.payload import SYMMETRIC_KEY_BYTES, key_from_password

MAX_KEYS = 10_000
"""Maximum number of symmetric keys, and of key pairs. Deployed clients hold one for each chat and contact."""

KEY_ID_BYTES = 32
"""Number of random bytes of an id, which is written as lowercase hex digits."""

Key = TypeVar("Key", bytes, PrivateKey)


class KeyNotFound(MailserverError):
    """No key of this kind has this id."""

    def __init__(self, kind: str) -> None:
        super().__init__(kind)
        self.kind = kind

    def __str__(self) -> str:
        return f"no {self.kind} has this id"


class TooManyKeys(MailserverError):
    """The maximum number of keys of this kind is held."""

    def __init__(self, kind: str, limit: int) -> None:
        super().__init__(kind, limit)
        self.kind = kind
        self.limit = limit

    def __str__(self) -> str:
        return f"no room for another {self.kind}, the limit is {self.limit}"


class KeyStore:
    """All keys."""

    def __init__(self, *, max_keys: int = MAX_KEYS) -> None:
        self._symmetric = _Keys[bytes]("symmetric key", max_keys)
        self._pairs = _Keys[PrivateKey]("key pair", max_keys)
        self._deriving = asyncio.Lock()

    def new_symmetric(self) -> str:
        """Draw a symmetric key; return its id.

        Raises:
            TooManyKeys: MAX_KEYS symmetric keys are held.
        """
        return self._symmetric.add(secrets.token_bytes(SYMMETRIC_KEY_BYTES))

    def add_symmetric(self, key: bytes) -> str:
        """Take a symmetric key; return its id.

        Raises:
            DecodeError: not 32 bytes.
            TooManyKeys: MAX_KEYS symmetric keys are held.
        """
        if len(key) != SYMMETRIC_KEY_BYTES:
            raise DecodeError("symmetric key has the wrong length", got=len(key), limit=SYMMETRIC_KEY_BYTES)
        return self._symmetric.add(key)

    async def from_password(self, password: str) -> str:
        """Derive a symmetric key as deployed clients do; return its id.

        Raises:
            DecodeError: the text cannot be encoded as UTF-8: JSON can express half of a surrogate pair.
            TooManyKeys: MAX_KEYS symmetric keys are held.
        """
        self._symmetric.check_room()  # before the work; `add` checks again after it
        try:
            # One at a time. Each takes 30 ms, and those of a batch must not occupy every core at once.
            async with self._deriving:
                key = await asyncio.to_thread(key_from_password, password)
        except UnicodeEncodeError:  # the cause is left out because it quotes the password
            raise DecodeError("password is not Unicode text") from None
        return self._symmetric.add(key)

    def symmetric(self, key_id: str) -> bytes:
        """The 32 bytes of a symmetric key.

        Raises:
            KeyNotFound: no symmetric key has the id.
        """
        return self._symmetric.get(key_id)

    def has_symmetric(self, key_id: str) -> bool:
        """Whether a symmetric key has the id."""
        return key_id in self._symmetric

    def delete_symmetric(self, key_id: str) -> bool:
        """Forget a symmetric key; return whether there was one. Filters made with it keep it."""
        return self._symmetric.delete(key_id)

    def new_pair(self) -> str:
        """Draw a key pair; return its id.

        Raises:
            TooManyKeys: MAX_KEYS key pairs are held.
        """
        return self._pairs.add(random_key())

    def add_pair(self, secret: bytes) -> str:
        """Take the private key of a pair; return its id.

        Raises:
            DecodeError: not 32 bytes, zero, or not below the group order.
            TooManyKeys: MAX_KEYS key pairs are held.
        """
        return self._pairs.add(PrivateKey(secret))

    def pair(self, key_id: str) -> PrivateKey:
        """A key pair, as the private key, which knows its public key.

        Raises:
            KeyNotFound: no key pair has the id.
        """
        return self._pairs.get(key_id)

    def has_pair(self, key_id: str) -> bool:
        """Whether a key pair has the id."""
        return key_id in self._pairs

    def delete_pair(self, key_id: str) -> bool:
        """Forget a key pair; return whether there was one. Filters made with it keep it."""
        return self._pairs.delete(key_id)


class _Keys(Generic[Key]):
    """Keys of one kind, by id."""

    def __init__(self, kind: str, limit: int) -> None:
        self._kind = kind
        self._limit = limit
        self._keys: dict[str, Key] = {}

    def __contains__(self, key_id: str) -> bool:
        return key_id in self._keys

    def check_room(self) -> None:
        if len(self._keys) >= self._limit:
            raise TooManyKeys(self._kind, self._limit)

    def add(self, key: Key) -> str:
        self.check_room()
        key_id = secrets.token_hex(KEY_ID_BYTES)
        self._keys[key_id] = key
        return key_id

    def get(self, key_id: str) -> Key:
        try:
            return self._keys[key_id]
        except KeyError:
            raise KeyNotFound(self._kind) from None

    def delete(self, key_id: str) -> bool:
        return self._keys.pop(key_id, None) is not None
