"""README.md and docs: the settings are those of Config, links lead somewhere."""

import re
import tomllib
from dataclasses import fields
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from docs.settings import WRITTEN, settings_table, updated
from mailserver.app.config import Config
from mailserver.app.config_sources import MAILSERVER

ROOT = Path(__file__).parents[1]
HEADING = re.compile("^#+ (.+)$", re.MULTILINE)
LOCKED = re.compile(r"^([a-z0-9-]+)==(\S+)(.*(?:\n    --hash.*)*)", re.MULTILINE)
LINK = re.compile(r"\]\((?!https?://)([^)#]*)(?:#([^)]+))?\)")


@pytest.mark.parametrize("path", WRITTEN, ids=lambda path: path.name)
def test_settings_are_as_the_code_has_them(path: Path) -> None:
    assert path.read_text(encoding="utf-8") == updated(path), "run make docs"


def test_table_has_every_setting_with_its_default_and_marks_what_can_be_reloaded() -> None:
    rows = [row.split(" | ") for row in settings_table(MAILSERVER).splitlines()[2:]]

    assert [row[0].removeprefix("| ").strip("`↻ ") for row in rows] == [
        "--" + setting.name.replace("_", "-") for setting in fields(Config)
    ]
    assert ["↻" in row[0] for row in rows] == [setting.metadata["reloadable"] for setting in fields(Config)]
    defaults = {row[0].removeprefix("| ").strip("`↻ "): row[1] for row in rows}
    assert defaults["--min-pow"] == "`0.000002`"
    assert defaults["--retention-days"] == "`30`"
    assert defaults["--packet-rate-limits"] == "`2500,500,0`"
    assert defaults["--light-node"] == "off"
    assert defaults["--allow-clear-requests"] == "on"
    assert defaults["--archive"] == "-"


def test_every_alert_has_its_line() -> None:
    rules = re.findall("- alert: ([A-Za-z]+)", (ROOT / "docker" / "prometheus" / "alerts.yml").read_text("utf-8"))
    lines = re.findall(
        r"^\| \**((?:Mailserver|Gateway|Communit)[A-Za-z]+)\** \|",
        (ROOT / "docs" / "operating" / "alerts.md").read_text("utf-8"),
        re.MULTILINE,
    )

    assert sorted(lines) == sorted(rules)


def requirements() -> dict[str, Requirement]:
    """The packages that the mailserver, its gateway, communities, PostgreSQL and the compaction ask for, by name."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    more = project["optional-dependencies"]
    return by_name(project["dependencies"] + more["gateway"] + more["export"] + more["communities"] + more["postgres"])


def requirements_of_site() -> dict[str, Requirement]:
    """The packages that the site of the docs asks for, by name."""
    return by_name(tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["dependency-groups"]["docs"])


def by_name(asked: list[str]) -> dict[str, Requirement]:
    return {requirement.name: requirement for requirement in map(Requirement, asked)}


def test_every_dependency_has_its_reason() -> None:
    text = (ROOT / "docs" / "dependencies.md").read_text("utf-8")
    rows = re.findall(r"^\| `([a-z-]+)` \| (.+) \|$", text, re.MULTILINE)

    assert sorted(name for name, _ in rows) == sorted(requirements() | requirements_of_site())


def test_every_dependency_is_locked_by_hash_and_as_new_as_it_must_be() -> None:
    extras = "export", "gateway", "communities", "postgres"
    locks = [(ROOT / f"requirements-{extra}.lock").read_text("utf-8") for extra in extras]
    locked = {name: (version, rest) for lock in locks for name, version, rest in LOCKED.findall(lock)}

    for name, requirement in requirements().items():
        version, rest = locked[name]
        assert version in requirement.specifier
        assert "--hash=sha256:" in rest
    assert all("--hash=sha256:" in rest for _, rest in locked.values())


def anchors(path: Path) -> set[str]:
    """The anchors of a file's headings, as they are made for Markdown on the web."""
    titles = HEADING.findall(path.read_text(encoding="utf-8"))
    return {re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in titles}


PAGES = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md"))]


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_links_lead_somewhere(path: Path) -> None:
    links = LINK.findall(path.read_text(encoding="utf-8"))

    for target, anchor in links:
        file = path.parent / target if target else path
        assert file.exists(), target
        if anchor:
            assert anchor in anchors(file), f"{target}#{anchor}"


def test_every_page_of_the_docs_is_linked_from_the_readme() -> None:
    linked = {
        (ROOT / target).resolve() for target, _ in LINK.findall((ROOT / "README.md").read_text("utf-8")) if target
    }

    assert {path for path in PAGES if path != ROOT / "README.md"} <= linked


def test_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_text("utf-8").splitlines()) <= 150


def test_every_promise_names_a_test_that_there_is() -> None:
    rows = re.findall(
        r"^\| (?!promise|---)(.+) \| (.+) \|$", (ROOT / "docs/guarantees.md").read_text("utf-8"), re.MULTILINE
    )
    assert rows

    for promise, shown_by in rows:
        shown = re.findall(r"`(tests/[a-z0-9_/]+\.py)::([A-Za-z0-9_]+)`", shown_by)
        assert shown, promise
        for file, test in shown:
            assert re.search(
                rf"^\s*(async )?def {test}\(|^{test} = ", (ROOT / file).read_text("utf-8"), re.MULTILINE
            ), (file, test)
