"""`waku-mailserver sync --from-archive`: beside a daemon and alone."""

import contextlib
import json
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from mailserver.store.sqlite.schema import STORE_FILE
from tests.archive.reading.parquet import envelope, write_period
from tests.integration.daemons import run_command, running_daemon
from tests.integration.test_control import stored
from tests.store.samples import NEWS, START, make_store

pytestmark = pytest.mark.integration

EVERYTHING = [envelope(number, created=START + 60 * number, topic=NEWS) for number in range(300)]
Beside = Callable[..., AbstractContextManager[object]]
FOREVER = ("--retention-days", "0", "--min-pow", "0", "--sync-days", "0")


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """The data directory of a store that lacks 200 envelopes of its archive; the archive lacks 50 of its own."""
    folder = tmp_path / "data"
    folder.mkdir(mode=0o700)
    make_store(folder / STORE_FILE, EVERYTHING[200:])
    (folder / STORE_FILE).chmod(0o600)
    write_period(tmp_path / "archive", EVERYTHING[:250])
    return folder


@contextlib.contextmanager
def no_daemon(*_: object) -> Iterator[None]:
    yield


@pytest.mark.parametrize("beside", [running_daemon, no_daemon], ids=["beside a daemon", "alone"])
def test_store_gets_back_what_it_lacks(data: Path, beside: Beside) -> None:
    archive = ("--archive", str(data.parent / "archive"))
    command = ("sync", "--data-dir", data, "--from-archive", "--since", "0", "--min-pow", "0", *archive)

    with beside(data, *archive, *FOREVER):
        looked = run_command(*command, "--dry-run")
        done = run_command(*command, "--json")
        again = run_command(*command)

    said = "archive: 250 envelopes compared"
    assert looked.returncode == 1, looked.stderr
    assert looked.stdout == f"{said}, 200 of them missing here, 0 stored; 50 of the store's are not in the archive\n"
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert (found["archived"], found["missing"], found["stored"], found["unarchived"]) == (250, 200, 200, 50)
    assert again.stdout == f"{said}, 0 of them missing here, 0 stored; 50 of the store's are not in the archive\n"
    assert stored(data) == 300


@pytest.mark.parametrize("beside", [running_daemon, no_daemon], ids=["beside a daemon", "alone"])
@pytest.mark.parametrize(
    ("flags", "cause"),
    [((), "there is none: set --archive"), (("--no-answer-from-archive",), "the settings say not to read it")],
)
def test_archive_that_is_not_read_is_refused_and_the_cause_said(
    data: Path, beside: Beside, flags: tuple[str, ...], cause: str
) -> None:
    flags = (*flags, *(("--archive", str(data.parent / "archive")) if flags else ()))

    with beside(data, *flags, *FOREVER):
        done = run_command("sync", "--data-dir", data, "--from-archive", "--since", "0", *flags)

    assert done.returncode == 1
    assert f"the archive cannot be compared with: {cause}" in done.stderr


def test_archive_that_cannot_be_read_is_said_by_the_daemon(data: Path) -> None:
    archive = ("--archive", str(data.parent / "archive"))

    with running_daemon(data, *archive, *FOREVER) as daemon:
        daemon.wait_for_line("listening")
        for file in (data.parent / "archive").glob("**/part-*"):
            file.unlink()
        done = run_command("sync", "--data-dir", data, "--from-archive", "--since", "0", *archive)

    assert done.returncode == 1
    assert "cannot read the archive" in done.stderr
