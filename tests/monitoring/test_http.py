"""mailserver.monitoring.http: over real sockets, asked by aiohttp's client and by worse."""

import asyncio
import contextlib
import json
import socket
from collections.abc import AsyncIterator, Sequence
from functools import partial
from pathlib import Path

import aiohttp
import pytest

from mailserver.metrics.figures import DiskFigures
from mailserver.monitoring import http_server as http_module
from mailserver.monitoring import state as state_module
from mailserver.monitoring.http import Monitor
from mailserver.monitoring.http_server import LINGER_S, MAX_CONNECTIONS, MAX_HEADER_BYTES, MAX_HEADERS
from mailserver.monitoring.last_day import Minutes, encode_shown
from mailserver.monitoring.page import load_page
from mailserver.monitoring.state import Monitoring
from mailserver.monitoring.watch import Sight
from mailserver.store.sqlite.schema import STORE_FILE
from mailserver.store.sqlite.store import open_store
from tests.monitoring.samples import SYNC, monitoring
from tests.raw_peer import close_stream
from tests.waiting import DEADLINE_S, until

pytestmark = pytest.mark.integration

LINE = 'mailserver_sync_fetched_envelopes_total{source="abcd1234@192.0.2.1:30303"} 250.0'
GET = b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n"


@pytest.fixture
async def state(tmp_path: Path) -> AsyncIterator[Monitoring]:
    async with open_store(tmp_path / STORE_FILE) as store:
        yield monitoring(store, tmp_path, sync=[SYNC])


@pytest.fixture
async def port(state: Monitoring) -> AsyncIterator[int]:
    monitor = Monitor(state)
    yield await monitor.start("127.0.0.1", 0)
    await asyncio.wait_for(monitor.stop(), DEADLINE_S)


