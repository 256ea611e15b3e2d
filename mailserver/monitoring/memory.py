"""How much memory this process may use: the limit of its control group, which a container or a systemd unit sets.

See the documentation of the Linux kernel: "Control Group v2", memory.max; for v1 "Memory Resource Controller",
memory.stat. If both are mounted, only one of them counts memory, and the other has no such file.
"""

from pathlib import Path

OWN_GROUP = Path("/proc/self/cgroup")
GROUPS = Path("/sys/fs/cgroup")

NO_LIMIT = 2**62
"""v1 writes "no limit" as the largest number of bytes in whole pages below 2**63."""


def memory_limit(own_group: Path = OWN_GROUP, groups: Path = GROUPS) -> int | None:
    """The lowest limit, in bytes, of our group and those that contain it; None if there is none or it is unknown."""
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
    # In a container, the name may be the one outside, which does not exist inside: then only the topmost group is read.
    limits = [
        _text(folder / "memory.max").strip() for folder in (group, *group.parents) if folder.is_relative_to(groups)
    ]
    return [int(limit) for limit in limits if limit.isdecimal()]


def _limits_of_v1(groups: Path, name: str) -> list[int]:
    """The file of the group itself has the lowest limit, including the groups that contain it."""
    for folder in (groups / name, groups):  # the second in a container, as above
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
