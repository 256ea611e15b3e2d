"""What a compaction is told to do."""

from dataclasses import dataclass

from mailserver.archive.layout import PartitionBy
from mailserver.ids.muid import DEFAULT_NETWORK_TOPIC
from spark_export.places import StorePlace

VERIFY_WITHIN_DAYS = 7.0
MAX_VERIFY_DAYS = 3650.0


@dataclass(frozen=True, slots=True)
class CompactConfig:
    """The settings of one run of `spark-export compact`.

    `until`: the last day of reception to archive, days since 1970; None for the last one that is over, and with
    `keep_open_day` for the present one. `partition_by` and `prefix_digits` are for a new archive; None leaves the
    choice to the number of topics and bytes. `verify_within_days`: every file is read again within so many days.
    `network_topic`: to which the MUIDs of the rows that are written belong.
    """

    stores: tuple[StorePlace, ...]
    archive: str
    until: int | None = None
    keep_open_day: bool = False
    partition_by: PartitionBy | None = None
    prefix_digits: int | None = None
    verify_within_days: float = VERIFY_WITHIN_DAYS
    network_topic: str = DEFAULT_NETWORK_TOPIC
