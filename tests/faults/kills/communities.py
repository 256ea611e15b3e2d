"""Kills of a community's owner and of a member, while weeks pass: of the run that makes history archives, of the
process that publishes and seeds them, and of the member that fetches and imports them.

After each kill, what was published is there byte for byte. After each round, the archives hold what was posted, once,
and the member holds the same. What was downloaded is not fetched again.
"""

import asyncio
import contextlib
import json
import random
import re
import sqlite3
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

from mailserver.communities.channels import id_text
from mailserver.communities.checking import check_archive, check_index
from mailserver.communities.spec_format import SpecFormat
from mailserver.community.folder import COMMUNITIES_FOLDER
from mailserver.community.member.history import read_known, read_messages
from mailserver.community.member.joined import Joined, membership
from mailserver.community.member.records import ArchiveState
from mailserver.community.owner.appending import read_index, read_next_index
from mailserver.ids.muid import DEFAULT_NETWORK_TOPIC
from mailserver.store.sqlite.schema import STORE_FILE
from mailserver.store.sqlite.store import open_store
from mailserver.torrents.magnet import MagnetLink
from mailserver.waku.envelope import Envelope
from tests.community.member.worlds import ALL_TIMES
from tests.community.owner.samples import garden, made_in, sealed, week
from tests.faults.kills.judged import Judged
from tests.faults.kills.moments import Moment, after, grown, killing, size_of, then, written
from tests.integration.communities import running_communities
from tests.integration.daemons import PROGRAM, own_environment, run_command
from tests.mailservers import stored

FORM = SpecFormat(DEFAULT_NETWORK_TOPIC)

A_WEEK = 150
"""Envelopes that are posted in each: two pieces of archives."""

LATE = 5
LONGEST_S = 20.0
"""When a process that has not come to its moment is killed all the same."""

SETTLED_S = 3600
ARCHIVER = (sys.executable, "-m", "tests.faults.kills.archiver")

_PUBLISHED = re.compile(r"torrent=([0-9a-f]{40})")


