"""Proofs of work for callers. Several are sought at once, but together they take one share of the event loop's time."""

import asyncio
import contextlib
from collections.abc import Iterator

from mailserver.api.errors import ErrorCode, RpcError

MAX_WORKS = 16
"""Maximum number of proofs of work sought at once. Each slows the others down while their time limits run."""


class Works:
    """The searches for proof of work, which take turns."""

    def __init__(self) -> None:
        self._turn = asyncio.Lock()
        self._count = 0

    @contextlib.contextmanager
    def place(self) -> Iterator[asyncio.Lock]:
        """Take part as long as the context is entered. Hold the lock that it yields while hashing.

        Raises:
            RpcError: MAX_WORKS searches are under way.
        """
        if self._count >= MAX_WORKS:
            raise RpcError(ErrorCode.TOO_MANY, f"no room for another proof of work, the limit is {MAX_WORKS}")
        self._count += 1
        try:
            yield self._turn
        finally:
            self._count -= 1
