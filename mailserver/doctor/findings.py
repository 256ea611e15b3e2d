"""What a check says."""

from dataclasses import dataclass
from enum import Enum


class Verdict(Enum):
    """How bad it is. A problem keeps the mailserver from running well now; a warning may do so later."""

    OK = "ok"
    WARNING = "warning"
    PROBLEM = "problem"


@dataclass(frozen=True, slots=True)
class Finding:
    """What was looked at, how it is, in words, and what to do where something is to be done."""

    check: str
    verdict: Verdict
    text: str
    advice: str = ""


def ok(check: str, text: str) -> Finding:
    """Nothing to do."""
    return Finding(check, Verdict.OK, text)


def warning(check: str, text: str, advice: str) -> Finding:
    """It may become a problem."""
    return Finding(check, Verdict.WARNING, text, advice)


def problem(check: str, text: str, advice: str) -> Finding:
    """It is to be mended first."""
    return Finding(check, Verdict.PROBLEM, text, advice)
