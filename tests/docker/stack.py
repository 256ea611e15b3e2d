"""The real docker-compose.yml as a project of its own: own name, ports, volumes, images and .env."""

import asyncio
import json
import os
import shutil
import subprocess
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from mailserver.client.mail_client import connect
from mailserver.codec.keys import Enode
from mailserver.mail.request import MailRequest, RequestId
from mailserver.store.interface import NewEnvelope
from mailserver.waku.bloom import Interest
from mailserver.waku.envelope import Envelope, Topic
from mailserver.waku.payload import key_from_password
from tests.docker.engine import BUILD_S, QUICK_S, docker, inspect, wait_for
from tests.ports import free_ports
from tests.quick_spark import COMPILER, OPTIONS

REPOSITORY = Path(__file__).parents[2]

HEALTHY_WITHIN_S = 60.0
"""What operators are promised, on a machine that has much else to do."""

COMPACTED_WITHIN_S = 300.0
"""How long a run of the compaction may take on a machine that has much else to do; alone it takes ten seconds."""

SERVICES = ("mailserver", "compaction")

PROFILES = tuple(
    argument for profile in ("gateway", "communities", "monitoring", "postgres") for argument in ("--profile", profile)
)
"""All that there are."""

PUT = """
import asyncio, json, sys
from pathlib import Path
from mailserver.store.sqlite.store import open_store
from mailserver.store.interface import NewEnvelope
from mailserver.waku.envelope import decode_envelope

async def put(rows):
    async with open_store(Path("/data/mailserver.db")) as store:
        for received, raw in rows:
            envelope = decode_envelope(bytes.fromhex(raw))
            new = NewEnvelope(received, envelope.created, envelope.topic, envelope.hash(), envelope.raw)
            await store.put([new])

asyncio.run(put(json.load(sys.stdin)))
"""
"""Run in a container on the volume, while no daemon runs: rows of JSON, each [received, raw as hex]."""


