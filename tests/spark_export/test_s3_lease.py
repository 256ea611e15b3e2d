"""spark_export.s3_lease: one run at a time on S3, whoever is killed, slow, or asleep."""

import threading
from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest

from mailserver.archive.access.bucket import LEASE_S, LEASES
from mailserver.archive.errors import ArchiveBusy, ArchiveError
from spark_export.s3_bucket import WritableBucket
from spark_export.s3_lease import MARGIN_S, RENEW_S, TIMES, Lease, leased
from spark_export.s3_storage import S3Storage
from tests.s3 import FakeS3, fake_s3
from tests.waiting import wait_until

pytestmark = pytest.mark.integration


class Clock:
    """Steady seconds that a test chooses."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def s3(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeS3]:
    with fake_s3(monkeypatch) as fake:
        yield fake


@pytest.fixture
def clock() -> Clock:
    return Clock()


def lease(s3: FakeS3, clock: Clock | None = None) -> Lease:
    return Lease(WritableBucket(s3.root), replace(TIMES, withdraw_s=0.0), clock or Clock())


def leases(s3: FakeS3) -> list[str]:
    return [name for name in s3.objects() if name.startswith(LEASES)]


def test_second_run_is_refused_and_told_who_is_at_work(s3: FakeS3) -> None:
    lease(s3).take()

    with pytest.raises(ArchiveBusy, match=rf"^another run \(pid \d+ on .+\) is at work on {s3.url}; if it was killed"):
        lease(s3).take()

    assert len(leases(s3)) == 1  # the second has withdrawn


def test_lease_that_was_given_back_is_in_nobodys_way(s3: FakeS3) -> None:
    with leased(WritableBucket(s3.root), TIMES):
        assert len(leases(s3)) == 1
    assert leases(s3) == []

    lease(s3).take()


def test_lease_of_a_killed_run_ends_by_itself(s3: FakeS3) -> None:
    lease(s3).take()

    s3.age(LEASES, LEASE_S - 5)
    with pytest.raises(ArchiveBusy):
        lease(s3).take()
    s3.age(LEASES, 6)
    lease(s3).take()

    assert len(leases(s3)) == 1


def test_run_that_was_taken_over_changes_nothing_more(s3: FakeS3, clock: Clock) -> None:
    slept = lease(s3, clock)
    slept.take()
    slept.check()
    s3.age(LEASES, LEASE_S + 1)
    other = lease(s3)
    other.take()

    clock.now += LEASE_S + 1
    with pytest.raises(ArchiveError, match="another run may be at work"):
        slept.check()
    slept.renew()

    assert leases(s3) == [other.object]
    with pytest.raises(ArchiveError):
        slept.check()


def test_run_whose_lease_is_gone_notices_when_it_renews(s3: FakeS3, clock: Clock) -> None:
    ours = lease(s3, clock)
    ours.take()
    s3.hold({})

    ours.renew()

    assert leases(s3) == []
    with pytest.raises(ArchiveError, match="was taken over"):
        ours.check()


def test_holder_trusts_its_lease_for_less_than_others_do(s3: FakeS3, clock: Clock) -> None:
    ours = lease(s3, clock)
    ours.take()

    clock.now += LEASE_S - MARGIN_S - 1
    ours.check()
    clock.now += 1
    with pytest.raises(ArchiveError):
        ours.check()
    s3.asked.clear()
    ours.renew()
    assert s3.asked == []  # nobody has to wait for one that has stopped


def test_renewed_lease_is_good_for_its_whole_time_again(s3: FakeS3, clock: Clock) -> None:
    ours = lease(s3, clock)
    ours.take()
    s3.age(LEASES, LEASE_S + 1)
    clock.now += LEASE_S - MARGIN_S - 1

    ours.renew()

    clock.now += LEASE_S - MARGIN_S - 1
    ours.check()
    with pytest.raises(ArchiveBusy):
        lease(s3).take()
    assert RENEW_S < (LEASE_S - MARGIN_S) / 3  # a request may fail, and the next one is in time


def test_renewal_that_took_too_long_is_none(s3: FakeS3, clock: Clock) -> None:
    ours = lease(s3, clock)
    ours.take()
    clock.now += LEASE_S - MARGIN_S - 1

    with s3.silent():
        renewing = threading.Thread(target=ours.renew)
        before = len(s3.asked)
        renewing.start()
        wait_until(lambda: len(s3.asked) > before)
        clock.now += 1
    renewing.join()

    with pytest.raises(ArchiveError):
        ours.check()


def test_of_runs_that_come_at_once_one_gets_the_lease(s3: FakeS3) -> None:
    held: list[Lease] = []
    refused: list[str] = []
    start = threading.Barrier(4)

    def take() -> None:
        ours = Lease(WritableBucket(s3.root), replace(TIMES, withdraw_s=2.0))
        start.wait()
        try:
            ours.take()
        except ArchiveBusy as error:
            refused.append(str(error))
        else:
            held.append(ours)

    threads = [threading.Thread(target=take) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert (len(held), len(refused)) == (1, 3)
    assert leases(s3) == [held[0].object]


def test_lease_is_renewed_while_a_run_is_at_work(s3: FakeS3) -> None:
    with leased(WritableBucket(s3.root), replace(TIMES, renew_s=0.01)) as ours:
        s3.age(LEASES, LEASE_S + 1)
        path = f"/{s3.root}/{ours.object}"
        wait_until(lambda: sum(one == f"PUT {path}" for one in s3.asked) > 1)
        with pytest.raises(ArchiveBusy):
            lease(s3).take()


def test_lease_outlives_requests_that_fail(s3: FakeS3, caplog: pytest.LogCaptureFixture) -> None:
    with leased(WritableBucket(s3.root), replace(TIMES, renew_s=0.01)) as ours:
        with s3.denying():
            wait_until(lambda: "lease not renewed" in caplog.text)
        ours.check()


def fail_without_a_way_to_s3(s3: FakeS3) -> None:
    with leased(WritableBucket(s3.root), TIMES):
        s3.stop()
        raise ZeroDivisionError


def test_lease_that_cannot_be_given_back_hides_no_other_error(s3: FakeS3, caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(ZeroDivisionError):
        fail_without_a_way_to_s3(s3)

    assert "lease not given back ends_in_s=300 " in caplog.text


def is_noticed(s3: FakeS3, caplog: pytest.LogCaptureFixture) -> bool:
    """Delete the lease, which may just have been written anew, unless the run has noticed already."""
    s3.hold({"date=1/part": b"before"})
    return "lease was taken over" in caplog.text


def test_without_its_lease_a_run_changes_nothing(s3: FakeS3, caplog: pytest.LogCaptureFixture) -> None:
    storage = S3Storage(s3.root)
    storage.lease_times = replace(TIMES, renew_s=0.01)
    changes: list[Callable[[], None]] = [
        lambda: storage.write("date=1/part", "after"),
        lambda: storage.put("date=1", "date=2"),
        lambda: storage.remove("date=1"),
    ]
    with storage.locked():
        storage.write("date=1/part", "before")
        wait_until(lambda: is_noticed(s3, caplog))
        for change in changes:
            with pytest.raises(ArchiveError, match="another run may be at work"):
                change()

    assert s3.objects() == {"date=1/part": b"before"}
