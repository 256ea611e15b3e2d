"""mailserver.reconcile against nostr-tools, byte for byte; it has the initiator only."""

import random

import pytest

from mailserver.reconcile.sides import Initiator, Responder, run
from mailserver.reconcile.storage import MemoryStorage
from mailserver.reconcile.wire import MIN_FRAME_BYTES
from tests.node_js import require_packages
from tests.reconcile.others import ORACLE, other
from tests.reconcile.sets import Talk, ids, items, received

pytestmark = pytest.mark.integration

UNLIMITED = 1_000_000


@pytest.fixture(autouse=True)
def _nostr_tools() -> None:
    require_packages(ORACLE)


def drawn(
    seed: int, counts: tuple[int, ...] = (5, 60, 3000)
) -> tuple[list[tuple[int, bytes]], list[tuple[int, bytes]]]:
    """Two sets of up to 3,000 items; in a second of one pair of sets in three all are alike."""
    chance = random.Random(seed)
    spread = chance.choice([1, 500, 2_592_000])
    count, differing = chance.choice(counts), chance.choice([0, 1, 40])
    numbers = set(range(count))
    ours = numbers - set(chance.choices(range(count), k=differing))
    theirs = numbers - set(chance.choices(range(count), k=differing)) | set(range(count, count + differing // 2))
    return items(ours, spread), items(theirs, spread)


@pytest.mark.parametrize("seed", range(30))
def test_every_message_of_our_initiator_is_theirs_and_so_are_the_differences(seed: int) -> None:
    ours, theirs = drawn(seed)
    initiator, responder = Initiator(MemoryStorage(ours)), Responder(MemoryStorage(theirs))
    held = Talk()

    with other(ours, UNLIMITED) as nostr_tools:
        message: bytes | None = initiator.begin()
        assert message == nostr_tools.begin()
        while message is not None:
            answer = run(responder.respond(message))
            told = nostr_tools.receive(answer)
            before = held.have | held.need
            message = received(initiator, answer, held.learn)
            assert message == told.message
            assert (held.have | held.need) - before == {*told.have, *told.need}

    assert (held.have, held.need) == (ids(ours) - ids(theirs), ids(theirs) - ids(ours))


@pytest.mark.parametrize("seed", range(30))
def test_our_answers_to_fingerprints_are_theirs(seed: int) -> None:
    ours, theirs = drawn(seed, (100, 3000))  # it answers a list, as smaller sets have it, as an initiator does
    message = Initiator(MemoryStorage(theirs)).begin()

    with other(ours, UNLIMITED) as nostr_tools:
        told = nostr_tools.receive(message)

    assert run(Responder(MemoryStorage(ours)).respond(message)) == (told.message or b"\x61")


@pytest.mark.parametrize("seed", range(10))
def test_they_find_all_differences_with_our_responder_at_any_frame_limit(seed: int) -> None:
    ours, theirs = drawn(seed)
    responder = Responder(MemoryStorage(theirs), MIN_FRAME_BYTES + seed)
    have, need = set(), set()

    with other(ours, MIN_FRAME_BYTES + 5 * seed) as nostr_tools:
        message: bytes | None = nostr_tools.begin()
        while message is not None:
            told = nostr_tools.receive(run(responder.respond(message)))
            have.update(told.have)
            need.update(told.need)
            message = told.message

    assert (have, need) == (ids(ours) - ids(theirs), ids(theirs) - ids(ours))
