"""Errors, arranged by who is at fault and what the caller does about it.

Indentation is inheritance. An error with a module in brackets is defined there, beside what raises it; all others are
defined here. A class whose name begins with an underscore never leaves its module, and is not listed.

    MailserverError
      Those of the wire:
      DecodeError              bytes do not parse. Whoever knows whose bytes they are translates it.
        TooManyEnvelopes         [waku.envelope] a long packet has more envelopes than are taken from one
        ForeignLink              [communities.links] a message in a special channel is no link of the owner: ignore it
        CursorOfAnotherStore     [history.id_search] a list of ids was to go on in another store: tell who asks
        BadRow                   [store.sqlite.leaves] a row is not as SQLite writes it: set it aside, or pass it over
        OtherVersion             [reconcile.wire] the other side speaks another negentropy: compare in another way
      RemoteProtocolError      the peer broke a rule: close its connection with `.reason`
      Libp2pFault              [libp2p.faults] a libp2p peer broke a rule: close its connection, count `.cause`
      ConnectionLost           the transport is gone, or the peer said goodbye: ordinary
      NoId                     [ids.muid] a message has no id of this kind: say why, and leave it out
      RequestRejected          a history request is refused: tell its sender `.message`
      EnvelopeRefused          [live.intake] an envelope of our own is not acceptable: tell who made it `.verdict`
      PostUnanswered           [feed_socket.client] the daemon did not say whether an envelope is stored: post it again

      What other nodes do when we are the client:
      RequestFailed            [client.mail_client] the mailserver refused our request: see `.failure`
        RequestPowTooLow         [client.mail_client] it wants more proof of work: ask again with more
      NoAnswer                 [client.mail_client] the node is connected, but silent: try later, or another one
      TooMuchWork              [client.sealing] no proof of work was found in time: ask for less, or wait longer
      NoMessageIds             [client.id_client] the node answers no questions about message ids: use history requests
      QuestionRefused          [client.id_client] the mailserver refused one: see `.refused`
      WrongAnswer              [client.id_client] it answered something else: do not trust it
      RequestTooDear           [catchup.request_pow] a source wants more proof of work than we do: ask it later
      SourceLies               [catchup.page_rules] a source answers as no honest one would: leave it alone for a while
      PageTooLong              [catchup.page_rules] a page of a source does not end: ask for less at a time
      FetchTooLong             [catchup.comparing] envelopes fetched by id were too many bytes at once: fetch fewer

      What a caller of our JSON-RPC or control socket got wrong, or may not have:
      RpcError                 [api.errors] the call fails: answer with `.code`
      Invalid                  [api.params] a parameter is not what it must be: becomes an RpcError
      FilterNotFound           [api.filters] becomes an RpcError, like the next six
      TooManyFilters           [api.filters]
      KeyNotFound              [api.keys]
      TooManyKeys              [api.keys]
      TooManyRequests          [peers.completions]
      PeerNotConnected         [peers.connected]
      PeerNotTrusted           [peers.connected]
      CallFailed               [app.control_call] the daemon refused what a command asked of it: exit code 1

      What a client of Waku v2 got wrong:
      UnknownCursor            [gateway.index.values] it wants to go on behind a message that is not known: tell it so
      TooManyAlike             [gateway.index.values] its MUIDs are to be told from too many messages: tell it so

      Members of communities:
      MembershipError          [community.member.joined] a community was not joined, or its record cannot be used
        CommunityBusy            [community.member.joined] another process fetches its history: wait for that one
      CannotFetch              [community.member.fetching] not all came that is wanted: see `.is_final`
      ArchiveRefused           [community.member.replacing] a downloaded archive cannot be used: leave it alone
      DownloadLost             [community.member.replacing] a download has gone from the disk: fetch it again

      Torrents of communities:
      TorrentError             [torrents.errors] something did not work with one
        LinkRefused              [torrents.errors] a magnet link cannot be used: leave it alone
        TorrentRefused           [torrents.errors] it is not one of a community: leave it alone, see `.refusal`
        StaleLink                [torrents.errors] nobody has the torrent of a link: wait for the next link
        FetchStalled             [torrents.errors] no piece came for too long: try later, or with the next link
          WrongPieces              [torrents.errors] and some that came were wrong
        TorrentDiskError         [torrents.errors] its files cannot be read or written, or are not its own
        TorrentSuperseded        [torrents.errors] it was dropped while it was fetched: ordinary
        RequestFault             [torrents.errors] the process did not do what was asked: becomes one of those above
        CannotListen             [torrents.errors] the process cannot listen: becomes a StartupError

      Disks, and what is on them:
      StoreError               the store could not do it, and nothing was confirmed: refuse, and try again later
        EarlierVersion           an earlier version made it: start the mailserver on it once, which migrates it
        NotIndexedYet            [store.message_ids] it cannot find by id before it has indexed its envelopes: try later
        IndexDamaged             [store.engine.index_state] the index of ids does not fit, and is made anew: try later
        StoreBusy                [store.message_ids] it is doing too much for others: try later
        OtherStore               [store.arrivals] the store was replaced by another: begin anew with that
        OtherNetworkTopic        [store.message_ids] its ids belong to another network topic than the settings say
        NoStore                  [store.postgres.migration] the database has none, and had one: becomes a StartupError
        Unreachable              [store.postgres.failures] the database does not answer: try again later
          Refusing               [store.postgres.failures] it is read-only, or somebody holds a lock: try again later
        TableGone                [store.leveldb.files] a table was replaced meanwhile: look which there are
        StoreLost                [store.sqlite.presence] its file was replaced or deleted: nothing works until a restart
      TooManyEntries           [leveldb.batch] a record takes more memory than it may: set it aside
      TooManyIds               [store.message_ids] a scope by topics is too large to compare: ask for a shorter time
      RangeTooWide             [store.message_ids] too many ids lie in the time of those looked for: name a shorter one
      ServedError              [handoff.communities] what `community serve` has said cannot be read: show nothing of it
      ArchivedError            [handoff.archived] the record of the compaction cannot be read: delete nothing
      CompactionRecordError    [handoff.last_run] the record of the last run cannot be read: say so
      UpkeepRecordError        [handoff.last_upkeep] the record of the last merge or verification cannot be read: say so
      ArchiveError             [archive.errors] the archive cannot be read, or a later version made it
        NoArchive                [archive.errors] there is none: the run says so, and did not fail if none is expected
        ArchiveFault             [archive.errors] it does not have what its record says: delete nothing
          FileGone                 [archive.reading.row_groups] a file is not where it was: look up the periods again
          IndexUnusable            [archive.reading.indexed] an index cannot be used: read the period without it
            IndexGone                [archive.reading.indexed] it is missing, perhaps because its period was replaced
        ArchiveBusy              [archive.errors] a run is changing it: look again soon
        RecordDamaged            [archive.errors] a record of it cannot be read: the compaction repairs it
        ArchiveFileUnreadable    [archive.errors] a file of it is there, and its bytes cannot be read
      CompactionRunning        [handoff.archived] another run has the store: do not start
      CatchupError             [catchup.ledger] what sources owe us cannot be read or written: exit code 1
        TooManySources           [catchup.catchup] no room for one more source: it is not asked
      Unanswered               [catchup.asking] a page of a source did not come: ask it for less, later
      CommunityError           [community.owner.record] a community of ours cannot be used, or changed so: exit code 1
      BackupError              [data_dir.backup] there is no backup: exit code 1
      FileTooLong              [data_dir.small_files] a small file is longer than it can be: becomes a BackupError

      The operator:
      ConfigError              a setting or an argument is wrong: exit code 2
      StartupError             something that the program needs is not as it must be: exit code 1
        DataDirInUse             [data_dir.folder] another daemon has the data directory

      Ourselves:
      LocalProtocolError       we called out of turn: a bug, caught nowhere

The nightly job has a branch of its own, in `spark_export/errors.py`.

Errors carry fields; the text is built in `__str__`. A peer learns the reason, the log learns the cause.
"""

