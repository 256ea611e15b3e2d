"""What the daemon and the nightly job tell each other about one store, whichever engine keeps it.

`mailserver.handoff` has the formats. The engine decides where the records and the locks are.
"""

from contextlib import AbstractAsyncContextManager
from typing import Protocol

from mailserver.handoff.archived import Archived
from mailserver.handoff.last_run import Compaction, CompactionState
from mailserver.handoff.last_upkeep import LastUpkeep, Task


class Handoff(Protocol):
    """The records and locks of one store, as the daemon reads them. The job writes them."""

    async def archived(self) -> Archived | None:
        """What is in the archive, as the compaction says; None if it has never said.

        Raises:
            ArchivedError: the record cannot be read.
        """

    def was_archived(self) -> bool:
        """Whether envelopes of the store were ever archived. It waits for the disk: call it in a thread."""

    async def is_being_compacted(self) -> bool:
        """Whether a run of the compaction is reading the store.

        Raises:
            OSError: the lock cannot be read.
        """

    def pruning_turn(self) -> AbstractAsyncContextManager[bool]:
        """Keep any run of the compaction from starting while a batch is deleted; yield False if one is under way.

        Raises:
            OSError: the lock cannot be read.
        """

    async def last_run(self) -> tuple[CompactionState, Compaction | None]:
        """The state of the last run of the compaction, and its record; None if there has been none.

        Raises:
            CompactionRecordError: the record cannot be read.
            OSError: the lock cannot be read.
        """

    async def last_upkeep(self, task: Task) -> tuple[CompactionState, LastUpkeep | None]:
        """The state of the last merge, or verification, of the archive, and its record.

        Raises:
            UpkeepRecordError: the record cannot be read.
            OSError: the lock cannot be read.
        """
