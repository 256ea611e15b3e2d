"""How fast a source may be asked that refuses requests without saying when to come back.

The deployed Go server allows one request in so many seconds to each node, and says only that this was exceeded. A new
connection changes nothing, and is refused itself for half a minute. So the pace is found out on the same connection.
"""

import asyncio
import math

MIN_APART_S = 1.0
MAX_APART_S = 60.0
"""How many seconds requests are apart at first, after a refusal, and at most. Each refusal doubles it."""

QUICKEN_AFTER = 50
"""After so many answers in a row, requests come closer together by a quarter: the source may allow more by now."""


class RequestPace:
    """The pace of requests to one source."""

    def __init__(self) -> None:
        self._apart_s = 0.0
        self._answers = 0
        self._asked_at = -math.inf  # by the loop's clock

    async def keep(self) -> None:
        """Wait until the next request may be made."""
        now = asyncio.get_running_loop().time
        await asyncio.sleep(max(0.0, self._asked_at + self._apart_s - now()))
        self._asked_at = now()

    def on_refusal(self) -> bool:
        """The last request came too soon; return whether a slower pace is left."""
        self._answers = 0
        if self._apart_s >= MAX_APART_S:
            return False
        self._apart_s = min(max(2 * self._apart_s, MIN_APART_S), MAX_APART_S)
        return True

    def on_answer(self) -> None:
        """The last request was answered."""
        self._answers += 1
        if self._answers >= QUICKEN_AFTER:
            self._answers = 0
            self._apart_s = 0.75 * self._apart_s if self._apart_s > MIN_APART_S else 0.0
