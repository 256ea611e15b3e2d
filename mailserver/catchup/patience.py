"""How much of the past a source is asked for at once: less if it does not answer in time, and then more again.

A Go mailserver walks through all that it has of a range, and sends nothing until it finds something that matches: of a
day, that may take minutes. Asked for the same again, it would never answer. It may also hang, or crash, at one damaged
place: what is older than that must not wait for it.
"""

from mailserver.catchup.ranges import WINDOW_S
from mailserver.client.mail_client import ANSWER_TIMEOUT_S

MIN_SPAN_S = 675
"""The shortest part to ask for. If there is no answer even to that, it is set aside."""

QUICK_S = ANSWER_TIMEOUT_S / 4
"""If no page takes longer, the next part may be twice as long."""

SURE_AFTER = 16
"""So many parts must have come before twice as much is tried of a source that has not answered to it."""

_DIVISOR = 8


class Patience:
    """With one source. `span_s`: how many seconds of creation times to ask it for."""

    def __init__(self) -> None:
        self.span_s = WINDOW_S
        self._least_s = MIN_SPAN_S
        self._most_s = WINDOW_S
        self._done = 0  # since `_most_s` was changed

    def on_silence(self, asked_s: int, *, has_answered: bool, is_aside: bool) -> bool:
        """There was no answer to so many seconds; return whether to set them aside.

        If several parts in a row are, each is twice as long as the one before: whatever the length of the damage, what
        is behind it is reached soon.

        Args:
            has_answered: whether the source has ever answered. If not, the least is asked for next.
            is_aside: whether they were set aside before.
        """
        least_s = MIN_SPAN_S if is_aside else self._least_s
        self._done = 0
        if asked_s <= least_s:  # it is not for the length
            self._most_s = WINDOW_S
            if not is_aside:
                self.span_s = self._least_s = min(2 * least_s, WINDOW_S)
            return True
        self.span_s = max(asked_s // _DIVISOR, least_s) if has_answered else least_s
        self._most_s = max(asked_s // 2, MIN_SPAN_S)
        return False

    def on_page(self) -> None:
        """The source has answered."""
        self._least_s = MIN_SPAN_S

    def on_window_done(self, longest_s: float) -> None:
        """All pages of a window have come, none of which has taken longer than this."""
        self._done += 1
        if self._done >= SURE_AFTER:
            self._done = 0
            self._most_s = min(2 * self._most_s, WINDOW_S)
        if longest_s <= QUICK_S:
            self.span_s = min(2 * self.span_s, max(self.span_s, self._most_s))
