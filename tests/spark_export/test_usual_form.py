"""spark_export.usual_form: what is read of an envelope does not depend on what lies around it."""

import pyarrow as pa
import pytest

from mailserver.archive.errors import ArchiveError
from spark_export import usual_form
from spark_export.usual_form import HEAD_BYTES, column_of, read_heads
from tests.spark_export.samples import envelope

WHOLE = [envelope(1000 + number, size=300).raw for number in range(3)]
CUT = [WHOLE[0][:size] for size in (0, 1, HEAD_BYTES - 1, HEAD_BYTES, HEAD_BYTES + 1, len(WHOLE[0]) - 1)]


def alone(raw: bytes) -> tuple[bool, bytes, int, bytes]:
    heads, usual = read_heads(column_of([raw]))
    return bool(usual[0]), heads.data[0].tobytes(), int(heads.nonce_at[0]), heads.nonces[0].tobytes()


@pytest.mark.parametrize("cut", CUT, ids=map(str, map(len, CUT)))
@pytest.mark.parametrize("behind", [b"", WHOLE[1], WHOLE[0][1:]], ids=["nothing", "another", "rest"])
def test_envelope_that_was_cut_off_is_not_usual_whatever_is_around_it(cut: bytes, behind: bytes) -> None:
    raws = [WHOLE[2], cut, behind]

    _, usual = read_heads(column_of(raws))

    assert usual.tolist() == [True, False, behind == WHOLE[1]]
    assert not alone(cut)[0]


def test_heads_of_a_part_of_a_column_are_those_of_its_envelopes() -> None:
    column = column_of([CUT[-1], *WHOLE, b""]).slice(1, 3)

    heads, usual = read_heads(column)

    assert usual.all()
    assert heads.lengths.tolist() == list(map(len, WHOLE))
    for number, raw in enumerate(WHOLE):
        got = True, heads.data[number].tobytes(), int(heads.nonce_at[number]), heads.nonces[number].tobytes()
        assert got == alone(raw)
        assert got[1] == raw[:HEAD_BYTES]


@pytest.mark.parametrize("raws", [[], [b""], [b"", b""]], ids=["none", "one", "two"])
def test_column_without_a_byte_has_no_usual_envelope(raws: list[bytes]) -> None:
    assert not read_heads(column_of(raws))[1].any()


def test_column_has_the_bytes_that_it_was_made_of() -> None:
    raws = [b"", *WHOLE, b"\0"]

    assert column_of(raws).equals(pa.array(raws, pa.binary()))


def test_more_bytes_than_a_column_can_have_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(usual_form, "MAX_BYTES", 5)

    assert column_of([b"123", b"45"]).to_pylist() == [b"123", b"45"]
    with pytest.raises(ArchiveError, match="3 rows have 6 bytes of envelopes, a column can have 5"):
        column_of([b"123", b"45", b"6"])
