"""mailserver.monitoring.memory: the limit of a control group, from files as the kernel writes them."""

from pathlib import Path

import pytest

from mailserver.monitoring.memory import memory_limit

GIB = 1024**3


def limits(folder: Path, own: str, **groups: str) -> int | None:
    """The limit of who is in the groups `own`; `groups` are the memory.max of each, by name."""
    (folder / "own").write_text(own)
    for name, limit in groups.items():
        group = folder / "groups" / name.replace("__", "/").removeprefix("top")
        group.mkdir(parents=True, exist_ok=True)
        (group / "memory.max").write_text(f"{limit}\n")
    return memory_limit(folder / "own", folder / "groups")


@pytest.mark.parametrize(
    ("own", "groups", "limit"),
    [
        ("0::/\n", {"top": str(GIB)}, GIB),
        ("0::/system/ours\n", {"system": "max", "system__ours": str(GIB)}, GIB),
        ("0::/system/ours\n", {"system": str(GIB), "system__ours": "max"}, GIB),
        ("0::/system/ours\n", {"system": str(GIB), "system__ours": str(2 * GIB)}, GIB),
        ("0::/of/the/host\n", {"top": str(GIB)}, GIB),
        ("9:cpu:/ours\n0::/ours\n", {"ours": str(GIB)}, GIB),
        ("0::/ours\n", {"ours": "max"}, None),
        ("0::/ours\n", {}, None),
        ("4:memory:/ours\n", {"ours": str(GIB)}, None),
        ("", {"top": str(GIB)}, None),
    ],
)
def test_limit_is_the_lowest_of_our_groups(tmp_path: Path, own: str, groups: dict[str, str], limit: int | None) -> None:
    assert limits(tmp_path, own, **groups) == limit


def test_without_proc_no_limit_is_known(tmp_path: Path) -> None:
    assert memory_limit(tmp_path / "nothing", tmp_path) is None
