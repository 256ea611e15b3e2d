"""`make site`: every page is there; what leads nowhere or cannot be drawn ends the build; readers can search."""

import contextlib
import functools
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import mermaidx
import pytest

from docs.site.diagrams import DiagramFault, draw
from tests.integration.browser import Chromium, running_chromium

ROOT = Path(__file__).parents[2]
DIAGRAM = re.compile(r"^```mermaid\n(.*?)^```$", re.MULTILINE | re.DOTALL)

HIDDEN_BY_DIAGRAM = """
    return [...document.querySelectorAll(".diagram svg")].map((svg) => {
        const labels = [...svg.querySelectorAll("foreignObject > *")];
        return labels.filter((label) => label.scrollWidth > label.clientWidth + 1).map((label) => label.textContent);
    });
"""
"""Of each diagram, the labels that are wider than the room for them."""


RENDER = """
    const [source, done] = arguments;
    mermaid.initialize({ startOnLoad: false });
    mermaid.render("diagram", source).then(
        ({ svg }) => { document.body.innerHTML = svg; done(""); },
        (error) => done(String(error)),
    );
"""
"""Draws a diagram as sites do that show Markdown; what Mermaid has against it."""

COVERED = """
    const box = (element) => element.getBoundingClientRect();
    const boxes = [...document.querySelectorAll(".node")].map(box);
    const isCovered = (label) => boxes.some((node) =>
        label.left < node.right && node.left < label.right && label.top < node.bottom && node.top < label.bottom);
    const labels = [...document.querySelectorAll(".edgeLabel")].filter((label) => label.textContent);
    return labels.filter((label) => isCovered(box(label))).map((label) => label.textContent);
"""
"""The labels of arrows that lie on a box."""


def build(source: Path, out: Path) -> subprocess.CompletedProcess[str]:
    """Build a site as `make site` does."""
    return subprocess.run(
        [sys.executable, "-m", "sphinx", "-W", "--keep-going", "-q", "-c", ROOT / "docs/site", source, out],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )


@contextlib.contextmanager
def serving(folder: Path) -> Iterator[str]:
    """Serve a folder as any web server does; the address."""
    handler = functools.partial(QuietHandler, directory=str(folder))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


class QuietHandler(SimpleHTTPRequestHandler):
    def log_message(self, *arguments: object) -> None:
        """Say nothing."""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("site")
    built = build(ROOT, out)
    assert built.returncode == 0, built.stderr
    return out


@pytest.fixture(scope="module")
def chromium(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Chromium]:
    with running_chromium(tmp_path_factory.mktemp("profile")) as running:
        yield running


@pytest.mark.slow
def test_every_page_is_there_and_in_the_navigation_of_the_first_one(site: Path) -> None:
    pages = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]
    names = {str(page.relative_to(ROOT).with_suffix(".html")) for page in pages}

    built = {str(page.relative_to(site)) for page in site.rglob("*.html") if "_downloads" not in page.parts}
    assert built == names | {"index.html", "search.html"}
    first = (site / "index.html").read_text("utf-8")
    navigation = first[first.index('<div class="sidebar-tree">') :].partition("</div>")[0]
    assert set(re.findall(r'href="([^"#]+)"', navigation)) == names - {"README.html"}


@pytest.mark.slow
def test_pages_ask_no_other_site_for_anything(site: Path) -> None:
    for page in site.rglob("*.html"):
        asked_for = re.findall(r'<(?:script|img|link|iframe|source)\b[^>]*\b(?:src|href)="([^"]+)"', page.read_text())
        assert [address for address in asked_for if re.match("([a-z]+:)?//", address)] == []


FAULTS = {
    "[x](docs/none.md)": "docs/none.md",
    "[x](docs/page.md#none)": "none",
    "![x](docs/none.png)": "docs/none.png",
    "```mermaid\nflowchart LR\n    a --> [[[\n```": "Parse error",
}
"""What leads nowhere or cannot be drawn, and what the warning about it says."""


