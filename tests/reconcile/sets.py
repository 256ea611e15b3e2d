"""Sets to compare, and conversations about them."""

from collections.abc import Callable, Generator, Iterable
from dataclasses import dataclass, field
from hashlib import sha256

from mailserver.reconcile.sides import Differences, Initiator, Needed, Responder
from mailserver.reconcile.storage import MemoryStorage
from mailserver.reconcile.wire import MAX_MESSAGE_BYTES, TIMESTAMP_BYTES
from mailserver.store.engine.id_sums import SPANS

Item = tuple[int, bytes]

FIRST_TIME = 1_790_000_000


def item(number: int, spread: int) -> Item:
    """Always the same item for a number: its id is the hash of it, its timestamp one of `spread` seconds."""
    digest = sha256(str(number).encode()).digest()
    return FIRST_TIME + int.from_bytes(digest[:4], "big") % spread, digest


def items(numbers: Iterable[int], spread: int = 10_000) -> list[Item]:
    return [item(number, spread) for number in numbers]


def ids(some: Iterable[Item]) -> set[bytes]:
    return {item_id for _, item_id in some}


class TimesStorage(MemoryStorage):
    """A set in memory that is divided where those of stores are."""

    def cut(self, index: int, slack: int) -> tuple[int, bytes]:
        """At the start of the item's day, its hour or its minute, whichever is near first."""
        second = int.from_bytes(self.key(index)[:TIMESTAMP_BYTES], "big")
        for span in SPANS:
            start = (second // span * span).to_bytes(TIMESTAMP_BYTES, "big")
            first = self.find(start, 0, index)
            if index - first <= slack:
                return first, start
        return super().cut(index, slack)


@dataclass
class Talk:
    """A conversation: its messages, the initiator's first, and what the initiator learned."""

    messages: list[bytes] = field(default_factory=list)
    have: set[bytes] = field(default_factory=set)
    need: set[bytes] = field(default_factory=set)
    needed: list[Needed] = field(default_factory=list)

    def learn(self, found: Differences) -> None:
        self.needed += found.need
        self.have.update(found.have)
        self.need.update(found.need_ids)


def received(initiator: Initiator, message: bytes, learn: Callable[[Differences], None]) -> bytes | None:
    """What an initiator answers, with whatever it finds passed on."""
    steps: Generator[Differences, None, bytes | None] = initiator.receive(message)
    while True:
        try:
            learn(next(steps))
        except StopIteration as done:
            answer: bytes | None = done.value
            return answer


def talk(initiator: Initiator, respond: Callable[[bytes], bytes], *, most_rounds: int = 1000) -> Talk:
    """Talk to the end."""
    held = Talk()
    message: bytes | None = initiator.begin()
    while message is not None:
        assert len(held.messages) < 2 * most_rounds, "it does not end"
        answer = respond(message)
        held.messages += [message, answer]
        message = received(initiator, answer, held.learn)
    return held


def sides(
    ours: Iterable[Item], theirs: Iterable[Item], frame_bytes: int = MAX_MESSAGE_BYTES
) -> tuple[Initiator, Responder]:
    return Initiator(MemoryStorage(ours), frame_bytes), Responder(MemoryStorage(theirs), frame_bytes)
