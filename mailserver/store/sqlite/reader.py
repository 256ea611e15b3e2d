"""Reading rows that are known: the envelopes that a search has found (`store.engine.search`), and which are present."""

import json
from array import array
from collections.abc import Sequence

from mailserver.store.engine import work
from mailserver.store.engine.fitting import fitting, longest
from mailserver.store.engine.keys import Keys, pieces
from mailserver.store.interface import Raws
from mailserver.store.sqlite.lookups import ReadConnection
from mailserver.store.sqlite.packing import SLOTS, numbers, packed_bytes, packed_numbers, slots_for
from mailserver.store.sqlite.schema import HASH_PREFIX_BYTES


def _present(slots: int) -> str:
    return f"""
        WITH asked (created, hash) AS (VALUES {", ".join(["(?, ?)"] * slots)})
        SELECT {packed_numbers("created")}, {packed_bytes("hash")} FROM (
            SELECT e.created, e.hash
            FROM asked AS a CROSS JOIN envelopes AS e INDEXED BY envelopes_by_time
            WHERE e.created = a.created AND e.hash = a.hash
            LIMIT -1
        )
    """


_PRESENT = {slots: _present(slots) for slots in SLOTS}
# If an envelope is too long, only its length: SQLite then reads no more than the page on which it begins.
_RAWS = f"""
    SELECT {packed_numbers("size")}, {packed_bytes("raw")} FROM (
        SELECT coalesce(length(e.raw), 0) AS size, CASE WHEN j.key = 0 OR length(e.raw) <= ? THEN e.raw END AS raw
        FROM json_each(?) AS j LEFT JOIN envelopes AS e ON e.seq = j.value LIMIT -1
    )
"""


class RowReader:
    """Reads rows by short statements, however many are asked for and whatever the store holds."""

    def __init__(self, connection: ReadConnection) -> None:
        self._connection = connection

    def rows_of(self, keys: Keys) -> "array[int]":
        """The rows of keys."""
        return keys.seqs

    async def read(self, seqs: "Sequence[int] | array[int]", max_bytes: int) -> Raws:
        """Read the first of these rows: at least one, and more as long as all of them fit into `max_bytes`.

        It may be fewer than fit: an envelope that is far longer than the mean is not read together with others.
        """
        likely = work.STATEMENT + work.ENVELOPE * len(seqs) + max_bytes // work.UNIT_BYTES
        asked = longest(len(seqs), max_bytes), json.dumps([*seqs])
        ((packed, raws),) = await self._connection.run(_RAWS, asked, likely)
        body = raws or b""
        self._connection.correct((len(body) - max_bytes) // work.UNIT_BYTES)
        return fitting(body, numbers(packed), len(seqs), max_bytes, at_least=1)

    async def present(self, places: Sequence[tuple[int, bytes]]) -> set[tuple[int, bytes]]:
        """At which of these places (created, prefix of the hash) there is an envelope."""
        found: set[tuple[int, bytes]] = set()
        for at in range(0, len(places), SLOTS[-1]):
            part = places[at : at + SLOTS[-1]]
            slots = slots_for(len(part))
            parameters: list[object] = [value for place in part for value in place]
            parameters += [None] * (2 * slots - len(parameters))  # these match nothing
            most = work.STATEMENT + work.PAIR * len(part)
            ((created, hashes),) = await self._connection.run(_PRESENT[slots], parameters, most)
            found.update(zip(numbers(created), pieces(hashes, HASH_PREFIX_BYTES), strict=True))
        return found
