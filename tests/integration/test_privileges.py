"""What the daemon opens to others, and what it keeps of its clients: as little as it can."""

import os
import re
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import aiohttp
import pytest

from mailserver.client.sealing import seal_request
from mailserver.codec import rlp
from mailserver.data_dir.folder import ENODE_FILE, KEY_FILE
from mailserver.data_dir.gateway_files import ADDRESSES_FILE, GATEWAY_KEY_FILE, GATEWAY_LOCK_FILE
from mailserver.data_dir.running import CONTROL_FILE
from mailserver.feed_socket.frames import FEED_FILE
from mailserver.files import OTHERS_MAY
from mailserver.gateway.index.schema import INDEX_FILE
from mailserver.mail.request import MailRequest, RequestId
from mailserver.store.sqlite.schema import STORE_FILE
from mailserver.waku.bloom import Interest
from mailserver.waku.envelope import Topic
from mailserver.waku.packets import PacketCode, StatusOptions
from mailserver.waku.payload import key_from_password
from tests.integration.daemons import Daemon, run_command, running_daemon
from tests.integration.gateways import running_gateway
from tests.nobody import NOBODY
from tests.pairs import private_key
from tests.raw_peer import RawPeer, bound_stream

pytestmark = pytest.mark.integration

LISTENING = "0A"
"""The state TCP_LISTEN in /proc/net/tcp."""

ASKED_FOR = Topic(b"\x91\x4c\xe5\x37")
"""A topic that nobody has posted to."""

CLIENT_ADDRESS = "127.91.76.229"
PASSWORD = "status-offline-inbox"


def sockets_of(daemon: Daemon) -> set[str]:
    """The inode numbers of the sockets that the process has open."""
    links = (str(path.readlink()) for path in Path(f"/proc/{daemon.process.pid}/fd").iterdir())
    return {link[len("socket:[") : -1] for link in links if link.startswith("socket:[")}


def internet_sockets(daemon: Daemon) -> Iterator[tuple[str, str, str]]:
    """Protocol, local port in decimal and state of each of its sockets that an address can be given to."""
    ours = sockets_of(daemon)
    for protocol in ("tcp", "tcp6", "udp", "udp6", "raw", "raw6"):
        table = Path(f"/proc/{daemon.process.pid}/net/{protocol}")
        for line in table.read_text().splitlines()[1:]:
            (
                _,
                local,
                _,
                state,
                *_,
            ) = fields = line.split()
            if fields[9] in ours:
                yield protocol, str(int(local.rpartition(":")[2], 16)), state


def listening_ports(daemon: Daemon) -> set[tuple[str, str]]:
    """Where others can reach it; what is no TCP at all would show, too."""
    return {
        (protocol, port)
        for protocol, port, state in internet_sockets(daemon)
        if state == LISTENING or protocol[:3] != "tcp"
    }


def unix_sockets(daemon: Daemon) -> set[str]:
    """The names of its Unix sockets that have one."""
    ours = sockets_of(daemon)
    rows = [line.split() for line in Path(f"/proc/{daemon.process.pid}/net/unix").read_text().splitlines()[1:]]
    return {row[7] for row in rows if row[6] in ours and len(row) > 7}


def ports_in(log: str) -> set[tuple[str, str]]:
    """The ports that it says it serves on."""
    return {("tcp", port) for port in re.findall(r"serving [^\n]*port=(\d+)", log)}


def test_nothing_listens_but_what_is_configured(tmp_path: Path) -> None:
    with running_daemon(tmp_path) as daemon:
        peers = {("tcp", str(daemon.enode.port))}
        assert listening_ports(daemon) == peers
        assert [Path(name).name for name in unix_sockets(daemon)] == [CONTROL_FILE]
        assert daemon.stop() == 0

    flags = ("--rpc", "127.0.0.1:0", "--metrics", "127.0.0.1:0", "--feed-socket")
    with running_daemon(tmp_path, *flags) as daemon:
        peers = {("tcp", str(daemon.enode.port))}
        assert sorted({Path(name).name for name in unix_sockets(daemon)}) == [CONTROL_FILE, FEED_FILE]
        assert len(ports_in(daemon.log)) == 2
        assert listening_ports(daemon) == peers | ports_in(daemon.log)
        assert daemon.stop() == 0


@pytest.mark.parametrize("mask", [0, 0o022])
def test_all_of_a_data_directory_is_its_owners_alone(tmp_path: Path, mask: int) -> None:
    before = os.umask(mask)
    try:
        with (
            running_daemon(tmp_path / "data", "--feed-socket") as daemon,
            running_gateway(tmp_path / "data") as gateway,
        ):
            gateway.wait_for_line("feed connected")
            post(daemon)
            made = run_command("backup", "--data-dir", tmp_path / "data", tmp_path / "backup")
            files = modes_in(tmp_path / "data") | modes_in(tmp_path / "backup")
            assert gateway.stop() == daemon.stop() == 0
        saved = run_command("salvage", "--data-dir", tmp_path / "data", tmp_path / "salvaged")
        files |= modes_in(tmp_path / "data") | modes_in(tmp_path / "salvaged")
    finally:
        os.umask(before)

    assert (made.returncode, saved.returncode) == (0, 0)
    names = {KEY_FILE, CONTROL_FILE, FEED_FILE, ENODE_FILE, "lock"}
    names |= {STORE_FILE, f"{STORE_FILE}-wal", f"{STORE_FILE}-shm"}
    names |= {GATEWAY_KEY_FILE, GATEWAY_LOCK_FILE, ADDRESSES_FILE}
    names |= {INDEX_FILE, f"{INDEX_FILE}-wal", f"{INDEX_FILE}-shm"}
    assert names <= {path.name for path in files}
    assert {str(path): oct(mode) for path, mode in files.items() if mode & OTHERS_MAY} == {}


