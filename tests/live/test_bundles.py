"""mailserver.live.relay: bundles, and the packets that peers share."""

import tracemalloc
from collections import Counter

import pytest

from mailserver.codec import snappy
from mailserver.live import relay as relay_module
from mailserver.live.feed import LiveEnvelope
from mailserver.live.pool import MAX_BUNDLE_BYTES
from mailserver.live.relay import BUNDLE_INTERVAL_S, MAX_SHARED_BYTES
from mailserver.waku.bloom import EMPTY_BLOOM, bloom_of
from mailserver.waku.envelope import decode_envelopes, encode_envelopes
from mailserver.waku.packets import MAX_PACKET_BYTES, StatusOptions
from tests.live.hub import large_envelopes, new_envelopes, running_hub
from tests.mailservers import NEWS, NOW, SPORT, make_envelope
from tests.simulated_time import in_simulated_time, pass_time


@in_simulated_time
async def test_first_envelope_after_a_pause_goes_at_once_and_what_follows_after_the_interval_together() -> None:
    envelopes = new_envelopes(7)
    async with running_hub() as hub:
        peer = await hub.join()

        for at in (0.0, 5.0):
            await pass_time(at)
            started, before = hub.clock(), len(peer.packets)
            hub.publish(envelopes[0])
            await pass_time(BUNDLE_INTERVAL_S / 4)
            for envelope in envelopes[1:4]:
                hub.publish(envelope)
            await pass_time(BUNDLE_INTERVAL_S / 4)
            hub.publish(*envelopes[4:])
            await pass_time(BUNDLE_INTERVAL_S)

            packets = peer.packets[before:]
            assert [heard for _, heard in packets] == [envelopes[:1], envelopes[1:]]
            expected = pytest.approx([started, started + BUNDLE_INTERVAL_S], abs=1e-3)
            assert [NOW + time for time in peer.times[before:]] == expected
            hub.sightings.clear()


@in_simulated_time
async def test_bundles_are_cut_at_their_longest_and_a_longer_envelope_goes_alone() -> None:
    small = large_envelopes(100, 10_000)
    large = make_envelope(1000, data_bytes=MAX_PACKET_BYTES - 100)
    async with running_hub() as hub:
        peer = await hub.join()

        hub.publish(*small[:50], large, *small[50:])
        await pass_time(5.0)

        assert peer.heard == [*small[:50], large, *small[50:]]
        alone = [heard for _, heard in peer.packets if large in heard]
        assert alone == [[large]]
        others = sorted(size for (_, heard), size in zip(peer.packets, peer.sizes, strict=True) if heard != [large])
        assert others[-1] <= MAX_BUNDLE_BYTES
        assert len(others) == 18  # 6 fit into each, 50 come before the large one and 50 after it
        assert max(peer.sizes) <= MAX_PACKET_BYTES


@pytest.fixture
def encoded(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How often a packet of envelopes was encoded, and one compressed."""
    counts: Counter[str] = Counter()
    compress = snappy.compress

    def encode_counted(raws: list[bytes]) -> bytes:
        counts["encoded"] += 1
        return encode_envelopes(raws)

    def compress_counted(data: bytes) -> bytes:
        counts["compressed"] += 1
        return compress(data)

    monkeypatch.setattr(relay_module, "encode_envelopes", encode_counted)
    monkeypatch.setattr(snappy, "compress", compress_counted)
    return counts


@in_simulated_time
async def test_packet_is_encoded_and_compressed_once_for_all_peers_that_want_the_same(encoded: Counter[str]) -> None:
    news, sport = new_envelopes(10), new_envelopes(10, first=100, topic=SPORT)
    async with running_hub() as hub:
        everything = [await hub.join() for _ in range(20)]
        only_news = [await hub.join(StatusOptions(0.0, topic_interest=frozenset({NEWS}))) for _ in range(10)]
        only_news += [await hub.join(StatusOptions(0.0, bloom=bloom_of([NEWS]))) for _ in range(10)]
        nothing = await hub.join(StatusOptions(0.0, bloom=EMPTY_BLOOM))
        sender = await hub.join()
        encoded.clear()

        hub.publish(*news, *sport, sender=sender)
        await pass_time(5.0)

        assert all(peer.heard == news + sport for peer in everything)
        assert all(peer.heard == news for peer in only_news)
        assert sender.heard == nothing.heard == []
        assert encoded == {"encoded": 2, "compressed": 2}


@in_simulated_time
async def test_same_envelopes_have_the_same_payload_as_long_as_it_is_wanted(encoded: Counter[str]) -> None:
    lives = [LiveEnvelope(envelope, envelope.hash()) for envelope in large_envelopes(60, 100_000)]
    async with running_hub() as hub:
        relay = hub.relay

        first = relay.share(lives[:1])

        assert relay.share(lives[:1]) is first
        assert relay.share(lives[1:2]) is not first
        assert relay.share(lives[:2]) is not first
        assert decode_envelopes(first.raw) == [lives[0].envelope]
        for live in lives[2:]:  # more than is kept
            relay.share([live])
        assert relay.share(lives[-1:]) is relay.share(lives[-1:])
        encoded.clear()
        assert relay.share(lives[:1]) is not first
        assert encoded["encoded"] == 1


@in_simulated_time
async def test_packets_of_the_tiniest_envelopes_take_no_more_memory_than_any() -> None:
    count = 20_000
    lives = [LiveEnvelope(envelope, envelope.hash()) for envelope in new_envelopes(count, data_bytes=10)]
    async with running_hub() as hub:
        tracemalloc.start()
        for live in lives:
            hub.relay.share([live])
        taken, _ = tracemalloc.get_traced_memory()
        tracemalloc.stop()

        assert taken < 1.5 * MAX_SHARED_BYTES
