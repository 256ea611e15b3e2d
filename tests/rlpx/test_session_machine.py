"""Two Sessions joined by a link that delivers any number of bytes at any time, beside a plain model of both.

The model knows what each side says, packet by packet, and so at which byte the other must act on it.
"""

from dataclasses import dataclass, field

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from mailserver.errors import DisconnectReason, LocalProtocolError
from mailserver.rlpx.events import BaseMessageReceived, Event, MessageReceived, SessionClosed, SessionOpened
from mailserver.rlpx.liveness import IDLE_TIMEOUT_S, PING_INTERVAL_S, PROBE_TIMEOUT_S, SEEN_RECENTLY_S
from mailserver.rlpx.moves import SessionState
from mailserver.rlpx.session import HANDSHAKE_TIMEOUT_S, Session
from tests.pairs import START, TOY, TOY_CODES, AnyClosed, Pair
from tests.properties import settings

Saying = tuple[str, object]
"""A packet: "auth", "ack", "hello", "ping", "pong", "message" with code and payload, "disconnect" with its reason."""


@dataclass
class Side:
    """What one side is and expects, by the words of `Session`."""

    is_initiator: bool
    said: list[Saying] = field(default_factory=list)
    events: list[object] = field(default_factory=list)
    state: SessionState = SessionState.HANDSHAKE
    deadline: float = START + HANDSHAKE_TIMEOUT_S
    next_ping: float = 0.0
    timeout_s: float = IDLE_TIMEOUT_S
    seen_at: float = START
    probed: bool = False
    reads: bool = True

    def __post_init__(self) -> None:
        if self.is_initiator:
            self.said.append(("auth", None))

    def hear_something(self, now: float) -> None:
        """Any byte is a sign of life."""
        if self.state is SessionState.OPEN:
            self.timeout_s, self.deadline = IDLE_TIMEOUT_S, now + IDLE_TIMEOUT_S
            if self.probed:
                self.probed, self.seen_at = False, now

    def hear(self, saying: Saying, now: float) -> None:
        """A whole packet is in."""
        kind, content = saying
        if self.state is SessionState.CLOSED:
            return
        if kind in ("auth", "ack"):
            self.state = SessionState.HELLO
            self.said += [("ack", None)] * (kind == "auth") + [("hello", None)]
        elif kind == "hello":
            self.state = SessionState.OPEN
            self.deadline, self.next_ping = now + IDLE_TIMEOUT_S, now + PING_INTERVAL_S
            self.seen_at = now
            self.events.append(SessionOpened)
        elif kind == "message":
            assert isinstance(content, tuple)
            self.events.append(MessageReceived(TOY, *content))
        elif kind == "disconnect":
            assert isinstance(content, DisconnectReason)
            self.end(AnyClosed(content, by_peer=True))
        else:
            self.events.append(BaseMessageReceived(1))
            self.said += [("pong", None)] * (kind == "ping")

    def disconnect(self, reason: DisconnectReason) -> None:
        """End it: said if there are keys to say it with."""
        if self.state is SessionState.CLOSED:
            return
        if self.state is not SessionState.HANDSHAKE:
            self.said.append(("disconnect", reason))
        self.end(AnyClosed(reason, by_peer=False))

    def end(self, closed: AnyClosed) -> None:
        """It has ended."""
        if self.state is not SessionState.CLOSED:
            self.state = SessionState.CLOSED
            self.events.append(closed)

    def ping(self, now: float) -> None:
        """Say ping."""
        self.said.append(("ping", None))
        self.next_ping = now + PING_INTERVAL_S

    def probe(self, now: float) -> bool:
        """Whether the other is there; if that is not known, it is asked, once."""
        if self.state is not SessionState.OPEN:
            return False
        if not self.probed:
            if now < self.seen_at + SEEN_RECENTLY_S:
                return True
            self.ping(now)
            self.probed = True
            self.timeout_s = PROBE_TIMEOUT_S
            self.deadline = min(self.deadline, now + PROBE_TIMEOUT_S)
        return False

    def handle_timer(self, now: float) -> None:
        """Time has passed."""
        if self.state in (SessionState.HANDSHAKE, SessionState.HELLO):
            if now >= self.deadline:
                self.disconnect(DisconnectReason.REQUESTED)
        elif self.state is SessionState.OPEN:
            if self.reads and now >= self.deadline:
                self.disconnect(DisconnectReason.PING_TIMEOUT)
            elif now >= self.next_ping:
                self.ping(now)

    @property
    def timer(self) -> float | None:
        """When it wants to be woken."""
        if self.state is SessionState.CLOSED:
            return None
        if self.state is not SessionState.OPEN:
            return self.deadline
        return min(self.deadline, self.next_ping) if self.reads else self.next_ping


@dataclass
class Way:
    """The bytes from one side to the other: `ends` says at which byte each packet is whole."""

    stream: bytearray = field(default_factory=bytearray)
    ends: list[int] = field(default_factory=list)
    delivered: int = 0
    heard: int = 0


