"""What a check has found."""

from dataclasses import dataclass
from enum import Enum

FETCH_AGAIN = "fetch from others what was confirmed since that moment: waku-mailserver sync --since TIME"
"""What to do about a store that went back in time."""


class FindingVerdict(Enum):
    """How bad a finding is. A problem keeps the mailserver from running well now; a warning may do so later."""

    OK = "ok"
    WARNING = "warning"
    PROBLEM = "problem"


@dataclass(frozen=True, slots=True)
class Finding:
    """What was checked, what was found, in words, and what to do about it if anything."""

    check: str
    verdict: FindingVerdict
    text: str
    advice: str = ""


def ok(check: str, text: str) -> Finding:
    """There is nothing to do."""
    return Finding(check, FindingVerdict.OK, text)


def warning(check: str, text: str, advice: str) -> Finding:
    """This may become a problem."""
    return Finding(check, FindingVerdict.WARNING, text, advice)


def problem(check: str, text: str, advice: str) -> Finding:
    """This must be mended first."""
    return Finding(check, FindingVerdict.PROBLEM, text, advice)
