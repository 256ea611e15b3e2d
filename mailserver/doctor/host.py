"""The machine: its clock, memory, and how many files a process may open."""

import ctypes
import os
import resource
import time
from collections.abc import Callable

from mailserver.doctor.findings import Finding, ok, problem, warning
from mailserver.monitoring.memory import memory_limit
from mailserver.units import size_text
from mailserver.waku.envelope import MAX_U32

EARLIEST = 1_767_225_600
"""2026-01-01: this program did not exist before."""

MIN_MEMORY_BYTES = 300 * 1024 * 1024
"""How much the daemon may need in a flood."""

SPARE_FILES = 128
"""Files that a daemon has open besides those of its peers: store, log, sockets, and connections in their handshake."""

_STA_UNSYNC = 0x0040  # linux/timex.h
_TIME_ERROR = 5
_TIMEX_BYTES = 512  # struct timex takes 208


def is_synchronised() -> bool | None:
    """Whether NTP or the like keeps the kernel's clock right; None if the kernel does not say.

    adjtimex(2) without a mode returns the state and changes nothing.
    """
    try:
        adjtimex = ctypes.CDLL(None, use_errno=True).adjtimex
    except (OSError, AttributeError):
        return None
    timex = ctypes.create_string_buffer(_TIMEX_BYTES)
    state = adjtimex(timex)
    if state < 0:
        return None
    word = ctypes.sizeof(ctypes.c_long)  # struct timex: modes, offset, freq, maxerror, esterror, status, ..
    status = int.from_bytes(timex.raw[5 * word : 5 * word + 4], "little")
    return state != _TIME_ERROR and not status & _STA_UNSYNC


def check_clock(now: float, synchronised: Callable[[], bool | None] = is_synchronised) -> Finding:
    """Check the clock, by which envelopes are judged: if it is 20 s off, live ones are refused."""
    shown = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(now))
    if not EARLIEST <= now <= MAX_U32:
        return problem("clock", f"it says {shown}", "set the clock: live envelopes are refused because of it")
    state = synchronised()
    if state is None:
        return warning(
            "clock", f"{shown}; the kernel does not say whether it is synchronised", "make sure of it on the host"
        )
    if not state:
        advice = "run chrony or systemd-timesyncd: if the clock is off, live envelopes are refused"
        return warning("clock", f"{shown}; the kernel says that it is not synchronised", advice)
    return ok("clock", f"{shown}; synchronised")


def check_open_files(max_peers: int, hard_limit: int | None = None) -> Finding:
    """Check that there can be a file for each peer. The daemon itself raises the soft limit to the hard one."""
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[1] if hard_limit is None else hard_limit
    if limit == resource.RLIM_INFINITY:
        return ok("open files", "no limit")
    if limit < max_peers + SPARE_FILES:
        advice = f"raise the hard limit (LimitNOFILE=, ulimits:) to {max_peers + SPARE_FILES}, or lower --max-peers"
        return problem("open files", f"{limit} allowed, for {max_peers} peers", advice)
    return ok("open files", f"{limit} allowed, for {max_peers} peers")


def check_memory() -> Finding:
    """Check that this machine or container has as much memory as the daemon may need."""
    total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return judge_memory(min(total, memory_limit() or total))


def judge_memory(total: int) -> Finding:
    """Whether so many bytes are enough."""
    text = size_text(total)
    if total < MIN_MEMORY_BYTES:
        return warning("memory", text, f"the daemon may need {size_text(MIN_MEMORY_BYTES)}: raise the limit")
    return ok("memory", text)
