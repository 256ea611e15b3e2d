"""Measuring what `community serve` holds in memory: with so many communities, at rest and while all publish a week.

All have the archives of one that was measured, under keys of their own: `data` is linked, index and ids are copied. So
the mailserver's store is empty, and no community holds live envelopes.
"""

import os
import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from bench.communities_results import CommunitiesFailed, ServingMemory
from bench.daemon import CommunitiesService, Daemon, usage
from bench.targets import progress
from mailserver.codec.keys import PrivateKey
from mailserver.communities.index import encode_index
from mailserver.communities.progress import CommunityProgress
from mailserver.community.folder import COMMUNITIES_FOLDER
from mailserver.community.owner.appending import read_index
from mailserver.community.owner.folders import CommunityFolder, create
from mailserver.files import write_whole
from mailserver.handoff.communities import MAX_SHOWN, MAX_WEEKS, read_served

LIMIT_S = 1800.0
"""How long all of them may take to be seeded and announced."""

_POLL_S = 0.2
_PASSWORD = "bench"


def measure_memory(source: CommunityFolder, count: int) -> ServingMemory:
    """Serve copies of a community of ours.

    Args:
        source: with two weeks at least.
        count: how many copies; MAX_SHOWN at most.
    Raises:
        CommunitiesFailed: some are not seeded and announced in time.
    """
    assert 1 <= count <= MAX_SHOWN, "the record of what is served has no more"
    assert _weeks_of(source) <= MAX_WEEKS, "nor of weeks"
    progress(f"communities: serving {count:,}")
    with tempfile.TemporaryDirectory(prefix="memory-", dir=source.path.parents[2]) as base:
        data_dir = Path(base)
        with Daemon(data_dir, _PASSWORD, ("--feed-socket",)) as _:
            folders = [_copy(source, data_dir, number) for number in range(1, count + 1)]
            began = time.perf_counter()
            with CommunitiesService(data_dir) as service:
                pids = service.pid, service.child_pid()
                weeks = _weeks_of(folders[0])
                _wait(lambda: _are_served(data_dir, count, weeks))
                start_s = time.perf_counter() - began
                at_rest = [usage(pid).memory_bytes for pid in pids]
                for pid in pids:
                    _forget_peak(pid)
                began = time.perf_counter()
                for folder in folders:
                    write_whole(folder.next_index, source.index.read_bytes())
                _wait(lambda: _are_served(data_dir, count, weeks + 1))
                publish_s = time.perf_counter() - began
                peaks = [usage(pid).peak_bytes for pid in pids]
    return ServingMemory(
        communities=count,
        service_bytes=at_rest[0],
        torrents_bytes=at_rest[1],
        service_peak_bytes=peaks[0],
        torrents_peak_bytes=peaks[1],
        start_s=start_s,
        publish_s=publish_s,
    )


def _copy(source: CommunityFolder, data_dir: Path, number: int) -> CommunityFolder:
    """A community with the same archives, of which the last week's are not published yet."""
    folder = create(data_dir / COMMUNITIES_FOLDER, source.read(), PrivateKey(number.to_bytes(32, "big")))
    os.link(source.data, folder.data)
    shutil.copyfile(source.ids, folder.ids)
    index = read_index(source.index)
    assert index is not None, "it was made"
    last = index.entries[-1].time_range
    before = [entry for entry in index.entries if entry.time_range != last]
    write_whole(folder.index, encode_index(source.read().format, before))
    return folder


def _weeks_of(folder: CommunityFolder) -> int:
    index = read_index(folder.index)
    assert index is not None, "it was copied"
    return len({entry.time_range for entry in index.entries})


def _are_served(data_dir: Path, count: int, weeks: int) -> bool:
    served = read_served(data_dir / COMMUNITIES_FOLDER)
    known = () if served is None else served.communities
    return [_newest_is_out(each, weeks) for each in known] == [True] * count


def _newest_is_out(community: CommunityProgress, weeks: int) -> bool:
    """Whether so many weeks are made, and all that are told are seeded and announced."""
    newest = community.weeks[-1:]
    is_whole = len(community.weeks) == weeks
    return is_whole and all(week.is_seeding and week.is_distributed for week in newest)


def _wait(holds: Callable[[], bool]) -> None:
    began = time.perf_counter()
    while not holds():
        if time.perf_counter() - began > LIMIT_S:
            raise CommunitiesFailed(f"not all communities were seeded and announced within {LIMIT_S:g} s")
        time.sleep(_POLL_S)


def _forget_peak(pid: int) -> None:
    """Have the kernel begin anew with VmHWM: see proc(5) "clear_refs"."""
    Path(f"/proc/{pid}/clear_refs").write_text("5", encoding="ascii")
