"""Reading rows that are known by their places: the envelopes that a search has found, and which are present."""

from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from mailserver.store.engine import work
from mailserver.store.engine.fitting import fitting, longest
from mailserver.store.engine.keys import HASH_PREFIX_BYTES, Keys, pieces
from mailserver.store.interface import Raws
from mailserver.store.postgres.readers import PaidReader

PLACES_AT_ONCE = 256
"""How many places a statement looks at, if it only says what is there."""

MAX_LENGTH = 2**31 - 1
"""The highest number that the server compares with a length."""

_PRESENT = """
    SELECT array_agg(e.created), string_agg(e.hash, ''::bytea)
    FROM unnest($1::bigint[], $2::bytea[]) AS a (created, hash)
    CROSS JOIN LATERAL (
        SELECT created, hash FROM envelopes WHERE created = a.created AND hash = a.hash OFFSET 0
    ) AS e
"""
# If an envelope is too long, only its length: the server then reads no more than the row.
_RAWS = """
    SELECT array_agg(size), string_agg(raw, ''::bytea) FROM (
        SELECT coalesce(octet_length(e.raw), 0) AS size,
            CASE WHEN a.n = 1 OR octet_length(e.raw) <= $3 THEN e.raw END AS raw
        FROM unnest($1::bigint[], $2::bytea[]) WITH ORDINALITY AS a (created, hash, n)
        LEFT JOIN LATERAL (
            SELECT raw FROM envelopes WHERE created = a.created AND hash = a.hash OFFSET 0
        ) AS e ON true
        ORDER BY a.n
    ) AS found
"""


@dataclass(frozen=True, slots=True)
class RowPlaces:
    """Places of rows, as columns: (created, stored prefix of the hash)."""

    created: "array[int]"
    hashes: bytes

    @classmethod
    def of(cls, places: Iterable[tuple[int, bytes]]) -> "RowPlaces":
        """The same as columns."""
        listed = [*places]
        return cls(array("q", [created for created, _ in listed]), b"".join(prefix for _, prefix in listed))

    def __len__(self) -> int:
        return len(self.created)

    def __getitem__(self, part: slice, /) -> "RowPlaces":
        start, stop, _ = part.indices(len(self))
        return RowPlaces(self.created[part], self.hashes[start * HASH_PREFIX_BYTES : stop * HASH_PREFIX_BYTES])


class RowReader:
    """Reads rows by short statements, however many are asked for and whatever the store holds."""

    def __init__(self, reader: PaidReader) -> None:
        self._reader = reader

    def rows_of(self, keys: Keys) -> RowPlaces:
        """The rows of keys."""
        return RowPlaces(keys.created, keys.hashes)

    async def read(self, rows: RowPlaces, max_bytes: int) -> Raws:
        """Read the first of these rows: at least one, and more as long as all of them fit into `max_bytes`.

        It may be fewer than fit: an envelope that is far longer than the mean is not read together with others.
        """
        likely = work.STATEMENT + work.ENVELOPE * len(rows) + max_bytes // work.UNIT_BYTES
        asked = [*rows.created], pieces(rows.hashes, HASH_PREFIX_BYTES)
        most = min(longest(len(rows), max_bytes), MAX_LENGTH)
        sizes, raws = await self._reader.run(_RAWS, (*asked, most), likely)
        self._reader.correct((len(raws or b"") - max_bytes) // work.UNIT_BYTES)
        return fitting(raws or b"", sizes or [], len(rows), max_bytes, at_least=1)

    async def present(self, places: Sequence[tuple[int, bytes]]) -> set[tuple[int, bytes]]:
        """At which of these places (created, prefix of the hash) there is an envelope."""
        found: set[tuple[int, bytes]] = set()
        for at in range(0, len(places), PLACES_AT_ONCE):
            part = places[at : at + PLACES_AT_ONCE]
            asked = [created for created, _ in part], [prefix for _, prefix in part]
            created, hashes = await self._reader.run(_PRESENT, asked, work.STATEMENT + work.PAIR * len(part))
            found.update(zip(created or (), pieces(hashes, HASH_PREFIX_BYTES), strict=True))
        return found