sides = st.sampled_from([0, 1])
rarely = st.sampled_from([False] * 7 + [True])


class Joined(RuleBasedStateMachine):
    """Side 0 has dialled side 1."""

    def __init__(self) -> None:
        super().__init__()
        pair = Pair.join()
        self.sessions: list[Session] = [pair.initiator, pair.recipient]
        self.models = [Side(is_initiator=True), Side(is_initiator=False)]
        self.ways = [Way(), Way()]
        self.now = START
        self.happened: list[list[Event]] = [[], []]
        self.settle()

    def settle(self) -> None:
        """Take what both say and tell."""
        for session, way, happened in zip(self.sessions, self.ways, self.happened, strict=True):
            for data in session.data_to_send():
                way.stream += data
                way.ends.append(len(way.stream))
            happened.extend(session.events())

    def deliver(self, sender: int, count: int) -> None:
        """Carry so many bytes, or all that there are, from one side to the other."""
        way, session, model = self.ways[sender], self.sessions[1 - sender], self.models[1 - sender]
        data = bytes(way.stream[way.delivered : way.delivered + count])
        way.delivered += len(data)
        session.receive_data(data, self.now)
        if data:
            model.hear_something(self.now)
        while way.heard < len(way.ends) and way.ends[way.heard] <= way.delivered:
            model.hear(self.models[sender].said[way.heard], self.now)
            way.heard += 1
        self.settle()

    @rule(sender=sides, count=st.integers(1, 400))
    def some_bytes_arrive(self, sender: int, count: int) -> None:
        self.deliver(sender, count)

    @rule(sender=sides)
    def everything_arrives(self, sender: int) -> None:
        self.deliver(sender, len(self.ways[sender].stream))

    @initialize(opened=st.sampled_from([True, True, False]))
    def handshake_may_be_over(self, opened: bool) -> None:
        for sender in (0, 1, 0, 1) if opened else ():
            self.deliver(sender, len(self.ways[sender].stream))

    @rule(side=sides, code=st.integers(0, TOY_CODES), payload=st.binary(max_size=300))
    def send(self, side: int, code: int, payload: bytes) -> None:
        model = self.models[side]
        if model.state is SessionState.OPEN and code < TOY_CODES:
            self.sessions[side].send(TOY, code, payload)
            model.said.append(("message", (code, payload)))
            self.settle()
            return
        with pytest.raises(LocalProtocolError):
            self.sessions[side].send(TOY, code, payload)

    @rule(side=sides)
    def probe(self, side: int) -> None:
        assert self.sessions[side].probe(self.now) == self.models[side].probe(self.now)
        self.settle()

    @rule(side=sides)
    def stop_reading(self, side: int) -> None:
        self.sessions[side].pause_reading()
        self.models[side].reads = False

    @rule(side=sides)
    def read_again(self, side: int) -> None:
        self.sessions[side].resume_reading(self.now)
        model = self.models[side]
        model.reads = True
        if model.state is SessionState.OPEN:
            model.deadline = self.now + model.timeout_s

    @rule(seconds=st.sampled_from([0.5, 0.5, 2.9, 3.0, 13.0, 15.0, 27.0, 30.0]))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds
        self.wake()

    @rule()
    def timer_is_due(self) -> None:
        due = [timer for session in self.sessions if (timer := session.next_timer()) is not None]
        self.now = max(self.now, min(due, default=self.now))
        self.wake()

    def wake(self) -> None:
        for session, model in zip(self.sessions, self.models, strict=True):
            session.handle_timer(self.now)
            model.handle_timer(self.now)
            timer = session.next_timer()
            assert timer is None or timer > self.now  # or who waits for it would turn in circles
        self.settle()

    @rule(side=sides, reason=st.sampled_from(DisconnectReason), really=rarely)
    def disconnect(self, side: int, reason: DisconnectReason, really: bool) -> None:
        if not really:
            return
        self.sessions[side].disconnect(reason, "as the test likes")
        self.models[side].disconnect(reason)
        self.settle()

    @rule(side=sides, really=rarely)
    def connection_breaks(self, side: int, really: bool) -> None:
        if not really:
            return
        self.sessions[side].receive_eof()
        self.models[side].end(AnyClosed(None, by_peer=True))
        self.settle()

    @invariant()
    def states_and_timers_are_those_of_the_model(self) -> None:
        for session, model in zip(self.sessions, self.models, strict=True):
            assert session.state is model.state
            assert session.next_timer() == model.timer

    @invariant()
    def as_many_packets_are_said_as_by_the_model(self) -> None:
        assert [len(way.ends) for way in self.ways] == [len(model.said) for model in self.models]

    @invariant()
    def events_are_those_of_the_model(self) -> None:
        for happened, model in zip(self.happened, self.models, strict=True):
            assert [SessionOpened if isinstance(event, SessionOpened) else event for event in happened] == model.events
            assert sum(isinstance(event, SessionClosed) for event in happened) <= 1


TestJoined = Joined.TestCase
TestJoined.settings = settings(max_examples=60, stateful_step_count=40)
