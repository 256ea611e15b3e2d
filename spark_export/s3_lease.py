"""The lock of an archive on S3: a lease, which a run renews while it is at work, and which ends without it.

S3 can write an object only if there is none (`If-None-Match`), but pyarrow cannot ask for that. Nor is it needed, where
whoever lists after a write has ended sees what was written, as on S3. Each run writes an object of its own, and then
lists all. Of two runs, the one whose write ended last lists after both writes, and sees the other. So no two see only
themselves. A run that sees another withdraws. Of two that come at the same time, the one whose name is first waits
until the other has withdrawn.

How old a lease is, the clock of S3 says: when the other's object was written, and when one's own. How long a lease is
still good, its holder's clock says, which also counts while the machine sleeps. The holder trusts it for MARGIN_S less
than the others do: for the requests that are under way then, and for clocks that do not run equally fast.

A process that is stopped after it has looked at its clock, and before it sends a request, may still send it while
another run is at work. That is why publishing on S3 deletes only by name, and only what has been replaced by what was
seen to be there (`spark_export.publishing`).
"""

import contextlib
import logging
import math
import os
import secrets
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime

from mailserver.archive.access.bucket import LEASE_S, LEASES
from mailserver.archive.errors import ArchiveBusy, ArchiveError
from spark_export.s3_bucket import WritableBucket

log = logging.getLogger(__name__)

RENEW_S = 30.0
MARGIN_S = 120.0

WITHDRAW_S = 10.0
"""How long a run waits for another that came at the same time to withdraw."""

_LOOK_S = 0.5
_END_S = 5.0
"""How long the end of a run waits for a request that is under way."""


@dataclass(frozen=True, slots=True)
class LeaseTimes:
    """How long a lease is good for others, when it is renewed, and how long a run waits for one that withdraws."""

    lease_s: float = LEASE_S
    margin_s: float = MARGIN_S
    renew_s: float = RENEW_S
    withdraw_s: float = WITHDRAW_S


TIMES = LeaseTimes()


def steady() -> float:
    """Seconds, by a clock that nobody sets, and that also counts while the machine sleeps."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class Lease:
    """One run's lease."""

    def __init__(self, bucket: WritableBucket, times: LeaseTimes, clock: Callable[[], float] = steady) -> None:
        self._bucket = bucket
        self._times = times
        self._clock = clock
        self._name = f"{datetime.now(UTC):%Y%m%dT%H%M%S}-{secrets.token_hex(4)}"
        self._good_until = math.inf

    @property
    def object(self) -> str:
        """Its name in the archive."""
        return f"{LEASES}/{self._name}"

    def take(self) -> None:
        """Become the one run at work.

        Raises:
            ArchiveBusy: another run is.
            ArchiveError: S3 refuses something.
        """
        self._write()
        try:
            self._wait_for_others()
        except BaseException:
            self.give_back()
            raise

    def check(self) -> None:
        """Make sure that no other run can have taken the lease over, and that none can while a request is under way.

        Raises:
            ArchiveError: one may have.
        """
        if self._clock() >= self._good_until:
            raise ArchiveError(
                f"the lease of {self._bucket.url} was not renewed in time, or was taken over: another run may be at "
                "work, so this one has stopped; what it had published stays"
            )

    def renew(self) -> None:
        """Have it be good for its whole time again, unless that would be too late."""
        if self._clock() >= self._good_until:
            return
        if self._bucket.size(self.object) is None:
            self._good_until = -math.inf
            log.error("lease was taken over archive=%s", self._bucket.url)
            return
        self._write()

    def give_back(self) -> None:
        """Let another run begin at once."""
        try:
            self._bucket.delete(self.object)
        except ArchiveError as error:
            log.warning("lease not given back ends_in_s=%d cause=%r", self._times.lease_s, str(error))

    def _write(self) -> None:
        began = self._clock()
        self._bucket.put_object(self.object, f"pid {os.getpid()} on {os.uname().nodename}".encode())
        if self._clock() < self._good_until:  # else another run may have seen the old one, and have begun
            self._good_until = began + self._times.lease_s - self._times.margin_s

    def _wait_for_others(self) -> None:
        began, waiting = self._clock(), threading.Event()
        while True:
            written = self._bucket.changed(LEASES)
            ours = written.pop(self._name, None)
            if ours is None:
                raise ArchiveBusy(f"another run is at work on {self._bucket.url}: it has deleted {self.object}")
            live = {name: at for name, at in written.items() if ours - at <= self._times.lease_s}
            if not live:
                self._take_over(written.keys() - live.keys())
                return
            first = min(live)
            if first < self._name or self._clock() - began >= self._times.withdraw_s:
                holder = self._bucket.read(f"{LEASES}/{first}") or "it has just ended"
                raise ArchiveBusy(
                    f"another run ({holder}) is at work on {self._bucket.url}; if it was killed, its lease ends "
                    f"{self._times.lease_s:.0f} s after it was renewed last, {max(0.0, ours - live[first]):.0f} s ago"
                )
            waiting.wait(_LOOK_S)

    def _take_over(self, ended: set[str]) -> None:
        for name in sorted(ended):
            ended_lease = f"{LEASES}/{name}"
            log.warning("lease of a run that has ended removed lease=%s", ended_lease)
            self._bucket.delete(ended_lease)
        self.check()


@contextlib.contextmanager
def leased(bucket: WritableBucket, times: LeaseTimes) -> Iterator[Lease]:
    """Hold a lease in the context, and renew it meanwhile, in a thread.

    Raises:
        ArchiveBusy: another run is at work.
        ArchiveError: S3 refuses something.
    """
    lease = Lease(bucket, times)
    lease.take()
    ended = threading.Event()
    thread = threading.Thread(target=_renew, args=(lease, times.renew_s, ended), name="archive-lease", daemon=True)
    thread.start()
    try:
        yield lease
    finally:
        ended.set()
        thread.join(_END_S)
        if not thread.is_alive():  # else it may write it once more: then it ends by itself
            lease.give_back()


def _renew(lease: Lease, every_s: float, ended: threading.Event) -> None:
    while not ended.wait(every_s):
        try:
            lease.renew()
        except ArchiveError as error:
            log.warning("lease not renewed cause=%r", str(error))
