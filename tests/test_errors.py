"""The trees in `mailserver/errors.py` and `spark_export/errors.py`: every error, what it derives from, where it is."""

import ast
import importlib
import pkgutil
import re
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import mailserver
import spark_export
from mailserver import errors as mailserver_errors
from spark_export import errors as export_errors

ROOT = Path(__file__).parent.parent

_LINE = re.compile(r"( *)([A-Z]\w+)(?: {2,}(?:\[([\w.]+)\])?.*)?")


def drawn(module: ModuleType, root: str) -> dict[str, tuple[str | None, str]]:
    """Of each error in a module's tree: what it derives from, and in which module it is."""
    package = module.__name__.partition(".")[0]
    tree: dict[str, tuple[str | None, str]] = {}
    above: list[tuple[int, str]] = []
    for line in (module.__doc__ or "").splitlines():
        found = _LINE.fullmatch(line)
        if found is None or not (above or found[2] == root):
            continue
        depth = len(found[1])
        if above and depth <= above[0][0]:  # the text behind the tree
            break
        while above and above[-1][0] >= depth:
            above.pop()
        tree[found[2]] = (above[-1][1] if above else None), f"{package}.{found[3] or 'errors'}"
        above.append((depth, found[2]))
    return tree


def defined(package: ModuleType) -> dict[str, tuple[str | None, str]]:
    """Of each error that may leave its module: what it derives from, and in which module it is."""
    found: dict[str, tuple[str | None, str]] = {}
    for info in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
        if info.name.endswith("__main__"):
            continue
        for name, each in vars(importlib.import_module(info.name)).items():
            if not isinstance(each, type) or not issubclass(each, BaseException) or each.__module__ != info.name:
                continue
            if not name.startswith("_"):
                assert name not in found, f"{name} is in {info.name} and in {found[name][1]}"
                parent = each.__bases__[0]
                is_root = not parent.__module__.startswith(package.__name__)
                found[name] = (None if is_root else parent.__name__), info.name
    return found


def test_tree_of_the_mailserver_is_what_the_code_has() -> None:
    assert drawn(mailserver_errors, "MailserverError") == defined(mailserver)


def test_tree_of_the_export_is_what_the_code_has() -> None:
    assert drawn(export_errors, "ExportError") == defined(spark_export)


def handlers() -> Iterator[tuple[str, str]]:
    """Where an error is caught by name, and its name."""
    for file in sorted((ROOT / "mailserver").rglob("*.py")):
        for node in ast.walk(ast.parse(file.read_text("utf-8"))):
            if isinstance(node, ast.ExceptHandler) and node.type is not None:
                names = {name.id for name in ast.walk(node.type) if isinstance(name, ast.Name)}
                yield from ((f"{file}:{node.lineno}", name) for name in names)


def test_bugs_of_ours_are_caught_nowhere() -> None:
    assert not [where for where, name in handlers() if name == "LocalProtocolError"]
