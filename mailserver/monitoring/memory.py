"""How much memory this process may take: the limit of its control group, which a container or a systemd unit sets.

The Linux kernel's documentation: "Control Group v2", memory.max; "Memory Resource Controller" of v1, memory.stat. Where
both are mounted, memory is counted by one of them: the other has no such file.
"""

from pathlib import Path

OWN_GROUP = Path("/proc/self/cgroup")
GROUPS = Path("/sys/fs/cgroup")

NO_LIMIT = 2**62
"""v1 has no word for "no limit": it is the largest number of bytes in whole pages below 2**63."""


def memory_limit(own_group: Path = OWN_GROUP, groups: Path = GROUPS) -> int | None:
    """Read the limit in bytes, the lowest of our group and those that it is in; None for no limit, or not known."""
    limits = []
    for line in _text(own_group).splitlines():
        _, _, rest = line.partition(":")
        controllers, _, name = rest.partition(":")
        if not controllers:
            limits += _limits_of_v2(groups, name.removeprefix("/"))
        elif "memory" in controllers.split(","):
            limits += _limits_of_v1(groups / "memory", name.removeprefix("/"))
    return min((limit for limit in limits if limit < NO_LIMIT), default=None)


def _limits_of_v2(groups: Path, name: str) -> list[int]:
    group = groups / name
    # In a container the name may be that of outside, which is not there: then only its own, the topmost, is read.
    limits = [
        _text(folder / "memory.max").strip() for folder in (group, *group.parents) if folder.is_relative_to(groups)
    ]
    return [int(limit) for limit in limits if limit.isdecimal()]


def _limits_of_v1(groups: Path, name: str) -> list[int]:
    """The group's own file has what holds for it, the groups that it is in taken in."""
    for folder in (groups / name, groups):  # in a container, as above
        words = [line.split() for line in _text(folder / "memory.stat").splitlines()]
        limits = [int(word[1]) for word in words if word[0] == "hierarchical_memory_limit"]
        if limits:
            return limits
    return []


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii", errors="replace")
    except OSError:
        return ""
