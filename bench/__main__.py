"""`python -m bench`: measures ingest, history, both at once ("busy"), relay, handshakes, idle peers, a flood, the
compaction, answers from its archive, comparisons of stores, the gateway, and communities, of our mailserver. With
--enode it measures the first five of any other, and with --beside-ours those of ours before, in the same run.

Our mailserver runs in a process of its own on loopback; this process is the client. Each run of ingest, relay,
handshakes and idle peers starts a new mailserver with an empty store. Each run of "busy" starts one on a copy of a
store that was filled before. History and the flood use such a store itself.

What only one part needs, and takes long to load (Spark, pyarrow, DuckDB, matplotlib, pytest), that part loads.
"""

import argparse
import os
import platform
import random
import sqlite3
import sys
import tempfile
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from statistics import median

import uvloop

from bench.addresses import AS_STRANGERS
from bench.arguments import parse_arguments
from bench.busy import FLAGS as BUSY_FLAGS
from bench.busy import QUESTION as BUSY_QUESTION
from bench.busy import BusySpec, measure_busy
from bench.communities_results import Communities, CommunitiesFailed
from bench.daemon import Daemon, DaemonFailed
from bench.data import Distribution, Sizes, Topics
from bench.fetching import FetchFailed
from bench.flood import FloodFailed, flood_specs, measure_flood
from bench.gateway import GatewaySpec, measure_gateway
from bench.gateway_results import GatewayResults
from bench.handshakes import HandshakesSpec, measure_handshakes
from bench.helper import HelperFailed
from bench.history import QUESTIONS, HistoryFailed, measure_history
from bench.history_results import History
from bench.idle import IdleSpec, measure_idle
from bench.ingest import IngestFailed, measure_ingest
from bench.postgres_results import PostgresComparison
from bench.relay import INTERESTS, RelayFailed, RelaySpec, measure_relay
from bench.report import as_json, as_text
from bench.results import (
    ArchiveHistory,
    Busy,
    BusyRun,
    Compaction,
    CompactionFailed,
    Environment,
    Flood,
    Handshakes,
    Idle,
    Ingest,
    PlainExport,
    Relay,
    Results,
    StoreFacts,
    StoreHistory,
    Sync,
)
from bench.store import StoreSpec, StoreUnusable, copied, prepare_store
from bench.sync import SyncFailed, measure_sync
from bench.targets import Target, fresh_target, limits_of, prepared_store, progress
from mailserver.errors import MailserverError
from mailserver.waku.payload import key_from_password

