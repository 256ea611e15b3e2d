"""What is measured of a gateway."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class PushesRun:
    """One run: `pushes` came within `seconds` from the first post until the last push, and so many were dropped.

    CPU and the highest memory are of that time; `memory_bytes` is what the gateway had at its end, all clients
    included. `late_s`: of single envelopes afterwards, each client's, from post to push.
    """

    seconds: float
    pushes: int
    dropped: int
    gateway_cpu_s: float
    daemon_cpu_s: float
    clients_cpu_s: float
    memory_bytes: int
    peak_bytes: int
    late_s: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Pushes:
    """Several runs of one kind, in which `offered` pushes a second were to be sent to `clients`."""

    name: str
    clients: int
    muxer: str
    offered: float
    runs: tuple[PushesRun, ...]

    def rates(self) -> list[float]:
        """Pushes per second of each run, slowest first."""
        return sorted(run.pushes / run.seconds for run in self.runs)


@dataclass(frozen=True, slots=True)
class QueriesRun:
    """One run: how long each answer took, and how many messages all of them had."""

    times_s: tuple[float, ...]
    found: int
    gateway_cpu_s: float


@dataclass(frozen=True, slots=True)
class Queries:
    """Several runs of one question, asked by so many clients at once."""

    question: str
    clients: int
    runs: tuple[QueriesRun, ...]


@dataclass(frozen=True, slots=True)
class MessageHistory:
    """Queries of a store of so many envelopes. `indexed_s`: from the gateway's start until it could answer, with a new
    index."""

    envelopes: int
    indexed_s: float
    index_bytes: int
    peak_bytes: int
    questions: tuple[Queries, ...]


@dataclass(frozen=True, slots=True)
class LightHandshakesRun:
    """One run: so many clients connected and left within `seconds`."""

    seconds: float
    handshakes: int
    gateway_cpu_s: float
    clients_cpu_s: float


@dataclass(frozen=True, slots=True)
class IdleClientsRun:
    """One run: what the gateway's memory was without clients, with the idle ones, and with these subscribed."""

    clients: int
    before_bytes: int
    idle_bytes: int
    subscribed_bytes: int


@dataclass(frozen=True, slots=True)
class SentRun:
    """One run: so many messages of clients were stored within `seconds`; `times_s`: until each was answered."""

    seconds: float
    clients: int
    times_s: tuple[float, ...]
    gateway_cpu_s: float
    daemon_cpu_s: float


@dataclass(frozen=True, slots=True)
class GatewayResults:
    """Everything."""

    pushes: tuple[Pushes, ...]
    history: MessageHistory
    handshakes: tuple[LightHandshakesRun, ...]
    idle: tuple[IdleClientsRun, ...]
    sent: tuple[SentRun, ...]
