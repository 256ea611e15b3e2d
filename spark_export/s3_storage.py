"""An archive on S3, or on what speaks its protocol, as the driver changes it: by pyarrow, like the tasks and the
mailserver, with the same credentials.

S3 renames nothing, and exchanges nothing. So `put` copies, and leaves what was there: a period's new files are beside
the old ones until its record names the new ones, and then publishing deletes the old ones by their names.
"""

import contextlib
import time
from collections.abc import Iterator

from mailserver.archive.errors import ArchiveError
from spark_export.s3_bucket import WritableBucket
from spark_export.s3_lease import TIMES, leased


class S3Storage(WritableBucket):
    """An archive at `BUCKET` or `BUCKET/PREFIX`. It is a `spark_export.storage.WritableFiles`."""

    replaces_whole = False
    lease_times = TIMES

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """See Storage. Without the lease, nothing is changed any more."""
        free = self.permit
        with leased(WritableBucket(self.root), self.lease_times) as lease:
            self.permit = lease.check
            try:
                yield
            finally:
                self.permit = free

    def write(self, name: str, text: str) -> None:
        """See Storage."""
        self.put_object(name, text.encode())

    def is_same(self, one: str, other: str) -> bool:
        """See Storage: there are no second names."""
        return one == other

    def remove(self, *names: str) -> None:
        """See Storage."""
        self.delete(*names)

    def put(self, source: str, target: str) -> None:
        """See Storage. Nothing is deleted before every copy was seen."""
        self.copy(source, target)
        self.delete(source)

    def link(self, source: str, target: str) -> bool:
        """See Storage: there are no second names."""
        del source, target
        return False

    def restore(self, source: str, target: str) -> bool:
        """See Storage: there are no second names."""
        del source, target
        return False

    def sync(self, directory: str) -> None:
        """See Storage: what S3 has confirmed is kept."""

    def age(self, directory: str) -> float:
        """See Storage: since something below it was written last."""
        written = [one.mtime_ns / 1e9 for one in self._listed(directory, recursive=True) if one.is_file]
        if not written:
            raise ArchiveError(f"cannot read {self.where(directory)}: it is missing")
        return time.time() - float(max(written))

    def touch(self, directory: str) -> None:
        """See Storage: the times of objects stay. Only second names are touched, and there are none."""
