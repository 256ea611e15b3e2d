"""mailserver.archive.reading.reads, by itself."""

import contextlib
import weakref

from mailserver.archive.errors import ArchiveFault
from mailserver.archive.reading.reads import ArchiveReads
from mailserver.metrics.registry import Metrics
from mailserver.store.interface import OURSELVES
from tests.memory import no_search_for_cycles
from tests.waiting import until


async def test_read_that_failed_is_freed_at_once() -> None:
    class Read:
        def __call__(self) -> None:
            raise ArchiveFault("damaged")

    reads, read = ArchiveReads(1, metrics=Metrics()), Read()
    freed = weakref.ref(read)

    with no_search_for_cycles():
        with contextlib.suppress(ArchiveFault):
            await reads.run(1, OURSELVES, read)
        del read

        await until(lambda: freed() is None)
    reads.close()
