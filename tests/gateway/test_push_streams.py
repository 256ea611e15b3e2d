"""mailserver.gateway.push_streams: over two Connections joined in memory, with clients of both kinds."""

from collections.abc import Hashable

import pytest

from mailserver.gateway.push_streams import MAX_STREAMS_AT_ONCE, PROBE_S, PushStreams
from mailserver.libp2p import mplex, yamux
from mailserver.libp2p.connection import NEGOTIATION_TIMEOUT_S
from mailserver.libp2p.events import ProtocolRefused, StreamFailed, StreamOpened
from mailserver.libp2p.streams import DataReceived, StreamId, StreamReset, WriteClosed
from mailserver.libp2p.yamux import WINDOW_BYTES
from tests.libp2p.links import CHAT, Pair
from tests.pairs import START

MUXERS = [mplex.PROTOCOL, yamux.PROTOCOL]
UNSPOKEN = "/unspoken/1.0.0"


class Pushing:
    """We push, as the listener; a client reads, as the dialer."""

    def __init__(self, muxer: str, protocol: str = CHAT, *, is_go: bool = False, consumes: bool = True) -> None:
        self.pair = Pair.open(muxer)
        self.now = START
        self.unwanted: set[Hashable] = set()
        self.forgotten: list[Hashable] = []
        self.owners: dict[StreamId, PushStreams] = {}
        self.streams = PushStreams(self.pair.listener, protocol, self._is_wanted, self.forgotten.append, self.owners)
        self.is_go = is_go
        self.consumes = consumes
        self.read: list[tuple[StreamId, bytes]] = []
        self.ended: list[StreamId] = []

    def _is_wanted(self, criterion: Hashable) -> bool:
        return criterion not in self.unwanted

    def push(self, *frames: bytes, may_send: bool = True) -> None:
        for frame in frames:
            self.streams.push(frame, frame, self.now, may_send=may_send)

    def after(self, seconds: float) -> None:
        """Let time pass; what waits may go."""
        self.now += seconds
        self.streams.send_waiting(self.now)
        self.settle()

    def settle(self) -> None:
        """Carry everything both ways until nothing moves."""
        for _ in range(4):
            self.pair.pump(self.now)
            self._client_hears()
            self.pair.pump(self.now)
            self.we_hear()

    def _client_hears(self) -> None:
        for event in self.pair.dialer.events():
            if isinstance(event, DataReceived):
                self.read.append((event.stream, event.data))
                if self.consumes:
                    self.pair.dialer.consumed(event.stream, len(event.data))
                if self.is_go:
                    self.pair.dialer.close_write(event.stream)
            elif isinstance(event, WriteClosed):
                self.ended.append(event.stream)

    def we_hear(self) -> None:
        for event in self.pair.listener.events():
            if isinstance(event, WriteClosed):
                self.owners[event.stream].closed(event.stream, self.now)
            elif isinstance(event, (StreamReset, ProtocolRefused, StreamFailed)):
                self.owners[event.stream].reset(event.stream, self.now)
            else:
                assert isinstance(event, StreamOpened)

    @property
    def data(self) -> list[bytes]:
        return [data for _, data in self.read]


@pytest.mark.parametrize("muxer", MUXERS)
def test_client_that_leaves_its_stream_open_reads_all_from_it(muxer: str) -> None:
    pushing = Pushing(muxer)

    pushing.push(b"1", b"2", b"3")
    pushing.settle()
    at_once = pushing.data[:]
    pushing.after(PROBE_S)
    pushing.push(b"4")
    pushing.settle()

    assert at_once == [b"1"]
    assert b"".join(pushing.data) == b"1234"
    assert len({stream for stream, _ in pushing.read}) == 1
    assert pushing.streams.waiting_bytes == 0
    assert pushing.ended == []


@pytest.mark.parametrize("muxer", MUXERS)
def test_client_that_closes_each_stream_gets_one_message_on_each(muxer: str) -> None:
    pushing = Pushing(muxer, is_go=True)

    pushing.push(b"1", b"2", b"3")
    pushing.settle()
    pushing.after(0.001)

    assert pushing.data == [b"1", b"2", b"3"]
    assert len({stream for stream, _ in pushing.read}) == 3
    assert pushing.ended == [stream for stream, _ in pushing.read]
    assert pushing.owners == {}


def test_while_the_first_stream_is_watched_a_timer_is_set() -> None:
    pushing = Pushing(mplex.PROTOCOL)
    pushing.push(b"1")
    pushing.settle()
    without_waiting = pushing.streams.next_timer(pushing.now)

    pushing.push(b"2")

    assert without_waiting is None
    assert pushing.streams.next_timer(pushing.now) == START + PROBE_S
    assert pushing.streams.waiting_bytes == 1


