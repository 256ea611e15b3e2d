"""docker/systemd: units that systemd understands, hardened, and that agree with each other and with the programs."""

import re
from pathlib import Path

import pytest

from mailserver.app import daemon
from mailserver.app.communities_config import COMMUNITIES
from mailserver.app.config_sources import MAILSERVER
from mailserver.app.gateway_config import GATEWAY
from mailserver.community.folder import COMMUNITIES_FOLDER
from mailserver.gateway import host
from mailserver.store.sqlite.schema import STORE_FILE
from mailserver.torrents.child import ENDS_S, STOP_S
from spark_export.options import MERGE_SCHEDULE, NIGHTLY_OPTIONS, VERIFY_SCHEDULE
from spark_export.schedule import STOP_LIMIT_S
from tests.confined import UNITS, analyze, settings

SERVICES = [
    "waku-mailserver.service",
    "waku-mailserver-compaction.service",
    "waku-mailserver-gateway.service",
    "waku-mailserver-communities.service",
]
TIMER = "waku-mailserver-compaction.timer"
PROGRAMS = "/opt/waku-mailserver/bin/"

MAX_EXPOSURE = dict.fromkeys(SERVICES, 12) | {"waku-mailserver-communities.service": 13}
"""Tenths: "OK" ends at 2.0 and "SAFE" at 1.0. What is left: any address may be reached, and by communities netlink."""


def environment(unit: str) -> dict[str, str]:
    return dict(setting.split("=", 1) for setting in settings(unit)["Service.Environment"])


@pytest.mark.parametrize("unit", [*SERVICES, TIMER])
def test_systemd_understands_the_unit(unit: str, tmp_path: Path) -> None:
    for name in [*SERVICES, TIMER]:
        text = (UNITS / name).read_text(encoding="ascii").replace(PROGRAMS, f"{tmp_path}/")
        (tmp_path / name).write_text(text, encoding="ascii")
    for program in ("waku-mailserver", "spark-export"):
        (tmp_path / program).write_text("#!/bin/sh\n")
        (tmp_path / program).chmod(0o755)

    done = analyze("verify", tmp_path / unit)

    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("unit", SERVICES)
def test_service_is_exposed_to_little(unit: str) -> None:
    done = analyze("security", "--offline=yes", f"--threshold={MAX_EXPOSURE[unit]}", UNITS / unit)

    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("unit", SERVICES)
def test_service_is_hardened(unit: str) -> None:
    service = {name.removeprefix("Service."): values for name, values in settings(unit).items()}

    assert service["NoNewPrivileges"] == ["yes"]
    assert service["ProtectSystem"] == ["strict"]
    assert service["PrivateTmp"] == ["yes"]
    assert service["CapabilityBoundingSet"] == [""]
    assert service["SystemCallFilter"][0] == "@system-service"
    assert {"MemoryMax", "LimitNOFILE", "TasksMax"} <= service.keys()


def test_all_share_user_folder_and_settings() -> None:
    for name in ("User", "StateDirectory", "StateDirectoryMode", "UMask", "EnvironmentFile"):
        values = [settings(unit)[f"Service.{name}"] for unit in SERVICES]
        assert values == [values[0]] * len(SERVICES)


def test_gateway_finds_the_mailserver_and_its_feed_socket() -> None:
    mailserver = MAILSERVER.load({}, environment(SERVICES[0]), None)
    gateway = GATEWAY.load({}, environment(SERVICES[2]), None)

    assert mailserver.feed_socket
    assert gateway.data_dir == mailserver.data_dir
    assert int(settings(SERVICES[2])["Service.TimeoutStopSec"][0]) > 5 > host.STOP_TIMEOUT_S


