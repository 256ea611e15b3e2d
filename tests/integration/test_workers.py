"""`run --workers N`: several processes behind one port, on one store."""

import asyncio
import contextlib
import os
import re
import signal
import socket
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from mailserver.client.sealing import seal_envelope
from mailserver.net.shared_port import index_of
from mailserver.waku.payload import key_from_password
from tests.faults.disk_client import ready
from tests.integration.conversations import Flood, everything, fresh, messages, serves
from tests.integration.daemons import DEADLINE_S, Daemon, run_command, running_daemon
from tests.integration.peers import Peers, connected_from
from tests.integration.test_others import call, post
from tests.integration.test_relay import WANTS_ALL, WANTS_NOTHING, Listening, live_envelope
from tests.mailservers import NEWS
from tests.ports import free_ports
from tests.raw_peer import Hangup, RawPeer
from tests.store.postgres.server import new_schema, shared_server
from tests.waiting import until

pytestmark = pytest.mark.integration

ENGINES = ("sqlite", "postgres")


@pytest.fixture(params=ENGINES)
def store(request: pytest.FixtureRequest) -> tuple[str, ...]:
    """Flags that say where the store is."""
    if request.param == "sqlite":
        return ()
    return ("--store", shared_server().url(new_schema(shared_server())))


@contextlib.contextmanager
def running_workers(data_dir: Path, count: int, *flags: str) -> Iterator[Daemon]:
    """A mailserver with so many workers, once all serve peers."""
    with running_daemon(data_dir, "--workers", str(count), *flags) as daemon:
        daemon.wait_for_line("workers are ready")
        yield daemon


def source_of(worker: int, count: int, skip: int = 0) -> str:
    """An address of loopback whose connections come to a worker; another with another `skip`."""
    found = (f"127.0.{subnet}.2" for subnet in range(1, 256) if index_of(f"127.0.{subnet}.2", count) == worker)
    return [next(found) for _ in range(skip + 1)][-1]


def pid_of(daemon: Daemon, worker: int) -> int:
    """The process of a worker that was started last."""
    lines = [line for line in daemon.lines if f"worker started number={worker} pid=" in line]
    return int(lines[-1].rpartition("=")[2])


async def until_restarted(daemon: Daemon, worker: int, times: int = 1) -> None:
    """Wait until a worker serves peers again."""

    def listens() -> int:
        return sum("listening enode=" in line and line.endswith(f"worker={worker}") for line in daemon.lines)

    await until(lambda: listens() > times, DEADLINE_S)


def runs(pid: int) -> bool:
    """Whether there is such a process."""
    return Path(f"/proc/{pid}").exists()


async def stop(daemon: Daemon, number: signal.Signals = signal.SIGTERM) -> int:
    """Send the supervisor a signal; return the exit code."""
    daemon.process.send_signal(number)
    return await asyncio.to_thread(daemon.wait)


@pytest.mark.parametrize("count", [2, 3])
async def test_peers_of_each_worker_get_once_what_is_posted_at_any(
    store: tuple[str, ...], tmp_path: Path, peers: Peers, count: int
) -> None:
    sources = [source_of(worker, count) for worker in range(count)]
    with running_workers(tmp_path, count, *store, "--log-level", "debug") as daemon:
        listeners = [Listening(await peers.join(daemon, "listener", WANTS_ALL, source=source)) for source in sources]
        senders = [await peers.join(daemon, "sender", WANTS_NOTHING, source=source) for source in sources]
        sent = [live_envelope(number) for number in range(20 * count)]

        await asyncio.gather(*(post(sender, *sent[at::count]) for at, sender in enumerate(senders)))
        lasts = [live_envelope(1000 + number) for number in range(count)]
        for last, sender in zip(lasts, senders, strict=True):
            await post(sender, last)
        for listener in listeners:
            for last in lasts:
                await listener.hear_until(last)
        # What goes round would come within the bundle of this.
        closing = live_envelope(2000)
        await post(senders[0], closing)
        for listener in listeners:
            await listener.hear_until(closing)

        expected = sorted(envelope.raw for envelope in [*sent, *lasts, closing])
        assert [sorted(listener.heard) for listener in listeners] == [expected] * count
        for source in sources:
            assert sorted(await everything(await peers.join(daemon, "reader", source=source))) == expected
        for worker in range(count):
            assert sum("peer connected" in line and line.endswith(f"worker={worker}") for line in daemon.lines) == 3
        assert await stop(daemon) == 0


