"""How much memory this process may take: the limit of its control group, which a container or a systemd unit sets.

cgroup v2 only ("Control Group v2" of the Linux kernel's documentation, memory.max). Where there is only v1, no limit
is known.
"""

from pathlib import Path

OWN_GROUP = Path("/proc/self/cgroup")
GROUPS = Path("/sys/fs/cgroup")


def memory_limit(own_group: Path = OWN_GROUP, groups: Path = GROUPS) -> int | None:
    """Read the limit in bytes, the lowest of our group and those that it is in; None for no limit, or not known."""
    lines = _text(own_group).splitlines()
    name = next((line.removeprefix("0::/") for line in lines if line.startswith("0::/")), None)
    if name is None:
        return None
    group = groups / name
    # In a container the name may be that of outside, which is not there: then only its own, the topmost, is read.
    limits = [
        _text(folder / "memory.max").strip() for folder in (group, *group.parents) if folder.is_relative_to(groups)
    ]
    return min((int(limit) for limit in limits if limit.isdecimal()), default=None)


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii", errors="replace")
    except OSError:
        return ""
