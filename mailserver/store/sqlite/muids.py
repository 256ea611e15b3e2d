"""MUIDs of rows: they are made from the envelopes."""

from collections.abc import Sequence

from mailserver.ids.muid import Muid
from mailserver.store.engine import work
from mailserver.store.sqlite.id_index import muid_of
from mailserver.store.sqlite.reader import RowReader
from mailserver.store.sqlite.reader_pool import PaidReader

IDS_AT_ONCE = 512
"""Of how many envelopes MUIDs are made at once: some 1.5 ms."""

BYTES_AT_ONCE = 1024 * 1024
"""How many bytes of envelopes are read for that."""


async def read_muids(
    readers: PaidReader, network_topic: str, seqs: Sequence[int], created: Sequence[int]
) -> list[Muid | None]:
    """The MUIDs of rows, IDS_AT_ONCE at most; None for one that has none, or was deleted.

    Raises:
        StoreError: the store cannot be read.
    """
    reader = RowReader(readers)
    muids: list[Muid | None] = []
    while len(muids) < len(seqs):
        raws = await reader.read(seqs[len(muids) :], BYTES_AT_ONCE)
        readers.correct(len(raws.sizes) * work.ID)
        at = 0
        for size in raws.sizes:
            muids.append(muid_of(network_topic, created[len(muids)], raws.body[at : at + size]))
            at += size
    return muids