async def test_applications_at_the_first_worker_have_to_do_with_peers_of_all(
    store: tuple[str, ...], tmp_path: Path, peers: Peers
) -> None:
    with running_workers(tmp_path, 2, *store, "--rpc", "127.0.0.1:0") as daemon:
        listener = Listening(await peers.join(daemon, "listener", WANTS_ALL, source=source_of(1, 2)))
        sender = await peers.join(daemon, "sender", WANTS_NOTHING, source=source_of(1, 2))
        key = call(daemon, "waku_generateSymKeyFromPassword", "news")
        wanted = call(daemon, "waku_newMessageFilter", {"symKeyID": key, "topics": ["0x9acb0442"]})
        password = key_from_password("news")
        sealed = await seal_envelope(b"hello", password, NEWS, ttl=30, min_pow=0.002, now=int(time.time()))
        await post(sender, sealed)

        message = {"symKeyID": key, "ttl": 30, "topic": "0x9acb0442", "payload": "0xcafe", "powTarget": 0.002}
        assert call(daemon, "waku_post", {**message, "powTime": 5})
        found: list[str] = []
        async with asyncio.timeout(DEADLINE_S):
            while len(found) < 2:
                messages = await asyncio.to_thread(call, daemon, "waku_getFilterMessages", wanted)
                found += [each["payload"] for each in messages]
        last = live_envelope(1)
        await post(sender, last)
        await listener.hear_until(last)

        assert sorted(found) == ["0x" + b"hello".hex(), "0xcafe"]
        assert len(listener.heard) == 3
        assert {sealed.raw, last.raw} < set(listener.heard)
        assert await stop(daemon) == 0


@pytest.mark.parametrize("killed", [0, 1])
async def test_nothing_that_was_confirmed_is_lost_when_a_worker_is_killed(
    store: tuple[str, ...], tmp_path: Path, peers: Peers, killed: int
) -> None:
    confirmed: list[bytes] = []
    sources = [source_of(worker, 2) for worker in range(2)]
    with running_workers(tmp_path, 2, *store) as daemon:
        for times in (1, 2):
            floods = [
                Flood(await peers.join(daemon, f"flood {times} {worker}", source=source))
                for worker, source in enumerate(sources)
            ]
            await until(lambda: all(len(flood.confirmed) > 100 for flood in floods), DEADLINE_S)  # noqa: B023
            os.kill(pid_of(daemon, killed), signal.SIGKILL)
            await floods[killed].end()
            # Its connections wait for its successor, which confirms.
            again = await peers.join(daemon, f"again {times}", source=sources[killed])
            await until_restarted(daemon, killed, times)
            assert await serves(peers, daemon, again)
            survivor = floods[1 - killed]
            if survivor.reason is None:
                before = len(survivor.confirmed)
                await until(lambda: len(survivor.confirmed) > before, DEADLINE_S)  # noqa: B023
            await survivor.cut()
            confirmed += [raw for flood in floods for raw in flood.confirmed]
        served = [await everything(await peers.join(daemon, "reader", source=source)) for source in sources]
        assert await stop(daemon) == 0

    for found in served:
        assert len(set(found)) == len(found)
        assert set(confirmed) <= set(found)
    assert sum("worker ended" in line for line in daemon.lines) == 2
    assert f"worker ended number={killed} cause='SIGKILL' restart_s=0.1" in daemon.log


async def refused(daemon: Daemon, source: str, name: str) -> bool:
    """Whether a connection from an address is closed before it is served; if it is served, it stays."""
    enode = daemon.enode
    end = await connected_from(source, (enode.host, enode.port))
    try:
        raw = await RawPeer.dial(end, enode.node_id, name=name)
        await raw.greet()
    except (ConnectionError, EOFError, Hangup):
        return True
    KEPT.append(raw)
    return False


KEPT: list[RawPeer] = []


@pytest.fixture
async def kept() -> AsyncIterator[None]:
    """Closes at the end what `refused` has left open."""
    yield
    for raw in KEPT:
        await raw.close()
    KEPT.clear()


@pytest.mark.usefixtures("kept")
async def test_limit_of_an_address_holds_with_several_workers(store: tuple[str, ...], tmp_path: Path) -> None:
    source, other = source_of(0, 3), source_of(1, 3)
    same_subnet = source.rpartition(".")[0] + ".77"
    flags = ("--max-peers-per-address", "3", "--max-peers-per-subnet", "5")
    with running_workers(tmp_path, 3, *store, *flags) as daemon:
        assert [await refused(daemon, source, f"a {n}") for n in range(8)] == [False] * 3 + [True] * 5
        assert [await refused(daemon, same_subnet, f"b {n}") for n in range(4)] == [False] * 2 + [True] * 2
        assert [await refused(daemon, other, f"c {n}") for n in range(4)] == [False] * 3 + [True]
        assert await stop(daemon) == 0


