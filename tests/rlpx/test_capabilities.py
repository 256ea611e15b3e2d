from hypothesis import given
from hypothesis import strategies as st

from mailserver.rlpx.capabilities import Capability, SharedCapability, locate, share
from tests.properties import settings

WAKU_0, WAKU_1, WAKU_2 = (Capability("waku", version) for version in range(3))
ETH_63, LES_2 = Capability("eth", 63), Capability("les", 2)

OFFERS = st.lists(st.builds(Capability, st.sampled_from(["a", "b", "c"]), st.integers(0, 4)), max_size=8)


def test_message_ids_begin_at_16_ordered_by_name() -> None:
    shared = share({WAKU_1: 128, ETH_63: 17, LES_2: 21}, [WAKU_1, LES_2, ETH_63])

    assert shared == (
        SharedCapability(ETH_63, 0x10, 17),
        SharedCapability(LES_2, 0x10 + 17, 21),
        SharedCapability(WAKU_1, 0x10 + 17 + 21, 128),
    )


def test_only_the_highest_common_version_of_a_name_counts() -> None:
    shared = share({WAKU_0: 100, WAKU_1: 128}, [WAKU_2, WAKU_1, WAKU_0])

    assert shared == (SharedCapability(WAKU_1, 0x10, 128),)


def test_versions_compare_as_numbers() -> None:
    version_9, version_10 = Capability("waku", 9), Capability("waku", 10)

    shared = share({version_9: 1, version_10: 2}, [version_9, version_10])

    assert shared == (SharedCapability(version_10, 0x10, 2),)


def test_what_only_one_side_speaks_takes_no_message_ids() -> None:
    shared = share({WAKU_1: 128, ETH_63: 17}, [LES_2, WAKU_1])

    assert shared == (SharedCapability(WAKU_1, 0x10, 128),)


def test_names_are_told_apart_by_case() -> None:
    assert share({WAKU_1: 128}, [Capability("Waku", 1)]) == ()


def test_offer_that_repeats_itself_counts_once() -> None:
    assert share({WAKU_1: 128}, [WAKU_1, WAKU_1]) == (SharedCapability(WAKU_1, 0x10, 128),)


def test_nothing_in_common_is_an_empty_result() -> None:
    assert share({WAKU_1: 128}, [WAKU_0, ETH_63]) == ()
    assert share({WAKU_1: 128}, []) == ()
    assert share({}, [WAKU_1]) == ()


def test_first_and_last_message_id_of_each_capability_are_located() -> None:
    shared = share({WAKU_1: 128, ETH_63: 17}, [WAKU_1, ETH_63])

    assert locate(shared, 16) == (ETH_63, 0)
    assert locate(shared, 32) == (ETH_63, 16)
    assert locate(shared, 33) == (WAKU_1, 0)
    assert locate(shared, 160) == (WAKU_1, 127)


def test_message_id_outside_of_all_capabilities_is_nobodys() -> None:
    shared = share({WAKU_1: 128}, [WAKU_1])

    assert locate(shared, 15) is None
    assert locate(shared, 144) is None
    assert locate((), 16) is None


@settings(max_examples=100)
@given(st.dictionaries(st.builds(Capability, st.sampled_from("abc"), st.integers(0, 4)), st.integers(1, 20)), OFFERS)
def test_both_sides_lay_out_the_same_message_ids_without_gaps(
    ours: dict[Capability, int], theirs: list[Capability]
) -> None:
    shared = share(ours, theirs)

    # The peer knows the same lengths for what it shares with us.
    assert share({capability: ours.get(capability, 1) for capability in theirs}, ours) == shared
    assert len({entry.capability.name for entry in shared}) == len(shared)
    located = [locate(shared, message_id) for message_id in range(16, 16 + sum(entry.length for entry in shared))]
    assert located == [(entry.capability, code) for entry in shared for code in range(entry.length)]