@pytest.mark.slow
def test_what_leads_nowhere_or_cannot_be_drawn_ends_the_build(tmp_path: Path) -> None:
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "page.md").write_text("# Page\n")
    (tmp_path / "docs" / "lost.md").write_text("# Not in README.md\n")
    text = "\n\n".join(FAULTS)
    (tmp_path / "README.md").write_text(f"# A\n\n{text}\n\n## Documentation\n\n**Pages**\n\n- [p](docs/page.md)\n")

    built = build(tmp_path, tmp_path / "out")

    assert built.returncode != 0
    warnings = [line for line in built.stderr.splitlines() if "WARNING: " in line]
    assert len(warnings) == len(FAULTS) + 1
    for warning in FAULTS.values():
        assert any("README.md" in line and warning in line for line in warnings), warning
    assert any("lost.md" in line and "toctree" in line for line in warnings)


@pytest.mark.parametrize("page", ["README.md", "docs/architecture.md"])
def test_diagrams_are_drawn_with_all_their_labels(page: str) -> None:
    sources = DIAGRAM.findall((ROOT / page).read_text("utf-8"))
    assert sources

    for source in sources:
        drawn = draw(source, "name")
        words = re.findall(r"\w+", " ".join(re.findall(r'"([^"]+)"', source.replace("<br/>", " "))))
        assert [word for word in words if word not in drawn] == []


def test_text_that_is_no_diagram_is_a_fault() -> None:
    with pytest.raises(DiagramFault, match="Parse error on line 2"):
        draw("flowchart LR\n    a --> [[[", "name")


@pytest.mark.browser
@pytest.mark.integration
def test_reader_sees_diagrams_and_finds_a_page(site: Path, chromium: Chromium, screenshots: Path) -> None:
    with serving(site) as address, chromium.window(width=1280, height=900) as browser:
        browser.open(f"{address}/docs/guarantees.html")
        browser.screenshot(screenshots / "site-guarantees.png")
        assert browser.run("return document.documentElement.scrollWidth <= innerWidth"), (
            "wide tables scroll by themselves"
        )

        for page in ("index.html", "docs/architecture.html"):
            browser.open(f"{address}/{page}")
            browser.screenshot(screenshots / f"site-{Path(page).stem}.png")
            hidden = browser.run(HIDDEN_BY_DIAGRAM)
            assert hidden
            assert not any(hidden), hidden

        browser.open(f"{address}/search.html?q=retention")
        browser.wait_for("document.querySelector('#search-results li a') !== null")
        browser.screenshot(screenshots / "site-search.png")

        assert "docs/operating/running.html" in browser.run(
            "return document.querySelector('#search-results').innerHTML"
        )
        assert [url for url in browser.requests() if not url.startswith((address, "data:"))] == []
        assert [line for line in browser.console() if "/favicon.ico" not in line] == []


@pytest.mark.browser
@pytest.mark.integration
def test_diagrams_are_drawn_by_a_browser_too_and_no_box_covers_a_label(
    chromium: Chromium, tmp_path: Path, screenshots: Path
) -> None:
    script = Path(mermaidx.__file__).parent / "assets" / "mermaid.js"
    page = tmp_path / "page.html"
    page.write_text(f'<!doctype html><meta charset="utf-8"><script src="{script.as_uri()}"></script><body>')

    with chromium.window(width=1280, height=900) as browser:
        browser.open(page.as_uri())
        for name in ("README.md", "docs/architecture.md"):
            for source in DIAGRAM.findall((ROOT / name).read_text("utf-8")):
                assert browser.run_async(RENDER, source) == "", name
                browser.screenshot(screenshots / f"diagram-{Path(name).stem}.png")
                assert browser.run("return document.querySelectorAll('.node').length") > 5
                assert browser.run(COVERED) == [], name
