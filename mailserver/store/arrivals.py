"""A store in the order of arrival, for what follows it from another process: it only reads, whether the daemon runs or
not.

Whoever follows keeps a place in this order (`store.message_ids.Arrival`), which is at the same time what names an
envelope of this store. Both hold for one store, which has an identity; a file that took its place has another, and so
has another database.
"""

from collections.abc import Container, Mapping, Sequence
from typing import NamedTuple, Protocol

from mailserver.errors import StoreError
from mailserver.store.interface import OURSELVES, Payer
from mailserver.store.message_ids import Arrival
from mailserver.waku.envelope import Envelope, EnvelopeHash
from mailserver.waku.envelope_rows import EnvelopeFields


class OtherStore(StoreError):
    """The store has another identity than its arrivals were to be of, or was set back to before one of them: what is
    known of those holds no longer.

    Args:
        identity: that of the store that is there.
    """

    def __init__(self, identity: str) -> None:
        super().__init__(identity)
        self.identity = identity

    def __str__(self) -> str:
        return f"another store is there, of identity {self.identity}"


class Sought(Protocol):
    """Whatever says where an envelope is."""

    @property
    def arrival(self) -> Arrival:
        """Its place."""

    @property
    def created(self) -> int | None:
        """When it was created, in Unix seconds; None: that is not known, and it takes longer to look for it."""


class StoredPlace(NamedTuple):
    """The place of an envelope, and when it was created: what is `Sought`."""

    arrival: Arrival
    created: int | None


class ArrivedEnvelope(NamedTuple):
    """An envelope, and its place in the order of arrival."""

    arrival: Arrival
    envelope: Envelope
    hash: EnvelopeHash


class ArrivedFields(NamedTuple):
    """The same, with what the envelope says instead of the envelope."""

    arrival: Arrival
    hash: EnvelopeHash
    fields: EnvelopeFields


class Arrived(Protocol):
    """What arrived after a place, and how the store was at that moment."""

    @property
    def end(self) -> Arrival:
        """How far this has come: what follows begins behind it."""

    @property
    def first(self) -> Arrival:
        """The first place in the store; BEFORE_ALL if it is empty. What arrived before was removed."""

    @property
    def last(self) -> Arrival:
        """The last place in the store."""

    @property
    def removals(self) -> str:
        """A text that changes when envelopes are removed, and rarely otherwise."""

    @property
    def removed_until(self) -> int:
        """Nothing that was created later than this was ever removed, in Unix seconds."""

    def up_to_known(self, known: Container[bytes]) -> "Arrived | None":
        """The same up to the last envelope that is known; None if none is. It is for a thread, too.

        Args:
            known: see `fields`.
        """

    def decode(self) -> tuple[Sequence[ArrivedEnvelope], int]:
        """The envelopes in order, but for those that are damaged; and how many these are.

        It takes 8 us an envelope, so it is for a thread.
        """

    def fields(self, known: Container[bytes] = ()) -> tuple[Sequence[ArrivedFields], int]:
        """The same without an Envelope for each, in half the time.

        Args:
            known: hashes, of each as much as a store's keys have. These envelopes are left out, and not even looked at.
        """


class Bodies(NamedTuple):
    """Envelopes that were looked for.

    `sizes`: of each, 0 if it is not there. `fitting`: how many of the first were read as they are, or would have been.
    `raws`: those that were.
    """

    sizes: Sequence[int]
    fitting: int
    raws: Mapping[Arrival, bytes]


class ArrivalLog(Protocol):
    """The envelopes of one place where a store is, whichever store that is at the moment.

    It is there whether the store can be reached or not: whatever is asked meanwhile is answered with an error in time,
    and once the store is back, with what it has.
    """

    async def after(self, arrival: Arrival, limit: int, *, of: str) -> Arrived:
        """Read the first `limit` envelopes after a place, fewer if they are long; with 0, only how the store is.

        This notices when the store was replaced, and reads the one that is there from then on.

        Args:
            of: the identity of the store whose place it is; "" for none.
        Raises:
            OtherStore: the store is another.
            OtherNetworkTopic: its message ids belong to another network topic than ours.
            StoreError: it cannot be read, or is of another version.
        """

    async def read(
        self,
        places: Sequence[Sought],
        whole: int,
        max_bytes: int,
        *,
        known: Container[Arrival] = (),
        payer: Payer = OURSELVES,
    ) -> Bodies:
        """Look for envelopes; read some of the first `whole` as they are.

        These are the first that is there, and more as long as all of them fit into `max_bytes`. One that is damaged may
        be read as it is.

        Args:
            known: these need not be read, but count as if they were.
        Raises:
            StoreError: the store cannot be read.
        """

    async def missing(self, places: Sequence[Sought], *, payer: Payer = OURSELVES) -> list[Arrival]:
        """Which of these envelopes are not there.

        Raises:
            StoreError: the store cannot be read.
        """

    def was_archived(self) -> bool:
        """Whether envelopes of the store were ever archived, as far as is known. It may wait for the disk: call it in a
        thread."""