def test_communities_are_where_the_mailserver_and_the_compaction_have_them() -> None:
    mailserver = MAILSERVER.load({}, environment(SERVICES[0]), None)
    communities = COMMUNITIES.load({}, environment(SERVICES[3]), None)
    (command,) = settings(SERVICES[3])["Service.ExecStart"]

    assert communities.data_dir == mailserver.data_dir
    assert environment(SERVICES[1])["SPARK_EXPORT_COMMUNITIES"] == str(communities.data_dir / COMMUNITIES_FOLDER)
    assert command == f"{PROGRAMS}waku-mailserver community serve"
    assert int(settings(SERVICES[3])["Service.TimeoutStopSec"][0]) > STOP_S + ENDS_S


@pytest.mark.parametrize("unit", SERVICES)
def test_what_a_service_writes_is_its_users_alone(unit: str) -> None:
    assert settings(unit)["Service.StateDirectoryMode"] == ["0700"]
    assert settings(unit)["Service.UMask"] == ["0077"]


def test_both_know_the_same_store_and_archive() -> None:
    mailserver, compaction = map(environment, SERVICES[:2])
    config = MAILSERVER.load({}, mailserver, None)  # raises, if one is no setting

    assert compaction["SPARK_EXPORT_STORE"] == str(config.data_dir / STORE_FILE)
    assert compaction["SPARK_EXPORT_ARCHIVE"] == config.archive
    assert str(config.data_dir) == "/var/lib/" + settings(SERVICES[0])["Service.StateDirectory"][0].split()[0]
    assert compaction["SPARK_EXPORT_SCRATCH"] == "/var/cache/" + settings(SERVICES[1])["Service.CacheDirectory"][0]


def test_mailserver_may_read_the_archive_and_not_write_it_from_its_first_start_on() -> None:
    service = settings(SERVICES[0])
    archive = environment(SERVICES[0])["MAILSERVER_ARCHIVE"]

    assert service["Service.ReadOnlyPaths"] == [archive]  # a path that must be there
    assert archive in [f"/var/lib/{name}" for name in service["Service.StateDirectory"][0].split()]
    assert archive not in settings(SERVICES[1]).get("Service.ReadOnlyPaths", [])


def test_daemon_is_given_the_time_that_it_takes_to_stop() -> None:
    (limit,) = settings(SERVICES[0])["Service.TimeoutStopSec"]

    assert int(limit) > 5 > daemon.STOP_TIMEOUT_S
    assert settings(SERVICES[0])["Service.KillMode"] == ["mixed"]
    assert settings(SERVICES[0])["Service.Restart"] == ["on-failure"]
    assert re.fullmatch(r"/bin/kill -HUP \$MAINPID", settings(SERVICES[0])["Service.ExecReload"][0])


def test_compaction_is_at_17_past_3_utc_and_made_up_for() -> None:
    timer = settings(TIMER)

    assert timer["Timer.OnCalendar"] == ["*-*-* 03:17:00 UTC"]
    assert timer["Timer.Persistent"] == ["true"]
    assert settings(SERVICES[1])["Service.Type"] == ["oneshot"]


def test_merges_and_verifications_are_made_after_the_compaction_by_the_same_unit() -> None:
    """One unit is never started twice at once, so its runs do not overlap; which are due, `nightly` knows."""
    (command,) = settings(SERVICES[1])["Service.ExecStart"]
    given = environment(SERVICES[1])
    (at,) = settings(TIMER)["Timer.OnCalendar"]
    minute, hour = map(int, re.findall(r"\d+", at)[1::-1])

    assert command == f"{PROGRAMS}spark-export nightly"
    assert given.keys() <= {option.variable for option in NIGHTLY_OPTIONS}
    for option in (MERGE_SCHEDULE, VERIFY_SCHEDULE):  # due when the timer fires, not an hour after it
        assert (option.default or "").split()[:2] == [str(minute), str(hour)]
    assert settings(SERVICES[1])["Service.TimeoutStartSec"] == ["infinity"]
    assert settings(SERVICES[1])["Service.KillMode"] == ["mixed"]
    assert int(settings(SERVICES[1])["Service.TimeoutStopSec"][0]) > STOP_LIMIT_S