from enum import Enum, IntEnum


class DisconnectReason(IntEnum):
    """Why a connection ends, as sent in Disconnect (rlpx.md "Disconnect (0x01)")."""

    REQUESTED = 0x00
    TCP_ERROR = 0x01
    PROTOCOL_BREACH = 0x02
    USELESS_PEER = 0x03
    TOO_MANY_PEERS = 0x04
    ALREADY_CONNECTED = 0x05
    INCOMPATIBLE_VERSION = 0x06
    NULL_IDENTITY = 0x07
    CLIENT_QUITTING = 0x08
    UNEXPECTED_IDENTITY = 0x09
    SELF_CONNECTION = 0x0A
    PING_TIMEOUT = 0x0B
    SUBPROTOCOL_ERROR = 0x10


class Rejection(Enum):
    """Why a request is refused, be it of 8/WAKU-MAIL or of `wakuid`. The value is the text that the client is told."""

    MALFORMED = "request is malformed"
    UNDECRYPTABLE = "request could not be decrypted"
    CLEAR_REFUSED = "request must be sealed in an envelope"
    REPLAYED = "request was made by another peer"
    POW_TOO_LOW = "proof of work of the request is too low"
    EMPTY_FILTER = "request names neither topics nor a bloom filter"
    BAD_TOPIC = "a topic is not 4 bytes long"
    TOO_MANY_TOPICS = "request names too many topics"
    BAD_BLOOM = "bloom filter is not 64 bytes long"
    BAD_RANGE = "lower bound is above the upper bound"
    BAD_CURSOR = "cursor is malformed"
    TOO_MANY_WAITING = "too many requests are waiting"
    RATE_LIMITED = "too many requests or envelopes in a short time"
    STORE_UNAVAILABLE = "the store could not answer"
    NO_ACCESS = "access was not granted on this connection"
    OTHER_NETWORK = "message ids here belong to another network topic"
    NOT_INDEXED = "message ids are still being indexed"
    TOO_MANY_ITEMS = "too many envelopes are on these topics to be compared at once"
    TOO_WIDE = "too many others would have to be looked at to find these ids"


