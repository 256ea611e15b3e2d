"""docs/examples/light-client.html in a real browser, a client of the gateway. Its picture is docs/light-client.png."""

import subprocess
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlencode

import pytest

from tests.integration.browser import Browser, running_browser
from tests.integration.commands import found, post
from tests.integration.daemons import DEADLINE_S, Daemon, running_daemon
from tests.integration.gateways import running_gateway
from tests.integration.light_clients import JS
from tests.node_js import require_packages

pytestmark = [pytest.mark.browser, pytest.mark.integration]

CHAT = "garden"
WORDS = "<img src=x onerror=alert(1)><b id=injected>first</b>"
"""What is said is shown as text, whatever it is."""

SHOWN = """
    return [...document.querySelectorAll("#messages li")].map((line) => line.querySelector("span").textContent);
"""


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page, bundled with the SDK."""
    require_packages(JS)
    folder = tmp_path_factory.mktemp("page")
    subprocess.run(
        ["npm", "run", "page", "--silent", "--", f"--outdir={folder}", "--log-level=warning"],
        cwd=JS,
        check=True,
        timeout=DEADLINE_S,
    )
    return folder / "light-client.html"


@pytest.fixture(scope="module")
def browser(page: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with running_browser(tmp_path_factory.mktemp("profile"), width=720, height=480) as browser:
        yield browser


@pytest.fixture
def daemon(data_dir: Path) -> Iterator[Daemon]:
    with running_daemon(data_dir, "--feed-socket") as daemon:
        yield daemon


def say(daemon: Daemon, text: str, password: str = CHAT) -> None:
    """Post as a client of Waku v1, sealed with the name of the chat."""
    post(daemon.enode, text, "--sym-key-password", password, topic=CHAT)


def open_page(browser: Browser, page: Path, address: str) -> None:
    browser.open("about:blank")  # a page whose address differs in its fragment only is not loaded again
    browser.open(f"{page.as_uri()}#{urlencode({'gateway': address, 'chat': CHAT})}")


def wait_for(browser: Browser, *texts: str) -> None:
    """Wait until the page shows as many messages; they must be these."""
    browser.wait_for(f"document.querySelectorAll('#messages li').length >= {len(texts)}")
    assert sorted(browser.run(SHOWN)) == sorted(texts)


def send(browser: Browser, text: str) -> None:
    """Type a message, and send it."""
    browser.wait_for("!document.getElementById('text').disabled")
    browser.run("document.getElementById('text').value = arguments[0]", text)
    browser.run("document.getElementById('post').requestSubmit()")


def test_page_shows_history_and_what_v1_clients_post_and_sends_to_them(
    browser: Browser, page: Path, daemon: Daemon, screenshots: Path
) -> None:
    say(daemon, "it is spring")
    say(daemon, "sealed for others", "kitchen")
    with running_gateway(daemon.data_dir) as gateway:
        open_page(browser, page, gateway.websocket)
        wait_for(browser, "it is spring")
        browser.wait_for("document.getElementById('state').textContent === 'Connected'")

        say(daemon, "sealed for others, too", "kitchen")
        say(daemon, "the bees are back")
        wait_for(browser, "it is spring", "the bees are back")
        send(browser, "so am I, in a browser")
        wait_for(browser, "it is spring", "the bees are back", "so am I, in a browser")
        browser.screenshot(screenshots / "light-client.png")
        asked = {url.split("/")[2] for url in browser.requests() if url.startswith("http")}

    v1 = [str(each["payload"]) for each in found(daemon.enode, "--topic", CHAT, "--sym-key-password", CHAT)]
    opened = [text for text in v1 if text != "None"]
    assert sorted(opened) == ["it is spring", "so am I, in a browser", "the bees are back"]
    assert len(v1) == len(opened) + 2
    assert asked == set(), "it asks nobody but the gateway"


def test_page_goes_on_after_the_gateway_was_restarted(browser: Browser, page: Path, daemon: Daemon) -> None:
    with running_gateway(daemon.data_dir) as gateway:
        say(daemon, WORDS)
        open_page(browser, page, gateway.websocket)
        wait_for(browser, WORDS)
        browser.wait_for("document.getElementById('state').textContent === 'Connected'")
        assert gateway.stop() == 0
    browser.wait_for("document.getElementById('state').textContent !== 'Connected'")
    say(daemon, "while it is down")
    with running_gateway(daemon.data_dir, like=gateway):
        wait_for(browser, WORDS, "while it is down")
        browser.wait_for("document.getElementById('state').textContent === 'Connected'")
        say(daemon, "afterwards")
        wait_for(browser, WORDS, "while it is down", "afterwards")


@pytest.mark.parametrize(
    ("peer", "words"),
    [
        ("", "the address does not say who the gateway is"),
        ("/p2p/12D3KooWEtnPr88aXKeZnbR7cEGwkRqazAj8evM4v39PxNXPQwM3", ""),
    ],
)
def test_page_says_why_it_is_not_connected(browser: Browser, page: Path, peer: str, words: str) -> None:
    open_page(browser, page, f"/ip4/127.0.0.1/tcp/9/ws{peer}")  # nobody listens there

    browser.wait_for(f"document.getElementById('state').textContent.startsWith('Not connected: {words}')")
