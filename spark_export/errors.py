"""Every error of the export. `str()` is one line for the operator.

ExportError
  ExportCheckFailed    what was written is not what was read: nothing of it is published
"""


class ExportError(Exception):
    """The export could not be done; what was there is as it was."""


class ExportCheckFailed(ExportError):
    """A day of the archive is not what it should be.

    Args:
        day: ISO date of reception, or the name of a merged period.
        what: what differs.
    """

    def __init__(self, day: str, what: str) -> None:
        super().__init__(day, what)
        self.day = day
        self.what = what

    def __str__(self) -> str:
        return f"check failed for {self.day}: {self.what}"
