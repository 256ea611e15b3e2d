"""Which of several processes runs which tests, and in which order.

Each takes the next file when it has finished one. Some folders are taken as if they were one file, so that Spark and
the containers start once. The longest begin first, so that no process has much left when the others have nothing.

Most tests of daemons and containers wait half of the time, and some judge times. So the last processes may be patient:
they run while the others wait, at a low priority, and take only tests that compute a lot and judge no times.
"""

import os
from collections.abc import Iterable

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
"""What patient processes take. Others take it only when there is nothing else: both end at the same time."""

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


def next_unit(waiting: Iterable[str], *, patient: bool) -> str | None:
    """The file or folder that a process takes next, of those that wait; None if it is to end."""
    units = list(waiting)
    for unit in units:
        if unit.startswith(JUDGES_NO_TIMES) is patient:
            return unit
    return units[0] if units and not patient else None


def is_patient(worker: str, patient: int, of: int) -> bool:
    """Whether a process is one of the last, which are patient. One that replaces another never is.

    Args:
        worker: its name: gw0, gw1..
        of: how many there are.
    """
    return of - patient <= int(worker.removeprefix("gw")) < of


def give_way(patient: int) -> None:
    """Have this process run while others wait, if it is patient."""
    worker = os.environ.get("PYTEST_XDIST_WORKER")
    if worker is not None and is_patient(worker, patient, int(os.environ["PYTEST_XDIST_WORKER_COUNT"])):
        os.nice(NICENESS)


class FilesAndFolders(LoadScopeScheduling):  # type: ignore[misc]
    """Gives each process the next file, or the next of TAKEN_TOGETHER.

    The groups of xdist 3.8 have no effect: it renames tests by `_nodeid`, which pytest 9.2 does not read.
    """

    def __init__(self, config: pytest.Config, log: Producer, patient: int) -> None:
        super().__init__(config, log)
        self._patient = patient

    def _split_scope(self, nodeid: str) -> str:
        file = nodeid.partition("::")[0]
        return next((folder for folder in TAKEN_TOGETHER if file.startswith(folder)), file)

    def _assign_work_unit(self, node: WorkerController) -> None:
        if self._patient:
            unit = next_unit(self.workqueue, patient=is_patient(node.gateway.id, self._patient, self.numnodes))
            if unit is None:
                node.shutdown()
                return
            self.workqueue.move_to_end(unit, last=False)
        super()._assign_work_unit(node)
