"""docs/developers/rocketmq-order.md: every mechanism of RocketMQ has a place in the code and a test.

Tests name their rows with `@pytest.mark.row("A57")`. The marks are read from the syntax tree: nothing is imported.
"""

import ast
import re
import textwrap
from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
TEXT = (ROOT / "docs" / "developers" / "rocketmq-order.md").read_text("utf-8")
ROWS = [f"A{number}" for number in range(1, 118)]
LINE = re.compile(r"^\| (A\d+) \|.*\|([^|]*)\|$", re.MULTILINE)
Marks = dict[str, list[str]]


def marked_tests(folder: Path) -> Marks:
    """Row → `file::name` of every test with its mark, sorted."""
    found: dict[str, set[str]] = defaultdict(set)
    for path in sorted(folder.rglob("test_*.py")):
        name = path.relative_to(folder).as_posix()
        for row, test in marks_of(ast.parse(path.read_text("utf-8")).body, name):
            found[row].add(test)
    return {row: sorted(tests) for row, tests in found.items()}


def marks_of(body: Iterable[ast.stmt], where: str) -> Iterator[tuple[str, str]]:
    for node in body:
        match node:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                yield from ((row, f"{where}::{name}") for each in node.decorator_list for row in rows_of(each))
            case ast.ClassDef(name=name):
                yield from ((row, f"{where}::{name}") for each in node.decorator_list for row in rows_of(each))
                yield from marks_of(node.body, f"{where}::{name}")
            case ast.Assign(targets=[ast.Name(id="pytestmark")], value=value):
                yield from ((row, where) for row in rows_of(value))
            case ast.Assign(targets=[ast.Name(id=name)], value=value):
                yield from ((row, f"{where}::{name}") for row in rows_of(value))


def rows_of(expression: ast.expr) -> Iterator[str]:
    for node in ast.walk(expression):
        match node:
            case ast.Call(func=ast.Attribute(value=ast.Attribute(attr="mark"), attr="row"), args=args):
                yield from (str(each.value) for each in args if isinstance(each, ast.Constant))


@pytest.fixture(scope="module")
def marks() -> Marks:
    """Not read when the module is imported, which every process of a parallel run does: it takes a second."""
    return marked_tests(ROOT / "tests")


def test_every_row_has_a_test(marks: Marks) -> None:
    """Mark a test with `@pytest.mark.row("A57")` to give the row one."""
    assert [row for row in ROWS if row not in marks] == []


def test_the_table_holds_every_row_once_and_in_order() -> None:
    assert [line[1] for line in LINE.finditer(TEXT)] == ROWS


def test_no_test_is_marked_with_an_unknown_row(marks: Marks) -> None:
    assert set(marks) <= set(ROWS)


def test_every_module_in_the_table_exists() -> None:
    named = {path for line in LINE.finditer(TEXT) for path in re.findall(r"`([^`]+)`", line[2])}
    assert named
    missing = [path for path in named if not ((ROOT / "src/lanemq" / path).exists() or (ROOT / path).exists())]
    assert missing == []


def test_marks_are_found_wherever_pytest_accepts_them(tmp_path: Path) -> None:
    """On functions, classes, methods, parameters, whole modules, and classes made by a call."""
    (tmp_path / "test_it.py").write_text(
        textwrap.dedent(
            """
            import pytest
            pytestmark = [pytest.mark.row("A1")]
            @pytest.mark.row("A2")
            @pytest.mark.row("A3")
            async def test_a(): ...
            @pytest.mark.row("A4")
            class TestB:
                @pytest.mark.row("A5")
                def test_c(self): ...
            @pytest.mark.parametrize("x", [pytest.param(1, marks=pytest.mark.row("A6"))])
            def test_d(x): ...
            TestE = pytest.mark.row("A7")(object)
            def test_unmarked(): ...
            """
        )
    )
    assert marked_tests(tmp_path) == {
        "A1": ["test_it.py"],
        "A2": ["test_it.py::test_a"],
        "A3": ["test_it.py::test_a"],
        "A4": ["test_it.py::TestB"],
        "A5": ["test_it.py::TestB::test_c"],
        "A6": ["test_it.py::test_d"],
        "A7": ["test_it.py::TestE"],
    }