async def say(port: int, *texts: bytes) -> bytes:
    """Say this on a connection of its own; return all of what comes until the other side hangs up."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        with contextlib.suppress(ConnectionError):
            for text in texts:
                writer.write(text)
                await writer.drain()
        return await asyncio.wait_for(reader.read(), DEADLINE_S)
    finally:
        await close_stream(writer)


async def test_metrics_are_given_in_prometheus_text_format(port: int) -> None:
    async with (
        aiohttp.ClientSession() as session,
        session.get(f"http://127.0.0.1:{port}/metrics") as response,
    ):
        assert response.status == 200
        assert response.headers["Content-Type"].startswith("text/plain; version=")
        assert LINE in (await response.text()).split("\n")


@pytest.mark.parametrize(
    ("request_line", "status"),
    [
        (b"GET /page.js HTTP/1.1", 404),
        (b"GET /favicon.ico HTTP/1.1", 404),
        (b"GET /status.json/ HTTP/1.1", 404),
        (b"GET /%2e%2e/history.json HTTP/1.1", 404),
        (b"POST / HTTP/1.1", 405),
        (b"PUT /status.json HTTP/1.1", 405),
        (b"POST /history.json HTTP/1.1", 405),
        (b"GET /metrics/../secret HTTP/1.1", 404),
        (b"POST /metrics HTTP/1.1", 405),
        (b"DELETE /metrics HTTP/1.1", 405),
        (b"nonsense", 400),
    ],
)
async def test_there_is_nothing_else(port: int, request_line: bytes, status: int) -> None:
    answer = await say(port, request_line + b"\r\nHost: localhost\r\nConnection: close\r\n\r\n")

    assert int(answer.split()[1]) == status
    assert b"mailserver_" not in answer


@pytest.mark.parametrize(
    "headers",
    [
        b"X: " + b"x" * (MAX_HEADER_BYTES + 1) + b"\r\n",
        b"".join(b"X-%d: x\r\n" % number for number in range(MAX_HEADERS + 1)),
    ],
)
async def test_headers_have_bounds(port: int, headers: bytes) -> None:
    answer = await say(port, GET + headers + b"Connection: close\r\n\r\n")

    assert answer.startswith((b"HTTP/1.1 4", b"HTTP/1.0 4"))


async def test_long_body_is_not_read_to_its_end(port: int) -> None:
    body = [bytes(65536)] * 16
    async with asyncio.timeout(5 * LINGER_S):
        answer = await say(port, GET + b"Content-Length: 1000000000000\r\n\r\n", *body)

    assert answer.startswith(b"HTTP/1.1 200")


async def test_who_connects_and_says_nothing_keeps_nobody_out(port: int) -> None:
    silent = [await asyncio.open_connection("127.0.0.1", port) for _ in range(3 * MAX_CONNECTIONS)]
    try:
        answer = await say(port, GET + b"Connection: close\r\n\r\n")
        assert LINE.encode() in answer
        await until(lambda: sum(not reader.at_eof() for reader, _ in silent) <= MAX_CONNECTIONS)
    finally:
        for _, writer in silent:
            await close_stream(writer)


def is_open(silent: socket.socket) -> bool:
    """Whether the other side has not ended this."""
    try:
        return bool(silent.recv(1))
    except BlockingIOError:
        return True
    except ConnectionError:
        return False


def have_open(sockets: Sequence[socket.socket], count: int) -> bool:
    return sum(map(is_open, sockets)) == count


async def test_those_who_connect_in_one_moment_are_no_more_than_may_be(port: int) -> None:
    with contextlib.ExitStack() as closing:
        silent = [closing.enter_context(socket.socket()) for _ in range(4 * MAX_CONNECTIONS)]
        for first in range(0, len(silent), MAX_CONNECTIONS):
            burst = silent[first : first + MAX_CONNECTIONS]
            for each in burst:
                each.setblocking(False)
                each.connect_ex(("127.0.0.1", port))  # all before the server's next look at its socket
            so_far = silent[: first + MAX_CONNECTIONS]
            await until(partial(have_open, so_far, MAX_CONNECTIONS))

        assert LINE.encode() in await say(port, GET + b"Connection: close\r\n\r\n")


async def test_connection_is_kept_for_the_next_time_and_not_for_ever(
    state: Monitoring, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_module, "KEEPALIVE_S", 0.05)
    monitor = Monitor(state)
    port = await monitor.start("127.0.0.1", 0)

    answer = await say(port, GET + b"\r\n" + GET + b"\r\n")
    await monitor.stop()

    assert answer.count(b"HTTP/1.1 200") == 2


async def test_address_that_is_taken_is_an_error_and_leaves_nothing(state: Monitoring) -> None:
    monitor = Monitor(state)
    with socket.create_server(("127.0.0.1", 0)) as taken, pytest.raises(OSError, match="address already in use"):
        await monitor.start("127.0.0.1", taken.getsockname()[1])
    await monitor.stop()


async def test_stop_ends_connections_and_frees_the_port(state: Monitoring) -> None:
    monitor = Monitor(state)
    port = await monitor.start("127.0.0.1", 0)
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(GET + b"\r\n")
    await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), DEADLINE_S)

    await asyncio.wait_for(monitor.stop(), DEADLINE_S)

    await asyncio.wait_for(reader.read(), DEADLINE_S)
    await close_stream(writer)
    with socket.create_server(("127.0.0.1", port), reuse_port=False):
        pass


async def get(port: int, path: str) -> tuple[int, object]:
    """Status and JSON of an answer."""
    async with aiohttp.ClientSession() as session, session.get(f"http://127.0.0.1:{port}{path}") as response:
        assert response.headers["Cache-Control"] == "no-store"
        return response.status, await response.json()


async def text_of(port: int) -> str:
    async with aiohttp.ClientSession() as session, session.get(f"http://127.0.0.1:{port}/metrics") as response:
        return await response.text()


async def test_who_is_well_is_alive_and_ready(port: int) -> None:
    assert await get(port, "/health") == (200, {"status": "alive", "problems": []})
    assert await get(port, "/ready") == (200, {"status": "ready", "problems": []})


async def test_store_that_is_not_writable_is_said_in_words_and_is_not_ready(state: Monitoring, port: int) -> None:
    state.health.judge(Sight(store_problem="database or disk is full"))

    text = "the store is not writable: database or disk is full"
    problems = [{"check": "store", "fatal": True, "text": text}]
    assert await get(port, "/ready") == (503, {"status": "not ready", "problems": problems})
    assert await get(port, "/health") == (200, {"status": "alive", "problems": problems})  # a restart would not help
    assert "\nmailserver_ready 0.0\n" in await text_of(port)


async def test_warning_is_said_and_leaves_it_ready(state: Monitoring, port: int) -> None:
    state.health.judge(Sight(disk=DiskFigures(free=2**30, size=2**40)))

    text = "the disk is nearly full: 1 GiB of 1 TiB free"
    problems = [{"check": "disk", "fatal": False, "text": text}]
    assert await get(port, "/ready") == (200, {"status": "ready", "problems": problems})
    exposed = await text_of(port)
    assert 'mailserver_problem{check="disk"} 1.0' in exposed
    assert "\nmailserver_ready 1.0\n" in exposed


PATHS = ["/", "/status.json", "/history.json", "/metrics", "/health", "/ready"]


@pytest.mark.parametrize("path", [*PATHS, "/nothing"])
async def test_no_other_site_may_have_an_answer(port: int, path: str) -> None:
    async with aiohttp.ClientSession() as session, session.get(f"http://127.0.0.1:{port}{path}") as response:
        assert response.headers["X-Content-Type-Options"] == "nosniff"
        assert response.headers["Referrer-Policy"] == "no-referrer"
        assert response.headers["Cross-Origin-Resource-Policy"] == "same-origin"
        assert not [name for name in response.headers if name.lower().startswith("access-control-")]


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:9100", "localhost.evil.example", "127.0.0.1.nip.io", ""]
)
async def test_name_that_was_made_to_mean_this_machine_is_refused(port: int, path: str, host: str) -> None:
    lines = f"GET {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n"

    answer = await say(port, lines.encode())

    assert answer.startswith(b"HTTP/1.1 403")
    assert answer.endswith(b"Host is not localhost, 127.0.0.1 or [::1]\n")


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1:9100", "[::1]:9100", "LocalHost:1"])
async def test_names_of_this_machine_are_taken(port: int, host: str) -> None:
    answer = await say(port, f"GET /health HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n".encode())

    assert answer.startswith(b"HTTP/1.1 200")


async def test_who_listens_on_every_address_answers_to_every_name(state: Monitoring) -> None:
    monitor = Monitor(state)
    port = await monitor.start("0.0.0.0", 0)
    try:
        answer = await say(port, b"GET /health HTTP/1.1\r\nHost: mailserver\r\nConnection: close\r\n\r\n")
    finally:
        await monitor.stop()

    assert answer.startswith(b"HTTP/1.1 200")


async def test_page_comes_with_its_policy(port: int) -> None:
    page = load_page()
    async with aiohttp.ClientSession() as session, session.get(f"http://127.0.0.1:{port}/") as response:
        assert response.headers["Content-Type"] == "text/html; charset=utf-8"
        assert response.headers["Content-Security-Policy"] == page.policy
        assert response.headers["Cache-Control"] == "no-cache"
        assert await response.read() == page.html


async def test_status_is_what_monitoring_says(state: Monitoring, port: int) -> None:
    status, answer = await get(port, "/status.json")

    assert status == 200
    assert isinstance(answer, dict)
    now = json.loads(json.dumps(state.status().as_json()))
    assert {**answer, "uptime_s": 0} == {**now, "uptime_s": 0}


async def test_history_follows_the_looks(state: Monitoring, port: int) -> None:
    _, before = await get(port, "/history.json")
    running = asyncio.create_task(state.run())
    await until(lambda: len(state.last_day) > 0)

    _, answer = await get(port, "/history.json")
    running.cancel()
    await asyncio.wait([running])

    assert isinstance(before, dict)
    assert isinstance(answer, dict)
    assert (before["columns"]["peers_in"], answer["columns"]["peers_in"]) == ([], [7])


async def test_history_is_made_once_for_all_who_ask_between_two_looks(
    state: Monitoring, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = 0

    def encode(minutes: Minutes) -> str:
        nonlocal made
        made += 1
        return encode_shown(minutes)

    monkeypatch.setattr(state_module, "encode_shown", encode)

    answers = await asyncio.gather(*(state.history_json() for _ in range(10)))

    assert made == 1
    assert len(set(answers)) == 1
