"""The keys that the node holds for its users: symmetric keys and key pairs, in memory, by id (9/WAKU-RPC).

They end with the process. A key leaves by the method that returns it, and never by a repr, an error or a log line. An
id is random and tells nothing about its key; who adds a key twice has it under two ids.
"""

import asyncio
import secrets
from typing import Generic, TypeVar

from mailserver.codec.keys import PrivateKey
from mailserver.errors import DecodeError, MailserverError
from mailserver.net.sessions import random_key
from mailserver.waku.payload import SYMMETRIC_KEY_BYTES, key_from_password

MAX_KEYS = 10_000
"""Most symmetric keys, and most key pairs. Deployed clients hold one for each chat and contact."""

KEY_ID_BYTES = 32
"""An id is so many random bytes, as hex digits in lower case."""

Key = TypeVar("Key", bytes, PrivateKey)


class KeyNotFound(MailserverError):
    """No key of this kind has the id."""

    def __init__(self, kind: str) -> None:
        super().__init__(kind)
        self.kind = kind

    def __str__(self) -> str:
        return f"no {self.kind} has this id"


class TooManyKeys(MailserverError):
    """As many keys of this kind are held as may be."""

    def __init__(self, kind: str, limit: int) -> None:
        super().__init__(kind, limit)
        self.kind = kind
        self.limit = limit

    def __str__(self) -> str:
        return f"no room for another {self.kind}, limit {self.limit}"


class KeyStore:
    """All keys that are held."""

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
            DecodeError: the text has no UTF-8 form: JSON can say half a surrogate pair.
            TooManyKeys: MAX_KEYS symmetric keys are held.
        """
        self._symmetric.check_room()  # before the work, and again by `add` after it
        try:
            # One at a time: of the 30 ms that each takes, those of a batch must not fall on every core together.
            async with self._deriving:
                key = await asyncio.to_thread(key_from_password, password)
        except UnicodeEncodeError:  # without its cause, which quotes the password
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
        """Forget a symmetric key; return whether there was one. Filters that were made with it keep it."""
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
        """A key pair: the private key, which knows its public key.

        Raises:
            KeyNotFound: no key pair has the id.
        """
        return self._pairs.get(key_id)

    def has_pair(self, key_id: str) -> bool:
        """Whether a key pair has the id."""
        return key_id in self._pairs

    def delete_pair(self, key_id: str) -> bool:
        """Forget a key pair; return whether there was one. Filters that were made with it keep it."""
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
