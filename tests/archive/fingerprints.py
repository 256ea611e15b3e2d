"""Hashes, and what their fingerprint is by its definition."""

import random

from mailserver.archive.fingerprint import Fingerprint


def hashes(count: int) -> list[bytes]:
    """So many random ones, the same each time."""
    return [random.Random(number).randbytes(32) for number in range(count)]


def model(names: list[bytes], size: int) -> Fingerprint:
    """The definition in the module's words."""
    checksum = sum(int.from_bytes(name[:8], "big") for name in names) % 2**64
    return Fingerprint(len(names), size * len(names), checksum)
