"""`python -m tests.reconcile.record REFERENCE`: writes tests/vectors/negentropy.json from what others' code says.

REFERENCE is js/Negentropy.js of github.com/hoytech/negentropy, copied to a file that ends with .cjs. It makes whole
conversations; each message of their initiators must be the same from nostr-tools, or nothing is written.
"""

import json
import sys
from pathlib import Path

from tests.data import VECTORS
from tests.reconcile.others import other
from tests.reconcile.sets import ids, items

UNLIMITED = 1_000_000
CASES: tuple[tuple[str, int, list[range], list[range], int, int], ...] = (
    ("both have nothing", 1, [], [], UNLIMITED, UNLIMITED),
    ("the initiator has nothing", 100, [], [range(40)], UNLIMITED, UNLIMITED),
    ("the responder has nothing", 100, [range(40)], [], UNLIMITED, UNLIMITED),
    ("lists", 5, [range(31)], [range(3, 33)], UNLIMITED, UNLIMITED),
    ("the same", 10_000, [range(500)], [range(500)], UNLIMITED, UNLIMITED),
    ("one timestamp", 1, [range(700)], [range(5, 702)], UNLIMITED, UNLIMITED),
    ("few timestamps", 3, [range(1, 900)], [range(890), range(1000, 1003)], UNLIMITED, UNLIMITED),
    ("scattered", 2_000_000, [range(3, 1000)], [range(996), range(1000, 1005)], UNLIMITED, UNLIMITED),
    ("nothing in common", 5_000, [range(60)], [range(60, 160)], UNLIMITED, UNLIMITED),
    ("limited frames", 20_000, [range(700)], [range(30, 740)], 4096, 4096),
    ("limited frames, many to send", 20_000, [range(20)], [range(10, 300)], 4096, 4096),
    ("only the responder is limited", 20_000, [range(300)], [range(20, 330)], UNLIMITED, 4096),
)
"""Name, over how many seconds, numbers of the items of initiator and responder, and their frame limits."""


def conversation(
    name: str, spread: int, ours: list[range], theirs: list[range], most: int, their_most: int, reference: Path
) -> dict[str, object]:
    """What the reference says on both sides."""
    own, others = (items((n for each in numbers for n in each), spread) for numbers in (ours, theirs))
    messages, have, need = [], set(), set()
    with other(own, most, reference) as a, other(own, most) as b, other(others, their_most, reference) as responder:
        message: bytes | None = a.begin()
        assert message == b.begin()
        while message is not None:
            answer = responder.receive(message).message
            assert answer is not None
            messages += [message, answer]
            told, again = a.receive(answer), b.receive(answer)
            assert (told.message, set(told.have), set(told.need)) == (again.message, set(again.have), set(again.need))
            message = told.message
            have |= set(told.have)
            need |= set(told.need)
    assert (have, need) == (ids(own) - ids(others), ids(others) - ids(own))
    return {
        "name": name,
        "spread": spread,
        "initiator": [[each.start, each.stop, each.step] for each in ours],
        "responder": [[each.start, each.stop, each.step] for each in theirs],
        "frame_bytes": [most, their_most],
        "messages": [each.hex() for each in messages],
    }


def main() -> None:
    """Write the file."""
    reference = Path(sys.argv[1]).resolve()
    about = (
        "Conversations of the reference with itself, the initiator's message first. Item n has the id SHA-256 of n in "
        "decimal digits, and the time 1790000000 + the first 4 bytes of the id, big-endian, modulo spread. Sets are "
        "ranges [start, stop, step]. Each message of the initiators is also that of nostr-tools 2.25.2."
    )
    talks = [conversation(*case, reference) for case in CASES]
    (VECTORS / "negentropy.json").write_text(json.dumps({"about": about, "conversations": talks}, indent=1) + "\n")


if __name__ == "__main__":
    main()
