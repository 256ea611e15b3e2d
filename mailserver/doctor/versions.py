"""Versions of Python, SQLite, the packages that this program needs, and, if the compaction is installed, Java."""

import os
import re
import sqlite3
import subprocess
import sys
from collections.abc import Iterable
from importlib import metadata
from pathlib import Path

from mailserver.doctor.findings import Finding, ok, problem, warning

PACKAGE = "waku-mailserver"
MIN_PYTHON = (3, 11)
MIN_SQLITE = (3, 38, 0)
"""The first version that always has JSON functions; upserts and row values are older."""
WAL_RESET_MENDED = (3, 51, 3)
MIN_JAVA = 17
JAVA_TIMEOUT_S = 20.0

_REQUIREMENT = re.compile(r"(?P<name>[A-Za-z0-9._-]+)(\[[^\]]*\])?\s*>=\s*(?P<least>[0-9.]+)")


def check_versions() -> list[Finding]:
    """Check all of them."""
    findings = [check_python(sys.version_info[:3]), check_sqlite(sqlite3.sqlite_version_info)]
    try:
        requirements = metadata.requires(PACKAGE) or []
    except metadata.PackageNotFoundError:
        text = "this program is not installed, so nothing says which versions it needs"
        return [*findings, warning("packages", text, "install it: pip install .")]
    findings.append(check_packages(part for part in requirements if "extra ==" not in part))
    if _installed("pyspark"):
        findings.append(check_packages((part for part in requirements if "export" in part), "compaction packages"))
        findings.append(check_java(os.environ.get("JAVA_HOME", "")))
    return findings


def check_python(version: tuple[int, ...]) -> Finding:
    """Check that the interpreter is new enough."""
    text = ".".join(map(str, version))
    if version < MIN_PYTHON:
        return problem("python", text, f"install Python {'.'.join(map(str, MIN_PYTHON))} or newer")
    return ok("python", text)


def check_sqlite(version: tuple[int, ...]) -> Finding:
    """Check that SQLite can do what the store needs."""
    text = ".".join(map(str, version))
    if version < MIN_SQLITE:
        return problem("sqlite", text, f"install SQLite {'.'.join(map(str, MIN_SQLITE))} or newer, or a newer Python")
    if version < WAL_RESET_MENDED:
        # The fault needs two connections that write or checkpoint at once, and the daemon has one.
        return ok(
            "sqlite", f"{text}: has the WAL-reset fault, which the mailserver keeps clear of; let nothing else write"
        )
    return ok("sqlite", text)


def check_packages(requirements: Iterable[str], check: str = "packages") -> Finding:
    """Check that each package is installed, and at least as new as this program declares."""
    wrong, count = [], 0
    for requirement in requirements:
        wanted = _REQUIREMENT.match(requirement)
        if wanted is None:
            continue
        count += 1
        found = _installed(wanted["name"])
        if not found or _numbers(found) < _numbers(wanted["least"]):
            wrong.append(f"{wanted['name']} {found or 'missing'} (needs {wanted['least']})")
    if wrong:
        return problem(check, "; ".join(wrong), "install from the lock files")
    return ok(check, f"{count}, all new enough")


def check_java(home: str) -> Finding:
    """Check that there is a Java runtime for Spark, in JAVA_HOME or on the PATH."""
    program = str(Path(home) / "bin" / "java") if home else "java"
    advice = f"install Java {MIN_JAVA} or newer for the compaction: on Debian, apt-get install openjdk-17-jre-headless"
    try:
        done = subprocess.run(  # noqa: S603 - the operator's own Java, as Spark finds it
            [program, "-version"], capture_output=True, text=True, timeout=JAVA_TIMEOUT_S, check=True
        )
    except (OSError, subprocess.SubprocessError) as error:
        return problem("java", f"{program} does not run: {type(error).__name__}", advice)
    found = re.search(r'version "(?:1\.)?(\d+)[^"]*"', done.stderr)
    if found is None or int(found[1]) < MIN_JAVA:
        return problem("java", done.stderr.partition("\n")[0] or "says no version", advice)
    return ok("java", found[1])


def _installed(name: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return ""


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", version)[:3])
