"""Live envelopes that other mailservers have put into a store which they share with us.

They are a hint, not history: what we are too slow for, or what comes while we cannot be told, is left out. It is in
the store all the same.
"""

from typing import Protocol

from mailserver.metrics.figures import DatabaseFigures


class Others(Protocol):
    """The other mailservers on a store, as far as we hear of them."""

    async def begin(self) -> None:
        """Listen to them, if that is possible at the moment: whatever they put from now on is heard."""

    async def run(self) -> None:
        """Keep listening until this is cancelled."""

    async def read(self) -> list[bytes]:
        """Wait for live envelopes of others; return some of them as they are stored, in the order of arrival.

        There may be none after all, if they could not be read, or if there was an outage.
        """

    @property
    def outages(self) -> int:
        """How often they could not be heard for a while, and can be again: nobody knows how many envelopes they have
        put meanwhile."""

    async def figures(self) -> DatabaseFigures | None:
        """How the database is that they share with us; None if it is a file.

        Raises:
            StoreError: it cannot be asked.
        """

    @property
    def missed(self) -> int:
        """How many, at most, were heard of and left out, because there were too many, or the store could not be
        read."""
