"""Which of several processes runs which tests, and in which order.

Each takes the next file when it has finished one. Some folders are taken as if they were one file, so that Spark and
the containers start once. The longest begin first, so that no process has much left when the others have nothing.

Most tests of daemons wait half of the time, and some judge times: of processes that take these, there are as many as
two cores bear. Beside them there may be patient ones, which run while those wait, at a low priority, and take only what
computes a lot and judges no times; and one for the containers, for which it hardly does anything but wait.
"""

import os
from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum, auto

import pytest
from xdist.remote import Producer
from xdist.scheduler import LoadScopeScheduling
from xdist.workermanage import WorkerController

SHARES_SPARK = ("tests/spark_export/archives/", "tests/spark_export/compaction/")
"""Folders whose tests have one Spark in their process; two, so that two processes can share the work."""

TAKEN_TOGETHER = (*SHARES_SPARK, "tests/docker/")
"""Folders whose tests all run in one process: they share something that is slow to start, or that may exist only once.
They come first."""

JUDGES_NO_TIMES = (
    *SHARES_SPARK,
    "tests/integration/test_cluster.py",
    "tests/spark_export/test_s3_publishing.py",
    "tests/fuzz/",
    "tests/store/test_model.py",
    "tests/gateway/index/test_model.py",
)
"""What patient processes take. The usual ones take it only when there is nothing else: both end at the same time."""

WAITS = ("tests/docker/",)
"""What a process takes that mostly waits."""

MINUTES = (
    "tests/faults/test_kills.py",
    "tests/bench/test_bench.py",
    "tests/faults/test_power.py",
    "tests/spark_export/test_service.py",
    "tests/faults/test_network.py",
    "tests/soak/",
    "tests/integration/test_cluster.py",
    "tests/spark_export/test_s3_publishing.py",
    "tests/gateway/test_hostile.py",
    "tests/store/test_comparison.py",
    "tests/faults/",
    "tests/fuzz/",
    "tests/crowd/",
    "tests/docs/",
)
"""Files and folders whose tests take the better part of a minute, or several; they come next, in this order."""

LONGEST_FIRST = ("spark", "fuzz", "browser", "integration", "slow")
"""Markers of other long tests, in the order in which they run. Tests without any of these markers come last."""

NICENESS = 15
"""By how much patient processes, and all that they start, are nicer. At the lowest priority they might starve."""


def rank(item: pytest.Item) -> int:
    """By which tests are sorted."""
    if item.nodeid.startswith(TAKEN_TOGETHER):
        return -len(MINUTES) - 1
    for place, path in enumerate(MINUTES, -len(MINUTES)):
        if item.nodeid.startswith(path):
            return place
    return next(
        (place for place, name in enumerate(LONGEST_FIRST) if item.get_closest_marker(name)), len(LONGEST_FIRST)
    )


class Kind(Enum):
    """What a process takes."""

    USUAL = auto()
    """All that others do not take."""
    WAITING = auto()
    """WAITS."""
    PATIENT = auto()
    """JUDGES_NO_TIMES, while others wait."""


@dataclass(frozen=True, slots=True)
class Processes:
    """Those that share the tests: xdist names them gw0, gw1.. The last are patient, and those before them wait."""

    count: int
    waiting: int = 0
    patient: int = 0

    def kind_of(self, name: str) -> Kind:
        """What a process takes. One that replaces another, which has died, is a usual one."""
        from_the_end = self.count - int(name.removeprefix("gw"))
        if 0 < from_the_end <= self.patient:
            return Kind.PATIENT
        return Kind.WAITING if 0 < from_the_end - self.patient <= self.waiting else Kind.USUAL

    def next_unit(self, name: str, units: Iterable[str]) -> str | None:
        """The file or folder that a process takes next, of those that nobody has taken; None if it is to end."""
        left, kind = list(units), self.kind_of(name)
        if kind is not Kind.USUAL:
            wanted = JUDGES_NO_TIMES if kind is Kind.PATIENT else WAITS
            return next((unit for unit in left if unit.startswith(wanted)), None)
        others = (*(WAITS if self.waiting else ()), *(JUDGES_NO_TIMES if self.patient else ()))
        return next((unit for unit in left if not unit.startswith(others)), next(iter(left), None))


def give_way(config: pytest.Config) -> None:
    """Have this process run while others wait, if it is patient."""
    if name := os.environ.get("PYTEST_XDIST_WORKER"):
        processes = _processes(config, int(os.environ["PYTEST_XDIST_WORKER_COUNT"]))
        if processes.kind_of(name) is Kind.PATIENT:
            os.nice(NICENESS)


def _processes(config: pytest.Config, count: int) -> Processes:
    return Processes(count, config.getoption("waiting"), config.getoption("patient"))


class FilesAndFolders(LoadScopeScheduling):  # type: ignore[misc]
    """Gives each process the next file, or the next of TAKEN_TOGETHER.

    The groups of xdist 3.8 have no effect: it renames tests by `_nodeid`, which pytest 9.2 does not read.
    """

    def __init__(self, config: pytest.Config, log: Producer) -> None:
        super().__init__(config, log)
        self._processes = _processes(config, self.numnodes)

    def _split_scope(self, nodeid: str) -> str:
        file = nodeid.partition("::")[0]
        return next((folder for folder in TAKEN_TOGETHER if file.startswith(folder)), file)

    def _assign_work_unit(self, node: WorkerController) -> None:
        unit = self._processes.next_unit(node.gateway.id, self.workqueue)
        if unit is None:
            node.shutdown()
            return
        self.workqueue.move_to_end(unit, last=False)
        super()._assign_work_unit(node)
