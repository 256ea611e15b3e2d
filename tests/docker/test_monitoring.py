"""The profile `monitoring`: Prometheus as the compose file runs it; of Grafana, what can be shown without its image."""

import json
import re
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.docker.engine import BUILD_S, QUICK_S, docker, wait_for
from tests.docker.stack import PROFILES, REPOSITORY, Stack

pytestmark = [pytest.mark.docker, pytest.mark.integration]

PROFILE = ("--profile", "monitoring")
PROVISIONING = REPOSITORY / "docker" / "grafana" / "provisioning"


@pytest.fixture(scope="module")
def standins(built: Stack) -> Iterator[tuple[str, ...]]:
    """Images in the places of those that only a registry has: Debian's Prometheus, and nothing at all for Grafana.

    Yields:
        what has compose use them.
    """
    folder, tag = Path(__file__).parent, f"{built.project}-standin"
    dockerfile = (REPOSITORY / "docker" / "Dockerfile").read_text(encoding="utf-8")
    base = re.findall(r"^FROM (python:\S+)", dockerfile, re.MULTILINE)[0]
    build = ("build", "--build-arg", f"BASE={base}", "--file", str(folder / "prometheus.Dockerfile"), "--tag", tag)
    docker(*build, str(folder), within_s=BUILD_S)
    services = {"prometheus": {"image": tag}, "grafana": {"image": tag}}
    (built.folder / "standins.yml").write_text(json.dumps({"services": services}), encoding="utf-8")
    yield ("--file", "docker-compose.yml", "--file", "standins.yml", *PROFILE)
    built.compose(*PROFILE, "rm", "--stop", "--force", "prometheus", "grafana")
    docker("image", "rm", tag)


def ask(stack: Stack, path: str) -> Any:
    """What Prometheus answers on the host's loopback."""
    url = f"http://127.0.0.1:{stack.settings['PROMETHEUS_PORT']}/api/v1/{path}"
    with urllib.request.urlopen(url, timeout=QUICK_S) as response:
        return json.load(response)["data"]


def test_prometheus_scrapes_the_mailserver_with_the_configuration_and_rules_that_are_shipped(
    built: Stack, standins: tuple[str, ...]
) -> None:
    built.up("mailserver")
    built.compose(*standins, "up", "--detach", "--no-build", "prometheus")
    built.wait_until_healthy("prometheus")

    wait_for(
        lambda: [target["health"] for target in ask(built, "targets")["activeTargets"]] == ["up"],
        lambda: json.dumps(ask(built, "targets"), indent=1) + built.logs("prometheus"),
        QUICK_S,
    )

    (up,) = ask(built, "query?query=up")["result"]
    assert (up["metric"]["job"], up["value"][1]) == ("mailserver", "1")
    assert ask(built, "rules")["groups"]


def test_prometheus_finds_the_gateway_and_communities_while_they_run(built: Stack, standins: tuple[str, ...]) -> None:
    built.up("mailserver")
    built.up("gateway")
    built.up("communities")
    built.compose(*standins, "up", "--detach", "--no-build", "--force-recreate", "prometheus")
    built.wait_until_healthy("prometheus")
    try:
        wait_for(
            lambda: (
                {(target["labels"]["instance"], target["health"]) for target in ask(built, "targets")["activeTargets"]}
                == {("mailserver:9305", "up"), ("gateway:9306", "up"), ("communities:9307", "up")}
            ),
            lambda: json.dumps(ask(built, "targets"), indent=1) + built.logs("prometheus"),
            QUICK_S,
        )
    finally:
        built.compose(*PROFILES, "rm", "--stop", "--force", "gateway", "communities")


def test_grafana_does_not_start_without_a_password(built: Stack, standins: tuple[str, ...]) -> None:
    refused = built.compose(*standins, "run", "--rm", "-T", "--no-deps", "grafana", check=False)

    assert refused.returncode == 1
    assert "set GRAFANA_ADMIN_PASSWORD in .env" in refused.stderr


def test_grafana_is_given_its_datasource_and_dashboards_where_it_looks_for_them(built: Stack) -> None:
    services = json.loads(built.compose(*PROFILE, "config", "--format", "json").stdout)["services"]
    mounts = {
        volume["target"]: Path(volume["source"])
        for volume in services["grafana"]["volumes"]
        if volume["type"] == "bind"
    }
    datasource = (PROVISIONING / "datasources" / "prometheus.yml").read_text(encoding="utf-8")
    provider = (PROVISIONING / "dashboards" / "mailserver.yml").read_text(encoding="utf-8")
    dashboard = services["grafana"]["environment"]["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"]

    assert mounts["/etc/grafana/provisioning"] == built.folder / "docker" / "grafana" / "provisioning"
    assert "url: http://prometheus:9090\n" in datasource
    (folder,) = re.findall("path: (.+)", provider)
    assert Path(dashboard).parent == Path(folder)
    assert mounts[folder] == built.folder / "docker" / "grafana" / "dashboards"


@pytest.mark.parametrize(
    ("profile", "services"), [((), 2), (PROFILE, 4), (("--profile", "gateway"), 3), (("--profile", "postgres"), 6)]
)
def test_the_compose_file_is_right_without_any_setting(built: Stack, profile: tuple[str, ...], services: int) -> None:
    alone = built.folder / "alone"
    alone.mkdir(exist_ok=True)
    (alone / "docker-compose.yml").write_bytes((REPOSITORY / "docker-compose.yml").read_bytes())

    config = json.loads(docker("compose", *profile, "config", "--format", "json", folder=alone).stdout)

    assert len(config["services"]) == services
    published = [port for service in config["services"].values() for port in service.get("ports", [])]
    assert {port["host_ip"] for port in published if port["target"] not in (30303, 30304, 60000)} == {"127.0.0.1"}


@pytest.mark.parametrize("service", ["prometheus", "grafana", "postgres"])
def test_what_others_wrote_is_held_as_tightly_as_ours(built: Stack, service: str) -> None:
    config = json.loads(built.compose(*PROFILES, "config", "--format", "json").stdout)["services"][service]

    assert config["read_only"]
    assert config["cap_drop"] == ["ALL"]
    assert config["security_opt"] == ["no-new-privileges:true"]
    assert config["user"].split(":")[0] != "0"
    assert config["healthcheck"]["test"]
    assert int(config["mem_limit"]) > 0
    assert config["pids_limit"] > 0
    assert config["logging"]["options"]["max-size"]
