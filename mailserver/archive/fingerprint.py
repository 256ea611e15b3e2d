"""What tells whether two sets of envelopes are the same: how many, how many bytes, and a checksum of their hashes.

The checksum is the sum, modulo 2**64, of the first eight bytes of each hash as a big-endian integer: it does not depend
on the order, counts a row twice that occurs twice, and the checksums of two sets add up to the checksum of both.
"""

from collections.abc import Iterable
from dataclasses import dataclass

MODULUS = 2**64


@dataclass(frozen=True, slots=True)
class Fingerprint:
    """Of a set of envelopes: rows, bytes of raw, checksum."""

    rows: int = 0
    bytes: int = 0
    checksum: int = 0

    def __add__(self, other: "Fingerprint") -> "Fingerprint":
        """Of both sets together, which have no envelope in common."""
        return Fingerprint(self.rows + other.rows, self.bytes + other.bytes, (self.checksum + other.checksum) % MODULUS)

    def __sub__(self, other: "Fingerprint") -> "Fingerprint":
        """Of what is left without `other`, all of which is in it."""
        return Fingerprint(self.rows - other.rows, self.bytes - other.bytes, (self.checksum - other.checksum) % MODULUS)

    def __str__(self) -> str:
        return f"rows={self.rows} bytes={self.bytes} checksum={self.checksum:016x}"

    @classmethod
    def sum(cls, parts: Iterable["Fingerprint"]) -> "Fingerprint":
        """Of all these sets together."""
        total = cls()
        for part in parts:
            total += part
        return total
