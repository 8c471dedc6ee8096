"""Fills the test column of docs/rocketmq-order.md from the `@pytest.mark.row("A57")` marks in tests/.

The marks are read from the syntax tree: no test module is imported, and nothing runs.

    python scripts/rows.py           rewrite the column
    python scripts/rows.py --check   exit with 1 if the column is out of date or a row has no test
"""

import ast
import re
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
DOCUMENT = ROOT / "docs" / "rocketmq-order.md"
TESTS = ROOT / "tests"
ROWS = tuple(f"A{number}" for number in range(1, 118))
SHOWN = 3
"""Tests named per row; the others are only counted, to keep the table readable."""
NO_TEST = "–"

_LINE = re.compile(r"^\| (A\d+) \|(.*)\|([^|]*)\|$", re.MULTILINE)


def marked_tests(folder: Path = TESTS) -> dict[str, list[str]]:
    """Row → `file::name` of every test with its mark, sorted."""
    found: dict[str, set[str]] = defaultdict(set)
    for path in sorted(folder.rglob("test_*.py")):
        name = path.relative_to(folder).as_posix()
        for row, test in _marks(ast.parse(path.read_text("utf-8")).body, name):
            found[row].add(test)
    return {row: sorted(tests) for row, tests in found.items()}


def rewritten(text: str, marks: dict[str, list[str]]) -> str:
    """The document with the test column filled from `marks`."""
    return _LINE.sub(lambda line: f"| {line[1]} |{line[2]}| {_cell(marks.get(line[1], []))} |", text)


def rows_in(text: str) -> list[str]:
    """The row ids of the document, in order."""
    return [line[1] for line in _LINE.finditer(text)]


def code_in(text: str) -> set[str]:
    """Every path named in the code column."""
    cells = (line[2].rsplit("|", 1)[-1] for line in _LINE.finditer(text))
    return {path for cell in cells for path in re.findall(r"`([^`]+)`", cell)}


def _marks(body: Iterable[ast.stmt], where: str) -> Iterator[tuple[str, str]]:
    for node in body:
        match node:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                yield from ((row, f"{where}::{name}") for each in node.decorator_list for row in _rows(each))
            case ast.ClassDef(name=name):
                yield from ((row, f"{where}::{name}") for each in node.decorator_list for row in _rows(each))
                yield from _marks(node.body, f"{where}::{name}")
            case ast.Assign(targets=[ast.Name(id="pytestmark")], value=value):
                yield from ((row, where) for row in _rows(value))
            case ast.Assign(targets=[ast.Name(id=name)], value=value):
                yield from ((row, f"{where}::{name}") for row in _rows(value))


def _rows(expression: ast.expr) -> Iterator[str]:
    for node in ast.walk(expression):
        match node:
            case ast.Call(func=ast.Attribute(value=ast.Attribute(attr="mark"), attr="row"), args=args):
                yield from (str(each.value) for each in args if isinstance(each, ast.Constant))


def _cell(tests: list[str]) -> str:
    if not tests:
        return NO_TEST
    named = "<br>".join(f"`{test}`" for test in tests[:SHOWN])
    return named if len(tests) <= SHOWN else f"{named}<br>and {len(tests) - SHOWN} more"


def main(arguments: list[str]) -> int:
    marks = marked_tests()
    before = DOCUMENT.read_text("utf-8")
    after = rewritten(before, marks)
    missing = [row for row in ROWS if row not in marks]
    if "--check" not in arguments:
        DOCUMENT.write_text(after, "utf-8")
        print(f"{len(ROWS) - len(missing)} of {len(ROWS)} rows have tests")
    elif after != before:
        print(f"{DOCUMENT.name} is out of date: run python scripts/rows.py")
    if missing:
        print("rows without a test:", ", ".join(missing))
    return int("--check" in arguments and (after != before or bool(missing)))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
