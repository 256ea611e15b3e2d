"""Live envelopes that other mailservers have put into a store which they share with us.

They are a hint, not history: what we are too slow for, or what comes while we cannot be told, is left out. It is in
the store all the same.
"""

from typing import Protocol


class Others(Protocol):
    """The other mailservers on a store, as far as we hear of them."""

    async def begin(self) -> None:
        """Listen to them, if that is possible at the moment: whatever they put from now on is heard."""

    async def run(self) -> None:
        """Keep listening until this is cancelled."""

    async def read(self) -> list[bytes]:
        """Wait for live envelopes of others; return some of them as they are stored, in the order of arrival.

        None of them may be left, if they could not be read.
        """

    @property
    def missed(self) -> int:
        """How many, at most, were heard of and left out, because there were too many, or the store could not be
        read."""
