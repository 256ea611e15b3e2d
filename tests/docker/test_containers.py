"""The real compose file, run by a real engine: what operators are promised of it.

All tests share one project. Each starts the services that it needs with the settings that it needs; none needs another.
"""

import asyncio
import contextlib
import json
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import duckdb
import pytest

from mailserver.client.mail_client import connect
from mailserver.client.sealing import seal_envelope
from mailserver.codec.keys import Enode
from mailserver.errors import ConnectionLost
from mailserver.ids.envelopes import content_topic_of
from mailserver.ids.muid import DEFAULT_NETWORK_TOPIC
from mailserver.ids.waku_message import WakuMessage
from mailserver.store.interface import NewEnvelope
from mailserver.store.sqlite.schema import SCHEMA_VERSION
from mailserver.waku.envelope import EnvelopeHash, Topic, encode_envelope
from mailserver.waku.payload import key_from_password
from mailserver.waku.topics import topic_of
from mailserver.waku2.codes import LightPushStatus
from tests.docker.engine import QUICK_S, docker, inspect, wait_for
from tests.docker.stack import COMPACTED_WITHIN_S, PROFILES, SERVICES, Stack, history
from tests.gateway.clients import connected
from tests.integration.daemons import run_command
from tests.waiting import until

pytestmark = [pytest.mark.docker, pytest.mark.integration]

DAY_S = 86_400
OURS = 10001

NEVER_TODAY = f"17 3 1 {(time.gmtime().tm_mon + 5) % 12 + 1} *"
"""A schedule that is half a year away: a run that the next test ends would be the last one, and a failed one."""

STARTED_WITHIN_S = 240.0
"""How long `up --wait` may take where it fails: it gives each service the time to start that its health check has."""

MIB = 1024 * 1024


@pytest.fixture
def stack(built: Stack) -> Stack:
    """The mailserver and the compaction, healthy."""
    built.settings["SPARK_EXPORT_SCHEDULE"] = NEVER_TODAY
    built.up()
    return built


def of_yesterday(topic: Topic, count: int) -> list[NewEnvelope]:
    """True envelopes that were received yesterday, at noon."""
    return of_days_ago(1, topic, count)


