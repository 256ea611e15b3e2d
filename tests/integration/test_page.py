"""The status page of a running daemon, in a real browser: on a phone and on a desktop."""

import asyncio
import json
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from mailserver.files import write_atomically
from mailserver.monitoring.history import encode_file
from mailserver.monitoring.history_file import HISTORY_FILE
from mailserver.store.compaction import ArchivedDay, Compaction, write_compaction
from mailserver.store.envelopes import open_store
from mailserver.store.schema import STORE_FILE
from mailserver.store.writer import NewEnvelope
from tests.integration.browser import Browser, running_browser
from tests.integration.daemons import Daemon, running_daemon
from tests.mailservers import make_envelopes
from tests.monitoring.samples import day_of_minutes

pytestmark = [pytest.mark.browser, pytest.mark.integration]

DAYS = 20
WORDS = "no Java <img src=x onerror=alert(1)><b id=injected>"
"""Why the last compaction failed: what is shown of it is text, whatever it is."""

SIZES = pytest.mark.parametrize(("width", "height", "dark"), [(360, 740, False), (1280, 800, False), (1280, 800, True)])

DRAWN = """
    return [...document.querySelectorAll("canvas")].map((canvas) => {
        const { data } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
        let coloured = 0; // axes and letters are grey
        for (let at = 0; at < data.length; at += 4) {
            const [red, green, blue, alpha] = data.subarray(at, at + 4);
            if (alpha > 128 && Math.max(red, green, blue) - Math.min(red, green, blue) > 60) coloured += 1;
        }
        return coloured;
    });
"""
"""How many pixels of each chart's lines and bars there are."""

FIELDS = """
    return [...document.querySelectorAll("[data-field]")].map(
        (field) => [field.dataset.field, field.dataset.format, field.textContent]);
"""
ROWS = """
    return [...document.querySelectorAll("#activity tr")].map(
        (row) => [...row.cells].map((cell) => cell.textContent));
"""
COUNTS = ("received", "taken", "refused", "stored", "delivered", "rejected", "failed", "lost")


async def fill_store(folder: Path, now: int) -> None:
    async with open_store(folder / STORE_FILE) as store:
        await store.put(
            [
                NewEnvelope(
                    now - number % DAYS * 86_400, envelope.created, envelope.topic, envelope.hash(), envelope.raw
                )
                for number, envelope in enumerate(make_envelopes(1234))
            ]
        )


