"""The status page of a running daemon, in a real browser: on a phone and on a desktop."""

import asyncio
import colorsys
import json
import re
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from mailserver.community.folder import COMMUNITIES_FOLDER
from mailserver.files import write_atomically
from mailserver.handoff.communities import write_served
from mailserver.handoff.last_run import ArchivedDay, Compaction
from mailserver.monitoring.last_day import MAX_MINUTES, MINUTE_S, encode_file
from mailserver.monitoring.last_day_file import HISTORY_FILE
from mailserver.store.interface import NewEnvelope
from mailserver.store.sqlite.handoff import write_compaction
from mailserver.store.sqlite.schema import STORE_FILE
from mailserver.store.sqlite.store import open_store
from mailserver.units import delay_text, size_text, span_text
from tests.communities.progress import JOINED, OWNED
from tests.integration.browser import Browser, Chromium, running_chromium
from tests.integration.daemons import Daemon, running_daemon
from tests.mailservers import make_envelopes
from tests.monitoring.samples import day_of_minutes, minutes

pytestmark = [pytest.mark.browser, pytest.mark.integration]

DAYS = 20
WORDS = "no Java <img src=x onerror=alert(1)><b id=injected>"
"""Why the last compaction failed: what is shown of it is text, whatever it is."""

DESKTOP, PHONE = (1280, 900), (390, 844)
"""Windows in pixels: what an operator sees without scrolling."""

SIZES = pytest.mark.parametrize(
    ("size", "dark"),
    [(DESKTOP, False), (DESKTOP, True), (PHONE, False), (PHONE, True)],
    ids=["desktop", "desktop-dark", "phone", "phone-dark"],
)

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
COUNTS = ("received", "taken", "refused", "stored", "delivered", "rejected", "failed", "lost", "connected")

BOX = "(() => { const box = %s.getBoundingClientRect(); return [box.left, box.top, box.right, box.bottom]; })()"
NOTES = """
    return [...document.querySelectorAll("figure")].map((figure) => {
        const note = figure.querySelector(".note");
        return [figure.querySelector("h3").textContent, note.hidden ? "" : note.textContent];
    });
"""
"""What each chart says of itself, beside its title."""

MARKERS = """
    return [...document.querySelectorAll("#minutes .u-legend .u-series")].map((series) => [
        series.querySelector(".u-label").textContent,
        getComputedStyle(series.querySelector(".u-marker")).backgroundColor.match(/[0-9]+/g).map(Number),
    ]).filter(([label]) => label !== "Time");
"""
"""The colour of each line, as the legend has it: red, green, blue."""

COLOURS_DRAWN = """
    const [title, wanted] = arguments;
    const isWanted = (figure) => figure.querySelector("h3").textContent === title;
    const canvas = [...document.querySelectorAll("figure")].find(isWanted).querySelector("canvas");
    const { data } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
    return wanted.map((colour) => {
        let count = 0;
        for (let at = 0; at < data.length; at += 4) {
            if (colour.every((part, index) => Math.abs(part - data[at + index]) < 8) && data[at + 3] > 250) count += 1;
        }
        return count;
    });
"""
"""How many pixels a chart has of each colour."""

RECORD_LABELS = """
    window.labels = new Map();
    const fillText = CanvasRenderingContext2D.prototype.fillText;
    CanvasRenderingContext2D.prototype.fillText = function (text, ...where) {
        const title = this.canvas.closest("figure")?.querySelector("h3").textContent;
        window.labels.set(title, [...(window.labels.get(title) ?? []), text]);
        return fillText.call(this, text, ...where);
    };
"""
"""Keeps what is written beside the axes of each chart: it is drawn."""

COMMUNITIES = """
    return [...document.querySelectorAll("#known > div")].map((box) => ({
        title: box.querySelector("h3").textContent,
        said: [...box.querySelectorAll("p")].map((each) => each.textContent),
        rows: [...box.querySelectorAll("tbody tr")].map((row) => [...row.cells].map((cell) => cell.textContent)),
    }));
"""

