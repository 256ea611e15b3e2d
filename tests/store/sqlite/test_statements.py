"""SQL of mailserver.store, by its text."""

import ast
import re
from pathlib import Path

import mailserver.store

FOLDER = Path(mailserver.store.__file__).parent


def test_no_statement_numbers_its_parameters() -> None:
    """Python deprecates ?1 with a sequence of values since 3.12, and refuses it from 3.14 on; 3.11 says nothing."""
    texts = {
        (path.name, node.value)
        for path in FOLDER.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    }

    assert len(texts) > 100
    assert [(name, text) for name, text in texts if re.search(r"\?\d", text)] == []
