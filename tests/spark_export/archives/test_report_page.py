"""spark_export.report_page: a page that needs nothing else; of a real archive, in a browser, on desktop and phone."""

import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest
from pyspark.sql import SparkSession

from mailserver.waku.envelope import Topic
from spark_export.report import ArchiveStatistics, DayStatistics, SizeStatistics, TopicStatistics, gather
from spark_export.report_page import as_html
from tests.integration.browser import Browser, running_browser
from tests.spark_export.samples import DAY, DAY_S, compact_into, envelope, put

STATISTICS = ArchiveStatistics(
    archive="file:///srv/<archive> & more",
    created="2026-11-22T23:00:00Z",
    partitioned_by="topic",
    envelopes=3,
    bytes=7 * 1024**2,
    topics=2,
    files=2,
    file_bytes=900,
    days=(DayStatistics("2024-10-04", 2, 300, 1), DayStatistics("2024-10-08", 1, 400, 1)),
    sizes=(SizeStatistics(128, 159, 2), SizeStatistics(256, 319, 1)),
    top_topics=(TopicStatistics("0x9acb0442", 2, 300), TopicStatistics("<script>", 1, 4096)),
)
DESKTOP, PHONE = (1280, 900), (390, 844)


def test_page_needs_nothing_from_elsewhere() -> None:
    page = as_html(STATISTICS)

    assert not re.search(r"https?://|//\w+\.\w+/|@import|<script|url\(", page)
    assert set(re.findall(r'(?:src|href)="([^"]*)"', page)) == {"data:,"}


def test_page_escapes_names() -> None:
    page = as_html(STATISTICS)

    assert "file:///srv/&lt;archive&gt; &amp; more" in page
    assert "<code>&lt;script&gt;</code>" in page


def test_page_says_when_it_was_made_and_has_the_units_of_the_status_page() -> None:
    page = as_html(STATISTICS)

    assert "<dt>Created</dt><dd>2026-11-22T23:00:00Z</dd>" in page
    assert "<dd>3, 7 MiB</dd>" in page
    assert "<dd>2, 900 B</dd>" in page
    assert "<td>4 KiB</td>" in page


def bars(page: str, title: str) -> list[str]:
    """What the bars of a plot say of themselves."""
    (figure,) = (part for part in page.split("<figure>") if part.startswith(f"<h3>{title}</h3>"))
    return re.findall(r"<title>(.*?)</title>", figure)


def test_days_and_sizes_stand_in_their_places_and_what_has_nothing_is_left_free() -> None:
    page = as_html(STATISTICS)

    assert bars(page, "Envelopes a day") == ["2024-10-04: 2", "2024-10-08: 1"]
    assert bars(page, "Bytes of envelopes a day") == ["2024-10-04: 300 B", "2024-10-08: 400 B"]
    assert bars(page, "Envelopes by size") == ["128 to 159 bytes: 2", "256 to 319 bytes: 1"]
    places = re.findall(r'<rect x="([0-9.]+)" y="([0-9.]+)" width="([0-9.]+)" height="([0-9.]+)">', page)
    assert [tuple(map(float, place)) for place in places[:2]] == [(2, 0, 16, 100), (82, 50, 16, 50)]  # of five days


@pytest.mark.parametrize("years", [1, 10])
def test_archive_of_one_day_and_of_years_is_drawn(years: int) -> None:
    days = tuple(replace(STATISTICS.days[0], date=f"{2000 + year}-01-01") for year in range(years))

    page = as_html(replace(STATISTICS, days=days))

    assert len(bars(page, "Envelopes a day")) == years


def test_sizes_of_all_orders_have_few_labels() -> None:
    sizes = tuple(SizeStatistics(2**power, 2**power, 1) for power in range(21))

    page = as_html(replace(STATISTICS, sizes=sizes))

    figure = page.partition("<h3>Envelopes by size</h3>")[2].partition("</figure>")[0]
    labels = re.findall(r'<span style="left:[0-9.]+%">(.*?)</span>', figure)
    assert labels == ["1 B", "32 B", "1 KiB", "32 KiB", "1 MiB"]


def test_empty_archive_says_so() -> None:
    page = as_html(replace(STATISTICS, days=(), sizes=(), top_topics=(), envelopes=0, bytes=0))

    assert page.count("the archive is empty") == 5
    assert "<svg" not in page


