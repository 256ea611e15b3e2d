"""What all connections share, inbound and outbound: turns at opening frames, and memory for large ones."""

from dataclasses import dataclass, field

from mailserver.limits.frame_memory import ReceiveMemory
from mailserver.limits.loop_scheduler import LoopScheduler


@dataclass(frozen=True, slots=True)
class FrameBounds:
    """One for all connections of a node."""

    opening: LoopScheduler = field(default_factory=LoopScheduler)
    memory: ReceiveMemory = field(default_factory=ReceiveMemory)
