"""What js-libp2p has said to us, said again: we come to the same as we did then."""

from typing import Any

import pytest

from mailserver.libp2p.events import Closed, ProtocolRefused, Secured
from mailserver.libp2p.identify import IDENTIFY, IdentifyReader
from mailserver.libp2p.peer_id import PeerId
from mailserver.libp2p.ping import PING
from tests.data import load
from tests.libp2p.js_peer import Asking, Served
from tests.libp2p.links import ECHO, dialing, listening
from tests.libp2p.names import MUXERS
from tests.pairs import START

CONNECTIONS = load("connections.json")["connections"]
PROTOCOLS = (IDENTIFY, PING, ECHO)


def of(role: str) -> list[Any]:
    """Those in which js has this role."""
    return [pytest.param(one, id=f"{one['muxer']}, {one['key']}") for one in CONNECTIONS if one["js"] == role]


def say_again(served: Served, said: bytes, chunk_bytes: int) -> None:
    for at in range(0, len(said), chunk_bytes):
        served.connection.data_to_send()
        served.connection.receive_data(said[at : at + chunk_bytes], START)
        served.take(START)


@pytest.mark.parametrize("chunk_bytes", [1, 100, 1 << 20])
@pytest.mark.parametrize("recorded", of("dialer"))
def test_dialer_asks_for_what_it_asked_for(recorded: dict[str, str], chunk_bytes: int) -> None:
    served = Served(listening(protocols=PROTOCOLS))

    say_again(served, bytes.fromhex(recorded["said"]), chunk_bytes)

    muxer = next(muxer for muxer in MUXERS if recorded["muxer"] in muxer)
    assert served.events[0] == Secured(PeerId.parse(recorded["peer_id"]), muxer)
    assert served.protocols() == [PING, IDENTIFY, ECHO]
    assert Closed not in map(type, served.events)


@pytest.mark.parametrize("chunk_bytes", [1, 7])
@pytest.mark.parametrize("recorded", of("listener"))
def test_listener_answers_what_it_answered(recorded: dict[str, str], chunk_bytes: int) -> None:
    asking = Asking(dialing())

    say_again(asking, bytes.fromhex(recorded["said"]), chunk_bytes)

    assert isinstance(asking.events[0], Secured)
    assert str(asking.events[0].peer_id) == recorded["peer_id"]
    assert asking.data_of(asking.echoed) == asking.BYTES
    assert ProtocolRefused(asking.refused, "/none/1.0.0") in asking.events
    reader = IdentifyReader()
    reader.receive_data(asking.data_of(asking.about))
    assert reader.finish().agent_version.startswith("js-libp2p/2.10.0")
    assert asking.events[-1] == Closed(None)
