"""docker/prometheus/alerts.yml: promtool reads it, and raises each alert in one case of alerts_test.yml or
slow_alerts_test.yml."""

import re
import subprocess
from pathlib import Path

import pytest

from mailserver.monitoring.health import LATE_S
from tests.monitoring.prometheus import ALERTS, dashboard, program

CASES = [Path(__file__).with_name(name) for name in ("alerts_test.yml", "slow_alerts_test.yml")]

RULES = ALERTS.read_text(encoding="utf-8").split("      - alert: ")[1:]


def promtool(*arguments: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [program("promtool"), *map(str, arguments)], capture_output=True, text=True, timeout=120, check=False
    )


@pytest.mark.integration
def test_rules_are_well_formed() -> None:
    checked = promtool("check", "rules", "--lint-fatal", ALERTS)

    assert checked.returncode == 0, checked.stdout + checked.stderr


@pytest.mark.integration
def test_alerts_are_raised_when_they_should_be_and_only_then() -> None:
    tested = promtool("test", "rules", *CASES)

    assert tested.returncode == 0, tested.stdout + tested.stderr


def test_each_alert_is_raised_in_a_case_with_its_severity() -> None:
    severities = {rule.split()[0]: re.findall(r"severity: (\w+)", rule) for rule in RULES}
    cases = "".join(path.read_text(encoding="utf-8") for path in CASES)
    expected = set(re.findall(r'alertname="(\w+)", severity="(\w+)"', cases))

    assert {(name, severity) for name, (severity,) in severities.items()} == expected
    assert {severity for _, severity in expected} == {"critical", "warning"}


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.split()[0])
def test_each_alert_says_what_it_is_and_what_to_look_at(rule: str) -> None:
    for what in ("summary: ", "description: >-\n", "runbook: docs/operating/alerts.md\n"):
        assert rule.count(f"          {what}") == 1
    assert "{{ $labels.instance }}" in rule


def test_compaction_is_late_when_ready_says_so() -> None:
    (late,) = (rule for rule in RULES if rule.startswith("MailserverCompactionLate\n"))
    (stat,) = (panel for panel in dashboard()["panels"] if panel["title"] == "Last good run")

    assert f"> {LATE_S / 3600:g} * 3600\n" in late
    assert stat["fieldConfig"]["defaults"]["thresholds"]["steps"][1]["value"] == LATE_S
