"""The packets of `wakuid/1`, as docs/wakuid.md specifies them.

    code  packet       payload
    0     Open         [request-id, envelope]
    1     Terms        [request-id, network-topic, since, now, max-ids, max-envelopes, max-message-bytes]
    2     Refused      [request-id, reason, text, retry-after]
    3     Query        [request-id, network-topic, what, order, lower, upper, interest, low, high, cursor, limit]
    4     Fetch        [request-id, network-topic, [muid, ...]]
    5     FetchItems   [request-id, network-topic, [[lower, upper, [item-id, ...]], ...]]
    6     Reconcile    [request-id, network-topic, lower, upper, interest, message]
    7     Ids          [request-id, [muid, ...]]
    8     Envelopes    [request-id, [envelope, ...]]
    9     Reconciled   [request-id, message]
    10    Done         [request-id, cursor, is-all]

Open, Query, Fetch, FetchItems and Reconcile are questions; the others answer them. What follows the last element is
ignored. Numbers are unsigned, times Unix seconds. An interest is a list of topics, a bloom filter, or "" for
everything.
"""

from enum import IntEnum

from mailserver.errors import Rejection
from mailserver.rlpx.capabilities import Capability

WAKUID = Capability("wakuid", 1)

MAX_FETCHED_IDS = 1000
"""Most ids in one Fetch or FetchItems, and in one packet of Ids: 53 kB of MUIDs."""

MAX_METADATA_BYTES = 32
MAX_CURSOR_BYTES = 36
MAX_TEXT_BYTES = 500

MAX_RECONCILE_BYTES = 128 * 1024
"""The longest message of negentropy in a packet. A hundred scattered differences in a million take 80 kB."""

MAX_QUESTION_BYTES = MAX_RECONCILE_BYTES + 8 * 1024
"""The longest payload of a question: Reconcile with as many topics as there may be."""


class IdPacketCode(IntEnum):
    """The packets; the numbers on the wire."""

    OPEN = 0
    TERMS = 1
    REFUSED = 2
    QUERY = 3
    FETCH = 4
    FETCH_ITEMS = 5
    RECONCILE = 6
    IDS = 7
    ENVELOPES = 8
    RECONCILED = 9
    DONE = 10


ID_PACKET_CODE_COUNT = 16
"""How many message ids the capability takes."""

QUESTIONS = frozenset(
    {IdPacketCode.OPEN, IdPacketCode.QUERY, IdPacketCode.FETCH, IdPacketCode.FETCH_ITEMS, IdPacketCode.RECONCILE}
)


class What(IntEnum):
    """What a Query asks for."""

    IDS = 0
    ENVELOPES = 1


class Order(IntEnum):
    """In which order a Query is answered."""

    NEWEST_FIRST = 0
    AS_ARRIVED = 1


REASONS: dict[Rejection, int] = {
    Rejection.MALFORMED: 1,
    Rejection.NO_ACCESS: 2,
    Rejection.CLEAR_REFUSED: 3,
    Rejection.UNDECRYPTABLE: 4,
    Rejection.POW_TOO_LOW: 5,
    Rejection.REPLAYED: 6,
    Rejection.OTHER_NETWORK: 7,
    Rejection.BAD_RANGE: 8,
    Rejection.BAD_CURSOR: 9,
    Rejection.TOO_MANY_WAITING: 10,
    Rejection.RATE_LIMITED: 11,
    Rejection.STORE_UNAVAILABLE: 12,
    Rejection.NOT_INDEXED: 13,
    Rejection.TOO_MANY_ITEMS: 14,
    Rejection.TOO_WIDE: 15,
}
"""The numbers of the reasons of Refused."""
