"""How waku_post answers. The settings name it too, so this imports nothing of what serves JSON-RPC."""

from enum import Enum


class Dialect(Enum):
    """What waku_post returns."""

    SPECIFICATION = "specification"
    """true, as 9/WAKU-RPC has it."""
    DEPLOYED = "deployed"
    """The hash of the envelope."""
