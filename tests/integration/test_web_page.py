"""Pages of others in the operator's browser, a real one: they can neither drive the node nor read how it is."""

import http.server
import json
import threading
import urllib.request
from collections.abc import Iterator
from typing import Any

import pytest

from tests.integration.browser import Browser, running_browser
from tests.integration.daemons import Daemon, running_daemon
from tests.integration.test_logs import port_of

pytestmark = [pytest.mark.browser, pytest.mark.integration]

ATTACKER, REBOUND = "attacker.example", "rebound.example"

CALL = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "waku_setMinPoW", "params": [0.5]})

TRY = """
    const [url, call, done] = arguments;
    const tell = (promise) => promise.then((text) => "got: " + text, (error) => "refused");
    const text = async (response) => {
        if (response.type === "opaque") throw "sent, and not to be read";
        return `${response.status} ${await response.text()}`;
    };
    const post = (type, mode) =>
        fetch(url, { method: "POST", body: call, mode, headers: { "Content-Type": type } }).then(text);
    const socket = () => new Promise((got, refused) => {
        const opened = new WebSocket(url.replace("http", "ws"));
        opened.onmessage = (message) => got(message.data);
        opened.onopen = () => opened.send(call);
        opened.onerror = refused;
    });
    const form = () => new Promise((got, refused) => {
        const frame = document.createElement("iframe");
        frame.name = "sent";
        frame.onload = refused; // whatever came, this page cannot see it
        document.body.append(frame);
        const form = document.createElement("form");
        Object.assign(form, { method: "post", action: url, enctype: "text/plain", target: "sent" });
        const field = document.createElement("input");
        Object.assign(field, { name: call.slice(0, -1) + ', "ignored": "', value: '"}' });
        form.append(field);
        document.body.append(form);
        form.submit();
    });
    const script = () => new Promise((got, refused) => {
        const script = document.createElement("script");
        Object.assign(script, { src: url, onload: () => got("ran"), onerror: refused });
        document.body.append(script);
    });
    (async () => done({
        json: await tell(post("application/json", "cors")),
        plain: await tell(post("text/plain", "cors")),
        unseen: await tell(post("text/plain", "no-cors")),
        get: await tell(fetch(url).then(text)),
        websocket: await tell(socket()),
        form: await tell(form()),
        script: await tell(script()),
    }))();
"""
"""All the ways that a page has to send something to an address; what it could read of the answer."""


class _Page(http.server.BaseHTTPRequestHandler):
    """An empty page, at any path."""

    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/html")
        self.end_headers()
        self.wfile.write(b"<!doctype html><title>a page</title><body>")

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the name is http.server's
        pass


@pytest.fixture(scope="module")
def page() -> Iterator[str]:
    """The address of a page of somebody else."""
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Page) as server:
        threading.Thread(target=server.serve_forever).start()
        yield f"http://{ATTACKER}:{server.server_port}/"
        server.shutdown()


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with running_browser(tmp_path_factory.mktemp("profile"), hosts=(ATTACKER, REBOUND)) as browser:
        yield browser


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    """A node with JSON-RPC on loopback, without a token, and metrics."""
    with running_daemon(tmp_path_factory.mktemp("data"), "--rpc", "127.0.0.1:0", "--metrics", "127.0.0.1:0") as daemon:
        yield daemon


def least_pow(port: str) -> float:
    """The proof of work that the node asks for: what the pages try to change."""
    call = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "waku_info", "params": []}).encode()
    headers = {"Content-Type": "application/json"}
    request = urllib.request.Request(f"http://127.0.0.1:{port}/", data=call, headers=headers)
    with urllib.request.urlopen(request, timeout=10) as response:
        return float(json.load(response)["result"]["minPow"])


def tried(browser: Browser, url: str) -> dict[str, Any]:
    """What a page got that tried all it can."""
    outcome: dict[str, Any] = browser.run_async(TRY, url, CALL)
    return outcome


def test_page_of_another_site_cannot_call(browser: Browser, daemon: Daemon, page: str) -> None:
    port = port_of(daemon.wait_for_line("serving JSON-RPC"))
    before = least_pow(port)
    browser.open(page)

    outcome = tried(browser, f"http://127.0.0.1:{port}/")

    assert set(outcome.values()) == {"refused"}, outcome
    assert least_pow(port) == before


def test_page_whose_name_was_bound_to_this_machine_cannot_call(browser: Browser, daemon: Daemon) -> None:
    """DNS rebinding: to the browser the page and the node are of one origin."""
    port = port_of(daemon.wait_for_line("serving JSON-RPC"))
    before = least_pow(port)
    browser.open(f"http://{REBOUND}:{port}/")

    outcome = tried(browser, f"http://{REBOUND}:{port}/")

    assert outcome["json"].startswith("got: 403 Host is not localhost"), outcome
    assert outcome["websocket"] == "refused"
    assert least_pow(port) == before


def test_pages_of_others_cannot_read_status_or_metrics(browser: Browser, daemon: Daemon, page: str) -> None:
    port = port_of(daemon.wait_for_line("serving metrics"))
    browser.open(page)
    for path in ("", "status.json", "history.json", "metrics"):
        outcome = tried(browser, f"http://127.0.0.1:{port}/{path}")
        assert set(outcome.values()) == {"refused"}, (path, outcome)

    browser.open(f"http://{REBOUND}:{port}/")
    rebound = tried(browser, f"http://{REBOUND}:{port}/status.json")
    assert rebound["get"].startswith("got: 403 Host is not localhost"), rebound


def test_the_tries_would_show_what_gets_through(browser: Browser, daemon: Daemon) -> None:
    """The same from the node's own origin: what is refused above is refused to the page, and not broken."""
    port = port_of(daemon.wait_for_line("serving JSON-RPC"))
    browser.open(f"http://127.0.0.1:{port}/")

    outcome = tried(browser, f"http://127.0.0.1:{port}/")

    assert '"result": true' in outcome["json"], outcome
    assert '"result": true' in outcome["websocket"], outcome
    assert least_pow(port) == 0.5
