"""A headless Chromium of Debian's packages chromium and chromium-driver, and its windows, each for a `with`."""

import base64
import contextlib
import json
import os
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from selenium import webdriver
from selenium.webdriver.support.ui import WebDriverWait

from tests.waiting import DEADLINE_S

PROGRAMS = ("chromium", "chromedriver")

FLAGS = (
    "--headless",
    "--no-sandbox",  # root may not have one, and it shows nothing but our own page
    "--disable-gpu",
    "--disable-quic",
    "--disable-dev-shm-usage",  # 64 MB in a container
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)


class Browser:
    """One page in a window. Made by `running_browser`, or by a `Chromium`."""

    def __init__(self, driver: webdriver.Chrome) -> None:
        self._driver = driver
        self._events: list[dict[str, Any]] = []

    def open(self, url: str) -> None:
        """Go to a page, and wait until that is loaded."""
        self._driver.get(url)

    def run(self, script: str, *arguments: object) -> Any:
        """Run JavaScript; what it returns."""
        return self._driver.execute_script(script, *arguments)

    def run_async(self, script: str, *arguments: object) -> Any:
        """Run JavaScript that calls its last argument with what it has found; return that."""
        self._driver.set_script_timeout(DEADLINE_S)
        return self._driver.execute_async_script(script, *arguments)

    def wait_for(self, script: str) -> None:
        """Wait until a JavaScript expression is true."""
        WebDriverWait(self._driver, DEADLINE_S, poll_frequency=0.02).until(
            lambda _: self.run(f"return {script}"), script
        )

    def command(self, name: str, **parameters: object) -> Any:
        """Give a command of the DevTools protocol."""
        return self._driver.execute_cdp_cmd(name, parameters)

    def console(self) -> list[str]:
        """What was written to the console since the last time."""
        return [entry["message"] for entry in self._driver.get_log("browser")]  # type: ignore[no-untyped-call]

    def requests(self) -> list[str]:
        """The addresses of all that was asked for, so far."""
        sent = [event for event in self._network() if event["method"] == "Network.requestWillBeSent"]
        return [event["params"]["request"]["url"] for event in sent]

    def body(self, url: str) -> str:
        """What came from an address, the last time."""
        ids = {
            event["params"]["response"]["url"]: event["params"]["requestId"]
            for event in self._network()
            if event["method"] == "Network.responseReceived"
        }
        return str(self.command("Network.getResponseBody", requestId=ids[url])["body"])

    def screenshot(self, path: Path) -> None:
        """Make a picture of the first screen, and one (`-whole`) of the page as far down as it goes."""
        width, height = self.run("return [innerWidth, document.documentElement.scrollHeight]")
        whole = {"captureBeyondViewport": True, "clip": {"x": 0, "y": 0, "width": width, "height": height, "scale": 1}}
        for name, more in ((path.name, {}), (f"{path.stem}-whole{path.suffix}", whole)):
            picture = self.command("Page.captureScreenshot", format="png", **more)["data"]
            path.with_name(name).write_bytes(base64.b64decode(picture))

    def _network(self) -> list[dict[str, Any]]:
        log = self._driver.get_log("performance")  # type: ignore[no-untyped-call]
        self._events += [json.loads(entry["message"])["message"] for entry in log]
        return self._events


class Chromium:
    """A running browser, for one window after another. Made by `running_chromium`."""

    def __init__(self, driver: webdriver.Chrome) -> None:
        self._driver = driver

    @contextlib.contextmanager
    def window(self, *, width: int = 800, height: int = 600, dark: bool = False) -> Iterator[Browser]:
        """Open a window of this size, in pixels; it is closed at the end.

        Args:
            dark: it prefers dark pages.
        """
        driver = self._driver
        first = driver.current_window_handle
        driver.switch_to.new_window("tab")
        try:
            browser = Browser(driver)
            # A window has a least width; the page is to have this one.
            browser.command(
                "Emulation.setDeviceMetricsOverride",
                width=width,
                height=height,
                deviceScaleFactor=1,
                mobile=width < 500,
            )
            browser.open("about:blank")
            for log in ("browser", "performance"):  # of the windows before it, and of its own first page
                driver.get_log(log)  # type: ignore[no-untyped-call]
            scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
            browser.command("Emulation.setEmulatedMedia", features=[scheme])
            yield browser
        finally:
            driver.close()
            driver.switch_to.window(first)


@contextlib.contextmanager
def running_chromium(profile: Path, *, hosts: Sequence[str] = ()) -> Iterator[Chromium]:
    """Run a browser. The tests of a module share one, each with a window of its own.

    Args:
        profile: a new folder for what it writes.
        hosts: names that mean this machine to it.
    """
    missing = [program for program in PROGRAMS if shutil.which(program) is None]
    if missing:
        reason = f"no {' and no '.join(missing)}: on Debian, apt-get install chromium chromium-driver"
        if os.environ.get("CI") == "true":
            pytest.fail(reason)
        pytest.skip(reason)
    options = webdriver.ChromeOptions()
    options.binary_location = str(shutil.which("chromium"))
    rules = ", ".join(f"MAP {host} 127.0.0.1" for host in hosts)
    for flag in (*FLAGS, f"--user-data-dir={profile}", f"--host-resolver-rules={rules}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(shutil.which("chromedriver")))
    try:
        yield Chromium(driver)
    finally:
        driver.quit()


@contextlib.contextmanager
def running_browser(
    profile: Path, *, width: int = 800, height: int = 600, dark: bool = False, hosts: Sequence[str] = ()
) -> Iterator[Browser]:
    """Run a browser with one window: the arguments are those of `running_chromium` and of its `window`."""
    with (
        running_chromium(profile, hosts=hosts) as chromium,
        chromium.window(width=width, height=height, dark=dark) as browser,
    ):
        yield browser
