"""The gateway as a process of its own, for the length of a `with`."""

import contextlib
import subprocess
import urllib.request
from collections.abc import Iterator, Sequence
from pathlib import Path

from mailserver.data_dir.gateway_files import ADDRESSES_FILE
from tests.integration.daemons import DEADLINE_S, PROGRAM, Daemon, assert_no_traceback, own_environment
from tests.ports import free_ports

METRICS = ("--metrics", "127.0.0.1:0")
"""What has it serve metrics on a free port."""


class GatewayProcess(Daemon):
    """A gateway. Made by `running_gateway`."""

    @property
    def addresses(self) -> list[str]:
        """Where it listens: over TCP, then over WebSocket; waits until it does."""
        self.wait_for_line("/ws/p2p/")
        return (self.data_dir / ADDRESSES_FILE).read_text().split()

    @property
    def tcp(self) -> str:
        """Its multiaddr over TCP."""
        return self.addresses[0]

    @property
    def websocket(self) -> str:
        """Its multiaddr over WebSocket."""
        return self.addresses[1]

    def metric(self, name: str) -> float:
        """A metric of one that runs with METRICS; 0 if there is none of this name and these labels."""
        port = self.wait_for_line("serving metrics").rpartition("port=")[2]
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=DEADLINE_S) as answer:
            lines = answer.read().decode().splitlines()
        return next((float(line.removeprefix(f"{name} ")) for line in lines if line.startswith(f"{name} ")), 0.0)


@contextlib.contextmanager
def running_gateway(
    data_dir: Path, *flags: str, like: GatewayProcess | None = None, program: Sequence[str] = PROGRAM
) -> Iterator[GatewayProcess]:
    """Run a gateway on free ports of loopback, which it exempts from limits; kill it at the end, if it still runs.

    Args:
        flags: more of `waku-mailserver gateway`.
        like: it listens on the ports of this one, which has ended.
        program: what runs `waku-mailserver`, if not this Python alone.
    """
    tcp, websocket = (int(address.split("/")[4]) for address in like.addresses) if like else free_ports(2)
    arguments = ["gateway", "--data-dir", str(data_dir), "--listen", f"127.0.0.1:{tcp}"]
    arguments += ["--websocket", f"127.0.0.1:{websocket}", "--allowed-addresses", "127.0.0.1", *flags]
    process = subprocess.Popen(
        [*program, *arguments],
        stdin=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        env=own_environment(),
    )
    gateway = GatewayProcess(process, data_dir)
    try:
        gateway.wait_for_line("/ws/p2p/")
        yield gateway
    finally:
        gateway.end()
    assert_no_traceback(gateway.log)
