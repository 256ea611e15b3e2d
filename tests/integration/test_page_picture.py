"""The status page of a healthy mailserver with peers, a store and an archive; its picture is docs/status-page.png."""

import asyncio
import base64
import math
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from mailserver.files import write_atomically
from mailserver.handoff.archived import Archived
from mailserver.handoff.last_run import ArchivedDay, Compaction
from mailserver.monitoring.last_day import encode_file
from mailserver.monitoring.last_day_file import HISTORY_FILE
from mailserver.rlpx import p2p
from mailserver.store.interface import NewEnvelope
from mailserver.store.sqlite.handoff import write_archived, write_compaction
from mailserver.store.sqlite.schema import STORE_FILE
from mailserver.store.sqlite.store import open_store
from mailserver.waku.packets import PacketCode
from tests.integration.browser import Browser, running_browser
from tests.integration.daemons import Daemon, running_daemon
from tests.integration.peers import Peers
from tests.mailservers import make_envelopes
from tests.monitoring.samples import day_of_minutes
from tests.raw_peer import DEPLOYED_STATUS, WAKU, RawPeer

pytestmark = [pytest.mark.browser, pytest.mark.integration]

DAY_S = 86_400
ENVELOPES_PER_MINUTE = 10
STORED_DAYS = 4
ARCHIVED_DAYS = 30
INBOUND = 12
CLIENTS = ("statusd/v0.77.0/linux-amd64/go1.18", "nim-status-client/v2.30", "waku-mailserver/v0.2.0/linux/python3.13.5")
WIDTH = 1280

PEERS_BY_PROGRAM = """
    return [...document.querySelectorAll("#clients tr")].map((row) => [...row.cells].map((cell) => cell.textContent));
"""
END_OF_PICTURE = "return document.getElementById('days').getBoundingClientRect().bottom + scrollY"
"""Where the tables of figures begin, which need no picture."""


async def _make_store(folder: Path, now: int) -> None:
    """Some days of envelopes, of which the compaction has archived all but those of today, and many days before."""
    per_day = ENVELOPES_PER_MINUTE * 24 * 60
    midnight = now // DAY_S * DAY_S
    step = DAY_S // per_day
    count = (STORED_DAYS - 1) * per_day + (now - midnight) // step
    envelopes = make_envelopes(count, data_bytes=300)
    envelope_bytes = len(envelopes[0].raw)
    async with open_store(folder / STORE_FILE) as store:
        received = (now - number * step for number in range(count))
        await store.put(
            [
                NewEnvelope(at, envelope.created, envelope.topic, envelope.hash(), envelope.raw)
                for at, envelope in zip(received, envelopes, strict=True)
            ]
        )
        store_id = await store.identity()
    ended = midnight + 2 * 3600 if now - midnight > 3 * 3600 else midnight - DAY_S + 2 * 3600
    archived = {}
    for number in range(1, ARCHIVED_DAYS):
        rows = per_day if number < STORED_DAYS else round(per_day * (0.9 + 0.15 * math.sin(number)))
        archived[midnight // DAY_S - number] = ArchivedDay(rows, rows * envelope_bytes)
    run = Compaction(
        started_at=ended - 95.0,
        finished_at=ended,
        exit_code=0,
        rows=per_day,
        days=1,
        seconds=95.0,
        succeeded_at=ended,
        archived=archived,
    )
    write_compaction(folder / STORE_FILE, run)
    write_archived(folder / STORE_FILE, Archived(store_id, "hdfs://host/archive", ended, dict.fromkeys(archived, 0)))


@pytest.fixture
def daemons(tmp_path: Path) -> Iterator[tuple[Daemon, str]]:
    """A mailserver that has run for days and stays connected to two others, and the address of its page."""
    now = int(time.time())
    folder = tmp_path / "data"
    folder.mkdir(0o700)
    asyncio.run(_make_store(folder, now))
    past = day_of_minutes(now, envelopes=ENVELOPES_PER_MINUTE, peers=INBOUND)
    write_atomically(folder / HISTORY_FILE, encode_file(past), 0o600)
    with running_daemon(tmp_path / "one") as one, running_daemon(tmp_path / "other") as other:
        static = f"{one.enode},{other.enode}"
        flags = ("--metrics", "127.0.0.1:0", "--retention-days", "0", "--static-peers", static)
        with running_daemon(folder, *flags) as daemon:
            port = daemon.wait_for_line("serving metrics port=").rpartition("=")[2]
            yield daemon, f"http://127.0.0.1:{port}/"


async def _join(peers: Peers, daemon: Daemon, number: int) -> RawPeer:
    """Connect as one of CLIENTS does."""
    raw = await peers.dial(daemon, f"client {number}")
    hello = p2p.Hello(5, CLIENTS[number % len(CLIENTS)], (WAKU,), 0, raw.key.public_key)
    raw.write(raw.frame(p2p.MessageId.HELLO, hello.encode()))
    assert (await raw.hear()).message_id == p2p.MessageId.HELLO
    raw.compressed = True
    raw.say(PacketCode.STATUS, DEPLOYED_STATUS)
    assert (await raw.hear_packet()).code == PacketCode.STATUS
    return raw


def _look(address: str, profile: Path, picture: Path) -> None:
    with running_browser(profile, width=WIDTH, height=900) as browser:
        browser.open(address)
        browser.wait_for("document.getElementById('ready').textContent === 'ready'")
        _take_picture(browser, picture)

        def text(name: str) -> object:
            return browser.run(f"return document.getElementById('{name}').textContent")

        assert text("problems") == "None."
        assert text("errors") == "None since the start."
        assert text("compaction") == "succeeded"
        assert sorted(browser.run(PEERS_BY_PROGRAM)) == [
            ["nim", "4", "0"],
            ["status-go", "4", "0"],
            ["waku-mailserver", "4", "2"],
        ]
        assert browser.run("return [...document.querySelectorAll('.note')].every((note) => note.hidden)")
        assert browser.console() == []


def _take_picture(browser: Browser, path: Path) -> None:
    clip = {"x": 0, "y": 0, "width": WIDTH, "height": browser.run(END_OF_PICTURE) + 16, "scale": 1}
    shot = browser.command("Page.captureScreenshot", format="png", captureBeyondViewport=True, clip=clip)
    path.write_bytes(base64.b64decode(shot["data"]))


async def test_page_of_a_healthy_mailserver(
    daemons: tuple[Daemon, str], peers: Peers, tmp_path: Path, screenshots: Path
) -> None:
    daemon, address = daemons
    for number in range(INBOUND):
        await _join(peers, daemon, number)

    picture = screenshots / "status-page.png"
    await asyncio.to_thread(_look, address, tmp_path / "profile", picture)

    assert picture.stat().st_size < 300_000