@pytest.fixture(scope="module")
def data_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What a mailserver leaves that has run for weeks, and was down for a while today."""
    folder = tmp_path_factory.mktemp("data")
    now = int(time.time())
    asyncio.run(fill_store(folder, now))
    write_atomically(folder / HISTORY_FILE, encode_file(day_of_minutes(now)), 0o600)
    archived = {now // 86_400 - number: ArchivedDay(50 + number, 20_000 + 500 * number) for number in range(1, 40)}
    failed = Compaction(started_at=now - 9000.0, finished_at=now - 8990.0, exit_code=1, error=WORDS, archived=archived)
    write_compaction(folder / STORE_FILE, failed)
    return folder


@pytest.fixture(scope="module")
def daemon(data_dir: Path) -> Iterator[Daemon]:
    with running_daemon(data_dir, "--metrics", "127.0.0.1:0", "--retention-days", "0") as daemon:
        daemon.wait_for_line("problem check=compaction")
        yield daemon


@pytest.fixture(scope="module")
def address(daemon: Daemon) -> str:
    """Where the page is."""
    port = daemon.wait_for_line("serving metrics port=").rpartition("=")[2]
    return f"http://127.0.0.1:{port}/"


def shown_page(browser: Browser, address: str) -> dict[str, Any]:
    """Open the page, and wait until it shows something; the status that it has got."""
    browser.open(address)
    browser.wait_for("document.getElementById('ready').textContent !== 'loading'")
    assert browser.run("return document.getElementById('stale').textContent") == ""
    status: dict[str, Any] = json.loads(browser.body(f"{address}status.json"))
    return status


@SIZES
def test_page_shows_all_in_every_size(address: str, tmp_path: Path, width: int, height: int, dark: bool) -> None:
    with running_browser(tmp_path / "profile", width=width, height=height, dark=dark) as browser:
        status = shown_page(browser, address)
        browser.screenshot(tmp_path / f"status-{width}{'-dark' if dark else ''}.png")

        drawn = browser.run(DRAWN)
        assert len(drawn) == 8
        assert all(pixels > 100 for pixels in drawn), drawn
        assert browser.run("return document.documentElement.scrollWidth") <= width
        wide = (
            "[...document.querySelectorAll('main *')].filter((each) => each.getBoundingClientRect().right > innerWidth)"
        )
        assert browser.run(f"return {wide}.map((each) => each.outerHTML.slice(0, 80))") == []
        red, green, blue = browser.run("return getComputedStyle(document.body).backgroundColor.match(/[0-9]+/g)")
        assert (int(red) + int(green) + int(blue) < 150) is dark
        assert browser.console() == []
        assert browser.requests() == [address, f"{address}status.json", f"{address}history.json"]
        assert_numbers_are_those_of(browser, status)


def assert_numbers_are_those_of(browser: Browser, status: dict[str, Any]) -> None:
    """Every field shows what is in the status."""
    checked = set()
    for path, form, text in browser.run(FIELDS):
        value: Any = status
        for name in path.split("."):
            value = value[name]
        match form:
            case "text":
                assert text == str(value), path
            case "count":
                assert text == f"{value:,}", path
            case "sum":
                assert text == f"{sum(value.values()):,}", path
            case "moment":
                expected = "-" if value is None else time.strftime("%Y-%m-%d %H:%M", time.gmtime(value))
                assert text == expected, path
            case _:
                assert text.split()[0].replace(".", "").isdigit(), (path, text)
        checked.add(form)
    assert checked == {"text", "count", "sum", "moment", "bytes", "duration"}
    rows = browser.run(ROWS)
    for (_, minute, day), name in zip(rows, COUNTS, strict=False):
        assert day == f"{status['day'][name]:,}"
        assert minute == ("-" if status["minute"] is None else f"{status['minute'][name]:,}")
    assert status["day"]["taken"] > 100_000
    assert status["store"]["envelopes"] == 1234


def test_what_comes_is_text_and_no_html(address: str, tmp_path: Path) -> None:
    with running_browser(tmp_path / "profile", width=1280, height=800) as browser:
        status = shown_page(browser, address)

        problems = browser.run("return [...document.querySelectorAll('#problems li')].map((each) => each.textContent)")
        assert problems == [problem["text"] for problem in status["problems"]]
        assert f"the last compaction failed: {WORDS}" in problems
        errors = browser.run("return document.getElementById('errors').textContent")
        assert "problem check=compaction" in errors
        assert browser.run("return document.getElementById('injected')") is None
        assert browser.console() == []


def test_page_asks_again_and_says_when_nobody_answers(address: str, tmp_path: Path) -> None:
    with running_browser(tmp_path / "profile", width=360, height=740) as browser:
        hurry = "const wait = setTimeout; window.setTimeout = (what, ms) => wait(what, ms === 60000 ? 20 : ms);"
        browser.command("Page.addScriptToEvaluateOnNewDocument", source=hurry)
        shown_page(browser, address)

        network = {"latency": 0, "downloadThroughput": -1, "uploadThroughput": -1}
        browser.command("Network.emulateNetworkConditions", offline=True, **network)
        browser.wait_for("document.getElementById('stale').textContent.startsWith('The mailserver does not answer')")
        assert "What is below is of 20" in browser.run("return document.getElementById('stale').textContent")
        assert browser.run("return document.getElementById('ready').textContent") == "unknown"

        browser.command("Network.emulateNetworkConditions", offline=False, **network)
        browser.wait_for("document.getElementById('stale').hidden")
        assert browser.run("return document.getElementById('ready').textContent") == "ready"


def test_injected_script_is_not_run(address: str, tmp_path: Path) -> None:
    with running_browser(tmp_path / "profile", width=1280, height=800) as browser:
        shown_page(browser, address)
        browser.run(
            "const script = document.createElement('script'); script.textContent = 'window.wasRun = true';"
            "document.body.append(script)"
        )

        assert browser.run("return window.wasRun") is None
        assert any("Content Security Policy" in line for line in browser.console())


def test_page_of_a_mailserver_that_has_just_been_made(tmp_path: Path) -> None:
    with (
        running_daemon(tmp_path / "data", "--metrics", "127.0.0.1:0") as daemon,
        running_browser(tmp_path / "profile", width=360, height=740) as browser,
    ):
        port = daemon.wait_for_line("serving metrics port=").rpartition("=")[2]
        shown_page(browser, f"http://127.0.0.1:{port}/")
        browser.screenshot(tmp_path / "status-new.png")

        assert browser.console() == []
        assert len(browser.run("return [...document.querySelectorAll('canvas')]")) == 8


def test_history_outlives_a_restart(tmp_path: Path) -> None:
    write_atomically(tmp_path / HISTORY_FILE, encode_file(day_of_minutes(int(time.time()))), 0o600)

    def taken() -> int:
        with running_daemon(tmp_path, "--metrics", "127.0.0.1:0") as daemon:
            port = daemon.wait_for_line("serving metrics port=").rpartition("=")[2]
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/status.json") as answer:
                status = json.load(answer)
            assert daemon.stop() == 0
        return int(status["day"]["taken"])

    first = taken()
    assert first > 100_000
    assert abs(taken() - first) < first / 100  # minutes that are a day old by now are gone