LATE_INTERVAL_S = 0.5
QUICK_LATE_INTERVAL_S = 0.05
"""Between single envelopes that are relayed, in the mean."""


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, print, return the exit code."""
    given = sys.argv[1:] if argv is None else list(argv)
    arguments = parse_arguments(given)
    try:
        results = [_measure(each, tuple(given)) for each in _each_mailserver(arguments)]
    except (
        MailserverError,
        DaemonFailed,
        StoreUnusable,
        IngestFailed,
        HistoryFailed,
        RelayFailed,
        FloodFailed,
        HelperFailed,
        CompactionFailed,
        FetchFailed,
        SyncFailed,
        CommunitiesFailed,
        OSError,
    ) as error:
        print(f"bench: {error}", file=sys.stderr)
        return 1
    print("\n\n".join(as_text(each) for each in results))
    if arguments.json is not None:
        arguments.json.write_text(as_json(results), encoding="utf-8")
    return 0


def _each_mailserver(arguments: argparse.Namespace) -> list[argparse.Namespace]:
    """What is to be measured, for each mailserver that is."""
    if not arguments.beside_ours:
        return [arguments]
    return [argparse.Namespace(**{**vars(arguments), "enode": None, "pid": None}), arguments]


def _measure(arguments: argparse.Namespace, given: tuple[str, ...]) -> Results:
    load_before, is_ours = os.getloadavg()[0], arguments.enode is None
    topics = Topics(arguments.topics, Distribution(arguments.distribution))
    ingest = tuple(_measure_ingest(arguments, topics)) if "ingest" in arguments.parts else ()
    histories: tuple[StoreHistory, ...] = ()
    if "history" in arguments.parts and is_ours:
        histories = tuple(_measure_store(arguments, topics, count) for count in arguments.envelopes)
    elif "history" in arguments.parts:
        target = Target(arguments.enode, arguments.pid)
        questions = _measure_history(arguments, target, topics, int(datetime.now(UTC).timestamp()))
        histories = (StoreHistory(None, questions),)
    if arguments.plot is not None:
        from bench.plot import draw_growth  # noqa: PLC0415 - as above

        draw_growth(histories, arguments.plot)
    busy = tuple(_measure_busy(arguments, topics)) if "busy" in arguments.parts else ()
    relays = tuple(_measure_relay(arguments, topics)) if "relay" in arguments.parts else ()
    handshakes = (_measure_handshakes(arguments),) if "handshakes" in arguments.parts else ()
    idle = (_measure_idle(arguments),) if "idle" in arguments.parts and is_ours else ()
    floods = _measure_flood(arguments, topics) if "flood" in arguments.parts and is_ours else ()
    compactions: tuple[Compaction, ...] = ()
    plain_exports: tuple[PlainExport, ...] = ()
    if "compaction" in arguments.parts and is_ours:
        from bench.compaction import measure_compactions  # noqa: PLC0415 - as above

        compactions, plain_exports = measure_compactions(arguments, topics)
    archives = tuple(_measure_archives(arguments, topics)) if "archive" in arguments.parts and is_ours else ()
    syncs = tuple(_measure_syncs(arguments, topics)) if "sync" in arguments.parts and is_ours else ()
    gateways = (_measure_gateway(arguments, topics),) if "gateway" in arguments.parts and is_ours else ()
    communities = _measure_communities(arguments) if "communities" in arguments.parts and is_ours else ()
    postgres = _measure_postgres(arguments, topics) if "postgres" in arguments.parts and is_ours else None
    environment = Environment(
        measured_at=datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        python=platform.python_version(),
        sqlite=sqlite3.sqlite_version,
        cpus=os.cpu_count() or 1,
        load=(load_before, os.getloadavg()[0]),
        arguments=given,
        mailserver="ours" if arguments.enode is None else str(arguments.enode),
    )
    return Results(
        environment,
        ingest,
        histories,
        compactions,
        plain_exports,
        relays,
        floods,
        handshakes,
        idle,
        busy,
        archives,
        syncs,
        gateways,
        communities,
        postgres,
    )


def _measure_ingest(arguments: argparse.Namespace, topics: Topics) -> Iterator[Ingest]:
    for connections in arguments.connections:
        for per_packet in arguments.packets:
            runs = []
            for run in range(arguments.runs):
                progress(f"ingest: {connections} connections, packets of {per_packet}, run {run + 1}")
                with fresh_target(arguments, arguments.ingest_envelopes) as target:
                    measuring = measure_ingest(
                        target.enode,
                        target.pid,
                        envelopes=arguments.ingest_envelopes,
                        connections=connections,
                        per_packet=per_packet,
                        topics=topics,
                        seed=run,
                        sizes=Sizes(arguments.sizes),
                    )
                    runs.append(uvloop.run(measuring))
            ingest = Ingest(connections, per_packet, arguments.ingest_envelopes, tuple(runs))
            progress(f"ingest: median {median(ingest.rates()):,.0f} envelopes/s")
            yield ingest


def _measure_store(arguments: argparse.Namespace, topics: Topics, envelopes: int) -> StoreHistory:
    """Fill a store, start our daemon on it several times, ask the last one."""
    with prepared_store(arguments, envelopes) as store:
        data_dir, disk_bytes = store.data_dir, store.disk_bytes()
        flags = limits_of(arguments)
        starts = []
        for _ in range(arguments.runs - 1):
            with Daemon(data_dir, arguments.password, flags) as daemon:
                starts.append((daemon.start_s, daemon.start_cpu_s))
        with Daemon(data_dir, arguments.password, flags) as daemon:
            starts.append((daemon.start_s, daemon.start_cpu_s))
            questions = _measure_history(arguments, Target(daemon.enode, daemon.pid), topics, store.end)
        start_s, start_cpu_s = zip(*starts, strict=True)
        return StoreHistory(
            StoreFacts(envelopes, store.days, disk_bytes, store.fill_s, start_s, start_cpu_s), questions
        )


def _measure_history(arguments: argparse.Namespace, target: Target, topics: Topics, end: int) -> tuple[History, ...]:
    """Ask each question once unmeasured, so that it meets a warm server, then --runs times with other topics."""
    key = key_from_password(arguments.password)
    rng = random.Random(arguments.topics)
    history = []
    for question in QUESTIONS:
        progress(f"history: {question.name}")
        runs = [
            uvloop.run(measure_history(target.enode, target.pid, question, key=key, topics=topics, end=end, rng=rng))
            for _ in range(arguments.runs + 1)
        ]
        history.append(History(question.name, question.clients, tuple(runs[1:])))
    return tuple(history)


def _measure_busy(arguments: argparse.Namespace, topics: Topics) -> Iterator[Busy]:
    """Ask each store while it grows, in each run a new copy of it."""
    if arguments.enode is not None:
        target, end = Target(arguments.enode, arguments.pid), int(datetime.now(UTC).timestamp())
        runs = [_measure_busy_run(arguments, target, topics, end, run) for run in range(arguments.runs)]
        yield Busy(BUSY_QUESTION.name, None, arguments.ingest_rate, tuple(runs))
        return
    flags = (*limits_of(arguments), *BUSY_FLAGS)
    for envelopes in arguments.envelopes:
        runs = []
        with prepared_store(arguments, envelopes) as store:
            for run in range(arguments.runs):
                with copied(store) as data_dir, Daemon(data_dir, arguments.password, flags) as daemon:
                    target = Target(daemon.enode, daemon.pid)
                    runs.append(_measure_busy_run(arguments, target, topics, store.end, run))
        yield Busy(BUSY_QUESTION.name, envelopes, arguments.ingest_rate, tuple(runs))


def _measure_busy_run(arguments: argparse.Namespace, target: Target, topics: Topics, end: int, run: int) -> BusyRun:
    progress(f"busy: {arguments.ingest_rate:,} envelopes/s for {arguments.busy_seconds} s, run {run + 1}")
    return uvloop.run(
        measure_busy(
            target.enode,
            target.pid,
            BusySpec(arguments.ingest_rate, arguments.busy_seconds),
            key=key_from_password(arguments.password),
            topics=topics,
            end=end,
            rng=random.Random(run),
        )
    )


def _measure_relay(arguments: argparse.Namespace, topics: Topics) -> Iterator[Relay]:
    for interest in INTERESTS:
        spec = RelaySpec(
            envelopes=arguments.relay_envelopes,
            peers=arguments.peers,
            interest=interest,
            late=arguments.late_envelopes,
            interval_s=QUICK_LATE_INTERVAL_S if arguments.quick else LATE_INTERVAL_S,
        )
        runs = []
        for run in range(arguments.runs):
            wanted = "everything" if interest is None else f"{interest} topics each"
            progress(f"relay: to {spec.peers} peers that want {wanted}, run {run + 1}")
            with fresh_target(arguments, spec.envelopes + spec.late) as target:
                runs.append(uvloop.run(measure_relay(target.enode, target.pid, spec, topics=topics, seed=run)))
        relay = Relay(interest, spec.peers, spec.envelopes, tuple(runs))
        progress(f"relay: median {median(relay.rates()):,.0f} deliveries/s")
        yield relay


def _measure_handshakes(arguments: argparse.Namespace) -> Handshakes:
    spec = HandshakesSpec(arguments.handshakes, arguments.dialers)
    runs = []
    for run in range(arguments.runs):
        progress(f"handshakes: {spec.handshakes:,} by {spec.dialers} dialers, run {run + 1}")
        with fresh_target(arguments, 0, AS_STRANGERS) as target:
            runs.append(uvloop.run(measure_handshakes(target.enode, target.pid, spec, run=run)))
    handshakes = Handshakes(spec.handshakes, spec.dialers, spec.processes, tuple(runs))
    progress(f"handshakes: median {median(handshakes.rates()):,.0f}/s")
    return handshakes


def _measure_idle(arguments: argparse.Namespace) -> Idle:
    """Connect to a new daemon each time: one that has had peers has kept room for more."""
    spec = IdleSpec(arguments.idle_connections, arguments.idle_seconds)
    runs = []
    for run in range(arguments.runs):
        progress(f"idle: {spec.connections} connections, run {run + 1}")
        with (
            tempfile.TemporaryDirectory(prefix="bench-idle-") as folder,
            Daemon(Path(folder), arguments.password, spec.flags) as daemon,
        ):
            runs.append(uvloop.run(measure_idle(daemon, spec)))
    idle = Idle(spec.connections, tuple(runs))
    progress(f"idle: median {median(idle.bytes_each()):,.0f} bytes each")
    return idle


def _measure_flood(arguments: argparse.Namespace, topics: Topics) -> tuple[Flood, ...]:
    """Fill a store, and flood a daemon on it, with its own limits for each kind of flood."""
    floods = []
    with tempfile.TemporaryDirectory(prefix="bench-flood-") as folder:
        data_dir = Path(folder)
        progress(f"flood: preparing {arguments.flood_store:,} envelopes")
        store = prepare_store(data_dir, StoreSpec(arguments.flood_store, arguments.topics, 1, arguments.distribution))
        for spec in flood_specs(arguments.flooders, arguments.flood_seconds, is_quick=arguments.quick):
            progress(f"flood: packets of {spec.per_packet}, tolerated for {spec.tolerance_s:g} s")
            with Daemon(data_dir, arguments.password, spec.flags) as daemon:
                key = key_from_password(arguments.password)
                floods.append(uvloop.run(measure_flood(daemon, store, spec, key=key, topics=topics)))
    return tuple(floods)


def _measure_archives(arguments: argparse.Namespace, topics: Topics) -> Iterator[ArchiveHistory]:
    from bench.archive import measure_archive, prepare_archive  # noqa: PLC0415 - as above

    for envelopes in arguments.envelopes:
        with prepared_store(arguments, envelopes) as store:
            progress("archive: compacting")
            archive = prepare_archive(store, envelopes)
            progress(f"archive: asking for {archive.days} days")
            yield measure_archive(
                archive,
                topics,
                password=arguments.password,
                runs=arguments.runs,
                hot_answers=arguments.hot_answers,
            )


def _measure_syncs(arguments: argparse.Namespace, topics: Topics) -> Iterator[Sync]:
    for envelopes in arguments.envelopes:
        with prepared_store(arguments, envelopes) as store:
            progress("sync: comparing two copies, and fetching everything")
            yield measure_sync(store, envelopes, topics, runs=arguments.runs, password=arguments.password)


def _measure_gateway(arguments: argparse.Namespace, topics: Topics) -> GatewayResults:
    spec = GatewaySpec(
        pushes=arguments.pushes,
        pushes_per_s=arguments.push_rate,
        clients=arguments.light_clients,
        late=arguments.late_envelopes,
        queries=arguments.queries,
        handshakes=arguments.handshakes,
        idle_s=arguments.idle_seconds,
        sent=arguments.sent_messages,
    )
    with prepared_store(arguments, arguments.gateway_store) as store:
        measuring = measure_gateway(spec, arguments.runs, arguments.password, store, arguments.gateway_store, topics)
        return uvloop.run(measuring)


def _measure_communities(arguments: argparse.Namespace) -> tuple[Communities, ...]:
    from bench.communities import measure_communities  # noqa: PLC0415 - as above

    return measure_communities(arguments)


def _measure_postgres(arguments: argparse.Namespace, topics: Topics) -> PostgresComparison:
    from bench.postgres import measure_postgres  # noqa: PLC0415 - as above

    return measure_postgres(arguments, topics)


if __name__ == "__main__":
    raise SystemExit(main())
