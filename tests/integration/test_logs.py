"""What the daemon logs, as a process: no secret at any level, JSON from the first line to the last, SIGHUP."""

import json
import signal
import socket
import time
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from mailserver.client.mail_client import connect
from mailserver.client.sealing import seal_envelope
from mailserver.codec import rlp
from mailserver.mail.request import MailRequest, RequestId
from mailserver.waku.bloom import FULL_INTEREST
from mailserver.waku.envelope import Topic
from mailserver.waku.packets import PacketCode
from mailserver.waku.payload import key_from_password
from tests.integration.daemons import Daemon, run_command, running_daemon
from tests.integration.peers import Peers

pytestmark = pytest.mark.integration

NODE_KEY = bytes(range(1, 33)).hex()
PASSWORD = "the-password-of-requests"
TOKEN = "the-token-of-callers-0123456789"
CALLED_PASSWORD = "the-password-of-a-chat"
PAYLOAD = b"what only two should read"
TOPIC = Topic(b"\x9a\xcb\x04\x42")
LONG_AGO = 1_792_324_800


async def call(port: str, method: str, *params: object, token: str = TOKEN) -> Any:
    """Make a call by JSON-RPC; return the whole answer."""
    body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
    async with (
        aiohttp.ClientSession(headers={"Authorization": f"Bearer {token}"}) as session,
        session.post(f"http://127.0.0.1:{port}/", json=body) as response,
    ):
        return await response.json() if response.status == 200 else await response.text()


async def say_all_secrets(daemon: Daemon, port: str, peers: Peers) -> list[str]:
    """Have the daemon meet all its secrets, in good requests and in bad ones; return those that are made here."""
    secrets = [PAYLOAD.decode(), PAYLOAD.hex(), key_from_password(PASSWORD).hex(), key_from_password("chat").hex()]
    generated = (await call(port, "waku_generateSymKeyFromPassword", CALLED_PASSWORD))["result"]
    secrets.append((await call(port, "waku_getSymKey", generated))["result"].removeprefix("0x"))
    pair = (await call(port, "waku_newKeyPair"))["result"]
    secrets.append((await call(port, "waku_getPrivateKey", pair))["result"].removeprefix("0x"))
    post = {"topic": "0x" + TOPIC.hex(), "payload": "0x" + PAYLOAD.hex(), "symKeyID": generated, "powTarget": 0.01}
    assert "error" not in await call(port, "waku_post", post | {"ttl": 60, "powTime": 5})
    assert "error" in await call(port, "waku_post", post | {"sig": "0x" + PAYLOAD.hex()})
    assert "error" in await call(port, "waku_addSymKey", "0x" + secrets[-1] + "00")
    assert "error" in await call(port, f"waku_{CALLED_PASSWORD}", CALLED_PASSWORD)
    await call(port, "waku_info", token=TOKEN + "x")

    async with connect(daemon.enode, "client") as client:
        key = key_from_password("chat")
        for now, errors in ((int(time.time()), 0), (LONG_AGO, 1)):
            envelope = await seal_envelope(PAYLOAD, key, TOPIC, ttl=60, min_pow=0.0001, now=now)
            secrets += [envelope.raw.hex(), envelope.data.hex()]
            assert len((await client.post([envelope])).errors) == errors
        request = MailRequest(RequestId(bytes(32)), lower=0, upper=0, interest=FULL_INTEREST, limit=10, cursor=None)
        await client.request(request, key_from_password(PASSWORD), lambda envelopes: None)
    raw = await peers.join(daemon)
    raw.say(PacketCode.P2P_REQUEST, rlp.encode([PAYLOAD, PASSWORD.encode(), b"", b"", b"", b"", [TOPIC]]))
    await raw.hear_answer()
    raw.say(PacketCode.MESSAGES, PAYLOAD)
    await raw.hear_hangup()
    return secrets


@pytest.mark.parametrize("form", ["text", "json"])
async def test_no_key_password_token_or_payload_is_in_the_log_at_any_level(
    form: str, tmp_path: Path, peers: Peers
) -> None:
    for name, text in (("nodekey", NODE_KEY), ("token", TOKEN)):
        (tmp_path / name).touch(0o600)
        (tmp_path / name).write_text(text)
    flags = ["--password", PASSWORD, "--rpc", "127.0.0.1:0", "--rpc-token-file", str(tmp_path / "token")]

    with running_daemon(tmp_path, "--log-level", "debug", "--log-format", form, *flags) as daemon:
        port = port_of(daemon.wait_for_line("serving JSON-RPC"))
        secrets = await say_all_secrets(daemon, port, peers)
        assert daemon.stop() == 0

    for event in ("peer connected", "envelopes refused", "peer left"):
        assert event in daemon.log
    for secret in [NODE_KEY, PASSWORD, TOKEN, CALLED_PASSWORD, *secrets]:
        assert secret.lower() not in daemon.log.lower(), secret


def port_of(line: str) -> str:
    """The port in a line of either format."""
    return str(json.loads(line)["port"]) if line.startswith("{") else line.partition("port=")[2].split()[0]


def test_all_of_a_json_log_is_json(tmp_path: Path) -> None:
    with running_daemon(tmp_path, "--log-format", "json") as daemon:
        assert daemon.stop() == 0

    events = [json.loads(line) for line in daemon.told]
    assert [event["event"] for event in events] == ["starting", "listening", "stopping", "stopped"]
    assert events[1]["enode"] == str(daemon.enode)


def test_why_a_daemon_does_not_start_is_json_too(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        done = run_command("run", "--data-dir", tmp_path, "--listen", address, "--log-format", "json")

    assert done.returncode == 1
    last = [json.loads(line) for line in done.stderr.splitlines()][-1]
    assert (last["level"], last["event"]) == ("CRITICAL", "failed")
    assert last["cause"].startswith(f"cannot listen on {address}: ")


async def test_level_and_format_follow_the_settings(tmp_path: Path, peers: Peers) -> None:
    file = tmp_path / "mailserver.toml"
    file.write_text('log_level = "info"\nmax_request_limit = 7\n')

    with running_daemon(tmp_path, "--config", str(file)) as daemon:
        await (await peers.join(daemon)).close()
        file.write_text('log_level = "debug"\nlog_format = "json"\nmax_request_limit = 8\n')
        for changed in ("log_level,log_format", "-"):
            daemon.process.send_signal(signal.SIGHUP)
            daemon.wait_for_line(f'"changed": "{changed}"')
        await peers.join(daemon)
        daemon.wait_for_line("peer connected")
        assert daemon.stop() == 0

    text = [line for line in daemon.told if not line.startswith("{")]
    events = [json.loads(line) for line in daemon.told[len(text) :]]
    assert [line.split(maxsplit=2)[2].split()[0] for line in text] == ["starting", "listening", "setting"]
    assert {event["event"] for event in events} > {"peer connected"}
    ours = [event for event in events if event["logger"] == "mailserver.app.wiring"]
    assert [(event["event"], event.get("changed", event.get("name"))) for event in ours] == [
        ("settings reloaded", "log_level,log_format"),
        ("setting needs a restart", "max_request_limit"),  # said until it is in force
        ("settings reloaded", "-"),
    ]
