"""The profile `postgres`: two mailservers on one PostgreSQL, and its compaction, as the compose file runs them."""

import json
import re
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from mailserver.waku.topics import topic_of
from tests.docker.engine import BUILD_S, QUICK_S, docker, wait_for
from tests.docker.stack import COMPACTED_WITHIN_S, PROFILES, REPOSITORY, Stack, history
from tests.docker.test_containers import archived, hashes, of_yesterday
from tests.integration.daemons import run_command

pytestmark = [pytest.mark.docker, pytest.mark.integration]

MAILSERVERS = ("mailserver-1", "mailserver-2")

PUT = """
import asyncio, json, sys
from mailserver.store.postgres.store import open_store
from mailserver.store.interface import NewEnvelope
from mailserver.waku.envelope import decode_envelope

async def put(rows):
    async with open_store("postgresql://mailserver@postgres/mailserver") as store:
        for received, raw in rows:
            envelope = decode_envelope(bytes.fromhex(raw))
            new = NewEnvelope(received, envelope.created, envelope.topic, envelope.hash(), envelope.raw)
            await store.put([new])

asyncio.run(put(json.load(sys.stdin)))
"""
"""Run in a mailserver's container, beside it: rows of JSON, each [received, raw as hex]."""

REACH_OUTSIDE = """
import socket
try:
    socket.create_connection(("192.0.2.1", 80), timeout=5)
except OSError as error:
    print(error.strerror)
"""


class Pair:
    """Both mailservers, running."""

    def __init__(self, stack: Stack) -> None:
        self.stack = stack
        self._files = ("--file", "docker-compose.yml", "--file", "postgres.yml")

    def compose(self, *arguments: str, stdin: str = "", within_s: float = QUICK_S) -> str:
        return self.stack.compose(*self._files, *arguments, stdin=stdin, within_s=within_s).stdout

    def start(self) -> None:
        self.compose("up", "--detach", "--no-build", *MAILSERVERS)
        for service in ("postgres", *MAILSERVERS):
            self.stack.wait_until_healthy(service)

    def problems(self, service: str) -> list[str]:
        port = self.stack.settings["METRICS_PORT" if service == MAILSERVERS[0] else "METRICS_PORT_2"]
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/ready", timeout=QUICK_S) as said:  # 503 is an error
            return [problem["text"] for problem in json.load(said)["problems"]]


@pytest.fixture(scope="module")
def pair(built: Stack) -> Iterator[Pair]:
    """Debian's PostgreSQL in the place of the image that only a registry has, and both mailservers on it, healthy."""
    folder, tag = Path(__file__).parent, f"{built.project}-postgres"
    dockerfile = (REPOSITORY / "docker" / "Dockerfile").read_text(encoding="utf-8")
    base = re.findall(r"^FROM (python:\S+)", dockerfile, re.MULTILINE)[0]
    build = ("build", "--build-arg", f"BASE={base}", "--file", str(folder / "postgres.Dockerfile"), "--tag", tag)
    docker(*build, str(folder), within_s=BUILD_S)
    (built.folder / "postgres.yml").write_text(json.dumps({"services": {"postgres": {"image": tag}}}), encoding="utf-8")
    built.down()  # the first one has the port of the mailserver with a file
    pair = Pair(built)
    try:
        pair.start()
        yield pair
    finally:
        built.compose(*PROFILES, "rm", "--stop", "--force", "postgres", *MAILSERVERS, "compaction-postgres")
        docker("image", "rm", tag)


async def test_what_is_posted_at_one_is_read_at_the_other(pair: Pair) -> None:
    first, second = (pair.stack.enode(service) for service in MAILSERVERS)

    for enode, name in ((first, "at first"), (second, "at second")):
        posted = run_command("post", enode, "--topic", name, "--payload", "one history")
        assert posted.returncode == 0, posted.stderr

    now = int(time.time())
    assert first.node_id != second.node_id
    for enode, name in ((second, "at first"), (first, "at second")):
        assert len(await history(enode, topic_of(name), now - 300, now + 60)) == 1
    assert [text for service in MAILSERVERS for text in pair.problems(service)] == []


def test_prometheus_finds_the_first_in_the_place_of_the_mailserver_with_a_file(pair: Pair) -> None:
    lookups = "import socket; print(*map(socket.gethostbyname, ('mailserver', 'mailserver-1', 'mailserver-2')))"

    found, first, second = pair.stack.python(MAILSERVERS[1], lookups).split()

    assert found == first != second


async def test_the_compaction_archives_the_database_and_reaches_nothing_else(pair: Pair, tmp_path: Path) -> None:
    topic = topic_of("of the database")
    envelopes = of_yesterday(topic, 5)
    rows = json.dumps([[envelope.received, envelope.raw.hex()] for envelope in envelopes])
    pair.compose("exec", "-T", MAILSERVERS[0], "python", "-c", PUT, stdin=rows)
    run = ("run", "--rm", "-T")

    pair.compose(*run, "compaction-postgres", "now", within_s=COMPACTED_WITHIN_S)
    outside = pair.compose(*run, "--entrypoint", "python", "compaction-postgres", "-c", REACH_OUTSIDE)

    assert archived(pair.stack, tmp_path, topic, MAILSERVERS[1]) == hashes(envelopes)
    assert outside.strip() == "Network is unreachable"


def test_the_database_is_reached_by_nobody_else_and_keeps_what_it_has(pair: Pair) -> None:
    """It is made anew beneath a mailserver that goes on by itself."""
    container = pair.stack.container("postgres")
    checksums = pair.compose("exec", "-T", "postgres", "pg_controldata")
    enodes = [pair.stack.enode(service) for service in MAILSERVERS]
    assert run_command("post", enodes[0], "--topic", "kept", "--payload", "one history").returncode == 0

    pair.compose("rm", "--stop", "--force", "postgres", MAILSERVERS[0])
    pair.start()

    assert {*container["NetworkSettings"]["Networks"]} == {f"{pair.stack.project}_database"}
    assert container["HostConfig"]["PortBindings"] == {}
    assert container["HostConfig"]["ReadonlyRootfs"]
    assert container["Config"]["User"] == "999:999"
    assert "Data page checksum version:           1" in checksums
    assert [pair.stack.enode(service) for service in MAILSERVERS] == enodes
    wait_for(lambda: is_ready(pair, MAILSERVERS[1]), lambda: pair.stack.logs(MAILSERVERS[1]), QUICK_S)
    answer = run_command("request", enodes[1], "--topic", "kept", "--sym-key-password", "kept")
    assert "one history" in answer.stdout, answer.stderr


def is_ready(pair: Pair, service: str) -> bool:
    try:
        return pair.problems(service) == []
    except urllib.error.HTTPError:
        return False
