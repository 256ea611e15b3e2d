"""A real Prometheus for the length of a `with`, and what our dashboard and alert rules ask it.

Debian's package `prometheus` has it and promtool.
"""

import contextlib
import json
import os
import re
import shutil
import subprocess
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import pytest

ROOT = Path(__file__).parent.parent.parent
ALERTS = ROOT / "docker" / "prometheus" / "alerts.yml"
DASHBOARD = ROOT / "docker" / "grafana" / "dashboards" / "mailserver.json"

DEADLINE_S = 60.0
"""How long Prometheus may take to start, or to have scraped what is waited for."""

_METRIC = re.compile(r"\b(?:mailserver|gateway|community|waku|p2p|process)_[a-z0-9_]+")
_POLL_S = 0.1


def program(name: str) -> str:
    """The path of a program; the test is skipped where there is none, but not in CI."""
    path = shutil.which(name)
    if path is None:
        if os.environ.get("CI") == "true":
            pytest.fail(f"there is no {name}: install Debian's package prometheus")
        pytest.skip(f"there is no {name}")
    return path


def metrics_in(text: str) -> set[str]:
    """The metrics that an expression, or a file of them, names; a histogram's series by its own name."""
    return {re.sub(r"_(bucket|count|sum)$", "", name) for name in _METRIC.findall(text)}


class Query(NamedTuple):
    """One query of a panel."""

    panel: str
    expression: str

    def of(self, instance: str, gateway: str, communities: str) -> str:
        """What Grafana asks for this mailserver, this gateway, and this `community serve`."""
        chosen = self.expression.replace("$instance", instance).replace("$gateway", gateway)
        chosen = chosen.replace("$communities", communities)
        return chosen.replace("$__rate_interval", "1m")


def dashboard() -> dict[str, Any]:
    """The dashboard."""
    with DASHBOARD.open(encoding="utf-8") as file:
        read: dict[str, Any] = json.load(file)
    return read


def panels() -> list[dict[str, Any]]:
    """Its panels, without the titles of rows."""
    return [panel for panel in dashboard()["panels"] if panel["type"] != "row"]


def queries() -> list[Query]:
    """What its panels ask."""
    return [Query(panel["title"], target["expr"]) for panel in panels() for target in panel["targets"]]


class Sample(NamedTuple):
    """A series at one moment."""

    labels: dict[str, str]
    value: float


@dataclass(frozen=True)
class Prometheus:
    """One that runs."""

    url: str

    def query(self, expression: str, at: float | None = None) -> list[Sample]:
        """Ask for the value of an expression, now or at a moment."""
        data = self._get("query", {"query": expression, **({} if at is None else {"time": f"{at:.3f}"})})
        return [Sample(each["metric"], float(each["value"][1])) for each in data["result"]]

    def alerts(self) -> list[dict[str, Any]]:
        """All alert rules, as they stand."""
        return [rule for group in self._get("rules", {"type": "alert"})["groups"] for rule in group["rules"]]

    def wait_for(self, expression: str) -> None:
        """Wait until an expression has a value."""
        deadline = time.monotonic() + DEADLINE_S
        while not self.query(expression):
            assert time.monotonic() < deadline, f"no value of {expression}"
            time.sleep(_POLL_S)

    def is_ready(self) -> bool:
        """Whether it answers."""
        try:
            with urllib.request.urlopen(f"{self.url}/-/ready", timeout=DEADLINE_S):
                return True
        except urllib.error.HTTPError:
            return False

    def _get(self, what: str, parameters: dict[str, str]) -> Any:
        url = f"{self.url}/api/v1/{what}?{urllib.parse.urlencode(parameters)}"
        try:
            with urllib.request.urlopen(url, timeout=DEADLINE_S) as response:
                return json.load(response)["data"]
        except urllib.error.HTTPError as error:
            with error:
                raise AssertionError(f"{parameters}: {error.read().decode()}") from error


@contextlib.contextmanager
def running_prometheus(folder: Path, instance: str, gateway: str, communities: str) -> Iterator[Prometheus]:
    """Run one on a free port of loopback that scrapes a mailserver, a gateway and `community serve`, at HOST:PORT each,
    every second, with our alert rules."""
    jobs = {"mailserver": instance, "gateway": gateway, "communities": communities}
    config = {
        "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
        "rule_files": [str(ALERTS)],
        "scrape_configs": [
            {"job_name": job, "static_configs": [{"targets": [target]}]} for job, target in jobs.items()
        ],
    }
    (folder / "prometheus.yml").write_text(json.dumps(config))  # YAML has all of JSON
    command = [program("prometheus"), f"--config.file={folder}/prometheus.yml", f"--storage.tsdb.path={folder}/data"]
    with (folder / "prometheus.log").open("wb") as log:
        process = subprocess.Popen([*command, "--web.listen-address=127.0.0.1:0"], stderr=log, stdout=log)
    try:
        prometheus = Prometheus(f"http://{_address(process, folder / 'prometheus.log')}")
        deadline = time.monotonic() + DEADLINE_S
        while not prometheus.is_ready():
            assert time.monotonic() < deadline, (folder / "prometheus.log").read_text()
            time.sleep(_POLL_S)
        yield prometheus
    finally:
        process.terminate()
        try:
            process.wait(DEADLINE_S)
        finally:
            process.kill()


def _address(process: subprocess.Popen[bytes], log: Path) -> str:
    """Where it listens, by its log."""
    deadline = time.monotonic() + DEADLINE_S
    while (found := re.search(r'msg="Listening on" address=(\S+)', log.read_text())) is None:
        assert process.poll() is None, log.read_text()
        assert time.monotonic() < deadline, log.read_text()
        time.sleep(_POLL_S)
    return found[1]
