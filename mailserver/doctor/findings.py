"""What a check has found."""

from dataclasses import dataclass
from enum import Enum

FETCH_AGAIN = "fetch from others what was confirmed since that moment: waku-mailserver sync --since TIME"
"""What to do about a store that went back in time."""


class Verdict(Enum):
    """How bad a finding is. A problem keeps the mailserver from running well now; a warning may do so later."""

    OK = "ok"
    WARNING = "warning"
    PROBLEM = "problem"


@dataclass(frozen=True, slots=True)
class Finding:
    """What was checked, what was found, in words, and what to do about it if anything."""

    check: str
    verdict: Verdict
    text: str
    advice: str = ""


def ok(check: str, text: str) -> Finding:
    """There is nothing to do."""
    return Finding(check, Verdict.OK, text)


def warning(check: str, text: str, advice: str) -> Finding:
    """This may become a problem."""
    return Finding(check, Verdict.WARNING, text, advice)


def problem(check: str, text: str, advice: str) -> Finding:
    """This must be mended first."""
    return Finding(check, Verdict.PROBLEM, text, advice)
