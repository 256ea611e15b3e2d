"""spark_export.scratch: a folder for a run, gone after it, or by the next one if it was killed."""

import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from spark_export.errors import ExportError
from spark_export.scratch import java_options, scratch_folder


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a run sets for its process, put back."""
    for name in ("SPARK_LOCAL_DIRS", "TMPDIR"):
        monkeypatch.setenv(name, "before")
    monkeypatch.setattr(tempfile, "tempdir", tempfile.gettempdir())


def test_everything_is_led_there(tmp_path: Path) -> None:
    with scratch_folder(tmp_path) as folder:
        assert folder is not None
        assert folder.parent == tmp_path
        assert {os.environ[name] for name in ("SPARK_LOCAL_DIRS", "TMPDIR")} == {str(folder)}
        assert tempfile.gettempdir() == str(folder)
        assert f"-Djava.io.tmpdir={folder} -Duser.home={folder}" in java_options(folder, {})


def test_folder_is_gone_afterwards_and_only_the_owner_could_read_it(tmp_path: Path) -> None:
    with scratch_folder(tmp_path) as folder:
        assert folder is not None
        assert folder.stat().st_mode & 0o777 == 0o700
        (folder / "spark-1").mkdir()
        (folder / "spark-1" / "block").write_bytes(b"x")

    assert list(tmp_path.iterdir()) == []


def test_folder_is_gone_after_an_error_which_stays_what_it_was(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="of the body"), scratch_folder(tmp_path):
        raise OSError("of the body")

    assert list(tmp_path.iterdir()) == []


def test_nothing_is_changed_without_one() -> None:
    with scratch_folder(None) as folder:
        assert folder is None
        assert os.environ["SPARK_LOCAL_DIRS"] == "before"


def test_own_java_options_stay() -> None:
    options = java_options(Path("/a b"), {"spark.driver.extraJavaOptions": "-Dx=y"})

    assert options.startswith("-Djava.io.tmpdir='/a b' ")
    assert options.endswith(" -Dx=y")


def test_leftover_of_a_killed_run_is_removed_and_that_of_a_running_one_is_not(tmp_path: Path) -> None:
    die = (
        "import os, pathlib, signal, sys; from spark_export.scratch import scratch_folder\n"
        "with scratch_folder(pathlib.Path(sys.argv[1])): os.kill(os.getpid(), signal.SIGKILL)"
    )
    killed = subprocess.run(
        [sys.executable, "-c", die, tmp_path], env={"PYTHONPATH": os.pathsep.join(sys.path)}, check=False
    )
    (tmp_path / "another's").mkdir()
    (left,) = tmp_path.glob("spark-export-*")

    with scratch_folder(tmp_path) as first, scratch_folder(tmp_path) as second:
        assert killed.returncode == -signal.SIGKILL
        assert not left.exists()
        assert first is not None
        assert second is not None
        assert first != second
        assert first.exists()

    assert [entry.name for entry in tmp_path.iterdir()] == ["another's"]


def test_link_in_a_folder_that_all_may_write_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "lock").touch()
    (tmp_path / "spark-export-trap").symlink_to(tmp_path / "mine")
    (tmp_path / "spark-export-nowhere").symlink_to(tmp_path / "nowhere")
    (tmp_path / "spark-export-file").touch()

    with scratch_folder(tmp_path):
        pass

    assert (tmp_path / "mine" / "lock").exists()


def test_folder_that_cannot_be_written_is_one_line(tmp_path: Path) -> None:
    with (
        pytest.raises(ExportError, match=f"^cannot write to the scratch folder {tmp_path}/none: No such file"),
        scratch_folder(tmp_path / "none"),
    ):
        pass
