"""Proofs of work for callers: several at once, but together they take one share of the event loop's time."""

import asyncio
import contextlib
from collections.abc import Iterator

from mailserver.api.errors import ErrorCode, RpcError

MAX_WORKS = 16
"""Most proofs of work that are sought at once: each is the slower for the others, and its time runs."""


class Works:
    """Who seeks a proof of work, and whose turn it is."""

    def __init__(self) -> None:
        self._turn = asyncio.Lock()
        self._count = 0

    @contextlib.contextmanager
    def place(self) -> Iterator[asyncio.Lock]:
        """Take part as long as the context is entered; what it yields is to be held while hashing.

        Raises:
            RpcError: MAX_WORKS take part.
        """
        if self._count >= MAX_WORKS:
            raise RpcError(ErrorCode.TOO_MANY, f"{MAX_WORKS} proofs of work are being sought, as many as there may be")
        self._count += 1
        try:
            yield self._turn
        finally:
            self._count -= 1