class Stack:
    """A compose project. `settings` are its .env; whoever changes them calls `up` again."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.project = f"waku-mailserver-test-{os.getpid()}"
        p2p, metrics, prometheus, grafana, light, websocket, light_metrics, torrents, served, *second = map(
            str, free_ports(11)
        )
        self.settings = {
            "IMAGE_TAG": self.project,
            "P2P_ADDRESS": "127.0.0.1",
            "P2P_PORT": p2p,
            "METRICS_PORT": metrics,
            "PROMETHEUS_PORT": prometheus,
            "GRAFANA_PORT": grafana,
            "V2_ADDRESS": "127.0.0.1",
            "V2_PORT": light,
            "V2_WEBSOCKET_PORT": websocket,
            "V2_METRICS_PORT": light_metrics,
            "TORRENT_ADDRESS": "127.0.0.1",
            "TORRENT_PORT": torrents,
            "TORRENT_METRICS_PORT": served,
            "P2P_PORT_2": second[0],
            "METRICS_PORT_2": second[1],
            "POSTGRES_PASSWORD": "secret of a test",
            "MAILSERVER_ADVERTISE": "localhost",
            OPTIONS: COMPILER,
        }
        shutil.copy(REPOSITORY / "docker-compose.yml", folder)
        shutil.copytree(REPOSITORY / "docker", folder / "docker")

    def build(self) -> None:
        """Build both images from the repository, as they are there."""
        self._compose(REPOSITORY, "build", within_s=BUILD_S)

    def compose(self, *arguments: str, **options: Any) -> subprocess.CompletedProcess[str]:
        """Run a command of docker compose; options are those of `docker`."""
        lines = [f"{name}={value}\n" for name, value in self.settings.items()]
        (self.folder / ".env").write_text("".join(lines), encoding="utf-8")
        return self._compose(self.folder, *arguments, **options)

    def _compose(self, folder: Path, *arguments: str, **options: Any) -> subprocess.CompletedProcess[str]:
        # What whoever runs the tests has in the environment would go before .env.
        return docker(
            "compose",
            "--project-name",
            self.project,
            *arguments,
            folder=folder,
            environment=self.settings,
            **options,
        )

    def up(self, *services: str) -> None:
        """Start services, by default the mailserver and the compaction, and wait until they are healthy."""
        # Compose waits by itself, at next to no cost: to ask once more by `docker` takes a tenth of a second of CPU.
        waiting = ("--wait", "--wait-timeout", f"{HEALTHY_WITHIN_S:.0f}")
        wanted = services or SERVICES
        started = self.compose(
            "up", "--detach", "--no-build", *waiting, *wanted, check=False, within_s=HEALTHY_WITHIN_S + QUICK_S
        )
        assert started.returncode == 0, started.stderr + "".join(map(self.logs, wanted))
        assert {self.container(service)["State"]["Health"]["Status"] for service in wanted} == {"healthy"}

    def down(self) -> None:
        """Remove the containers; volumes stay."""
        self.compose(*PROFILES, "down")

    def remove(self) -> None:
        """Leave nothing behind: no container, volume, network or image."""
        # `down` leaves those of `run`, if the test that started one has given up on it.
        ours = ("--all", "--quiet", "--filter", f"label=com.docker.compose.project={self.project}")
        for container in docker("ps", *ours).stdout.split():
            docker("rm", "--force", "--volumes", container)
        self.compose(*PROFILES, "down", "--volumes", "--remove-orphans", "--rmi", "local", check=False)
        docker("image", "rm", *(f"{name}:{self.project}" for name in self.images), check=False)

    @property
    def images(self) -> tuple[str, ...]:
        return ("waku-mailserver", "waku-mailserver-compaction")

    def container(self, service: str) -> Any:
        """What the engine says of a service's container."""
        return inspect(self.compose(*PROFILES, "ps", "--all", "--quiet", service).stdout.strip())

    def logs(self, service: str) -> str:
        return self.compose(*PROFILES, "logs", "--no-log-prefix", service).stdout

    def wait_for_line(self, service: str, words: str, within_s: float) -> None:
        """Wait until a container that runs has logged these words."""
        command = ["docker", "logs", "--follow", self.container(service)["Id"]]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as log:
            assert log.stdout is not None
            giving_up = threading.Timer(within_s, log.kill)
            giving_up.start()
            lines = []
            for line in log.stdout:
                lines.append(line)
                if words in line:
                    break
            giving_up.cancel()
            log.kill()
        assert words in "".join(lines[-1:]), f"not within {within_s:g} s: {words}\n{''.join(lines)}"

    def wait_until_healthy(self, service: str) -> None:
        container = self.compose(*PROFILES, "ps", "--all", "--quiet", service).stdout.strip()
        wait_for(
            lambda: inspect(container)["State"]["Health"]["Status"] == "healthy",
            lambda: f"{service}: {json.dumps(inspect(container)['State'], indent=1)}\n{self.logs(service)}",
            HEALTHY_WITHIN_S,
        )

    def python(self, service: str, script: str, *, check: bool = True) -> str:
        """Run a script in a service's running container; return what it printed."""
        return self.compose(*PROFILES, "exec", "-T", service, "python", "-c", script, check=check).stdout

    def put(self, envelopes: Sequence[NewEnvelope]) -> None:
        """Put envelopes into the store, as received when they say; no daemon may run."""
        rows = json.dumps([[envelope.received, envelope.raw.hex()] for envelope in envelopes])
        run = ("run", "--rm", "-T", "--no-deps", "--entrypoint", "python", "mailserver", "-c", PUT)
        self.compose(*run, stdin=rows)

    def read_archive(self, folder: Path, service: str = "compaction") -> Path:
        """Copy the archive out of its volume, as it is now and as a service sees it."""
        self.compose(*PROFILES, "cp", f"{service}:/archive/.", str(folder))
        return folder

    def compact(self, *, check: bool = True) -> subprocess.CompletedProcess[str]:
        """Compact now, as an operator does by hand."""
        return self.compose("run", "--rm", "-T", "compaction", "now", check=check, within_s=COMPACTED_WITHIN_S)

    def enode(self, service: str = "mailserver") -> Enode:
        """What the operator is told to give to others."""
        said = self.compose(*PROFILES, "exec", "-T", service, "waku-mailserver", "enode").stdout
        return Enode.parse(said.strip())


async def history(enode: Enode, topic: Topic, since: int, until: int) -> list[Envelope]:
    """Everything of a topic that a mailserver has, by the published port."""
    found: list[Envelope] = []
    request = MailRequest(
        RequestId(bytes(32)), lower=since, upper=until, interest=Interest(topics=frozenset({topic})), limit=0
    )
    async with asyncio.timeout(QUICK_S), connect(enode, "test") as client:
        await client.request_all(request, key_from_password("status-offline-inbox"), found.extend)
    return found
