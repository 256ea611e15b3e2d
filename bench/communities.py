"""Measuring communities: a year made in one run of Spark, its index read, and a part of it fetched and imported.

`python -m bench.communities DIR ...` is the run of Spark, in a process of its own: it starts Spark, makes the archives
of a small community, so that the JVM and the Python workers are warm, and then those of the one that is measured.
"""

import argparse
import json
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import uvloop

from bench.communities_memory import measure_memory
from bench.communities_results import Communities, CommunitiesFailed, FetchingRun, MakingRun
from bench.compaction import MASTER, family_usages
from bench.data import Distribution, Topics, history
from bench.targets import progress
from mailserver.codec.keys import PrivateKey
from mailserver.communities.channels import Channel, community_id
from mailserver.communities.checking import check_index
from mailserver.communities.choosing import Between
from mailserver.communities.formats import PIECE_BYTES, EncodedArchive, TimeRange
from mailserver.communities.index import SPEC, IndexEntry, decode_index, encode_index, entry_of, format_named
from mailserver.communities.ranges import PERIOD_S, range_of
from mailserver.community.folder import COMMUNITIES_FOLDER
from mailserver.community.member.fetching import TORRENT, Fetcher
from mailserver.community.member.history import open_history
from mailserver.community.member.schema import HISTORY_FILE
from mailserver.community.owner.appending import read_index
from mailserver.community.owner.folders import CommunityFolder, create, folder_of
from mailserver.community.owner.publishing import take_next_index
from mailserver.community.owner.record import new_community
from mailserver.ids.envelopes import content_topic_of
from mailserver.ids.muid import DEFAULT_NETWORK_TOPIC
from mailserver.store.sqlite.schema import STORE_FILE
from mailserver.store.sqlite.store import open_store
from mailserver.torrents.client import TorrentProcess
from mailserver.torrents.info import TorrentInfo
from mailserver.torrents.magnet import MagnetLink
from mailserver.torrents.making import make_torrent
from mailserver.torrents.settings import TorrentSettings
from spark_export.communities import CommunitiesRun, make_archives
from spark_export.community_plan import SETTLE_S
from spark_export.session import spark_session

CHANNELS = 10
FETCHED_BYTES = 50_000_000
INDEX_ENTRIES = 520
"""Ten years of weeks."""

_WARM_UP_MESSAGES, _WARM_UP_WEEKS = 2000, 2
_KEY = PrivateKey(bytes([7]) * 32)
_LOOPBACK = TorrentSettings(listen=("127.0.0.1", 0), upload_bytes_s=0)


@dataclass(frozen=True, slots=True)
class CommunitySpec:
    """A community whose messages were created evenly over so many weeks, which have just ended."""

    messages: int
    weeks: int


def measure_communities(arguments: argparse.Namespace) -> tuple[Communities, ...]:
    """Make a community's archives `runs` times, read an index, fetch and import a part of the archives, serve copies.

    Args:
        arguments: `community_messages`, `community_weeks`, `served_communities` and `runs`.
    Raises:
        CommunitiesFailed: not all was made, fetched, imported or served.
    """
    spec, runs = CommunitySpec(arguments.community_messages, arguments.community_weeks), arguments.runs
    with tempfile.TemporaryDirectory(prefix="bench-communities-") as base:
        folder = Path(base)
        end = range_of(int(time.time())).lower
        progress(f"communities: preparing {spec.messages:,} messages")
        _prepare(folder / "small", CommunitySpec(_WARM_UP_MESSAGES, _WARM_UP_WEEKS), end)
        _prepare(folder / "measured", spec, end)
        making = []
        for run in range(runs):
            progress(f"communities: making {spec.weeks} weeks, run {run + 1}")
            _forget(folder / "small")
            _forget(folder / "measured")
            making.append(_made(folder, spec, end))
        owned = _folder_in(folder / "measured")
        take_next_index(owned)
        progress("communities: fetching and importing")
        measured = uvloop.run(_measure_member(owned, folder, spec, tuple(making), runs))
        return (replace(measured, serving=tuple(measure_memory(owned, each) for each in arguments.served_communities)),)


def _prepare(data_dir: Path, spec: CommunitySpec, end: int) -> None:
    """Fill a store with the messages of a community, and make the community."""
    data_dir.mkdir()
    span_s = spec.weeks * PERIOD_S
    topics = Topics(CHANNELS, Distribution.UNIFORM)
    community = new_community("bench", "spec", DEFAULT_NETWORK_TOPIC, end - span_s)
    for number, topic in enumerate(topics.all):
        community = community.with_channel(Channel(f"channel {number}", content_topic_of(topic)))
    create(data_dir / COMMUNITIES_FOLDER, community, _KEY)

    async def fill() -> None:
        async with open_store(data_dir / STORE_FILE) as store:
            for rows in history(spec.messages, topics, end=end - 1, span_s=span_s - 1, rng=random.Random(spec.weeks)):
                await store.put(rows)

    uvloop.run(fill())


def _folder_in(data_dir: Path) -> CommunityFolder:
    """Its only community."""
    return folder_of(data_dir / COMMUNITIES_FOLDER, community_id(_KEY.public_key))


def _forget(data_dir: Path) -> None:
    """Remove what a run has made."""
    folder = _folder_in(data_dir)
    for path in (folder.data, folder.index, folder.next_index, folder.ids):
        path.unlink(missing_ok=True)


