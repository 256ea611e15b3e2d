"""What all connections share, whoever dialled: turns at opening frames, and memory for large ones."""

from dataclasses import dataclass, field

from mailserver.limits.frame_memory import ReceiveMemory
from mailserver.limits.turns import Turns


@dataclass(frozen=True, slots=True)
class FrameBounds:
    """One for all connections of a node."""

    turns: Turns = field(default_factory=Turns)
    memory: ReceiveMemory = field(default_factory=ReceiveMemory)
