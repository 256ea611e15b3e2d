"""mailserver.monitoring.page: what the page is made of, as it is shipped, and what a browser may do with it."""

import base64
import hashlib
import re
import subprocess
import sys
import zipfile
from html.parser import HTMLParser
from importlib.resources import files
from pathlib import Path

import pytest

from mailserver.monitoring.page import load_page

ASSETS = files("mailserver.monitoring") / "assets"

PUBLISHED = {
    "uPlot.iife.min.js": "19c8d4c6ad88929a79f4ae49d6f7161566dfd0ba3d15cc495e974f787eb78f1f",
    "uPlot.min.css": "df630c6a8d6f8eeaff264b50f73ce5b114f646ffd9a0bb74f049b0a00135fa04",
    "uPlot.LICENSE": "8f989229699b4fe2f1a0432d0e9edc338a8a911e250e2d1b01ecd770a5f5b1bd",
}
"""SHA-256 of files of the npm package uplot 1.6.32."""


class Parts(HTMLParser):
    """What stands in script and style elements, and the attributes of all elements."""

    def __init__(self) -> None:
        super().__init__()
        self.inline: list[tuple[str, str]] = []
        self.attributes: list[tuple[str, str, str]] = []
        self._tag = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._tag = tag
        self.attributes += [(tag, name, value or "") for name, value in attrs]

    def handle_endtag(self, tag: str) -> None:
        self._tag = ""

    def handle_data(self, data: str) -> None:
        if self._tag in ("script", "style"):
            self.inline.append((self._tag, data))


@pytest.fixture(scope="module")
def parts() -> Parts:
    parts = Parts()
    parts.feed(load_page().html.decode())
    return parts


@pytest.mark.parametrize("name", PUBLISHED)
def test_library_is_shipped_as_it_was_published(name: str) -> None:
    assert hashlib.sha256((ASSETS / name).read_bytes()).hexdigest() == PUBLISHED[name]


def test_version_of_the_library_is_the_one_that_is_noted() -> None:
    (version,) = re.findall(r"uPlot \(v([0-9.]+)\)", (ASSETS / "uPlot.iife.min.js").read_text())

    assert f"uPlot {version}" in (ASSETS / "README.md").read_text()


def test_page_refers_to_nothing_outside(parts: Parts) -> None:
    assert {value for _, name, value in parts.attributes if name in ("href", "src", "action", "srcset")} == {"data:,"}
    styles = [text for tag, text in parts.inline if tag == "style"]
    assert not any(word in text for text in styles for word in ("@import", "url(", "http"))
    assert "http" not in (ASSETS / "page.js").read_text() + (ASSETS / "page.html").read_text()


def test_every_part_is_in_the_page(parts: Parts) -> None:
    assert [tag for tag, _ in parts.inline] == ["style", "style", "script", "script"]
    assert not re.search(r"@[\w.]+\.(css|js)@", load_page().html.decode())
    assert not [name for _, name, _ in parts.attributes if name == "style" or name.startswith("on")]


def test_policy_allows_these_scripts_and_styles_and_nothing_else(parts: Parts) -> None:
    policy = dict(part.split(" ", 1) for part in load_page().policy.split("; "))
    hashes = {
        tag: [
            f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
            for each, text in parts.inline
            if each == tag
        ]
        for tag in ("script", "style")
    }

    assert policy == {
        "default-src": "'none'",
        "script-src": " ".join(hashes["script"]),
        "style-src": " ".join(hashes["style"]),
        "img-src": "data:",
        "connect-src": "'self'",
        "base-uri": "'none'",
        "form-action": "'none'",
        "frame-ancestors": "'none'",
    }


def test_our_script_sets_text_and_never_html() -> None:
    script = (ASSETS / "page.js").read_text()

    for word in ("innerHTML", "outerHTML", "insertAdjacent", "document.write", "eval(", "Function("):
        assert word not in script


@pytest.mark.integration
def test_wheel_has_the_assets(tmp_path: Path) -> None:
    build = [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", str(tmp_path)]
    done = subprocess.run(build, cwd=Path(__file__).parents[2], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr

    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        for asset in ASSETS.iterdir():
            assert archive.read(f"mailserver/monitoring/assets/{asset.name}") == asset.read_bytes()
    assert {asset.name for asset in ASSETS.iterdir()} == {*PUBLISHED, "README.md", "page.css", "page.html", "page.js"}
