"""mailserver.gateway.send_memory."""

from mailserver.gateway.send_memory import MAX_CLIENT_BYTES, SCARCE_CLIENT_BYTES, SendMemory, SendShare


class Clients:
    """Clients by name, and which of them were disconnected."""

    def __init__(self, max_bytes: int) -> None:
        self.memory = SendMemory(max_bytes)
        self.shares: dict[str, SendShare] = {}
        self.dropped: list[str] = []

    def add(self, name: str) -> SendShare:
        def drop() -> None:
            self.dropped.append(name)
            share.set(0, 0.0)

        share = self.shares[name] = self.memory.share(drop)
        return share


def test_client_that_reads_may_have_its_part() -> None:
    share = Clients(1000).add("a")

    assert share.allows(MAX_CLIENT_BYTES - 1)
    assert not share.allows(MAX_CLIENT_BYTES)


def test_while_memory_is_scarce_each_part_is_smaller() -> None:
    clients = Clients(1000)
    hog, other = clients.add("hog"), clients.add("other")

    hog.set(1000, 0.0)

    assert clients.memory.used_bytes == 1000
    assert other.allows(SCARCE_CLIENT_BYTES - 1)
    assert not other.allows(SCARCE_CLIENT_BYTES)

    hog.set(999, 0.0)

    assert other.allows(SCARCE_CLIENT_BYTES)


def test_at_twice_as_much_the_one_that_has_held_most_for_longest_is_disconnected() -> None:
    clients = Clients(1000)
    old, young, small = clients.add("old"), clients.add("young"), clients.add("small")
    small.set(10, 0.0)
    old.set(900, 0.0)
    young.set(1090, 19.0)
    nobody = clients.dropped[:]

    young.set(1091, 19.0)

    assert nobody == []
    assert clients.dropped == ["old"]
    assert clients.memory.used_bytes == 1101


def test_one_that_has_had_nothing_in_between_has_not_held_for_long() -> None:
    clients = Clients(1000)
    reads, stalls = clients.add("reads"), clients.add("stalls")
    reads.set(1200, 0.0)
    reads.set(0, 9.0)
    stalls.set(900, 5.0)

    reads.set(1101, 10.0)

    assert clients.dropped == ["stalls"]


def test_the_newcomer_itself_may_be_the_one() -> None:
    clients = Clients(1000)

    clients.add("a").set(2001, 0.0)

    assert clients.dropped == ["a"]
    assert clients.memory.used_bytes == 0


def test_nobody_is_disconnected_for_holding_less() -> None:
    clients = Clients(1000)
    first, second = clients.add("first"), clients.add("second")
    first.set(1000, 0.0)
    second.set(1000, 0.0)
    clients.memory.max_bytes = 100

    second.set(900, 1.0)

    assert clients.dropped == []
