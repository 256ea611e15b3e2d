"""mailserver.archive.access.bucket over HTTPS, by an authority of the operator's own, and from far away: what waits has
its bounds, and each fault is told in time."""

import re
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from mailserver.archive.access.bucket import AUTHORITIES, READING, BucketFiles
from mailserver.archive.access.places import files_of
from mailserver.archive.reading import reads
from mailserver.archive.reading.reads import READ_TIMEOUT_S
from mailserver.archive.reading.source import ArchiveSource
from mailserver.metrics.registry import Metrics
from tests.archive.reading.asking import Asking
from tests.archive.reading.parquet import envelope, write_period
from tests.certificates import Certificate, make_certificate
from tests.integration.daemons import run_command, running_daemon
from tests.s3 import FakeS3, fake_s3
from tests.slow_link import SlowLink
from tests.store.engines import EVERYTHING
from tests.store.samples import DAY, NEWS, START, answer, raws

pytestmark = pytest.mark.integration

KEPT = [envelope(number, created=START + 3600 * number, topic=NEWS, size=100) for number in range(40)]
DELAY_S = 0.01
"""Each way. The fake takes a new connection for each request, so each goes it eight times."""


@pytest.fixture
def certificate(tmp_path: Path) -> Certificate:
    return make_certificate(tmp_path)


@pytest.fixture
def s3(monkeypatch: pytest.MonkeyPatch, certificate: Certificate, tmp_path: Path) -> Iterator[FakeS3]:
    """A bucket with an archive of two days, over HTTPS."""
    first = [one for one in KEPT if one.received < START + DAY]
    for period in (first, [one for one in KEPT if one not in first]):
        write_period(tmp_path / "archive", period, snapshot=False)
    with fake_s3(monkeypatch, certificate) as fake:
        monkeypatch.setenv(AUTHORITIES, str(certificate.authority_file))
        fake.upload(tmp_path / "archive")
        yield fake


@pytest.fixture
def link(s3: FakeS3, monkeypatch: pytest.MonkeyPatch) -> Iterator[SlowLink]:
    """A long way to it."""
    with SlowLink(s3.port, DELAY_S).serving() as slow:
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"https://127.0.0.1:{slow.port}")
        yield slow


class Reading(Asking):
    """A source that reads the archive, as a daemon does."""

    def __init__(self, s3: FakeS3) -> None:
        files = files_of(s3.url)
        assert files is not None
        self.source = ArchiveSource(files, at_once=2, cache_bytes=2**24, is_expected=lambda: True, metrics=Metrics())


async def test_endpoint_whose_authority_nobody_knows_is_trusted_only_where_the_operator_says_so(
    s3: FakeS3, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert await Reading(s3).answer() == raws(answer(KEPT, EVERYTHING))

    monkeypatch.delenv(AUTHORITIES)
    assert re.search("SSL|certificate", await Reading(s3).refusal())


async def test_endpoint_that_sends_a_byte_now_and_then_is_given_up(
    s3: FakeS3, link: SlowLink, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reads, "READ_TIMEOUT_S", 1.0)
    reading = Reading(s3)
    link.piece_bytes = 1

    began = time.monotonic()
    assert "it has not answered within 1 s" in await reading.refusal()

    assert time.monotonic() - began < READ_TIMEOUT_S


async def test_endpoint_that_is_farther_than_a_request_may_wait_is_given_up_with_its_cause(
    s3: FakeS3, link: SlowLink, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(BucketFiles, "patience", replace(READING, silence_s=1.0))
    reading = Reading(s3)
    whole = await reading.answer()
    link.delay_s = 1.5

    began = time.monotonic()
    assert "Timeout was reached" in await reading.refusal()
    assert time.monotonic() - began < READ_TIMEOUT_S

    link.delay_s = DELAY_S
    assert await reading.answer() == whole


def test_daemon_answers_from_far_away_and_says_in_time_that_it_cannot(
    s3: FakeS3, link: SlowLink, tmp_path: Path
) -> None:
    with running_daemon(tmp_path / "data", "--archive", s3.url) as daemon:
        daemon.wait_for_line("history is answered from the archive, too")
        ask = ("request", daemon.enode, "--from", 1, "--all", "--format", "raw")
        found = run_command(*ask)
        with link.blocked():
            refused = run_command(*ask)
        again = run_command(*ask)
        daemon.wait_for_line("request outcome=failed")
        log = daemon.log

    assert found.stdout.split() == [raw.hex() for raw in raws(answer(KEPT, EVERYTHING))], found.stderr + log
    assert "the store could not answer" in refused.stderr
    (failed,) = (line for line in log.splitlines() if "request outcome=failed" in line)
    assert float(failed.partition(" ms=")[2].partition(" ")[0]) < 1000 * (READ_TIMEOUT_S + 1.0)
    assert "Timeout was reached" in log
    assert again.stdout == found.stdout