class MailserverError(Exception):
    """Base of all errors that the mailserver raises on purpose."""


class DecodeError(MailserverError):
    """Bytes do not parse.

    Args:
        what: the thing that was being decoded, in the specification's word.
        got: what was found, or None.
        limit: the bound that was passed, or None.
    """

    def __init__(self, what: str, got: object = None, limit: object = None) -> None:
        super().__init__(what, got, limit)
        self.what = what
        self.got = got
        self.limit = limit

    def __str__(self) -> str:
        text = self.what
        if self.got is not None:
            text += f", got {self.got}"
        if self.limit is not None:
            text += f", limit {self.limit}"
        return text


class RemoteProtocolError(MailserverError):
    """The peer broke a rule; its connection is closed with `reason`."""

    def __init__(self, reason: DisconnectReason, cause: str) -> None:
        super().__init__(reason, cause)
        self.reason = reason
        self.cause = cause

    def __str__(self) -> str:
        return f"{self.cause} ({self.reason.name})"


class LocalProtocolError(MailserverError):
    """We used a machine out of turn. Always a bug of ours."""


class ConnectionLost(MailserverError):
    """The connection ended before the answer came; `reason` is None when the peer just went away."""

    def __init__(self, reason: DisconnectReason | None, cause: str) -> None:
        super().__init__(reason, cause)
        self.reason = reason
        self.cause = cause

    def __str__(self) -> str:
        return self.cause


class RequestRejected(MailserverError):
    """A history request is refused; `message` is what its sender is told.

    Args:
        rejection: why.
        cause: more, for the log.
        retry_after_s: when to come back, where that helps.
    """

    def __init__(self, rejection: Rejection, cause: str = "", retry_after_s: int | None = None) -> None:
        super().__init__(rejection, cause, retry_after_s)
        self.rejection = rejection
        self.cause = cause
        self.retry_after_s = retry_after_s

    @property
    def message(self) -> str:
        """What the client is told. Programs find the time by `come back in N s`."""
        again = "" if self.retry_after_s is None else f": come back in {self.retry_after_s} s"
        return self.rejection.value + again

    def __str__(self) -> str:
        return f"{self.rejection.value}: {self.cause}" if self.cause else self.rejection.value


class StoreError(MailserverError):
    """The store could not be opened, read or written."""


class EarlierVersion(StoreError):
    """An earlier version of the mailserver made the store, and whoever reads it does not migrate it."""


class ConfigError(MailserverError):
    """A setting is wrong or unknown. `str()` is one line for the operator, and names it."""


class StartupError(MailserverError):
    """Something that the daemon needs is not as it must be. `str()` is one line for the operator."""