@pytest.mark.usefixtures("kept")
async def test_worker_that_was_started_again_has_the_settings_that_were_reloaded(
    store: tuple[str, ...], tmp_path: Path
) -> None:
    settings, source = tmp_path / "settings.toml", source_of(1, 2)
    settings.write_text("max_peers_per_address = 1\n")
    with running_workers(tmp_path / "data", 2, *store, "--config", str(settings)) as daemon:
        settings.write_text("max_peers_per_address = 2\n")
        daemon.process.send_signal(signal.SIGHUP)
        await until(lambda: sum("changed=max_peers_per_address" in line for line in daemon.lines) == 2, DEADLINE_S)
        os.kill(pid_of(daemon, 1), signal.SIGKILL)
        await until_restarted(daemon, 1)

        assert [await refused(daemon, source, f"a {n}") for n in range(4)] == [False] * 2 + [True] * 2
        assert await stop(daemon) == 0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=["SIGTERM", "SIGINT"])
async def test_all_stop_with_a_goodbye_and_the_store_is_stopped_last(
    store: tuple[str, ...], tmp_path: Path, peers: Peers, number: signal.Signals
) -> None:
    with running_workers(tmp_path, 2, *store) as daemon:
        raws = [await peers.join(daemon, f"peer {worker}", source=source_of(worker, 2)) for worker in range(2)]
        pids = [pid_of(daemon, worker) for worker in range(2)]
        for raw in raws:
            raw.say(1, messages(fresh(100)))
            await raw.hear_confirmation()

        assert await stop(daemon, number) == 0

        reasons = [await raw.hear_hangup() for raw in raws]
        enode = daemon.enode
        with socket.create_server((enode.host, enode.port)):
            pass
    assert [reason and reason.name for reason in reasons] == ["CLIENT_QUITTING", "CLIENT_QUITTING"]
    assert [re.sub(r".*INFO +", "", line) for line in daemon.lines if line.endswith(("stopped worker=0", "worker=1"))][
        -2:
    ] == ["stopped worker=1", "stopped worker=0"]
    assert not any(map(runs, pids))


async def test_workers_stop_when_their_supervisor_is_killed(
    store: tuple[str, ...], tmp_path: Path, peers: Peers
) -> None:
    with running_workers(tmp_path, 2, *store) as daemon:
        pids = [pid_of(daemon, worker) for worker in range(2)]
        daemon.process.send_signal(signal.SIGKILL)
        assert await asyncio.to_thread(daemon.wait) == -signal.SIGKILL
        await until(lambda: not any(map(runs, pids)), DEADLINE_S)

    assert sum("supervisor has gone, the worker stops" in line for line in daemon.lines) == 2
    with running_workers(tmp_path, 2, *store) as daemon:
        assert await serves(peers, daemon)
        assert await stop(daemon) == 0


def test_each_worker_has_metrics_on_its_own_port_and_status_counts_them(store: tuple[str, ...], tmp_path: Path) -> None:
    ports = free_ports(2)
    with running_workers(tmp_path, 2, *store, "--metrics", f"127.0.0.1:{ports[0]}") as daemon:
        assert [ready(port)[0] for port in ports] == [200, 200]
        status = run_command("status", "--data-dir", tmp_path)
        assert (status.returncode, "2 of 2 running" in status.stdout) == (0, True)
        assert asyncio.run(stop(daemon)) == 0


def failed(tmp_path: Path, *flags: str) -> str:
    """How a mailserver says that it cannot start: in one line."""
    with running_daemon(tmp_path, "--workers", "2", *flags, listening=False) as daemon:
        assert daemon.wait() == 1
    said = [line for line in daemon.lines if line.startswith("waku-mailserver: ")]
    assert len(said) == 1, daemon.log
    return said[0]


def test_what_keeps_it_from_starting_is_said_once(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        url = shared_server().url(new_schema(shared_server()))
        assert failed(tmp_path / "a", "--store", url, "--listen", address).endswith(
            f"cannot listen on {address}: Address already in use"
        )
    first, second = free_ports(2)
    with socket.create_server(("127.0.0.1", second)):  # that of worker 1
        said = failed(tmp_path / "d", "--store", url, "--metrics", f"127.0.0.1:{first}")
        assert f"cannot listen on 127.0.0.1:{second}: " in said
    assert "cannot open the store" in failed(tmp_path / "b", "--store", "postgresql:///none?host=/nowhere")
    with running_workers(tmp_path / "c", 2, "--store", url) as daemon:
        assert "uses the data directory" in failed(tmp_path / "c", "--store", url)
        assert asyncio.run(stop(daemon)) == 0


def test_one_worker_is_a_mailserver_as_ever(tmp_path: Path) -> None:
    with running_daemon(tmp_path, "--workers", "1") as daemon:
        children = Path(f"/proc/{daemon.process.pid}/task/{daemon.process.pid}/children").read_text()
        assert children == ""
        assert not any("worker=" in line or "workers" in line.partition("enode=")[0] for line in daemon.lines)
        assert daemon.stop() == 0