def _made(folder: Path, spec: CommunitySpec, end: int) -> MakingRun:
    """Make all archives in a new process."""
    command = [sys.executable, "-m", "bench.communities", str(folder), "--end", str(end)]
    command += ["--messages", str(spec.messages), "--weeks", str(spec.weeks)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise CommunitiesFailed(f"the run ended with {done.returncode}: {done.stderr.strip()[-500:]}")
    return MakingRun(**json.loads(done.stdout.splitlines()[-1]))


async def _measure_member(
    owned: CommunityFolder, folder: Path, spec: CommunitySpec, making: tuple[MakingRun, ...], runs: int
) -> Communities:
    index = read_index(owned.index)
    assert index is not None, "it was made"
    wanted = _newest(index.entries)
    info = make_torrent(owned.path, owned.path.name)
    fetched = [await _fetch_and_import(owned.path, info, wanted, folder / f"member-{number}") for number in range(runs)]
    return Communities(
        messages=spec.messages,
        weeks=spec.weeks,
        data_bytes=info.data_bytes,
        making=making,
        index_entries=INDEX_ENTRIES,
        index_s=tuple(_read_index(index.entries[0]) for _ in range(runs)),
        fetched_bytes=sum(entry.size for entry in wanted),
        fetched_messages=fetched[0][1],
        fetching=tuple(run for run, _ in fetched),
    )


def _newest(entries: Sequence[IndexEntry]) -> list[IndexEntry]:
    """The newest archives, together FETCHED_BYTES long, or all that there are."""
    wanted: list[IndexEntry] = []
    for entry in reversed(entries):
        wanted.append(entry)
        if sum(each.size for each in wanted) >= FETCHED_BYTES:
            break
    return wanted


def _read_index(like: IndexEntry) -> float:
    """Read and check an index of INDEX_ENTRIES that are each like this one, but of a week of their own."""
    form = format_named(SPEC, DEFAULT_NETWORK_TOPIC)
    entries: list[IndexEntry] = []
    for number in range(INDEX_ENTRIES):
        lower = number * PERIOD_S
        archive = EncodedArchive(TimeRange(lower, lower + PERIOD_S), like.content_topics, bytes(PIECE_BYTES), 0, 0)
        entries.append(entry_of(form, archive, number * PIECE_BYTES))
    encoded = encode_index(form, entries)
    began = time.perf_counter()
    index = decode_index(encoded)
    findings = check_index(index, INDEX_ENTRIES * PIECE_BYTES)
    seconds = time.perf_counter() - began
    if findings or len(index.entries) != INDEX_ENTRIES:
        raise CommunitiesFailed(f"the index is read otherwise than it was written: {findings[:1]}")
    return seconds


async def _fetch_and_import(
    source: Path, info: TorrentInfo, wanted: Sequence[IndexEntry], folder: Path
) -> tuple[FetchingRun, int]:
    """Have a new member fetch some archives, and import them; return also how many messages they have."""
    (folder / TORRENT).mkdir(parents=True)
    choice = Between(
        TimeRange(min(each.time_range.lower for each in wanted), max(each.time_range.upper for each in wanted))
    )
    async with TorrentProcess(_LOOPBACK) as owner, TorrentProcess(_LOOPBACK) as member:
        await owner.seed(info, source)
        link = MagnetLink(info.info_hash, peers=(("127.0.0.1", owner.port),))
        began = time.perf_counter()
        known = await member.metadata(link)
        pieces = [known.index_pieces, *(entry.pieces for entry in wanted)]
        await member.fetch(known, folder / TORRENT, pieces, link=link)
        fetch_s = time.perf_counter() - began
        async with open_history(folder / HISTORY_FILE) as kept:
            fetcher = Fetcher(info.name, folder, kept, member, choice, DEFAULT_NETWORK_TOPIC, time.time)
            began, cpu_s = time.perf_counter(), time.process_time()
            fetched = await fetcher.fetch(link.encode(), lambda *_: None)
            import_s, cpu_s = time.perf_counter() - began, time.process_time() - cpu_s
            again = await fetcher.fetch(link.encode(), lambda *_: None)
        (statistics,) = (await member.statistics()).torrents
    if (fetched.imported, again.downloaded, fetched.refused) != (len(wanted), 0, 0):
        raise CommunitiesFailed(f"{len(wanted)} archives were wanted: {fetched}, then {again}")
    once = sum(entry.size for entry in wanted) + info.index_bytes
    return FetchingRun(fetch_s, import_s, cpu_s, statistics.downloaded_bytes - once), fetched.messages


def main() -> None:
    """Make all archives once, and print what it took as JSON."""
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--end", type=int, required=True)
    parser.add_argument("--messages", type=int, required=True)
    parser.add_argument("--weeks", type=int, required=True)
    arguments = parser.parse_args()
    print(
        json.dumps(asdict(_make(arguments.folder, CommunitySpec(arguments.messages, arguments.weeks), arguments.end)))
    )


def _make(folder: Path, spec: CommunitySpec, end: int) -> MakingRun:
    now = float(end + SETTLE_S)
    began = time.perf_counter()
    with spark_session(MASTER, {}, progress=False) as spark:
        make_archives(spark, _config(folder / "small"), now=now)
        start_s = time.perf_counter() - began
        cpu_before = sum(one.cpu_s for one in family_usages())
        began = time.perf_counter()
        report = make_archives(spark, _config(folder / "measured"), now=now)
        seconds = time.perf_counter() - began
        family = list(family_usages())
    (made,) = report.communities
    if (made.messages, len(made.ranges)) != (spec.messages, spec.weeks):
        raise CommunitiesFailed(f"{made.messages} messages of {len(made.ranges)} weeks were archived")
    return MakingRun(
        start_s=start_s,
        seconds=seconds,
        cpu_s=sum(one.cpu_s for one in family) - cpu_before,
        peak_bytes=sum(one.peak_bytes for one in family),
    )


def _config(data_dir: Path) -> CommunitiesRun:
    return CommunitiesRun(data_dir / COMMUNITIES_FOLDER, (data_dir / STORE_FILE,))


if __name__ == "__main__":
    main()
