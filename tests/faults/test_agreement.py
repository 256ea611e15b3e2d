"""Five mailservers, of which each has lost something else, agree again by themselves: shown by their message ids.

Nothing tells them that they lack anything: what they lack is older than what they ask for after a break.
"""

import asyncio
import random
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from mailserver.client.id_client import IdClient
from mailserver.ids.envelopes import envelope_muid
from mailserver.ids.muid import DEFAULT_NETWORK_TOPIC, Muid
from mailserver.store.interface import NewEnvelope
from mailserver.store.sqlite.schema import STORE_FILE
from mailserver.store.sqlite.store import open_store
from mailserver.waku.bloom import Interest
from mailserver.waku.envelope import Envelope, Topic, encode_envelope
from mailserver.wakuid.questions import Query
from tests.faults import wires
from tests.faults.fleet import PASSWORD_KEY, Fleet, Node, fleet, reach
from tests.faults.switch import Line
from tests.faults.wires import CUT
from tests.store.samples import EVER

pytestmark = pytest.mark.integration

SEED = 20261125
NODES = 5
FACTOR = 0.2
TOPIC = Topic(b"old!")
ENVELOPES = 1500
KEPT = 0.8
"""Of these, each node has so many, and each another part."""

BAD = Line(delay_s=0.02, jitter_s=0.01, loss=0.03, duplication=0.03, reordering=0.03)


def old_envelopes(now: int) -> list[Envelope]:
    """From 20 minutes to two days old."""
    chance = random.Random(SEED)
    return [
        encode_envelope(
            now - 1200 - chance.randrange(170_000) + 60, 60, TOPIC, chance.randbytes(300), chance.getrandbits(63)
        )
        for _ in range(ENVELOPES)
    ]


class Losses:
    """What each node has at first: a random part of all."""

    def __init__(self) -> None:
        self.now = int(time.time())
        self.envelopes = old_envelopes(self.now)
        self._chance = random.Random(SEED)

    def prepare(self, node: Node) -> None:
        kept = [
            NewEnvelope(self.now - 5, each.created, each.topic, each.hash(), each.raw)
            for each in self.envelopes
            if self._chance.random() < KEPT
        ]
        asyncio.run(_fill(node.folder / STORE_FILE, kept))


async def _fill(path: Path, envelopes: list[NewEnvelope]) -> None:
    async with open_store(path) as store:
        await store.put(envelopes)


@pytest.fixture
def losses() -> Losses:
    return Losses()


@pytest.fixture
def nodes(tmp_path: Path, losses: Losses) -> Iterator[Fleet]:
    wires.require()
    with fleet(tmp_path, NODES, factor=FACTOR, seed=SEED, prepare=losses.prepare) as made:
        yield made


async def ids_of(nodes: Fleet, node: Node, topic: Topic) -> set[Muid]:
    """All ids of a topic that a node lists."""
    found: set[Muid] = set()
    query = Query(0, "", *EVER, interest=Interest(topics=frozenset({topic})))
    async with nodes.insistent(node) as client:
        ids = IdClient(client)
        await ids.open(PASSWORD_KEY)
        end = await ids.list_ids(query, found.update)
        assert end.is_all
    return found


async def test_five_that_have_lost_different_things_agree_again(nodes: Fleet, losses: Losses) -> None:
    wanted = {envelope_muid(DEFAULT_NETWORK_TOPIC, each) for each in losses.envelopes}
    before = [len(node.stored(TOPIC)) for node in nodes.nodes]
    assert max(before) < ENVELOPES

    nodes.wires.everywhere(BAD)
    nodes.cut(nodes.nodes[:2], CUT)
    await reach(
        "each side agrees",
        lambda: all(
            len({tuple(node.stored(TOPIC)) for node in side}) == 1 for side in (nodes.nodes[:2], nodes.nodes[2:])
        ),
        120,
    )
    assert {len(node.stored(TOPIC)) for node in nodes.nodes} != {ENVELOPES}
    nodes.wires.everywhere(BAD)  # the cut is over
    await nodes.converged(TOPIC, [each.hash() for each in losses.envelopes], 180)

    for node in nodes.nodes:
        assert await ids_of(nodes, node, TOPIC) == wanted
