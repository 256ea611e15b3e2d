"""Peers that break the rules, say nothing or too much: each hears why, and nobody else notices."""

import os
import random
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

from mailserver.codec import snappy
from mailserver.errors import DisconnectReason
from mailserver.net.listener import MAX_PENDING
from mailserver.rlpx import p2p
from mailserver.rlpx.capabilities import Capability
from mailserver.waku.packets import PacketCode
from tests.integration.conversations import CLEAR_ID, EMPTY_LIST, clear_request, fresh, messages, serves
from tests.integration.daemons import Daemon, running_daemon
from tests.integration.peers import Peers
from tests.mailservers import make_envelope
from tests.pairs import private_key
from tests.properties import settings
from tests.raw_peer import (
    DEPLOYED_STATUS,
    WAKU,
    Hangup,
    RawPeer,
    at_end,
    close_stream,
    open_stream,
)

pytestmark = pytest.mark.integration


async def test_more_strangers_than_may_be_pending_do_not_keep_an_honest_peer_out(shared: Daemon, peers: Peers) -> None:
    enode = shared.enode
    writers = []
    for number in range(MAX_PENDING + 100):
        _, writer = await open_stream((enode.host, enode.port))
        writer.write(b"\x01" * (number % 3))
        writers.append(writer)

    assert await serves(peers, shared)

    for writer in writers:
        await close_stream(writer)


async def test_half_open_handshake_ends_after_five_seconds(shared: Daemon) -> None:
    enode = shared.enode
    started = time.monotonic()
    reader, writer = await open_stream((enode.host, enode.port))
    writer.write(b"\x01\x90")

    assert await at_end(reader)

    assert time.monotonic() - started > 4.5  # and sooner than the 30 s of who is idle after a handshake: see at_end
    await close_stream(writer)


def garbled(raw: RawPeer) -> bytes:
    frame = bytearray(raw.packet(PacketCode.MESSAGES, EMPTY_LIST))
    frame[random.randrange(len(frame))] ^= 1 << random.randrange(8)
    return bytes(frame)


AFTER_STATUS: dict[str, tuple[Callable[[RawPeer], bytes], DisconnectReason | None]] = {
    "a frame with a flipped bit": (garbled, DisconnectReason.PROTOCOL_BREACH),
    "random bytes": (lambda _: os.urandom(3000), DisconnectReason.PROTOCOL_BREACH),
    "the header of an oversize frame": (
        lambda raw: raw.frame_of(bytes(4_000_000))[:32],
        DisconnectReason.PROTOCOL_BREACH,
    ),
    "a Snappy bomb": (
        lambda raw: raw.frame_of(b"\x11" + b"\xff\xff\xff\xff\x0f" + bytes(10)),
        DisconnectReason.PROTOCOL_BREACH,
    ),
    "2 MiB of Messages": (
        lambda raw: raw.frame_of(b"\x11" + snappy.compress(bytes(2 << 20))),
        DisconnectReason.PROTOCOL_BREACH,
    ),
    "an RLP bomb as Messages": (lambda raw: raw.packet(1, b"\xc1" * 100_000), DisconnectReason.SUBPROTOCOL_ERROR),
    "an RLP bomb as Status Update": (lambda raw: raw.packet(22, b"\xc1" * 99_999), DisconnectReason.SUBPROTOCOL_ERROR),
    "a truncated envelope": (
        lambda raw: raw.packet(1, messages([make_envelope(1)])[:-1]),
        DisconnectReason.SUBPROTOCOL_ERROR,
    ),
    "Hello again": (lambda raw: raw.hello(), DisconnectReason.PROTOCOL_BREACH),
    "a message id of nobody": (lambda raw: raw.frame(0xF0, b""), DisconnectReason.PROTOCOL_BREACH),
    "Goodbye": (lambda raw: raw.frame(p2p.MessageId.DISCONNECT, b"\x08"), None),
}


@pytest.mark.parametrize("fault", AFTER_STATUS)
async def test_peer_at_fault_hears_why_and_nobody_else_notices(shared: Daemon, peers: Peers, fault: str) -> None:
    say, reason = AFTER_STATUS[fault]
    good, bad = await peers.join(shared, "good"), await peers.join(shared, "bad")

    bad.write(say(bad))

    assert await bad.hear_hangup() is reason
    assert await serves(peers, shared, good)


async def test_fault_in_one_write_with_everything_before_it_is_the_peers_alone(shared: Daemon, peers: Peers) -> None:
    good = await peers.join(shared, "good")
    for say, reason in AFTER_STATUS.values():
        bad = await peers.dial(shared, "bad")
        hello = bad.hello()
        bad.compressed = True
        status = bad.packet(PacketCode.STATUS, DEPLOYED_STATUS)

        bad.write(hello, status, say(bad))

        bad.compressed = False
        assert (await bad.hear()).message_id == p2p.MessageId.HELLO
        bad.compressed = True
        assert await bad.hear_hangup() is reason
    assert await serves(peers, shared, good)


async def test_peer_without_waku_1_hears_that_it_is_useless(shared: Daemon, peers: Peers) -> None:
    raw = await peers.dial(shared)

    raw.write(raw.hello(capabilities=[Capability("waku", 0)]))
    await raw.hear()
    raw.compressed = True

    assert await raw.hear_hangup() is DisconnectReason.USELESS_PEER


