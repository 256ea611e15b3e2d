"""Connections with whole nodes of js-libp2p, in both roles, with each muxer and each kind of key."""

import pytest

from mailserver.libp2p.events import ProtocolRefused, Secured
from mailserver.libp2p.identify import IDENTIFY, IdentifyReader
from mailserver.libp2p.multiaddr import AddressProtocol
from mailserver.libp2p.peer_id import PeerId
from mailserver.libp2p.ping import PING
from tests.libp2p.js_muxer import ORACLE
from tests.libp2p.js_peer import AGENT, PROTOCOLS, dialled_by_js, dialling_js
from tests.libp2p.links import ECHO
from tests.libp2p.names import LISTENER, identity
from tests.node_js import require_packages

pytestmark = [
    pytest.mark.integration,
    pytest.mark.parametrize(
        ("muxers", "key"),
        [
            ("yamux", "Ed25519"),
            ("mplex", "Ed25519"),
            ("yamux,mplex", "secp256k1"),
            ("mplex,yamux", "RSA"),
        ],
    ),
]


@pytest.fixture(autouse=True)
def _js_libp2p() -> None:
    require_packages(ORACLE)


def expected_muxer(muxers: str) -> str:
    return "/yamux/1.0.0" if "yamux" in muxers else "/mplex/6.7.0"


async def test_js_dials_us_and_finds_what_it_asks_for(muxers: str, key: str) -> None:
    served, found = await dialled_by_js(muxers, key)

    assert served.events[0] == Secured(PeerId.parse(found["me"]), expected_muxer(muxers))
    assert found["you"] == str(identity(LISTENER).peer_id)
    assert found["muxer"] == expected_muxer(muxers)
    assert found["agentVersion"] == AGENT
    assert sorted(found["protocols"]) == sorted(PROTOCOLS)
    assert found["echoed"] == 1000
    assert found["refused"] == "UnsupportedProtocolError"
    assert served.protocols() == [PING, IDENTIFY, ECHO]


async def test_js_that_we_dial_answers(muxers: str, key: str) -> None:
    asking, address = await dialling_js(muxers, key)

    assert asking.events[0] == Secured(PeerId.parse(address.value(AddressProtocol.P2P) or ""), expected_muxer(muxers))
    assert asking.data_of(asking.echoed) == asking.BYTES
    assert ProtocolRefused(asking.refused, "/none/1.0.0") in asking.events
    reader = IdentifyReader()
    reader.receive_data(asking.data_of(asking.about))
    about = reader.finish()
    assert about.agent_version.startswith("js-libp2p/")
    assert {IDENTIFY, PING, ECHO} <= set(about.protocols)
