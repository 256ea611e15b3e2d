"""The services under the seccomp filters of their units: systemd forbids them nothing that they need."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.confined import analyze, program
from tests.integration.commands import found, post
from tests.integration.communities import running_communities
from tests.integration.daemons import DEADLINE_S, PROGRAM, run_command, running_daemon
from tests.integration.gateways import running_gateway

pytestmark = pytest.mark.integration

MAILSERVER = "waku-mailserver.service"
GATEWAY = "waku-mailserver-gateway.service"
COMMUNITIES = "waku-mailserver-communities.service"

TRIES = """
import os, socket
for family in (socket.AF_INET, socket.AF_INET6, socket.AF_UNIX, socket.AF_NETLINK, socket.AF_PACKET):
    try:
        socket.socket(family, socket.SOCK_DGRAM).close()
        print(family.name)
    except OSError as error:
        print(family.name, error.strerror)
try:
    os.setpriority(os.PRIO_PROCESS, 0, 1)
except OSError as error:
    print("priority", error.strerror)
"""


@pytest.fixture(autouse=True)
def _groups() -> None:
    assert analyze("syscall-filter", "@system-service").returncode == 0


@pytest.mark.parametrize(
    ("unit", "netlink"), [(MAILSERVER, "Address family not supported by protocol"), (COMMUNITIES, None)]
)
def test_filters_forbid_what_the_unit_says(unit: str, netlink: str | None) -> None:
    command = program(unit, sys.executable, "-c", TRIES)

    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=DEADLINE_S)

    assert done.stdout.splitlines() == [
        "AF_INET",
        "AF_INET6",
        "AF_UNIX",
        " ".join(filter(None, ["AF_NETLINK", netlink])),
        "AF_PACKET Address family not supported by protocol",
        "priority Operation not permitted",
    ]


def test_mailserver_serves_under_the_filters_of_its_unit(tmp_path: Path) -> None:
    with running_daemon(tmp_path, "--feed-socket", program=program(MAILSERVER, *PROGRAM)) as daemon:
        envelope_hash = post(daemon.enode, "hello")

        assert [each["hash"] for each in found(daemon.enode)] == [envelope_hash]
        assert daemon.stop() == 0
        assert [line for line in daemon.told if " INFO " not in line] == []


def test_gateway_serves_under_the_filters_of_its_unit(tmp_path: Path) -> None:
    with (
        running_daemon(tmp_path, "--feed-socket"),
        running_gateway(tmp_path, program=program(GATEWAY, *PROGRAM)) as gateway,
    ):
        gateway.wait_for_line("feed connected")

        assert gateway.stop() == 0
        assert [line for line in gateway.told if " INFO " not in line] == []


def test_communities_are_served_under_the_filters_of_their_unit(tmp_path: Path) -> None:
    with (
        running_daemon(tmp_path, "--feed-socket"),
        running_communities(tmp_path, program=program(COMMUNITIES, *PROGRAM)) as communities,
    ):
        communities.wait_for_line("feed connected")

        assert communities.stop() == 0
        assert [line for line in communities.told if " INFO " not in line] == []


def test_communities_say_what_the_system_refuses(tmp_path: Path) -> None:
    arguments = ["community", "serve", "--data-dir", tmp_path, "--torrent-listen", "127.0.0.1:0"]

    done = run_command(*arguments, program=program(MAILSERVER, *PROGRAM))  # which may not ask by netlink

    assert done.returncode == 1
    assert "the torrent process cannot start: session error: " in done.stderr.splitlines()[-1]
    assert "Address family not supported by protocol" in done.stderr.splitlines()[-1]
