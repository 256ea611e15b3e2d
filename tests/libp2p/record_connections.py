"""`python -m tests.libp2p.record_connections` writes tests/vectors/connections.json: all that js-libp2p says to us.

Our keys and our randomness are always the same, so what it says can be said to us again.
"""

import asyncio
import json

from mailserver.libp2p.multiaddr import AddressProtocol
from tests.data import VECTORS
from tests.libp2p.js_peer import dialled_by_js, dialling_js

CASES = (("yamux", "Ed25519"), ("mplex", "Ed25519"), ("yamux", "secp256k1"), ("mplex", "RSA"))


async def recorded(muxer: str, key: str) -> list[dict[str, str]]:
    """What js says as a dialer, and as a listener."""
    served, found = await dialled_by_js(muxer, key)
    asking, address = await dialling_js(muxer, key)
    about = {"muxer": muxer, "key": key}
    return [
        {**about, "js": "dialer", "peer_id": found["me"], "said": served.said.hex()},
        {**about, "js": "listener", "peer_id": address.value(AddressProtocol.P2P) or "", "said": asking.said.hex()},
    ]


def main() -> None:
    """Record each case in both roles."""
    connections = [one for muxer, key in CASES for one in asyncio.run(recorded(muxer, key))]
    (VECTORS / "connections.json").write_text(json.dumps({"connections": connections}, indent=2) + "\n")


if __name__ == "__main__":
    main()