PRESSED = "return [...document.querySelectorAll('[aria-pressed=true]')].map((each) => each.textContent)"
SPANS = "return minuteCharts.map(({ plot }) => [plot.scales.x.min, plot.scales.x.max])"


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
    (folder / COMMUNITIES_FOLDER).mkdir()
    write_served(folder / COMMUNITIES_FOLDER, [OWNED, replace(JOINED, problem=WORDS)], now)
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


@pytest.fixture(scope="module")
def chromium(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Chromium]:
    with running_chromium(tmp_path_factory.mktemp("profile")) as running:
        yield running


@pytest.fixture(scope="module")
def few_things(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The page of a mailserver that has one of each thing a minute: all lines of a chart are equal."""
    folder = tmp_path_factory.mktemp("few")
    names = ("received", "taken", "stored", "refused", "delivered", "rejected", "lost", "failed", "connected")
    ones: dict[str, float] = dict.fromkeys((*names, "peers_in", "peers_out", "bytes_in", "bytes_out"), 1.0)
    past = minutes(MAX_MINUTES, int(time.time()) - (MAX_MINUTES - 1) * MINUTE_S, **ones, **{"answers_le_0.01": 1.0})
    write_atomically(folder / HISTORY_FILE, encode_file(past), 0o600)
    with running_daemon(folder, "--metrics", "127.0.0.1:0") as daemon:
        port = daemon.wait_for_line("serving metrics port=").rpartition("=")[2]
        yield f"http://127.0.0.1:{port}/"


def shown_page(browser: Browser, address: str) -> dict[str, Any]:
    """Open the page, and wait until it shows something; the status that it has got."""
    browser.open(address)
    browser.wait_for("document.getElementById('ready').textContent !== 'loading'")
    assert browser.run("return document.getElementById('stale').textContent") == ""
    status: dict[str, Any] = json.loads(browser.body(f"{address}status.json"))
    return status


def box_of(browser: Browser, element: str) -> list[float]:
    """Where an element of the page is: left, top, right, bottom, in pixels."""
    box: list[float] = browser.run(f"return {BOX % element}")
    return box


def boxes_of(browser: Browser, selector: str) -> list[list[float]]:
    """The same of all that a selector finds, which is something."""
    count = browser.run(f"return document.querySelectorAll('{selector}').length")
    assert count, selector
    return [box_of(browser, f"document.querySelectorAll('{selector}')[{number}]") for number in range(count)]


@SIZES
def test_page_shows_all_in_every_size(
    address: str,
    chromium: Chromium,
    screenshots: Path,
    size: tuple[int, int],
    dark: bool,
    request: pytest.FixtureRequest,
) -> None:
    width, height = size
    with chromium.window(width=width, height=height, dark=dark) as browser:
        status = shown_page(browser, address)
        browser.screenshot(screenshots / f"status-{request.node.callspec.id}.png")

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


def test_first_screen_of_a_desktop_has_the_state_what_is_wrong_and_the_last_hour(
    address: str, chromium: Chromium
) -> None:
    width, height = DESKTOP
    with chromium.window(width=width, height=height) as browser:
        shown_page(browser, address)

        for selector in ("#ready", "#problems li", "#errors li:first-child", "#minutes figure", "#now"):
            for left, top, right, bottom in boxes_of(browser, selector):
                assert 0 <= left < right <= width, selector
                assert 0 <= top < bottom <= height, selector
        assert browser.run("return document.getElementById('span').textContent") == "Last hour"
        assert len(boxes_of(browser, "#minutes canvas")) == 6


def test_warnings_and_errors_come_first_on_a_phone(address: str, chromium: Chromium) -> None:
    width, height = PHONE
    with chromium.window(width=width, height=height) as browser:
        shown_page(browser, address)

        order = ("#ready", "#problems li:first-child", "#errors li:first-child", "#now dl", "#minutes figure")
        tops = [boxes_of(browser, selector)[0][1] for selector in order]
        assert tops == sorted(tops)
        assert boxes_of(browser, "#problems li")[-1][3] < boxes_of(browser, "#errors")[0][1]
        assert boxes_of(browser, "#errors li:first-child")[0][3] <= height


def span_s(browser: Browser) -> float:
    """How much time the charts of minutes show: all the same."""
    (span,) = {tuple(span) for span in browser.run(SPANS)}
    return round(float(span[1] - span[0]))


def drag_across_a_chart(browser: Browser) -> None:
    """From a quarter of its width to a half."""
    left, top, right, bottom = box_of(browser, "document.querySelector('#minutes .u-over')")
    width, middle = right - left, (top + bottom) / 2
    for kind, x in (("mouseMoved", 0.25), ("mousePressed", 0.25), ("mouseMoved", 0.4), ("mouseMoved", 0.5)):
        browser.command(
            "Input.dispatchMouseEvent", type=kind, x=left + width * x, y=middle, button="left", clickCount=1
        )
    browser.command(
        "Input.dispatchMouseEvent", type="mouseReleased", x=left + width / 2, y=middle, button="left", clickCount=1
    )


def test_all_charts_show_one_hour_six_a_day_or_what_is_zoomed_into(address: str, chromium: Chromium) -> None:
    with chromium.window(width=DESKTOP[0], height=DESKTOP[1]) as browser:
        shown_page(browser, address)
        assert span_s(browser) == 3600

        for hours, title in ((6, "Last 6 hours"), (24, "Last 24 hours"), (1, "Last hour")):
            browser.run(f"document.querySelector('button[data-hours=\"{hours}\"]').click()")
            assert span_s(browser) == hours * 3600
            assert browser.run("return document.getElementById('span').textContent") == title
            assert browser.run(PRESSED) == [f"{hours} h"]

        drag_across_a_chart(browser)
        browser.wait_for("minuteCharts[0].plot.scales.x.max - minuteCharts[0].plot.scales.x.min < 3000")
        assert span_s(browser) == pytest.approx(900, abs=30)
        assert browser.run(PRESSED) == []
        browser.run("document.querySelector('#minutes .u-over').dispatchEvent(new MouseEvent('dblclick'))")
        assert span_s(browser) == 3600
        assert browser.console() == []


def test_gap_is_explained_where_it_is_seen(address: str, chromium: Chromium) -> None:
    with chromium.window(width=DESKTOP[0], height=DESKTOP[1]) as browser:
        shown_page(browser, address)
        assert browser.run("return document.getElementById('gaps').hidden") is True

        browser.run("document.querySelector('button[data-hours=\"24\"]').click()")
        assert browser.run("return document.getElementById('gaps').hidden") is False


def test_counts_on_axes_are_whole_numbers_and_bytes_have_their_units(
    address: str, chromium: Chromium, few_things: str
) -> None:
    with chromium.window(width=DESKTOP[0], height=DESKTOP[1]) as browser:
        browser.command("Page.addScriptToEvaluateOnNewDocument", source=RECORD_LABELS)
        for page in (address, few_things):
            shown_page(browser, page)

            labels: dict[str, list[str]] = browser.run("return Object.fromEntries(window.labels)")
            assert len(labels) == 8
            for title, texts in labels.items():
                values = [text for text in texts if not re.fullmatch(r"\d\d[:-]\d\d", text)]
                assert len(values) >= 2, title
                form = r"[0-9.,]+ ([KMG]i)?B" if title.startswith(("Traffic", "Bytes")) else r"\d{1,3}(,\d{3})*"
                form = r"[0-9.,]+ m?s" if title in ("Answer times", "Worst event loop lag") else form
                assert [value for value in values if not re.fullmatch(form, value)] == [], title


def test_equal_lines_do_not_hide_each_other(few_things: str, chromium: Chromium) -> None:
    with chromium.window(width=DESKTOP[0], height=DESKTOP[1]) as browser:
        shown_page(browser, few_things)
        colours = dict(browser.run(MARKERS))

        for title, labels in (
            ("Envelopes a minute", ("received", "accepted", "stored", "refused")),
            ("Requests a minute", ("answered", "rejected", "client lost", "failed")),
            ("Peers", ("dialled us", "we dialled", "newly connected")),
            ("Traffic a minute", ("out", "in")),
        ):
            drawn = browser.run(COLOURS_DRAWN, title, [colours[label] for label in labels])
            assert all(pixels > 30 for pixels in drawn), (title, dict(zip(labels, drawn, strict=True)))


@pytest.mark.parametrize("dark", [False, True])
def test_red_is_for_failures_only(address: str, chromium: Chromium, dark: bool) -> None:
    with chromium.window(width=DESKTOP[0], height=DESKTOP[1], dark=dark) as browser:
        shown_page(browser, address)

        hues = {label: colorsys.rgb_to_hls(*(part / 255 for part in colour)) for label, colour in browser.run(MARKERS)}
        reds = {
            label for label, (hue, _, strength) in hues.items() if strength > 0.3 and abs((hue + 0.5) % 1 - 0.5) < 0.07
        }
        assert reds == {"failed"}
        bad = browser.run("return [...document.querySelectorAll('.bad, .fatal')].map((each) => each.textContent)")
        assert bad == ["failed"]  # the compaction


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


def test_what_comes_is_text_and_no_html(address: str, chromium: Chromium) -> None:
    with chromium.window(width=DESKTOP[0], height=DESKTOP[1]) as browser:
        status = shown_page(browser, address)

        problems = browser.run("return [...document.querySelectorAll('#problems li')].map((each) => each.textContent)")
        assert problems == [problem["text"] for problem in status["problems"]]
        assert f"the last compaction failed: {WORDS}" in problems
        errors = browser.run("return document.getElementById('errors').textContent")
        assert "problem check=compaction" in errors
        assert browser.run("return document.getElementById('injected')") is None
        assert browser.console() == []


def test_weeks_of_communities_are_shown_the_newest_first(address: str, chromium: Chromium) -> None:
    with chromium.window(width=PHONE[0], height=PHONE[1]) as browser:
        shown_page(browser, address)

        owned, joined = browser.run(COMMUNITIES)
        assert owned["title"] == f"owner of {OWNED.id}"
        assert owned["said"] == [
            "3 peers; 4.9 KiB sent, 0 B taken; last link 2026-09-21 14:13",
            "weeks without an archive: 1",
            "last fetched from us 2024-10-25 23:46",
        ]
        assert owned["rows"] == [["2024-10-17", "2", "no", "yes", "no"], ["2024-10-10", "1", "yes", "yes", "3\u00d7"]]
        assert joined["title"] == f"member of {JOINED.id}"
        assert joined["said"] == ["0 peers; 60 B sent, 6.8 KiB taken; last link -", WORDS]
        assert joined["rows"] == [["2024-10-17", "2", "yes", "no", "no"], ["2024-10-10", "1", "yes", "yes", "yes"]]
        assert browser.run("return document.getElementById('injected')") is None


def test_page_asks_again_and_says_when_nobody_answers(address: str, chromium: Chromium) -> None:
    with chromium.window(width=PHONE[0], height=PHONE[1]) as browser:
        hurry = "const wait = setTimeout; window.setTimeout = (what, ms) => wait(what, ms === 60000 ? 20 : ms);"
        browser.command("Page.addScriptToEvaluateOnNewDocument", source=hurry)
        shown_page(browser, address)

        network = {"latency": 0, "downloadThroughput": -1, "uploadThroughput": -1}
        browser.command("Network.emulateNetworkConditions", offline=True, **network)
        browser.wait_for("document.getElementById('stale').textContent.startsWith('The mailserver does not answer')")
        assert "The figures below are from 20" in browser.run("return document.getElementById('stale').textContent")
        assert browser.run("return document.getElementById('ready').textContent") == "unknown"

        browser.command("Network.emulateNetworkConditions", offline=False, **network)
        browser.wait_for("document.getElementById('stale').hidden")
        assert browser.run("return document.getElementById('ready').textContent") == "ready"


def test_injected_script_is_not_run(address: str, chromium: Chromium) -> None:
    with chromium.window(width=DESKTOP[0], height=DESKTOP[1]) as browser:
        shown_page(browser, address)
        browser.run(
            "const script = document.createElement('script'); script.textContent = 'window.wasRun = true';"
            "document.body.append(script)"
        )

        assert browser.run("return window.wasRun") is None
        assert any("Content Security Policy" in line for line in browser.console())


def test_page_of_a_mailserver_that_has_just_been_made(chromium: Chromium, tmp_path: Path, screenshots: Path) -> None:
    with (
        running_daemon(tmp_path / "data", "--metrics", "127.0.0.1:0") as daemon,
        chromium.window(width=PHONE[0], height=PHONE[1]) as browser,
    ):
        port = daemon.wait_for_line("serving metrics port=").rpartition("=")[2]
        shown_page(browser, f"http://127.0.0.1:{port}/")
        browser.screenshot(screenshots / "status-new.png")

        assert browser.console() == []
        said = dict(browser.run(NOTES))
        assert len(said) == 8
        assert {said.pop(f"{what} a day") for what in ("Envelopes", "Bytes of envelopes")} == {
            "The store is empty. Nothing is in the archive: the compaction has never run."
        }
        assert set(said.values()) == {"the first minute is not over yet"}
        assert browser.run("return document.getElementById('compaction').textContent") == "has never run"
        assert browser.run("return document.getElementById('problems').textContent") == "None."
        assert browser.run("return document.getElementById('communities').hidden") is True


def test_chart_without_values_says_why(chromium: Chromium, tmp_path: Path) -> None:
    quiet = minutes(MAX_MINUTES, int(time.time()) - (MAX_MINUTES - 1) * MINUTE_S)
    write_atomically(tmp_path / HISTORY_FILE, encode_file(quiet), 0o600)
    with (
        running_daemon(tmp_path, "--metrics", "127.0.0.1:0") as daemon,
        chromium.window(width=PHONE[0], height=PHONE[1]) as browser,
    ):
        port = daemon.wait_for_line("serving metrics port=").rpartition("=")[2]
        shown_page(browser, f"http://127.0.0.1:{port}/")

        said = dict(browser.run(NOTES))
        assert said["Envelopes a minute"] == "no envelopes arrived"
        assert said["Requests a minute"] == "nobody asked for history"
        assert said["Answer times"] == "no request was answered"
        assert said["Peers"] == "nobody was connected"


def test_numbers_are_printed_as_everywhere(address: str, chromium: Chromium) -> None:
    sizes = [0, 1023, 1024, 1536, 1024**2 - 1, 10**6, 300 * 1024**2, 5.26 * 1024**3, 3000 * 1024**4]
    delays = [0, 0.00026, 0.012, 0.99999, 1.26, 30]
    spans = [5, 119, 120, 7200, 47 * 3600, 2 * 86_400]
    with chromium.window() as browser:
        shown_page(browser, address)

        shown = "return arguments[0].map((value) => shown(value, arguments[1]))"
        assert browser.run(shown, sizes, "bytes") == list(map(size_text, sizes))
        assert browser.run(shown, delays, "seconds") == list(map(delay_text, delays))
        assert browser.run(shown, spans, "duration") == list(map(span_text, spans))


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
