"""What is counted where the archive is read: a part of the metrics of each process that does."""

from collections.abc import Mapping
from typing import Protocol

from prometheus_client import Counter, Gauge

from mailserver.metrics.labels import ArchiveRead


class ArchiveMetrics(Protocol):
    """The metrics of whoever reads the archive."""

    @property
    def archive_row_groups(self) -> Mapping[ArchiveRead, Counter]:
        """Row groups that were read, by use."""

    @property
    def archive_read_seconds(self) -> Counter:
        """How long the archive was read, all threads together."""

    @property
    def archive_read_failures(self) -> Counter:
        """How often it could not be read."""

    @property
    def archive_cache_hits(self) -> Counter:
        """What was wanted, and was in memory."""

    @property
    def archive_cache_misses(self) -> Counter:
        """What was wanted, and was not."""

    @property
    def archive_cache_bytes(self) -> Gauge:
        """What is kept in memory."""
