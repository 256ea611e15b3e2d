"""MUIDs of rows: they are made from the envelopes."""

from collections.abc import Callable, Sequence

from mailserver.ids.envelopes import joined_muids
from mailserver.ids.muid import Muid
from mailserver.store.engine import work
from mailserver.store.engine.page import RowReader, Rows

IDS_AT_ONCE = 512
"""Of how many envelopes MUIDs are made at once: a millisecond."""

BYTES_AT_ONCE = 1024 * 1024
"""How many bytes of envelopes are read for that."""


async def read_muids(
    reader: RowReader[Rows], correct: Callable[[int], None], network_topic: str, rows: Rows, created: Sequence[int]
) -> list[Muid | None]:
    """The MUIDs of rows, IDS_AT_ONCE at most; None for one that has none, or was deleted.

    Args:
        correct: charges their payer for making them.
    Raises:
        StoreError: the store cannot be read.
    """
    muids: list[Muid | None] = []
    while len(muids) < len(rows):
        raws = await reader.read(rows[len(muids) :], BYTES_AT_ONCE)
        correct(len(raws.sizes) * work.ID)
        muids += joined_muids(network_topic, raws.body, raws.sizes, created[len(muids) :])
    return muids
