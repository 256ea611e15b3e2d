from mailserver.archive.fingerprint import Fingerprint
from tests.archive.fingerprints import hashes, model

FULL_WORD = 2**64 - 1


def test_sum_of_two_sets_is_the_set_of_both() -> None:
    names = hashes(30)

    assert model(names[:10], 5) + model(names[10:], 5) == model(names, 5)
    assert Fingerprint.sum([model(names[:10], 5), Fingerprint(), model(names[10:], 5)]) == model(names, 5)
    assert model(names, 5) - model(names[10:], 5) == model(names[:10], 5)
    assert Fingerprint.sum([]) == Fingerprint()


def test_checksum_stays_within_eight_bytes() -> None:
    assert Fingerprint(1, 1, FULL_WORD) + Fingerprint(1, 1, 2) == Fingerprint(2, 2, 1)
    assert Fingerprint(2, 2, 1) - Fingerprint(1, 1, 2) == Fingerprint(1, 1, FULL_WORD)


def test_text_is_one_line_of_fixed_width_hex() -> None:
    assert str(Fingerprint(3, 900, 255)) == "rows=3 bytes=900 checksum=00000000000000ff"
