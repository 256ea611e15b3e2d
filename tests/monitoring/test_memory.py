"""mailserver.monitoring.memory: the limit of a control group, v1 and v2, from files as the kernel writes them."""

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
        ("", {"top": str(GIB)}, None),
    ],
)
def test_limit_is_the_lowest_of_our_groups(tmp_path: Path, own: str, groups: dict[str, str], limit: int | None) -> None:
    assert limits(tmp_path, own, **groups) == limit


UNLIMITED = 2**63 - 4096
"""What v1 says where there is no limit, with pages of 4 KiB."""


def v1_limit(folder: Path, own: str, **groups: int) -> int | None:
    """As `limits`, by the memory.stat of each group."""
    (folder / "own").write_text(own)
    for name, limit in groups.items():
        group = folder / "groups" / "memory" / name.replace("__", "/").removeprefix("top")
        group.mkdir(parents=True, exist_ok=True)
        (group / "memory.limit_in_bytes").write_text(f"{UNLIMITED}\n")  # of the group alone: what holds may be less
        lines = [
            "cache 4096",
            "rss 8192",
            f"hierarchical_memory_limit {limit}",
            f"hierarchical_memsw_limit {UNLIMITED}",
        ]
        (group / "memory.stat").write_text("\n".join([*lines, "total_cache 0", ""]))
    return memory_limit(folder / "own", folder / "groups")


@pytest.mark.parametrize(
    ("own", "groups", "limit"),
    [
        ("4:memory:/\n", {"top": GIB}, GIB),
        ("4:memory:/docker/ours\n", {"top": UNLIMITED, "docker__ours": GIB}, GIB),
        ("5:cpu:/\n4:hugetlb,memory:/ours\n0::/elsewhere\n", {"ours": GIB}, GIB),
        ("4:memory:/of/the/host\n0::/\n", {"top": GIB}, GIB),
        ("4:memory:/ours\n", {"top": UNLIMITED, "ours": UNLIMITED}, None),
        ("4:memory:/ours\n", {}, None),
        ("4:memorable:/ours\n", {"ours": GIB}, None),
    ],
)
def test_limit_of_v1_is_what_holds_for_our_group(
    tmp_path: Path, own: str, groups: dict[str, int], limit: int | None
) -> None:
    assert v1_limit(tmp_path, own, **groups) == limit


def test_where_both_are_mounted_the_one_that_counts_memory_is_asked(tmp_path: Path) -> None:
    own = "4:memory:/ours\n0::/ours\n"
    assert v1_limit(tmp_path, own, ours=GIB) == GIB
    assert limits(tmp_path, own, ours=str(GIB // 2)) == GIB // 2


def test_without_proc_no_limit_is_known(tmp_path: Path) -> None:
    assert memory_limit(tmp_path / "nothing", tmp_path) is None
