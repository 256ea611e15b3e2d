"""Reading rows together, although any of them may be long: what is read in vain has a bound."""

from collections.abc import Sequence

from mailserver.store.interface import Raws

_SPREAD = 16
"""An envelope is read together with others only if it is at most so many times longer than the mean that was asked for.
So even if all are that long, no more than so many times the wanted bytes are read in vain."""


def longest(rows: int, max_bytes: int) -> int:
    """How long an envelope may be that is read together with others, if of `rows` of them `max_bytes` are wanted."""
    return _SPREAD * max_bytes // max(1, rows)


def first_of(raws: Raws, count: int) -> Raws:
    """The first `count` of some envelopes of a store, or all."""
    if count >= len(raws.sizes):
        return raws
    return Raws(raws.body[: sum(raws.sizes[:count])], raws.sizes[:count])


def fitting(body: bytes, sizes: Sequence[int], rows: int, max_bytes: int, *, at_least: int) -> Raws:
    """The first of what was read together: `at_least` so many, and more as long as all of them fit into `max_bytes`.

    Args:
        body: the envelopes, one after the other; of those behind the first `at_least` that are longer than
            `longest(rows, max_bytes)`, nothing.
        sizes: how long each of them is.
    """
    if len(body) == sum(sizes) <= max_bytes:  # as is usual
        return Raws(body, sizes)
    too_long, count, total = longest(rows, max_bytes), 0, 0
    for size in sizes:
        if count >= at_least and (size > too_long or total + size > max_bytes):
            break
        count += 1
        total += size
    return Raws(body[:total], sizes[:count])