def modes_in(folder: Path) -> dict[Path, int]:
    """The permissions of a folder, and of all in it."""
    return {path: stat.S_IMODE(path.lstat().st_mode) for path in (folder, *folder.iterdir())}


def post(daemon: Daemon) -> None:
    done = run_command("post", daemon.enode, "--topic", "status", "--payload", "hello")
    assert done.stdout.startswith("confirmed"), done.stderr


LOCKS = """
import fcntl, os, sys
os.setgroups([])
os.setgid({nobody})
os.setuid({nobody})
for path in sys.argv[1:]:
    try:
        descriptor = os.open(path, os.O_RDONLY)
        fcntl.lockf(os.fdopen(descriptor, "rb"), fcntl.LOCK_SH | fcntl.LOCK_NB, 1, 120)
        print(path)
    except PermissionError:
        pass
"""
"""What stopped every commit: a shared lock on byte 120 of the index of the log, by whoever may read that."""


def locked_by_another_user(files: Sequence[Path]) -> list[str]:
    """What another user can lock of these. Only root can become one; else the permissions have to say it."""
    if os.geteuid() != 0:
        return [str(path) for path in files if path.stat().st_mode & OTHERS_MAY]
    program = [sys.executable, "-c", LOCKS.format(nobody=NOBODY)]
    trying = subprocess.run([*program, *files], capture_output=True, text=True, check=False, timeout=20)
    assert (trying.returncode, trying.stderr) == (0, "")
    return trying.stdout.splitlines()


@pytest.mark.parametrize("is_open", [False, True])
def test_another_user_can_neither_open_nor_lock_a_file_of_the_store(is_open: bool) -> None:
    """Nor where the folder has been opened since: the files themselves are not for others."""
    with tempfile.TemporaryDirectory() as parent:  # pytest's own folders are closed to others
        Path(parent).chmod(0o755)
        folder = Path(parent) / "data"
        with running_daemon(folder) as daemon:
            post(daemon)
            if is_open:
                folder.chmod(0o755)
            files = sorted(folder.iterdir())

            assert locked_by_another_user(files) == []
            assert {path.name for path in files} >= {STORE_FILE, f"{STORE_FILE}-wal", f"{STORE_FILE}-shm", "lock"}
            post(daemon)


async def ask_as_a_client(daemon: Daemon) -> None:
    """Connect from an address of its own, say what is wanted, ask for a topic well and badly, and end with a fault."""
    enode = daemon.enode
    raw = await RawPeer.dial(bound_stream((enode.host, enode.port), CLIENT_ADDRESS), enode.node_id, name="a client")
    await raw.greet(status=StatusOptions(topic_interest=frozenset({ASKED_FOR})).encode())
    now = int(time.time())
    interest = Interest(topics=frozenset({ASKED_FOR}))
    request = MailRequest(RequestId(bytes(32)), lower=now - 3600, upper=now, interest=interest, limit=10)
    for password in (PASSWORD, "another"):
        sealed = await seal_request(request, key_from_password(password), min_pow=0, now=now)
        raw.say(PacketCode.P2P_REQUEST, sealed.raw)
        await raw.hear_answer()
    raw.say(PacketCode.P2P_REQUEST, rlp.encode([b"", b"", b"", b"", b"", b"", [ASKED_FOR]]))
    await raw.hear_answer()
    raw.say(PacketCode.MESSAGES, ASKED_FOR)
    await raw.hear_hangup()
    await raw.close()


def kept_in(folder: Path) -> dict[str, bytes]:
    """The contents of a data directory's files, by their names."""
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}


async def told_by(port: str) -> str:
    """All that the metrics' address says."""
    async with aiohttp.ClientSession() as session:
        texts = []
        for path in ("status.json", "history.json", "metrics", "ready"):
            async with session.get(f"http://127.0.0.1:{port}/{path}") as response:
                texts.append(await response.text())
    return "\n".join(texts)


async def test_what_a_client_asked_for_is_in_no_log_file_or_metric(tmp_path: Path) -> None:
    """8/WAKU-MAIL "Security considerations": a mailserver learns who asks for which topics. Ours keeps none of it."""
    with running_daemon(tmp_path, "--metrics", "127.0.0.1:0") as daemon:
        ((_, port),) = ports_in(daemon.log)
        await ask_as_a_client(daemon)
        daemon.wait_for_line("request outcome=rejected")
        told = await told_by(port)
        assert daemon.stop() == 0

    node_id = private_key("a client").public_key
    kept = kept_in(tmp_path)
    assert kept.keys() >= {KEY_FILE, STORE_FILE}
    for name, content in {**kept, "metrics": told.encode(), "log": daemon.log.encode()}.items():
        for secret in (CLIENT_ADDRESS.encode(), ASKED_FOR.hex().encode(), ASKED_FOR, node_id.hex().encode(), node_id):
            assert secret not in content.lower(), (name, secret)
        assert name == "log" or node_id.hex()[:8].encode() not in content, name
    assert f"peer={node_id.hex()[:8]}" in daemon.log  # the short id is all, so that two lines can be told to be of one
