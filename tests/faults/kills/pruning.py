"""Kills while pruning: between batches, inside them, and beside a flood; with and without an archive to wait for.

With an archive, the part of the nightly compaction is played here: it takes rows, keeps them, and says so in the record
beside the store. (`compacting` has the real one.)
"""

import random
import time
from collections.abc import Sequence
from pathlib import Path

from mailserver.codec.keccak import keccak256
from mailserver.handoff.archived import Archived
from mailserver.store.sqlite.handoff import compaction_lock, write_archived
from mailserver.units import SECONDS_PER_DAY
from tests.faults.kills.moments import after, at_packets, killing, written
from tests.faults.kills.subject import Subject
from tests.faults.kills.wreck import Row, identity_of, rows_of

KEPT = 1500

FIRST_PACKETS = 40

FIRST_ROUND_S = 1.0
"""The daemon's first round of pruning begins so long after its start."""

LARGEST_ROUND_S = 0.6
"""Beyond the floods of a round or two, there is not more to delete than takes so long."""


def run(subjects: list[Subject], folder: Path, rng: random.Random, rounds: int) -> None:
    """Half of the rounds without an archive, half with one."""
    for has_archive in (False, True):
        name = f"pruning, {'with' if has_archive else 'no'} archive"
        flags = ["--retention-days", "0", "--retention-envelopes", str(KEPT)]
        if has_archive:
            flags += ["--archive", "hdfs://host/archive"]  # not to be looked at from here
        subject = Subject(folder / name.replace(", ", "-").replace(" ", "-"), rng, name, *flags)
        subjects.append(subject)
        archived: set[bytes] | None = set() if has_archive else None
        with subject.running() as daemon:  # enough to delete from the first round on
            enough = at_packets(subject.promises, FIRST_PACKETS)
            subject.flood_and_kill(daemon, enough, per_packet=(100,) * 4, limit=25 * FIRST_PACKETS)
        for number in range(rounds // 2):
            _round(subject, archived, number)
        _to_the_end(subject, archived)


def _round(subject: Subject, archived: set[bytes] | None, number: int) -> None:
    """In even rounds beside a flood; in odd ones alone, so that what is written are batches of deletions."""
    if archived is not None:
        rows = rows_of(subject.store)
        _archive(subject, archived, rows[: subject.rng.randint(1, len(rows))])
    with subject.running() as daemon:
        subject.verify(daemon, keeps=KEPT, archived=archived, checks=number % 3 == 0)
        before = rows_of(subject.store)[0].seq
        if number % 2:
            with killing(daemon.process.pid, written(subject.log, subject.rng.randint(1, 16))):
                pass
            daemon.wait()
            subject.figures["kills"] += 1
            wreck = subject.examine()
            subject.figures["in_batch"] += wreck.in_commit
        else:
            wreck = subject.flood_and_kill(daemon, after(FIRST_ROUND_S + subject.rng.uniform(0, LARGEST_ROUND_S)))
        subject.figures["in_prune_round"] += before < wreck.first_seq and wreck.rows > KEPT
        subject.figures["pruned"] += wreck.first_seq - before


def _archive(subject: Subject, archived: set[bytes], rows: Sequence[Row]) -> None:
    """Be the compaction: take the first rows of the store, and hand over."""
    archived.update(keccak256(row.raw) for row in rows)
    days = {row.received // SECONDS_PER_DAY: row.seq for row in rows}
    with compaction_lock(subject.store):
        write_archived(subject.store, Archived(identity_of(subject.store), "archive", int(time.time()), days))


def _to_the_end(subject: Subject, archived: set[bytes] | None) -> None:
    """Left alone, pruning comes to its end: what is archived goes, no more; and exactly the newest are kept."""
    rows = rows_of(subject.store)
    surplus = max(0, len(rows) - KEPT)
    for gone in (surplus,) if archived is None else (surplus // 2, surplus):
        before = len(rows_of(subject.store))
        if archived is not None:
            _archive(subject, archived, rows[:gone])
        with subject.running() as daemon:
            if before > len(rows) - gone:
                daemon.wait_for_line("pruned envelopes=")
            subject.verify(daemon, keeps=KEPT, archived=archived)
            daemon.stop()
        left = len(rows_of(subject.store))
        if left != len(rows) - gone:
            subject.blame([f"{left} envelopes are left of {len(rows)}, and {gone} were to go"])
