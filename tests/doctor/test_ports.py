"""mailserver.doctor.ports: free, taken by somebody else, or by our own daemon that answers."""

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from mailserver.app.config import Config
from mailserver.doctor.findings import Finding, FindingVerdict
from mailserver.doctor.ports import check_ports
from tests.integration.daemons import running_daemon
from tests.ports import free_ports


@pytest.fixture
def taken() -> Iterator[str]:
    """An address where another program listens."""
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        yield f"127.0.0.1:{other.getsockname()[1]}"


async def look(data_dir: Path, **settings: str) -> dict[str, Finding]:
    config = Config(data_dir=data_dir, **{"listen": "127.0.0.1:0", **settings})  # type: ignore[arg-type]
    return {finding.check: finding for finding in await check_ports(config)}


async def test_free_addresses_are_fine_and_stay_free(tmp_path: Path) -> None:
    address, rpc, metrics = [f"127.0.0.1:{port}" for port in free_ports(3)]

    for _ in range(2):
        found = await look(tmp_path, listen=address, rpc=rpc, metrics=metrics)
        assert [found[name].verdict for name in ("listen", "rpc", "metrics")] == [FindingVerdict.OK] * 3
        assert found["listen"].text == f"{address} is free"


async def test_address_that_another_program_has_is_a_problem(tmp_path: Path, taken: str) -> None:
    found = await look(tmp_path, listen=taken, rpc=taken, metrics=taken)

    for name in ("listen", "rpc", "metrics"):
        assert found[name].verdict is FindingVerdict.PROBLEM
        assert found[name].text == f"{taken} is taken by another program"


@pytest.mark.parametrize(
    "address", ["192.0.2.1:30303", "[2001:db8::1]:30303", "no-such-host.invalid:30303", f"{'a' * 64}.test:1"]
)
async def test_address_that_this_machine_has_not_is_a_problem(tmp_path: Path, address: str) -> None:
    assert (await look(tmp_path, listen=address))["listen"].verdict is FindingVerdict.PROBLEM


async def test_any_port_is_fine(tmp_path: Path) -> None:
    assert "any free port" in (await look(tmp_path))["listen"].text


@pytest.mark.parametrize(("address", "wanted"), [("127.0.0.1:0", False), ("[::1]:0", False), ("0.0.0.0:0", True)])
async def test_rpc_that_others_reach_needs_a_token(tmp_path: Path, address: str, wanted: bool) -> None:
    assert ("rpc token" in await look(tmp_path, rpc=address)) == wanted
    assert "rpc token" not in await look(tmp_path, rpc=address, rpc_token_file="token")


@pytest.mark.parametrize(
    ("advertise", "verdict", "words"),
    [
        ("127.0.0.1", FindingVerdict.WARNING, "nobody else can use"),
        ("198.51.100.7", FindingVerdict.OK, "cannot be known here"),
        ("10.0.0.7", FindingVerdict.OK, "of a private network"),
        ("mail.example.org", FindingVerdict.OK, "cannot be known here"),
    ],
)
async def test_advertised_host(tmp_path: Path, advertise: str, verdict: FindingVerdict, words: str) -> None:
    found = (await look(tmp_path, advertise=advertise))["enode"]

    assert found.verdict is verdict
    assert words in found.text


@pytest.mark.integration
async def test_running_mailserver_is_asked_and_answers(tmp_path: Path) -> None:
    address, metrics = [f"127.0.0.1:{port}" for port in free_ports(2)]
    with running_daemon(tmp_path, "--listen", address, "--metrics", metrics) as daemon:
        found = await look(tmp_path, listen=address, metrics=metrics)

        assert found["listen"].verdict is FindingVerdict.OK
        assert found["listen"].text == f"our mailserver runs and answers at {address}"
        assert found["metrics"].text == f"{metrics} is taken, and somebody answers: our mailserver runs"
        daemon.stop()
    assert (await look(tmp_path, listen=address))["listen"].text == f"{address} is free"


@pytest.mark.integration
async def test_running_mailserver_beside_another_program_at_its_address_is_a_problem(
    tmp_path: Path, taken: str
) -> None:
    with running_daemon(tmp_path) as daemon:
        (tmp_path / "enode").write_text(str(daemon.enode).rpartition("@")[0] + f"@{taken}")  # it is not there

        found = await look(tmp_path, listen=taken)

    assert found["listen"].verdict is FindingVerdict.PROBLEM
    assert "does not answer" in found["listen"].text
