"""`python -m tests.libp2p.record` writes tests/vectors/muxers.json: what js-libp2p says as a dialer with each muxer."""

import asyncio
import json
import tempfile
from pathlib import Path

from tests.data import VECTORS
from tests.libp2p.joined import MUXERS, Side
from tests.libp2p.js_muxer import echo, js_muxer

SIZES = (0, 1, 300, 1000)


async def conversation(kind: str) -> dict[str, object]:
    """What js says while its streams are answered."""
    with tempfile.TemporaryDirectory() as folder:
        async with js_muxer(kind, Path(folder), SIZES) as js:
            said, returned = await echo(Side(MUXERS[kind](False)), js)
    assert returned == list(SIZES)
    return {"muxer": kind, "sizes": SIZES, "said": said.hex()}


def main() -> None:
    """Record both."""
    recorded = [asyncio.run(conversation(kind)) for kind in MUXERS]
    (VECTORS / "muxers.json").write_text(json.dumps({"conversations": recorded}, indent=2) + "\n")


if __name__ == "__main__":
    main()
