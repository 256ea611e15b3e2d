"""Hosts with nothing between them but lines that do what a test says: cut, delay, lose, reorder, repeat, reject.

Each host is a set of namespaces (tests/faults/host.py), and a switch in a process of its own carries every packet
(tests/faults/switch.py): no privilege is needed, no module of the kernel but TUN devices, and nothing leaves the hosts.
Daemons run inside (`Host.inside`); clients stay in the process of the test, and use sockets that were made inside.
"""

import contextlib
import json
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import pytest

from tests.faults.host import HOSTS_FILE, MAX_COMMAND_BYTES
from tests.faults.switch import Line

REPLY_WITHIN_S = 20.0
"""How long hosts and the switch may take to do something."""

CUT = Line(is_cut=True)
REJECTING = Line(rejects=True)

PORT = 30303
"""What daemons listen on, each in its own host."""


class Host:
    """One host. `number` counts from 1; it has the address 10.77.NUMBER.1 until it moves."""

    def __init__(self, number: int, hosts_file: Path) -> None:
        """Make it; the caller closes it."""
        self.number = number
        self._visits = 1
        self._asked, inside = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._asked.settimeout(REPLY_WITHIN_S)
        with inside:
            command = ["unshare", "--user", "--map-root-user", "--net", "--mount", sys.executable, "-m"]
            self.process = subprocess.Popen(
                [*command, "tests.faults.host", str(inside.fileno()), self.address, str(hosts_file)],
                pass_fds=[inside.fileno()],
                stdin=subprocess.DEVNULL,
                env=_environment(),
            )
        try:
            _, (self.line,), _, _ = socket.recv_fds(self._asked, MAX_COMMAND_BYTES, 1)
        except BaseException:
            self.close()
            raise

    @property
    def address(self) -> str:
        """Where it is now."""
        return f"10.77.{self.number}.{self._visits}"

    @property
    def inside(self) -> tuple[str, ...]:
        """What to put before a command that is to run inside; it dies with whoever starts it."""
        entered = ["nsenter", "--user", "--net", "--mount", "--preserve-credentials", "--target"]
        return (*entered, str(self.process.pid), "setpriv", "--pdeathsig", "KILL", "--")

    def socket(self) -> socket.socket:
        """A TCP socket, not connected yet and not blocking, whose packets leave from here."""
        self._asked.send(b"socket")
        _, (descriptor,), _, _ = socket.recv_fds(self._asked, MAX_COMMAND_BYTES, 1)
        made = socket.socket(fileno=descriptor)
        made.setblocking(False)
        return made

    def move(self) -> None:
        """Get another address. Connections from the former one are silent for ever, at both ends."""
        former = self.address
        self._visits += 1
        self._asked.send(f"move {former} {self.address}".encode())
        assert self._asked.recv(MAX_COMMAND_BYTES) == b"moved"

    def close(self) -> None:
        """Remove it."""
        self._asked.close()
        self.process.wait(REPLY_WITHIN_S)


class Network:
    """Some hosts, and the lines between them. Made by `network`. `processes`: the ids of those that keep it alive."""

    def __init__(self, hosts: Mapping[int, Host], switch: int, control: socket.socket, hosts_file: Path) -> None:
        self.processes = [*(host.process.pid for host in hosts.values()), switch]
        self._hosts = hosts
        self._control = control
        self._hosts_file = hosts_file
        self._names: dict[str, Host] = {}

    def __getitem__(self, number: int) -> Host:
        return self._hosts[number]

    def set(self, *directions: tuple[int, int], line: Line) -> None:
        """How packets fare in these directions, (source, target), from now on."""
        self._tell([(source, target, line) for source, target in directions])

    def between(self, ones: Iterable[int], others: Iterable[int], line: Line) -> None:
        """The same in both directions between these hosts and those."""
        pairs = [(one, other) for one in ones for other in others if one != other]
        self._tell([(a, b, line) for one, other in pairs for a, b in ((one, other), (other, one))])

    def everywhere(self, line: Line) -> None:
        """The same between all hosts."""
        self.between(self._hosts, self._hosts, line)

    def heal(self) -> None:
        """All lines are perfect again."""
        self.everywhere(Line())

    def name(self, name: str, host: Host) -> None:
        """Have every host know this host by a name, where it is now."""
        self._names[name] = host
        lines = ["127.0.0.1 localhost", *(f"{host.address} {name}" for name, host in self._names.items())]
        self._hosts_file.write_text("\n".join(lines) + "\n")  # in place: it is mounted

    def counts(self) -> dict[str, int]:
        """How many packets were carried, cut, lost, too_long, duplicated, reordered, reset so far."""
        return self._tell([])

    def _tell(self, directions: list[tuple[int, int, Line]]) -> dict[str, int]:
        self._control.send(json.dumps([(a, b, line.as_json()) for a, b, line in directions]).encode())
        counts: dict[str, int] = json.loads(self._control.recv(MAX_COMMAND_BYTES))
        return counts


@contextlib.contextmanager
def network(folder: Path, hosts: int, seed: int) -> Iterator[Network]:
    """Some hosts with perfect lines for the length of a `with`.

    Args:
        folder: for the hosts' common /etc/hosts.
        seed: of all that the switch leaves to chance.
    """
    hosts_file = folder / "hosts"
    hosts_file.write_text("127.0.0.1 localhost\n")
    with contextlib.ExitStack() as stack:
        made = {}
        for number in range(1, hosts + 1):
            made[number] = Host(number, hosts_file)
            stack.callback(made[number].close)
        control, inside = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        control.settimeout(REPLY_WITHIN_S)
        lines = [host.line for host in made.values()]
        with inside:
            switch = subprocess.Popen(
                [sys.executable, "-m", "tests.faults.switch", *map(str, (seed, inside.fileno(), *lines))],
                pass_fds=[inside.fileno(), *lines],
                stdin=subprocess.DEVNULL,
                env=_environment(),
            )
        stack.callback(switch.wait, REPLY_WITHIN_S)
        stack.callback(control.close)
        for line in lines:
            os.close(line)
        yield Network(made, switch.pid, control, hosts_file)


def fault() -> str:
    """Why there can be no such hosts here; "" if there can."""
    missing = [name for name in ("unshare", "nsenter", "setpriv", "ip", "mount") if shutil.which(name) is None]
    if missing:
        return f"not installed: {', '.join(missing)}"
    if not Path("/dev/net/tun").exists():
        return "the kernel has no TUN devices"
    needed = f"ip tuntap add try mode tun && mount --bind {HOSTS_FILE} {HOSTS_FILE}"
    command = ["unshare", "--user", "--map-root-user", "--net", "--mount", "sh", "-c", needed]
    tried = subprocess.run(command, capture_output=True, text=True, check=False)
    return "" if tried.returncode == 0 else f"no namespaces with TUN devices: {tried.stderr.strip()}"


def require() -> None:
    """Skip the test where there can be no such hosts; CI always can."""
    why = fault()
    if why and os.environ.get("CI"):
        pytest.fail(why)
    if why:
        pytest.skip(why)


def _environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
