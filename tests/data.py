"""The fixed vectors of `tests/vectors/`; its README.md names the origin of each file."""

import json
from functools import cache
from pathlib import Path
from typing import Any

VECTORS = Path(__file__).parent / "vectors"


@cache
def load(name: str) -> Any:
    """One file, parsed: `load("eip8.json")`. Every caller gets the same object: read it, never change it."""
    return json.loads((VECTORS / name).read_text(encoding="utf-8"))
