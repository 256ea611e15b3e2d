"""tests.node_js: what is not installed is skipped with a reason, and fails in CI."""

import pytest

from tests.node_js import ROOT, require_packages


@pytest.mark.parametrize(("ci", "outcome"), [("true", pytest.fail.Exception), (None, pytest.skip.Exception)])
def test_packages_that_are_missing_skip_a_test_but_fail_it_in_ci(
    ci: str | None, outcome: type[BaseException], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CI", raising=False)
    if ci:
        monkeypatch.setenv("CI", ci)

    with pytest.raises(outcome, match=r"no packages of Node.js in docs: make node|no node: on Debian"):
        require_packages(ROOT / "docs")


def test_every_lock_file_of_node_names_no_registry_and_a_hash_of_each_package() -> None:
    locks = [path for path in (ROOT / "tests").rglob("package-lock.json") if "node_modules" not in path.parts]

    assert len(locks) == 3
    for lock in locks:
        text = lock.read_text("utf-8")
        assert '"resolved"' not in text
        assert text.count('"integrity"') == text.count('    "node_modules/')
        folder = str(lock.parent.relative_to(ROOT))
        assert folder in (ROOT / "Makefile").read_text("utf-8").partition("NODE_FOLDERS := ")[2].partition("\n")[0]