def of_days_ago(days: int, topic: Topic, count: int) -> list[NewEnvelope]:
    """True envelopes that were received so many days ago, at noon."""
    noon = (int(time.time()) // DAY_S - days) * DAY_S + DAY_S // 2
    sealed = [encode_envelope(noon + 60, 60, topic, bytes(300), number) for number in range(count)]
    return [NewEnvelope(noon, noon, topic, envelope.hash(), envelope.raw) for envelope in sealed]


def archived(stack: Stack, folder: Path, topic: Topic, service: str = "compaction") -> set[bytes]:
    """The hashes that a reader of the archive finds under a topic, as 32 bytes."""
    files = stack.read_archive(folder, service) / "date=*/*/*.parquet"
    if not list(folder.glob("date=*/*/*.parquet")):
        return set()
    query = "SELECT hash FROM read_parquet(?, hive_partitioning=true, hive_types_autocast=false) WHERE topic = ?"
    with duckdb.connect() as connection:
        rows = connection.execute(query, [str(files), f"0x{topic.hex()}"]).fetchall()
    return {bytes.fromhex(text.removeprefix("0x")) for (text,) in rows}


def hashes(envelopes: list[NewEnvelope]) -> set[bytes]:
    return {envelope.hash for envelope in envelopes}


def test_a_client_posts_and_requests_through_the_published_port(stack: Stack) -> None:
    enode = stack.enode()

    posted = run_command("post", enode, "--topic", "published", "--payload", "through the port")
    answer = run_command("request", enode, "--topic", "published", "--sym-key-password", "published")

    assert (enode.host, str(enode.port)) == ("localhost", stack.settings["P2P_PORT"])
    assert posted.returncode == answer.returncode == 0, posted.stderr + answer.stderr
    assert "through the port" in answer.stdout


@pytest.fixture
def stack_with_gateway(stack: Stack) -> Iterator[Stack]:
    """A gateway beside them, healthy."""
    stack.up("gateway")
    yield stack
    stack.compose(*PROFILES, "rm", "--stop", "--force", "gateway")


@pytest.fixture
def stack_with_all(stack_with_gateway: Stack) -> Iterator[Stack]:
    """Communities are served, too."""
    stack_with_gateway.up("communities")
    yield stack_with_gateway
    stack_with_gateway.compose(*PROFILES, "rm", "--stop", "--force", "communities")


def problems_of_gateway(stack: Stack) -> list[str]:
    """What keeps it from doing all of its work: with any, it answers 503, which is an error here."""
    with urllib.request.urlopen(f"http://127.0.0.1:{stack.settings['V2_METRICS_PORT']}/ready", timeout=QUICK_S) as said:
        problems: list[str] = json.load(said)["problems"]
    return problems


async def test_a_light_client_gets_what_is_posted_and_sends_through_the_published_port(
    stack_with_gateway: Stack,
) -> None:
    stack, topic = stack_with_gateway, content_topic_of(topic_of("light"))
    addresses = stack.python("gateway", "print(open('/data/gateway').read())").split()

    async with connected(int(stack.settings["V2_PORT"])) as light:
        await light.subscribe(DEFAULT_NETWORK_TOPIC, topic)
        await asyncio.to_thread(run_command, "post", stack.enode(), "--topic", "light", "--payload", "hello")
        await until(lambda: len(light.pushes) == 1)
        message = WakuMessage(b"from v2", topic, timestamp=time.time_ns())
        sent = await light.lightpush(DEFAULT_NETWORK_TOPIC, message)
        found = await history(stack.enode(), topic_of("light"), 0, int(time.time()) + 60)

    assert [address.split("/")[4] for address in addresses] == [
        stack.settings["V2_PORT"],
        stack.settings["V2_WEBSOCKET_PORT"],
    ]
    assert sent.status_code == LightPushStatus.OK
    assert b"from v2" in [envelope.data for envelope in found]
    assert await asyncio.to_thread(problems_of_gateway, stack) == []


def test_a_container_can_do_only_what_it_must(stack_with_all: Stack) -> None:
    """Its processes have no rights, its root file system cannot be written, and what it takes has a limit."""
    for service in (*SERVICES, "gateway", "communities"):
        processes = json.loads(stack_with_all.python(service, STATUS_OF_PROCESSES))
        refused = stack_with_all.python(service, WRITE_ANYWHERE).split()
        host = stack_with_all.container(service)["HostConfig"]

        assert len(processes) >= 2, service  # the init, and ours
        for status in processes:
            assert status["Uid"].split() == status["Gid"].split() == [str(OURS)] * 4, service
            assert {status[name] for name in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb")} == {"0" * 16}, service
            assert status["NoNewPrivs"] == "1", service
        assert refused == ["EROFS"] * 4, service
        assert host["ReadonlyRootfs"], service
        assert host["Memory"] >= 512 * MIB, service
        assert host["PidsLimit"] > 0, service
        assert host["RestartPolicy"]["Name"] == "always", service
        assert host["LogConfig"] == {"Type": "json-file", "Config": {"max-size": "10m", "max-file": "5"}}, service


STATUS_OF_PROCESSES = """
import json, pathlib
texts = [path.read_text() for path in pathlib.Path("/proc").glob("[0-9]*/status")]
print(json.dumps([dict(line.split(":\\t", 1) for line in text.splitlines() if ":\\t" in line) for text in texts]))
"""

WRITE_ANYWHERE = """
import errno, os
for path in ("/new", "/usr/bin/new", "/var/tmp/new", os.path.dirname(os.__file__) + "/new"):
    try:
        open(path, "w").close()
    except OSError as error:
        print(errno.errorcode[error.errno])
"""


PYTHON = {"python3", "python3.11"}
"""Where Debian has it; the image of Python has it in /usr/local."""

PROGRAMS: dict[str, set[str]] = {
    "mailserver": set(),
    # Spark's and Hadoop's scripts want these; `sh` is a link to `dash`.
    "compaction": {"bash", "chmod", "dash", "dirname", "env", "getconf", "java", "rm", "setsid", "sh"},
}

FIND_PROGRAMS = """
import json, os
found = [name for folder in ("/usr/bin", "/usr/sbin") for name in os.listdir(folder)]
programs = "sh bash dash busybox perl apt dpkg pip pip3 gcc cc git hatchling su mount".split()
elsewhere = [
    name
    for top in ("/etc", "/opt", "/usr/lib", "/usr/libexec", "/usr/local", "/var")
    for folder, _, names in os.walk(top)
    for name in names
    if name in programs
]
print(json.dumps([found, elsewhere, os.path.realpath("/bin"), os.path.realpath("/sbin")]))
"""


@pytest.mark.parametrize("service", SERVICES)
def test_an_image_has_no_program_that_it_does_not_need(built: Stack, service: str) -> None:
    image = f"{built.images[SERVICES.index(service)]}:{built.project}"

    found, elsewhere, *links = json.loads(
        docker("run", "--rm", "--entrypoint", "python", image, "-c", FIND_PROGRAMS).stdout
    )
    config = inspect(image)["Config"]

    assert links == ["/usr/bin", "/usr/sbin"]
    assert set(found) - PYTHON == PROGRAMS[service]
    assert elsewhere == []
    assert config["User"] == f"{OURS}:{OURS}"
    assert config["StopSignal"] == "SIGTERM"


def test_the_compaction_runs_by_its_schedule(built: Stack, tmp_path: Path) -> None:
    topic = topic_of("by schedule")
    envelopes = of_yesterday(topic, 5)
    built.down()
    built.put(envelopes)

    soon = time.gmtime(time.time() + 60)
    # Once, and if that has passed by when it starts, at once.
    built.settings["SPARK_EXPORT_SCHEDULE"] = f"{soon.tm_min} {soon.tm_hour} * * *"
    built.up()

    built.wait_for_line("compaction", "run ended command=compact", QUICK_S + COMPACTED_WITHIN_S)  # due within a minute

    said = built.compose("exec", "-T", "compaction", "spark-export", "last", "--json", check=False).stdout
    (store,) = json.loads(said)["stores"]
    assert store["state"] == "succeeded", built.logs("compaction")
    assert archived(built, tmp_path, topic) == hashes(envelopes)


def test_up_returns_while_the_first_run_is_at_work_and_refuses_another_by_hand(built: Stack, tmp_path: Path) -> None:
    """As after a restore, a move, or a day off; the run takes as long as it takes."""
    topic = topic_of("restored")
    envelopes = of_days_ago(9, topic, 5)
    built.settings["SPARK_EXPORT_SCHEDULE"] = NEVER_TODAY  # the run is another container's, and ends when we say so
    built.down()
    built.put(envelopes)

    with a_run_at_work(built):
        built.compose("up", "--detach", "--wait", "--no-build", *SERVICES, within_s=STARTED_WITHIN_S)
        during = built.compose("exec", "-T", "compaction", "spark-export", "last", check=False)
        refused = built.compact(check=False)
    killed = built.compose("exec", "-T", "compaction", "spark-export", "last", check=False)

    assert (during.returncode, during.stderr) == (0, "")
    assert "a run has been at work since " in during.stdout
    assert refused.returncode == 1
    assert "another" in refused.stderr
    assert killed.returncode == 1
    assert "the last run was killed" in killed.stderr
    assert built.compact().returncode == 0
    assert built.compose("exec", "-T", "compaction", "spark-export", "last").returncode == 0
    assert archived(built, tmp_path, topic) == hashes(envelopes)


@contextlib.contextmanager
def a_run_at_work(stack: Stack) -> Iterator[None]:
    """A first run of the compaction, in another container, that takes as long as the context is entered."""
    name = f"{stack.project}-run"
    run = ("run", "--rm", "--detach", "--no-deps", "--name", name, "--entrypoint", "python", "mailserver", "-c")
    stack.compose(*run, A_RUN)
    try:
        wait_for(lambda: "locked" in docker("logs", name).stdout, lambda: docker("logs", name).stderr, QUICK_S)
        yield
    finally:
        docker("rm", "--force", name)


A_RUN = """
import signal, time
from pathlib import Path
from mailserver.handoff.last_run import Compaction
from mailserver.store.sqlite.handoff import write_compaction
from mailserver.store.sqlite.handoff import compaction_lock
store = Path("/data/mailserver.db")
with compaction_lock(store):
    write_compaction(store, Compaction(time.time()))
    print("locked", flush=True)
    signal.pause()
"""


async def test_down_and_up_lose_nothing(stack: Stack, tmp_path: Path) -> None:
    topic = topic_of("down and up")
    stack.down()
    stack.put(of_yesterday(topic, 5))
    stack.up()
    before, stored = stack.enode(), await history(stack.enode(), topic, *yesterday())

    stack.down()
    stack.up()

    assert stack.enode() == before
    assert len(stored) == 5
    assert await history(before, topic, *yesterday()) == stored


def yesterday() -> tuple[int, int]:
    midnight = int(time.time()) // DAY_S * DAY_S
    return midnight - DAY_S, midnight


async def test_a_killed_mailserver_comes_back_with_all_that_it_has_confirmed(stack: Stack) -> None:
    topic = topic_of("killed")
    since, restarts = int(time.time()), stack.container("mailserver")["RestartCount"]
    confirmed: list[EnvelopeHash] = []

    posting = asyncio.create_task(post_until_lost(stack.enode(), topic, confirmed))
    stack.compose("kill", "--signal", "HUP", "mailserver")  # a reload, which must not count as a stop
    await until(lambda: len(confirmed) >= 20 or posting.done(), QUICK_S)
    await asyncio.to_thread(stack.python, "mailserver", KILL_THE_DAEMON, check=False)
    await posting
    wait_for(
        lambda: stack.container("mailserver")["RestartCount"] > restarts,
        lambda: json.dumps(stack.container("mailserver")["State"]),
        QUICK_S,
    )
    await asyncio.to_thread(stack.wait_until_healthy, "mailserver")

    found = {envelope.hash() for envelope in await history(stack.enode(), topic, since - 60, int(time.time()) + 60)}
    assert len(confirmed) >= 20
    assert set(confirmed) <= found


KILL_THE_DAEMON = """
import os, pathlib, signal
for folder in pathlib.Path("/proc").glob("[0-9]*"):
    if folder.name not in ("1", str(os.getpid())) and b"waku-mailserver" in (folder / "cmdline").read_bytes():
        os.kill(int(folder.name), signal.SIGKILL)
"""
"""As the kernel does where memory is short. `docker kill` would be an operator's stop, after which nothing restarts."""


async def post_until_lost(enode: Enode, topic: Topic, confirmed: list[EnvelopeHash]) -> None:
    """Post one envelope after the other until the connection ends, and note which were confirmed."""
    key = key_from_password("killed")
    number = 0
    with contextlib.suppress(ConnectionLost):
        async with connect(enode, "test") as client:
            while True:
                number += 1
                envelope = await seal_envelope(
                    b"%d" % number, key, topic, ttl=60, min_pow=client.settings.pow_requirement, now=int(time.time())
                )
                await client.post([envelope])
                confirmed.append(envelope.hash())


async def test_stop_ends_within_its_grace_period_with_a_goodbye(stack: Stack) -> None:
    began = time.monotonic()
    async with connect(stack.enode(), "test"):
        await asyncio.to_thread(stack.compose, "stop")
    took = time.monotonic() - began

    for service in SERVICES:
        container = stack.container(service)
        assert took < container["Config"]["StopTimeout"] == 15
        assert container["State"]["ExitCode"] == 0, service
    assert "stopped" in stack.logs("mailserver").splitlines()[-1]


def test_a_store_of_an_earlier_version_is_migrated_and_the_log_says_so(built: Stack) -> None:
    image, volume = f"waku-mailserver:{built.project}", f"{built.project}-old"
    run = ("run", "--detach", "--volume", f"{volume}:/data")
    try:
        docker("run", "--rm", *run[2:], "--entrypoint", "python", image, "-c", MAKE_VERSION_1)

        container = docker(*run, image).stdout.strip()

        wait_for(lambda: "listening" in log_of(container), lambda: log_of(container), QUICK_S)
        assert f"store migrated from=1 to={SCHEMA_VERSION}" in log_of(container)
    finally:
        for name in docker("ps", "--all", "--quiet", "--filter", f"volume={volume}").stdout.split():
            docker("rm", "--force", name)
        docker("volume", "rm", volume)


def log_of(container: str) -> str:
    return docker("logs", container).stderr


MAKE_VERSION_1 = """
import sqlite3
from mailserver.store.sqlite.schema import APPLICATION_ID, MIGRATIONS
connection = sqlite3.connect("/data/mailserver.db")
for statement in MIGRATIONS[0]:
    connection.execute(statement)
connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
connection.execute("PRAGMA user_version = 1")
connection.commit()
"""
