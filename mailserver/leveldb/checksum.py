"""The checksum of chunks and blocks: CRC-32C, masked, because what it covers may have checksums in it, too.

Spec: LevelDB's `util/crc32c.h`, "Mask".
"""

import google_crc32c

_MASK_DELTA = 0xA282EAD8
_U32 = 0xFFFFFFFF


def masked_checksum(data: bytes) -> int:
    """The checksum of bytes as it is written."""
    checksum: int = google_crc32c.value(data)
    return ((checksum >> 15 | checksum << 17) + _MASK_DELTA) & _U32