@pytest.fixture(scope="module")
def page(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page of an archive of some days: sizes are padded, topics have a long tail."""
    folder, chance = tmp_path_factory.mktemp("report"), Random(7)
    topics = [Topic(chance.randbytes(4)) for _ in range(40)]
    found = [
        envelope(
            number,
            received=(DAY + chance.choice([0, 1, 2, 3, 4, 6, 7, 8])) * DAY_S + chance.randrange(DAY_S),
            topic=topics[min(int(chance.expovariate(0.15)), 39)],
            size=256 * (1 + min(int(chance.expovariate(0.4)), 60)) + 60,
        )
        for number in range(1500)
    ]
    compact_into(spark, folder / "archive", put(folder / "mailserver.db", found), now=(DAY + 30) * DAY_S)
    made = folder / "page.html"
    made.write_text(as_html(gather(spark, str(folder / "archive"), now=(DAY + 30) * DAY_S)), encoding="utf-8")
    return made


@pytest.fixture(params=[(*DESKTOP, False), (*DESKTOP, True), (*PHONE, False), (*PHONE, True)], ids=str)
def browser(request: pytest.FixtureRequest, page: Path, tmp_path: Path) -> Iterator[Browser]:
    width, height, dark = request.param
    with running_browser(tmp_path / "profile", width=width, height=height, dark=dark) as browser:
        browser.open(page.as_uri())
        yield browser


WIDE = "[...document.querySelectorAll('body *')].filter((each) => each.getBoundingClientRect().right > innerWidth)"
OVERLAPS = """
    return [...document.querySelectorAll(".plot")].flatMap((plot) => {
        const boxes = [...plot.querySelectorAll("span")].map((span) => span.getBoundingClientRect())
            .filter((box) => box.width);
        return boxes.flatMap((one, at) => boxes.slice(at + 1).filter((other) =>
            one.left < other.right && other.left < one.right && one.top < other.bottom && other.top < one.bottom));
    }).length;
"""
"""How many labels of plots lie on one another."""

TEXTS = "return [...document.querySelectorAll('.plot span')].map((each) => parseFloat(getComputedStyle(each).fontSize))"
PLOTS = """
    return [...document.querySelectorAll("figure")].map((figure) => [
        figure.querySelector("h3").textContent,
        figure.querySelectorAll("rect").length,
        [...figure.querySelectorAll(".beside span")].map((each) => each.textContent),
        figure.querySelector("svg").getBoundingClientRect().width,
    ]);
"""
TOPICS = "return [...document.querySelectorAll('.bar div')].map((each) => each.getBoundingClientRect().width)"
BACK = "return getComputedStyle(document.body).backgroundColor.match(/[0-9]+/g).map(Number)"


@pytest.mark.spark
@pytest.mark.browser
@pytest.mark.integration
def test_page_is_readable_in_every_size_light_and_dark(
    browser: Browser, screenshots: Path, request: pytest.FixtureRequest
) -> None:
    width, _, dark = request.node.callspec.params["browser"]
    browser.screenshot(screenshots / f"report-{width}{'-dark' if dark else ''}.png")

    assert browser.console() == []
    assert (sum(browser.run(BACK)) < 150) is dark
    assert browser.run("return document.documentElement.scrollWidth") <= width
    assert browser.run(f"return {WIDE}.map((each) => each.outerHTML.slice(0, 80))") == []
    assert browser.run(OVERLAPS) == 0
    assert min(browser.run(TEXTS)) >= 11
    plots = browser.run(PLOTS)
    assert [title for title, *_ in plots] == [
        "Envelopes a day",
        "Bytes of envelopes a day",
        "Topics a day",
        "Envelopes by size",
    ]
    for title, count, beside, wide in plots:
        assert count == 8 if title.endswith("day") else count > 12, title
        assert wide > 200, title
        form = r"[0-9.,]+ ([KM]i)?B" if title.startswith("Bytes") else r"\d{1,3}(,\d{3})*"
        assert [text for text in beside if not re.fullmatch(form, text)] == [], title
        assert 2 <= len(beside) <= 5
    widths = browser.run(TOPICS)
    assert len(widths) == 20
    assert widths == sorted(widths, reverse=True)
    assert widths[0] > 40
