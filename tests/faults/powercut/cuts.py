"""Cutting the power: at which moments, what is left, and whether the promises hold."""

import copy
import random
import re
import shutil
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from tests.faults.powercut.checks import Broken
from tests.faults.powercut.recorder import Entry, Kind
from tests.faults.powercut.replay import INDEX_SUFFIX, Loss
from tests.faults.powercut.scenarios import Scenario
from tests.faults.powercut.workload import DATA
from tests.integration.daemons import running_daemon

MAX_SHOWN = 20
"""So many broken promises of a scenario are told one by one."""


@dataclass(slots=True)
class Outcome:
    """What came of a scenario: how often the power was cut, how many disks were looked at, and what was broken.

    `cpu_s` is without other processes.
    """

    cuts: int = 0
    disks: int = 0
    cpu_s: float = 0.0
    broken: Counter[str] = field(default_factory=Counter)
    shown: list[str] = field(default_factory=list)


async def cut_power(
    scenario: Scenario,
    scratch: Path,
    *,
    cuts: int,
    disks: int,
    seed: str,
    name: str = "",
    start: Callable[[Path], None] | None = None,
    until: str | None = None,
) -> Outcome:
    """Cut the power at so many moments, each with so many disks that it may leave, and look at each of them.

    Of several disks of a moment, the first one has lost everything that was not synced.

    Args:
        scratch: a folder for the disks; each is removed again.
        start: what is done with each disk before it is looked at; raises Broken.
        until: no more cuts are made once a promise is broken whose text this pattern matches. That shows soonest when
            something was just promised, so these moments come first, and then the others in any order.
    """
    outcome, began = Outcome(), time.process_time()
    order = random.Random(f"{seed} {name}")
    moments = list(_moments(scenario, cuts, order))
    if until is not None:
        order.shuffle(moments)
        moments = [*(promise.since + 1 for promise in scenario.promises[:cuts]), *moments]
    disk = copy.deepcopy(scenario.recording.disk)
    for cut in moments:
        if disk.played > cut:
            disk = copy.deepcopy(scenario.recording.disk)
        while disk.played < cut:
            disk.play(scenario.entries[disk.played])
        outcome.cuts += 1
        for number in range(disks):
            choice = random.Random(f"{seed} {name} {cut} {number}")
            loss = Loss.EVERYTHING if number == 0 and disks > 1 else choice.choice([*Loss])
            remains = scratch / "remains"
            disk.cut(loss, choice).write_to(remains)
            try:
                if start is not None:
                    start(remains)
                await scenario.check(remains, cut)
            except Broken as error:
                outcome.broken[str(error)] += 1
                if len(outcome.shown) < MAX_SHOWN:
                    outcome.shown.append(f"{name}, cut at {cut}, disk {number}, {loss.value} lost: {error}")
            finally:
                shutil.rmtree(remains)
            outcome.disks += 1
        if until is not None and any(re.search(until, text) for text in outcome.broken):
            break
    outcome.cpu_s = time.process_time() - began
    return outcome


def start_daemon(remains: Path) -> None:
    """Have the real program start on what is left, and stop again.

    Raises:
        Broken: it does not.
    """
    try:
        with running_daemon(remains / DATA) as daemon:
            assert daemon.stop() == 0, daemon.log
    except AssertionError as error:
        raise Broken(f"the mailserver does not start: {error}") from error


def recorded_all(scenario: Scenario, scratch: Path) -> list[str]:
    """Play all of a log, lose nothing, and compare with what is really there; return what differs: nothing, or the
    recorder has missed something.
    """
    disk = copy.deepcopy(scenario.recording.disk)
    for entry in scenario.entries:
        disk.play(entry)
    disk.cut(Loss.NOTHING, random.Random(0)).write_to(scratch / "all")
    played, real = _contents(scratch / "all"), _contents(scenario.recording.folder)
    shutil.rmtree(scratch / "all")
    return sorted(name for name in played.keys() | real.keys() if played.get(name) != real.get(name))


def without_syncs(scenario: Scenario, *endings: str) -> Scenario:
    """The same by a mailserver that never syncs files and folders whose paths end so; "." is the recorded folder."""
    names = {scenario.recording.folder.stat().st_ino: "."}
    kept, dropped = [], set()
    for entry in scenario.entries:
        if entry.kind in (Kind.CREATE, Kind.MKDIR):
            names[entry.a] = entry.path
        if entry.kind is Kind.SYNC_BEGIN and names.get(entry.b, "").endswith(endings):
            dropped.add(entry.a)
        ignored = entry.kind in (Kind.SYNC_BEGIN, Kind.SYNC_END) and entry.a in dropped
        # In its place something that says nothing: entries keep their numbers.
        kept.append(Entry(Kind.OUT, 0, 0, "", "", b"", entry.pid) if ignored else entry)
    return replace(scenario, entries=kept)


def _moments(scenario: Scenario, count: int, choice: random.Random) -> Sequence[int]:
    """Half of them where it matters: right before and after a sync, a name, a promise. The rest anywhere."""
    size = len(scenario.entries)
    kinds = {
        Kind.SYNC_BEGIN,
        Kind.SYNC_END,
        Kind.CREATE,
        Kind.MKDIR,
        Kind.RENAME,
        Kind.EXCHANGE,
        Kind.LINK,
        Kind.UNLINK,
    }
    places = [at for at, entry in enumerate(scenario.entries) if entry.kind in kinds]
    places += [promise.since for promise in scenario.promises]
    matters = sorted({cut for at in places for cut in (at, at + 1)})
    chosen = set(choice.sample(matters, min(len(matters), count // 2)))
    rest = sorted(set(range(size + 1)) - chosen)
    return sorted(chosen | set(choice.sample(rest, min(len(rest), count - len(chosen)))))


def _contents(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file() and not path.name.endswith(INDEX_SUFFIX)
    }
