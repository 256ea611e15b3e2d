"""mailserver.api.errors: the table in docs/json-rpc.md names every code of ours, as the Enum describes it."""

import ast
import inspect
import re
from pathlib import Path

from mailserver.api import errors
from mailserver.api.errors import ErrorCode

PAGE = Path(__file__).parents[2] / "docs" / "json-rpc.md"


def described() -> dict[int, str]:
    """The codes that have a description in the source: Python keeps none of an Enum's members."""
    (enum,) = (
        node
        for node in ast.parse(inspect.getsource(errors)).body
        if isinstance(node, ast.ClassDef) and node.name == ErrorCode.__name__
    )
    descriptions = {}
    for statement, following in zip(enum.body, enum.body[1:], strict=False):
        match statement, following:
            case ast.Assign(value=code), ast.Expr(value=ast.Constant(value=str() as text)):
                descriptions[int(ast.literal_eval(code))] = text
    return descriptions


def test_every_code_of_ours_is_documented_as_it_is_described() -> None:
    section = PAGE.read_text(encoding="utf-8")
    rows = re.findall(r"^\| (-320[0-9]{2}) \| (.*) \|$", section, re.MULTILINE)

    documented = {int(code): text for code, text in rows}

    assert documented == described()
    assert documented.keys() == {code for code in ErrorCode if code > ErrorCode.INVALID_REQUEST}


def test_codes_of_ours_are_those_that_the_standard_leaves_to_servers() -> None:
    assert all(-32099 <= code <= -32000 for code in described())
