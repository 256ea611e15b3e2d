"""mailserver.waku2.codes: each code has a text."""

import pytest

from mailserver.waku2.codes import FilterStatus, LightPushStatus, StoreStatus

JS_WAKU_READS_AS_RLN = ("could not generate rln proof", "could not get new message id", "RLN validation failed")


@pytest.mark.parametrize("status", [*FilterStatus, *StoreStatus, *LightPushStatus])
def test_every_code_has_a_text(status: FilterStatus | StoreStatus | LightPushStatus) -> None:
    assert status.text
    assert not any(words in status.text for words in JS_WAKU_READS_AS_RLN)
