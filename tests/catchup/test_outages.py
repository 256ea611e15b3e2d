"""mailserver.catchup.outages: when a source was out of reach, and from when on it is asked."""

from mailserver.catchup import outages as outages_module
from mailserver.catchup.outages import AT_ONCE_S, AWAY_INTERVAL_S, BACK_INTERVAL_S, Contact, Contacts, Outage, Outages
from mailserver.catchup.ranges import LATE_S
from mailserver.rlpx.liveness import IDLE_TIMEOUT_S, PING_INTERVAL_S
from tests.mailservers import NOW
from tests.pairs import private_key

STILL_S = int(outages_module.STILL_S)
ONE, OTHER, PHONE = (private_key(name).public_key for name in ("one", "other", "phone"))


class Looking:
    """An Outage that is looked at once a second of both clocks."""

    def __init__(self, *, asks_while_away: bool = True) -> None:
        self.second = 0
        self._outage = Outage(NOW, 0.0, asks_while_away=asks_while_away)

    def look(self, contact: Contact | None, seconds: int = 1) -> list[tuple[int, int]]:
        """Let so many seconds pass with this connection; return when it was to be asked, and since when, from NOW."""
        asked = []
        for _ in range(seconds):
            self.second += 1
            since = self._outage.look(contact, NOW + self.second, float(self.second))
            if since is not None:
                asked.append((self.second, since - NOW))
        return asked


def there(number: int = 1, *, silent_s: float = 0.0, late: int = 0) -> Contact:
    return Contact(number, silent_s, late)


def test_one_that_is_there_from_the_start_is_never_asked() -> None:
    looking = Looking()

    assert looking.look(None, int(AT_ONCE_S) - 2) + looking.look(there(), 10_000) == []


def test_one_that_was_away_is_asked_when_it_is_back_for_all_since_it_was_last_heard() -> None:
    looking = Looking()
    looking.look(there(), 1000)
    looking.look(there(silent_s=30), 1)

    asked = looking.look(None, 50) + looking.look(there(2), 1000)

    assert asked == [(1052, 1001 - 30 - LATE_S)]


def test_break_between_two_looks_is_seen_by_the_new_connection() -> None:
    looking = Looking()
    looking.look(there(), 1000)

    assert looking.look(there(2), 1000) == [(1001, 1000 - LATE_S)]


def test_one_that_comes_and_goes_is_asked_once_a_minute_for_all_of_it() -> None:
    looking = Looking()
    looking.look(there(0), 1000)

    asked = [time for number in range(1, 121) for time in looking.look(None) + looking.look(there(number))]

    assert [second for second, _ in asked] == [1002, 1062, 1122, 1182]
    assert [since for _, since in asked] == [
        second - 2 - (BACK_INTERVAL_S - 2) * (second > 1002) - LATE_S for second, _ in asked
    ]


def test_one_that_stays_away_is_asked_from_time_to_time_so_that_a_kill_forgets_nothing() -> None:
    looking = Looking()
    looking.look(there(), 1000)

    asked = looking.look(None, 700)

    assert asked == [(1301, 1000 - LATE_S), (1601, 1301 - LATE_S)]
    assert looking.look(there(2), 10) == [(1701, 1601 - LATE_S)]
    assert AWAY_INTERVAL_S < LATE_S


def test_one_that_comes_for_the_first_time_is_asked_at_once_for_all_since_the_start() -> None:
    soon, late = Looking(), Looking()

    assert soon.look(None, 15) + soon.look(there(), 10_000) == [(16, -LATE_S)]
    assert late.look(None, 5000) + late.look(there(), 500) == [(5001, -LATE_S)]


def test_one_whose_envelopes_come_too_late_is_asked_though_it_was_there_all_the_time() -> None:
    looking = Looking()
    looking.look(there(), 1000)

    asked = looking.look(there(late=3), 10) + looking.look(there(late=4), 100)

    assert asked == [(1001, 1001 - LATE_S), (1061, 1011 - LATE_S)]


def test_one_whose_line_stood_still_is_asked_when_something_comes_again() -> None:
    looking = Looking()
    looking.look(there(), 1000)

    still = [asked for silent_s in range(STILL_S + 9) for asked in looking.look(there(silent_s=silent_s))]
    asked = looking.look(there(), 1000)

    assert still == []
    assert asked == [(1030, 1001 - LATE_S)]


def test_silence_between_pings_is_no_standstill() -> None:
    looking = Looking()
    looking.look(there(), 1000)

    assert [asked for _ in range(10) for s in range(STILL_S) for asked in looking.look(there(silent_s=s))] == []
    assert PING_INTERVAL_S + 2 < STILL_S < IDLE_TIMEOUT_S


def test_all_are_asked_when_nobody_was_connected_and_somebody_is_again() -> None:
    outages = Outages(NOW, 0.0)
    outages.look(Contacts({}, 0.0), [ONE, OTHER], NOW + 1000, 1000.0)
    alone = [
        outages.look(Contacts({}, None), [ONE, OTHER], NOW + second, float(second)) for second in range(1001, 3000)
    ]

    back = outages.look(Contacts({}, 0.0), [ONE, OTHER], NOW + 3000, 3000.0)

    assert not any(alone)
    assert back == dict.fromkeys((ONE, OTHER), NOW + 1000 - LATE_S)


def test_only_the_one_that_was_away_is_asked_while_others_were_there() -> None:
    outages = Outages(NOW, 0.0)
    outages.look(Contacts({ONE: there(1), OTHER: there(2)}, 0.0), [ONE, OTHER], NOW + 1000, 1000.0)
    outages.look(Contacts({OTHER: there(2)}, 0.0), [ONE, OTHER], NOW + 1001, 1001.0)

    back = outages.look(Contacts({ONE: there(3), OTHER: there(2)}, 0.0), [ONE, OTHER], NOW + 1002, 1002.0)

    assert back == {ONE: NOW + 1000 - LATE_S}