class OwnerAndMember(Judged):
    """The data directories of an owner and of a member, and all that was posted."""

    def __init__(self, folder: Path, rng: random.Random) -> None:
        super().__init__("communities")
        self.rng = rng
        self.owner, self.member = folder / "owner", folder / "member"
        for data_dir in (self.owner, self.member):
            data_dir.mkdir()
        self.community = made_in(self.owner / COMMUNITIES_FOLDER, garden(registered=week(0).lower))
        self.joined = membership(self.member, self.community.id)
        self.joined.write(Joined(self.community.id))
        self.posted: list[Envelope] = []
        self._published = b""

    def post(self, number: int) -> None:
        """Have a week's envelopes in the store, and some that are late for a week before."""
        count = len(self.posted)
        seconds = [week(number).lower + self.rng.randrange(600_000) for _ in range(A_WEEK)]
        if number:
            seconds += [week(self.rng.randrange(number)).lower + self.rng.randrange(600_000) for _ in range(LATE)]
        envelopes = [sealed(second, count + at, size=700) for at, second in enumerate(seconds)]
        self.posted += envelopes

        async def put() -> None:
            async with open_store(self.owner / STORE_FILE) as store:
                await store.put([stored(each, each.created + 1) for each in envelopes])

        asyncio.run(put())

    def archive(self, number: int) -> None:
        """Make the archives of all weeks that have ended: one run is killed, the next one is not."""
        command = [*ARCHIVER, str(self.owner), str(week(number).upper + SETTLED_S)]
        self._kill(command, self._moment_of_archiver(), "archiver_killed")
        index = read_next_index(self.community) or read_index(self.community.index)
        end = 0 if index is None or not index.entries else index.entries[-1].end
        self.figures["killed_appending"] += size_of(self.community.data) > end
        self._verify_published()
        done = subprocess.run(command, env=own_environment(), capture_output=True, text=True, check=False)
        if done.returncode != 0:
            self.blame([f"the next run ended with {done.returncode}: {done.stderr}"])
        self._verify_published()

    def fetch(self, number: int) -> None:
        """Publish and seed, the first time until that is killed, and have the member fetch while it is killed, too."""
        serve = [*PROGRAM, "community", "serve", "--data-dir", str(self.owner), "--torrent-listen", "127.0.0.1:0"]
        self._kill(serve, self._moment_of_service(), "service_killed")
        self._verify_published()
        with running_communities(self.owner) as service:
            port = int(service.wait_for_line("torrents listening port=").rpartition("=")[2])
            found = _PUBLISHED.search(service.wait_for_line("history published"))
            assert found is not None
            link = MagnetLink(bytes.fromhex(found[1]), peers=(("127.0.0.1", port),)).encode()
            self._verify_published()
            fetch = ["community", "fetch", id_text(self.community.id), "--magnet", link, "--json"]
            fetch += ["--data-dir", str(self.member), "--torrent-listen", "127.0.0.1:0"]
            self._kill([*PROGRAM, *fetch], self._moment_of_member(), "member_killed")
            here = self._states()
            self.figures["killed_before_import"] += here[ArchiveState.DOWNLOADED] > 0
            done = run_command(*fetch)
        if done.returncode != 0:
            self.blame([f"the next fetch ended with {done.returncode}: {done.stderr}"])
            return
        listed = self._states().total()
        fetched = json.loads(done.stdout)["downloaded"]
        if fetched > listed - here[ArchiveState.DOWNLOADED] - here[ArchiveState.IMPORTED]:
            self.blame([f"{fetched} archives were fetched, and {here} were there of {listed}"])

    def verify(self) -> None:
        """The archives, and the member's history, have all that was posted, each once."""
        expected = Counter(FORM.message_of(each).hash for each in self.posted)
        index, data = read_index(self.community.index), self.community.data.read_bytes()
        assert index is not None
        if findings := check_index(index, len(data)):
            self.blame([f"the index does not fit: {findings[0]}"])
        made: Counter[bytes] = Counter()
        for entry in index.entries:
            archive = check_archive(FORM, entry, data[entry.offset : entry.end]).archive
            if archive is None:
                self.blame([f"the archive at {entry.offset} is damaged"])
            else:
                made.update(message.hash for message in archive.messages)
        if made != expected:
            lacking, more = (expected - made).total(), (made - expected).total()
            self.blame([f"{lacking} envelopes are in no archive, and {more} too often"])
        with read_messages(self.joined.history, ALL_TIMES) as messages:
            held = Counter(message.hash for message in messages)
        if held != expected:
            self.blame([f"the member lacks {(expected - held).total()}, and has {(held - expected).total()} too often"])
        with contextlib.closing(sqlite3.connect(self.joined.history)) as connection:
            (sound,) = connection.execute("PRAGMA integrity_check").fetchone()
        if sound != "ok":
            self.blame([f"the history is damaged: {sound}"])
        self.figures["envelopes_compared"] += len(self.posted)

    def _kill(self, command: Sequence[str], moment: Moment, figure: str) -> None:
        """Kill a process at a moment; it may end before."""
        pipes = subprocess.DEVNULL
        process = subprocess.Popen(command, env=own_environment(), stdin=pipes, stdout=pipes, stderr=pipes)
        with killing(process.pid, lambda: moment() or process.poll() is not None, limit_s=LONGEST_S):
            pass
        self.figures[figure] += process.wait() < 0

    def _moment_of_archiver(self) -> Moment:
        """When it has begun to work, or has written some of it."""
        locked, data = self.owner / COMMUNITIES_FOLDER / "job.lock", self.community.data
        size = size_of(data)
        choices: list[Callable[[], Moment]] = [
            lambda: then(written(locked, 1), lambda: after(self.rng.uniform(0, 0.1))),
            lambda: grown(data, size + 1),
            lambda: then(grown(data, size + 1), lambda: after(self.rng.uniform(0, 0.02))),
            lambda: self.community.next_index.exists,
        ]
        return self.rng.choice(choices)()

    def _moment_of_service(self) -> Moment:
        """When it has published, or some time after it has begun."""
        locked = self.owner / COMMUNITIES_FOLDER / "serve.lock"
        choices: list[Callable[[], Moment]] = [
            lambda: then(written(locked, 1), lambda: after(self.rng.uniform(0, 1.0))),
            lambda: lambda: not self.community.next_index.exists(),
            lambda: written(self.community.index, 1),
        ]
        return self.rng.choice(choices)()

    def _moment_of_member(self) -> Moment:
        """When something is downloaded, or imported, or some time after it has begun."""
        downloads, log = self.joined.path / "downloads", self.joined.history.with_name("history.db-wal")
        choices: list[Callable[[], Moment]] = [
            lambda: lambda: any(downloads.glob("*")),
            lambda: then(lambda: any(downloads.glob("*")), lambda: after(self.rng.uniform(0, 0.03))),
            lambda: then(lambda: any(downloads.glob("*")), lambda: written(log, self.rng.randint(1, 4))),
            lambda: written(log, self.rng.randint(1, 12)),
        ]
        return self.rng.choice(choices)()

    def _states(self) -> Counter[ArchiveState]:
        """How many archives the member has in each state."""
        if not self.joined.history.exists() or not size_of(self.joined.history):
            return Counter()
        return Counter(archive.state for archive in read_known(self.joined.history).archives)

    def _verify_published(self) -> None:
        """What was published before is there, byte for byte."""
        index = read_index(self.community.index)
        end = 0 if index is None or not index.entries else index.entries[-1].end
        data = self.community.data.read_bytes()[:end] if self.community.data.exists() else b""
        if len(data) != end or not data.startswith(self._published):
            self.blame(["what was published has changed"])
        self._published = data


def run(subjects: list[Judged], folder: Path, rng: random.Random, rounds: int) -> None:
    """In each round a week passes, and everybody who has work is killed once."""
    subject = OwnerAndMember(folder, rng)
    subjects.append(subject)
    for number in range(rounds):
        subject.begin_round()
        subject.post(number)
        subject.archive(number)
        subject.fetch(number)
        subject.verify()