async def test_peer_above_the_limit_hears_so(tmp_path: Path, peers: Peers) -> None:
    with running_daemon(tmp_path, "--max-peers", "2") as daemon:
        for number in range(2):
            await peers.join(daemon, f"client {number}")

        raw = await peers.dial(daemon, "one too many")

        assert await raw.hear_hangup() is DisconnectReason.TOO_MANY_PEERS


async def test_who_never_sends_status_keeps_no_place(tmp_path: Path, peers: Peers) -> None:
    with running_daemon(tmp_path, "--max-peers", "1") as daemon:
        silent = await peers.dial(daemon, "silent")
        await silent.greet(status=None)
        refused = await peers.dial(daemon, "refused")
        assert await refused.hear_hangup() is DisconnectReason.TOO_MANY_PEERS

        assert await silent.hear_hangup() is DisconnectReason.PING_TIMEOUT

        await (await peers.dial(daemon, "client")).greet()


async def test_own_enode_among_the_peers_is_said_once_and_left_out(tmp_path: Path, peers: Peers) -> None:
    with running_daemon(tmp_path) as daemon:
        own, other = str(daemon.enode), f"enode://{private_key('other').public_key.hex()}@127.0.0.1:1"
        daemon.stop()
    settings_file = tmp_path / "settings.toml"
    settings_file.write_text(f'static_peers = ["{own}"]\n')
    flags = ("--trusted-peers", f"{own},{other}", "--sync-days", "1", "--config", str(settings_file))
    with running_daemon(tmp_path, *flags, "--log-level", "debug") as daemon:
        settings_file.write_text(f'static_peers = ["{own}", "{other}"]\n')
        daemon.process.send_signal(signal.SIGHUP)

        daemon.wait_for_line("static peer not reached")
        daemon.wait_for_line("catch-up waits")

        assert daemon.log.count("own enode is named among the peers") == 1
        assert own.removeprefix("enode://")[:8] + "@" not in daemon.log


async def test_static_peer_with_another_node_id_than_its_enode_says_is_told(tmp_path: Path) -> None:
    with running_daemon(tmp_path / "other") as other:
        wrong = f"enode://{private_key('wrong').public_key.hex()}@{other.enode.host}:{other.enode.port}"
        with running_daemon(tmp_path / "ours", "--static-peers", wrong) as daemon:
            line = daemon.wait_for_line("static peer not reached")

            assert "another node id than the enode says" in line


async def test_whoever_has_our_own_key_hears_so(tmp_path: Path, peers: Peers) -> None:
    key_file = tmp_path / "nodekey"
    key_file.write_text(f"{private_key('ourselves').secret.hex()}\n")
    key_file.chmod(0o600)
    with running_daemon(tmp_path) as daemon:
        raw = await peers.dial(daemon, "ourselves")

        assert await raw.hear_hangup() is DisconnectReason.SELF_CONNECTION


CONVERSATION_BYTES = st.binary(min_size=1, max_size=600)


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(garbage=st.binary(min_size=1, max_size=2000))
async def test_whatever_a_stranger_sends_disturbs_nobody(shared: Daemon, peers: Peers, garbage: bytes) -> None:
    enode = shared.enode
    _, writer = await open_stream((enode.host, enode.port))

    writer.write(garbage)
    await writer.drain()

    await close_stream(writer)


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    packets=st.lists(
        st.tuples(st.sampled_from([*PacketCode, 2, 99, 127]) | st.integers(0, 127), CONVERSATION_BYTES), max_size=6
    ),
    greets=st.booleans(),
)
async def test_whatever_a_peer_says_ends_at_most_its_own_connection(
    shared: Daemon, peers: Peers, packets: list[tuple[int, bytes]], greets: bool
) -> None:
    raw = await peers.dial(shared, "whatever")
    if greets:
        await raw.greet()
    else:
        raw.write(raw.hello())
        await raw.hear()
        raw.compressed = True

    raw.write(*(raw.packet(code, payload) for code, payload in packets))
    raw.write(raw.packet(PacketCode.P2P_REQUEST, clear_request(limit=1)))

    assert await end_of(raw) in ("answered", "SUBPROTOCOL_ERROR")
    await raw.close()


async def end_of(raw: RawPeer) -> str:
    """Wait until the request with CLEAR_ID is answered, or the connection has ended; return why in that case."""
    try:
        while True:
            code, payload = await raw.hear_packet()
            if code == PacketCode.P2P_REQUEST_COMPLETE and CLEAR_ID in payload:
                return "answered"
    except Hangup as hangup:
        return "nothing said" if hangup.reason is None else hangup.reason.name


async def test_every_truncation_of_a_conversation_is_taken_as_its_end(shared: Daemon, peers: Peers) -> None:
    for cut in random.sample(range(1500), 40):
        raw = await peers.dial(shared, "truncated")
        hello = raw.hello(capabilities=(Capability("waku", 0), WAKU))
        raw.compressed = True
        whole = (
            hello + raw.packet(PacketCode.STATUS, DEPLOYED_STATUS) + raw.packet(PacketCode.MESSAGES, messages(fresh(3)))
        )

        raw.write(whole[:cut])
        raw.writer.write_eof()

        assert await raw.at_end()
        await raw.close()
    assert await serves(peers, shared)
