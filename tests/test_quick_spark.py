"""Spark's workers in tests: they are this Python, with the PySpark that is installed."""

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.quick_spark import quick_python


def test_workers_import_pyspark_from_where_it_is_installed_and_the_rest_as_spark_says(
    pytestconfig: pytest.Config, tmp_path: Path
) -> None:
    installed = find_spec("pyspark")
    assert installed is not None
    assert installed.origin is not None
    library = Path(installed.origin).parent / "python" / "lib"
    path = [str(library / "pyspark.zip"), *map(str, library.glob("py4j-*-src.zip")), str(tmp_path)]
    (tmp_path / "also_there.py").touch()
    code = "import also_there, py4j, pyspark; print(pyspark.__file__, py4j.__file__, also_there.__file__, sep='\\n')"

    program = quick_python(pytestconfig.cache.mkdir("jvm"))
    done = subprocess.run(
        [str(program), "-c", code],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(path)},
        capture_output=True,
        text=True,
        check=True,
    )

    site = Path(installed.origin).parents[1]
    assert done.stdout.split() == [
        installed.origin,
        str(site / "py4j" / "__init__.py"),
        str(tmp_path / "also_there.py"),
    ]
    assert len(path) == 3


def test_each_python_has_a_program_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ours = quick_python(tmp_path)
    again = quick_python(tmp_path)
    monkeypatch.setattr(sys, "executable", "/other/python")

    other = quick_python(tmp_path)

    assert ours == again
    assert {path.name for path in tmp_path.iterdir()} == {ours.name, other.name}
    assert "/other/python" in other.read_text()
    assert "/other/python" not in ours.read_text()
