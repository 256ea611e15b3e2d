"""`python -m tests.faults.switch SEED CONTROL FD..`: carries packets between hosts, as badly as it is told to.

Each FD is the TUN device of a host, the first that of host 1; a packet goes to the host that the third byte of its
destination names. Every direction between two hosts has a `Line`. All that is left to chance comes from the seed.
"""

import contextlib
import heapq
import itertools
import json
import os
import random
import select
import socket
import struct
import sys
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass

MAX_HELD_PACKETS = 20_000
"""Packets that are on their way at a time, in all directions; what comes beyond is lost."""

MAX_PACKET_BYTES = 65_535
MAX_COMMAND_BYTES = 65_536
_READ_AT_ONCE = 64
_TCP = 6
_RST, _ACK = 0x04, 0x10


@dataclass(frozen=True, slots=True)
class Line:
    """How packets fare in one direction. Without arguments, it is perfect.

    `is_cut`: none arrives. `rejects`: none arrives, and each of TCP is answered by a reset, as some firewalls do.
    `delay_s`, give or take `jitter_s`. `loss`, `duplication`: shares of the packets; `reordering`: the share that does
    not wait for those before it. `max_bytes`: longer packets are lost without a word; 0: none is too long.
    """

    is_cut: bool = False
    rejects: bool = False
    delay_s: float = 0.0
    jitter_s: float = 0.0
    loss: float = 0.0
    duplication: float = 0.0
    reordering: float = 0.0
    max_bytes: int = 0

    def as_json(self) -> dict[str, object]:
        """As an object of JSON."""
        return asdict(self)


class Lines:
    """What becomes of each packet: pure, but for the chance that is given. Times are monotonic seconds."""

    def __init__(self, chance: random.Random) -> None:
        self.counts: Counter[str] = Counter()
        self._chance = chance
        self._lines: dict[tuple[int, int], Line] = {}
        self._last_due: dict[tuple[int, int], float] = {}
        self._held: list[tuple[float, int, int, bytes]] = []  # by when they are due; then in their order
        self._order = itertools.count()

    def set(self, source: int, target: int, line: Line) -> None:
        """From now on, packets from one host to another fare so. Those on their way arrive."""
        self._lines[source, target] = line

    def take(self, source: int, packet: bytes, now: float) -> None:
        """A packet has left a host."""
        if len(packet) < 20 or packet[0] >> 4 != 4:  # IPv6 looks for neighbours on its own
            return
        target, chance = packet[18], self._chance
        line = self._lines.get((source, target), Line())
        if line.rejects and (reset := reset_for(packet)) is not None:
            self._hold(source, reset, now, "reset")
        elif line.is_cut or line.rejects:
            self.counts["cut"] += 1
        elif line.max_bytes and len(packet) > line.max_bytes:
            self.counts["too_long"] += 1
        elif chance.random() < line.loss:
            self.counts["lost"] += 1
        else:
            copies = 1 + (chance.random() < line.duplication)
            self.counts["duplicated"] += copies - 1
            for _ in range(copies):
                due = now + max(0.0, line.delay_s + chance.uniform(-line.jitter_s, line.jitter_s))
                if chance.random() < line.reordering:
                    self.counts["reordered"] += due < self._last_due.get((source, target), 0.0)
                else:
                    due = self._last_due[source, target] = max(due, self._last_due.get((source, target), 0.0))
                self._hold(target, packet, due, "carried")

    def due(self, now: float) -> Iterator[tuple[int, bytes]]:
        """Packets that arrive by now, and where."""
        while self._held and self._held[0][0] <= now:
            _, _, target, packet = heapq.heappop(self._held)
            yield target, packet

    def next_due(self) -> float | None:
        """When the next one arrives."""
        return self._held[0][0] if self._held else None

    def _hold(self, target: int, packet: bytes, due: float, what: str) -> None:
        if len(self._held) >= MAX_HELD_PACKETS:
            self.counts["overflow"] += 1
            return
        self.counts[what] += 1
        heapq.heappush(self._held, (due, next(self._order), target, packet))


def reset_for(packet: bytes) -> bytes | None:
    """The reset that answers a packet of TCP; None if there is none (RFC 9293 section 3.10.7.1)."""
    start = 4 * (packet[0] & 0xF)
    if packet[9] != _TCP or len(packet) < start + 20:
        return None
    source, target, sequence, acknowledged, offset, flags = struct.unpack_from("!HHIIBB", packet, start)
    if flags & _RST:
        return None
    if flags & _ACK:
        numbers, answer = (acknowledged, 0), _RST
    else:
        length = len(packet) - start - 4 * (offset >> 4) + bool(flags & 0x02) + bool(flags & 0x01)
        numbers, answer = (0, (sequence + length) & 0xFFFFFFFF), _RST | _ACK
    segment = struct.pack("!HHIIBBHHH", target, source, *numbers, 5 << 4, answer, 0, 0, 0)
    addresses = packet[16:20] + packet[12:16]
    pseudo = addresses + struct.pack("!BBH", 0, _TCP, len(segment))
    segment = segment[:16] + struct.pack("!H", checksum(pseudo + segment)) + segment[18:]
    header = struct.pack("!BBHHHBBH", 0x45, 0, 20 + len(segment), 0, 0, 64, _TCP, 0) + addresses
    return header[:10] + struct.pack("!H", checksum(header)) + header[12:] + segment


def checksum(data: bytes) -> int:
    """The Internet checksum (RFC 1071) of an even number of bytes."""
    total: int = sum(struct.unpack(f"!{len(data) // 2}H", data))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return 0xFFFF - total


def main() -> None:
    """Carry packets until the control socket ends."""
    seed, control, *devices = map(int, sys.argv[1:])
    lines = Lines(random.Random(seed))
    commands = socket.socket(fileno=control)
    hosts = {device: number for number, device in enumerate(devices, 1)}
    poll = select.poll()
    for descriptor in (control, *devices):
        poll.register(descriptor, select.POLLIN)
    while True:
        due = lines.next_due()
        ready = poll.poll(None if due is None else max(0.0, due - time.monotonic()) * 1000)
        for descriptor, _ in ready:
            if descriptor != control:
                _read(lines, descriptor, hosts[descriptor])
            elif not _obey(lines, commands):
                return
        for target, packet in lines.due(time.monotonic()):
            if 1 <= target <= len(devices):
                _write(devices[target - 1], packet)


def _read(lines: Lines, device: int, number: int) -> None:
    for _ in range(_READ_AT_ONCE):
        try:
            packet = os.read(device, MAX_PACKET_BYTES)
        except BlockingIOError:
            return
        lines.take(number, packet, time.monotonic())


def _write(device: int, packet: bytes) -> None:
    with contextlib.suppress(OSError):  # its namespace is going away
        os.write(device, packet)


def _obey(lines: Lines, commands: socket.socket) -> bool:
    """Do what is asked for; False at the end. Every command is answered by the counts so far."""
    command = commands.recv(MAX_COMMAND_BYTES)
    if not command:
        return False
    for source, target, line in json.loads(command):
        lines.set(source, target, Line(**line))
    commands.send(json.dumps(lines.counts).encode())
    return True


if __name__ == "__main__":
    main()