def test_no_timer_is_set_for_what_waits_for_a_window() -> None:
    pushing = Pushing(yamux.PROTOCOL, consumes=False)
    pushing.push(b"1")
    pushing.settle()
    pushing.after(PROBE_S)

    pushing.push(bytes(WINDOW_BYTES))  # one byte more than the window
    pushing.push(b"2")
    pushing.settle()

    assert pushing.streams.waiting_bytes == 1
    assert pushing.streams.next_timer(pushing.now) is None  # it would be over at once, again and again

    pushing.pair.dialer.consumed(pushing.read[0][0], WINDOW_BYTES // 2)
    pushing.settle()
    pushing.after(0.0)

    assert pushing.data[-1] == b"2"


def test_what_comes_while_the_connection_is_full_waits_in_order() -> None:
    pushing = Pushing(mplex.PROTOCOL)
    pushing.push(b"0")
    pushing.settle()
    pushing.after(PROBE_S)

    pushing.push(b"1", may_send=False)
    pushing.push(b"2")
    waiting = pushing.streams.waiting_bytes
    pushing.settle()
    before = pushing.data[:]
    pushing.after(0.0)

    assert waiting == 2
    assert before == [b"0"]
    assert b"".join(pushing.data) == b"012"


def test_what_is_not_wanted_any_more_is_not_sent() -> None:
    pushing = Pushing(mplex.PROTOCOL)
    pushing.push(b"1", b"2", b"3")
    pushing.settle()

    pushing.unwanted.add(b"2")
    pushing.after(PROBE_S)

    assert b"".join(pushing.data) == b"13"
    assert pushing.streams.waiting_bytes == 0


def test_only_so_many_streams_of_one_message_are_open_at_once() -> None:
    pushing = Pushing(yamux.PROTOCOL, is_go=True)
    pushing.push(b"first")
    pushing.settle()
    pushing.is_go = False  # it stops reading

    pushing.push(*[b"%d" % number for number in range(MAX_STREAMS_AT_ONCE + 2)])
    pushing.settle()
    read = len(pushing.read)
    pushing.pair.dialer.close_write(pushing.read[-1][0])
    pushing.settle()
    pushing.after(0.0)

    assert read == 1 + MAX_STREAMS_AT_ONCE
    assert len(pushing.read) == read + 1
    assert pushing.streams.waiting_bytes == 2
    assert pushing.streams.next_timer(pushing.now) is None


@pytest.mark.parametrize("muxer", MUXERS)
def test_client_that_resets_the_first_stream_has_forgotten(muxer: str) -> None:
    pushing = Pushing(muxer)
    pushing.push(b"1")
    pushing.settle()

    pushing.pair.dialer.reset(pushing.read[0][0])
    pushing.settle()

    assert pushing.forgotten == [b"1"]
    assert pushing.owners == {}
    pushing.push(b"2", b"3")  # only go-waku does so: from now on, one message on each
    pushing.settle()
    assert len({stream for stream, _ in pushing.read}) == 3


@pytest.mark.parametrize("muxer", MUXERS)
def test_client_that_resets_a_stream_of_one_message_has_forgotten_it(muxer: str) -> None:
    pushing = Pushing(muxer, is_go=True)
    pushing.push(b"1")
    pushing.settle()
    pushing.is_go = False
    pushing.push(b"2")
    pushing.settle()

    pushing.pair.dialer.reset(pushing.read[-1][0])
    pushing.settle()

    assert pushing.forgotten == [b"2"]


@pytest.mark.parametrize("muxer", MUXERS)
def test_stream_that_has_served_long_may_be_reset_or_closed_and_another_is_opened(muxer: str) -> None:
    pushing = Pushing(muxer)
    pushing.push(b"1")
    pushing.settle()
    pushing.after(PROBE_S)

    pushing.pair.dialer.reset(pushing.read[-1][0])
    pushing.settle()
    pushing.push(b"2")
    pushing.settle()
    pushing.after(PROBE_S)
    pushing.pair.dialer.close_write(pushing.read[-1][0])
    pushing.settle()
    pushing.push(b"3")
    pushing.settle()
    pushing.after(PROBE_S)
    pushing.push(b"4")
    pushing.settle()

    assert pushing.forgotten == []
    assert pushing.data == [b"1", b"2", b"3", b"4"]
    streams = [stream for stream, _ in pushing.read]
    assert len(set(streams)) == 3
    assert streams[2] == streams[3]


def test_client_that_does_not_speak_the_protocol_has_forgotten() -> None:
    pushing = Pushing(mplex.PROTOCOL, UNSPOKEN)

    pushing.push(b"1")
    pushing.settle()

    assert pushing.forgotten == [b"1"]
    assert pushing.owners == {}


def test_client_that_never_agrees_on_the_protocol_loses_its_stream() -> None:
    pushing = Pushing(mplex.PROTOCOL)
    pushing.push(b"1")
    pushing.now += NEGOTIATION_TIMEOUT_S

    pushing.pair.listener.handle_timer(pushing.now)
    pushing.we_hear()

    assert pushing.owners == {}
    assert pushing.forgotten == []
