"""What goes wrong with torrents. Whoever sent a link or a torrent is told nothing; the log learns the cause."""

from enum import Enum

from mailserver.errors import MailserverError


class TorrentRefusal(Enum):
    """Why a torrent is not one of a community's history archives. The value is the text for people."""

    MALFORMED = "its metadata cannot be read"
    NAME = "its name is not one for a folder"
    COMMUNITY = "its name is not the id of the community"
    FILES = "its files are not data and index"
    SIZES = "the sizes of its files are not possible"
    PIECE_LENGTH = "its pieces have another length than 102,400 bytes"
    PIECES = "it does not have as many piece hashes as pieces"
    TOO_LARGE = "it is larger than any history may be"


class TorrentFault(Enum):
    """Why the torrent process does not do what a request asks for. The value is the word in the frame."""

    LISTEN = "listen"
    DISK = "disk"
    DROPPED = "dropped"
    METADATA = "metadata"
    """The text is the name of a `TorrentRefusal`."""

    FAILED = "failed"
    """Something that nobody has thought of. The error stream of the process says where."""


class TorrentError(MailserverError):
    """Something did not work with a torrent."""


class LinkRefused(TorrentError):
    """A magnet link cannot be used.

    Args:
        cause: why not, for people.
    """

    def __init__(self, cause: str) -> None:
        super().__init__(cause)
        self.cause = cause

    def __str__(self) -> str:
        return f"magnet link {self.cause}"


class TorrentRefused(TorrentError):
    """A torrent is not one of a community's history archives."""

    def __init__(self, refusal: TorrentRefusal) -> None:
        super().__init__(refusal)
        self.refusal = refusal

    def __str__(self) -> str:
        return self.refusal.value


class StaleLink(TorrentError):
    """Nobody had the metadata of a link's torrent in time: wait for the next link.

    Args:
        info_hash: 20 bytes.
        waited_s: for how long it was asked for.
    """

    def __init__(self, info_hash: bytes, waited_s: float) -> None:
        super().__init__(info_hash, waited_s)
        self.info_hash = info_hash
        self.waited_s = waited_s

    def __str__(self) -> str:
        return f"no metadata of torrent {self.info_hash.hex()} in {self.waited_s:g} s"


class FetchStalled(TorrentError):
    """No piece came for too long. What came before is kept: try again later, or with the next link.

    Args:
        info_hash: 20 bytes.
        missing: how many of the pieces that were asked for are not there.
        waited_s: for how long none came.
    """

    def __init__(self, info_hash: bytes, missing: int, waited_s: float) -> None:
        super().__init__(info_hash, missing, waited_s)
        self.info_hash = info_hash
        self.missing = missing
        self.waited_s = waited_s

    def __str__(self) -> str:
        return f"no piece of torrent {self.info_hash.hex()} came for {self.waited_s:g} s, {self.missing} are missing"


class WrongPieces(FetchStalled):
    """Pieces came whose hash is not that of the torrent, and right ones did not come from anybody else."""

    def __str__(self) -> str:
        return f"{super().__str__()}, and wrong ones came"


class TorrentDiskError(TorrentError):
    """Files of a torrent cannot be read or written, or are not those of the torrent.

    Args:
        info_hash: 20 bytes.
        cause: what the system said.
    """

    def __init__(self, info_hash: bytes, cause: str) -> None:
        super().__init__(info_hash, cause)
        self.info_hash = info_hash
        self.cause = cause

    def __str__(self) -> str:
        return f"files of torrent {self.info_hash.hex()}: {self.cause}"


class TorrentSuperseded(TorrentError):
    """A torrent was dropped while pieces of it were being fetched."""

    def __init__(self, info_hash: bytes) -> None:
        super().__init__(info_hash)
        self.info_hash = info_hash

    def __str__(self) -> str:
        return f"torrent {self.info_hash.hex()} was dropped"


class RequestFault(TorrentError):
    """The torrent process could not do what a request asks for, or is not there any more.

    Args:
        fault: why.
        text: more, for people.
    """

    def __init__(self, fault: TorrentFault, text: str) -> None:
        super().__init__(fault, text)
        self.fault = fault
        self.text = text

    def __str__(self) -> str:
        return f"{self.fault.value}: {self.text}"


class CannotListen(TorrentError):
    """The address where peers shall reach us cannot be used.

    Args:
        cause: what the system said.
    """

    def __init__(self, cause: str) -> None:
        super().__init__(cause)
        self.cause = cause

    def __str__(self) -> str:
        return self.cause
