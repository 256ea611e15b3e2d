"""How much proof of work we do for a request."""

from mailserver.errors import MailserverError
from mailserver.units import number_text

MAX_REQUEST_POW = 1.0
"""The highest proof of work that we do for a request because a source announces that it wants it. It takes 50 ms;
deployed mailservers want 0.002. The operator may allow more."""


class RequestTooDear(MailserverError):
    """A source wants more proof of work for a request than we do."""

    def __init__(self, pow_requirement: float) -> None:
        super().__init__(pow_requirement)
        self.pow_requirement = pow_requirement

    def __str__(self) -> str:
        return f"it asks for a proof of work of {number_text(self.pow_requirement)} for a request"


def request_pow(announced: float, least: float) -> float:
    """The proof of work of a request to a source that announces this much.

    Args:
        least: what the operator wants at least, and allows.
    Raises:
        RequestTooDear: it is more than we do.
    """
    needed = max(announced, least)
    if needed > max(MAX_REQUEST_POW, least):
        raise RequestTooDear(needed)
    return needed
