"""The place of the store: free space, growth, the kind of file system, and who may read and write."""

import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from mailserver.app.config import Config
from mailserver.data_dir.folder import KEY_FILE, load_or_make_key, read_token
from mailserver.data_dir.gateway_files import GATEWAY_KEY_FILE, load_or_make_seed
from mailserver.data_dir.own_store import known_store
from mailserver.doctor.findings import FETCH_AGAIN, Finding, ok, problem, warning
from mailserver.errors import StartupError, StoreError
from mailserver.store.sqlite.schema import STORE_FILE
from mailserver.store.sqlite.unopened import read_known, read_last_reception, read_sizes
from mailserver.units import SECONDS_PER_DAY, size_text

MIN_FREE_BYTES = 256 * 1024 * 1024
"""With less, the log of SQLite alone may fill the disk: it takes up to 128 MiB in a flood."""

MIN_FREE_DAYS = 7
"""How many days of growth there should be room for, so that somebody has time to act."""

GROWTH_DAYS = 7
"""Growth is the mean over so many past days of reception."""

NETWORKED = {"nfs", "nfs4", "cifs", "smb3", "smbfs", "ncpfs", "afs", "ceph", "glusterfs", "lustre", "9p", "fuse.sshfs"}
"""SQLite's log needs memory shared by all processes that open the store, and reliable locks. A network has neither."""
FLEETING = {"tmpfs", "ramfs", "overlay"}
_MOUNTS = Path("/proc/self/mountinfo")


def check_data_dir(data_dir: Path) -> list[Finding]:
    """Check the folder, its free space, and its file system."""
    place = data_dir.absolute()
    while not place.exists() and place != place.parent:
        place = place.parent
    findings = [_check_access(data_dir, place), check_space(shutil.disk_usage(place).free, read_growth(data_dir))]
    kind = file_system_of(place.resolve(), _MOUNTS.read_text(encoding="utf-8", errors="replace"))
    return [*findings, check_file_system(kind), *_gone_back(data_dir)]


def _gone_back(data_dir: Path) -> list[Finding]:
    """Whether the file was put back to an earlier moment, as far as a mailserver has noted."""
    try:
        found, noted = read_known(data_dir / STORE_FILE), known_store(data_dir)
    except StoreError:  # there is none, or `check` says why it cannot be read
        return []
    if noted.identity != found.identity or noted.seq <= found.seq:
        return []
    text = f"it went back in time: row {noted.seq} was seen in it, and its last is {found.seq}"
    return [problem("store rows", text, f"start the mailserver, which gives it another identity; then {FETCH_AGAIN}")]


def _check_access(data_dir: Path, place: Path) -> Finding:
    if not place.is_dir():
        return problem("data directory", f"{place} is not a folder", "choose another --data-dir")
    if not os.access(place, os.W_OK | os.X_OK):
        return problem("data directory", f"{place} cannot be written", f"run: chown {os.geteuid()} {place}")
    if not data_dir.exists():
        return ok("data directory", f"{data_dir} will be made at the first start")
    for name in (STORE_FILE, f"{STORE_FILE}-wal", f"{STORE_FILE}-shm", "lock"):
        path = data_dir / name
        if path.exists() and not os.access(path, os.R_OK | os.W_OK):
            return problem("data directory", f"{path} cannot be written", f"run: chown {os.geteuid()} {path}")
    return ok("data directory", f"{data_dir} can be written")


@dataclass(frozen=True, slots=True)
class Growth:
    """What a store takes on disk, and what it receives a day; bytes, including indexes."""

    stored: int
    a_day: int


def read_growth(data_dir: Path) -> Growth | None:
    """How a store grows; None if no store can be read (`check` says why)."""
    try:
        sizes = read_sizes(data_dir / STORE_FILE)
    except StoreError:
        return None
    last = sizes.received[1 : 1 + GROWTH_DAYS]  # the newest day is not over
    a_day = sum(last) // len(last) if last else 0
    return Growth(sizes.on_disk, a_day * sizes.on_disk // sizes.envelopes if sizes.envelopes else 0)


def check_space(free: int, growth: Growth | None) -> Finding:
    """Check that there is room for some days."""
    text = f"{size_text(free)} free"
    if growth is not None:
        text += f"; the store takes {size_text(growth.stored)} and receives {size_text(growth.a_day)} a day"
    advice = "make room, or lower --retention-days or --retention-bytes"
    if free < MIN_FREE_BYTES:
        return problem("disk", text, advice)
    if growth is not None and free < MIN_FREE_DAYS * growth.a_day:
        return warning("disk", f"{text}: room for {free // growth.a_day} days", advice)
    return ok("disk", text)


def file_system_of(path: Path, mountinfo: str) -> str:
    """The kind of file system that a path is on, by proc(5) "mountinfo"; "" if that does not say."""
    kind, longest = "", -1
    for line in mountinfo.splitlines():
        mount, _, source = line.partition(" - ")
        point = Path(mount.split()[4].replace("\\040", " "))
        # Of two mounts at one place, the later one is visible.
        if path.is_relative_to(point) and len(point.parts) >= longest:
            kind, longest = source.split()[0], len(point.parts)
    return kind


def check_file_system(kind: str) -> Finding:
    """Check that SQLite can keep its log there, and that files there last."""
    if kind in NETWORKED:
        return problem("file system", kind, "use a local disk: over a network SQLite may lose or damage the store")
    if kind in FLEETING:
        return warning(
            "file system", kind, "files there are lost with the container, or when the machine restarts: use a volume"
        )
    return ok("file system", kind or "unknown")


def check_secrets(config: Config) -> list[Finding]:
    """Check that nobody else may read the node key, that of a gateway, and the token."""
    findings = []
    keys: tuple[tuple[str, Callable[[Path], object]], ...]
    keys = (KEY_FILE, load_or_make_key), (GATEWAY_KEY_FILE, load_or_make_seed)
    for name, read in keys:
        if (config.data_dir / name).exists():
            findings.append(_readable(name, partial(read, config.data_dir)))
    if config.rpc_token_file:
        findings.append(_readable("token file", lambda: read_token(Path(config.rpc_token_file))))
    return findings


def _readable(check: str, read: Callable[[], object]) -> Finding:
    try:
        read()
    except StartupError as error:
        text, _, command = str(error).partition("; run: ")
        return problem(
            check, text, f"run: {command}" if command else "put it back from a backup, or let a new one be made"
        )
    return ok(check, "readable by its owner only")


def check_store_clock(data_dir: Path, now: float) -> list[Finding]:
    """Check that no envelope was received in the future. If one was, our clock was ahead, and pruning will be late."""
    try:
        last = read_last_reception(data_dir / STORE_FILE)
    except StoreError:
        return []
    if last is not None and last > now + SECONDS_PER_DAY:
        text = f"envelopes were received {(last - now) / SECONDS_PER_DAY:.0f} days in the future"
        return [
            warning(
                "store clock",
                text,
                "the clock was ahead, or is behind now: envelopes that it marked are kept for longer",
            )
        ]
    return []
