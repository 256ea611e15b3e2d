"""What catching up is told: whom to ask, and what to take."""

from dataclasses import dataclass, field

from mailserver.codec.keys import Enode
from mailserver.limits.frame_bounds import FrameBounds
from mailserver.waku.acceptance import Acceptance


@dataclass(frozen=True, slots=True)
class CatchupSettings:
    """Which mailservers to ask, and what to take from them.

    `password_key` seals the requests. `acceptance` is that of the intake: what it would refuse live is refused from
    history, too. When its requirements change, they hold from the next page of each source on. `request_pow`: the least
    proof of work of a request; a source that announces more gets more. `give_up_after`: a source is given up after so
    many failures in a row, after one lie, or when it gives the same final answer twice; 0: never.
    `bounds`: one for all sources; not that of the peers, who could keep us from catching up by it.
    """

    sources: tuple[Enode, ...]
    password_key: bytes
    client_id: str
    acceptance: Acceptance
    give_up_after: int = 0
    request_pow: float = 0.0
    bounds: FrameBounds = field(default_factory=FrameBounds)
