"""docs/rocketmq-order.md: every mechanism has a place in the code and a test, and the table is up to date."""

import importlib.util
import textwrap
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[2]


def load_rows() -> ModuleType:
    spec = importlib.util.spec_from_file_location("rows", ROOT / "scripts" / "rows.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


rows = load_rows()
TEXT = rows.DOCUMENT.read_text("utf-8")
Marks = dict[str, list[str]]


@pytest.fixture(scope="module")
def marks() -> Marks:
    """Not read when the module is imported, which every process of a parallel run does: it takes a second."""
    found: Marks = rows.marked_tests()
    return found


def test_every_row_has_a_test(marks: Marks) -> None:
    """Mark a test with `@pytest.mark.row("A57")` to give the row one."""
    assert [row for row in rows.ROWS if row not in marks] == []


def test_the_table_holds_every_row_once_and_in_order() -> None:
    assert rows.rows_in(TEXT) == list(rows.ROWS)


def test_no_test_is_marked_with_an_unknown_row(marks: Marks) -> None:
    assert set(marks) <= set(rows.ROWS)


def test_the_test_column_is_up_to_date(marks: Marks) -> None:
    assert rows.rewritten(TEXT, marks) == TEXT, "run: python scripts/rows.py"


def test_every_module_in_the_table_exists() -> None:
    named = rows.code_in(TEXT)
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
    assert rows.marked_tests(tmp_path) == {
        "A1": ["test_it.py"],
        "A2": ["test_it.py::test_a"],
        "A3": ["test_it.py::test_a"],
        "A4": ["test_it.py::TestB"],
        "A5": ["test_it.py::TestB::test_c"],
        "A6": ["test_it.py::test_d"],
        "A7": ["test_it.py::TestE"],
    }


def test_rewriting_changes_only_the_last_column() -> None:
    line = "| A57 | what | here | `core/turns.py` | old |"
    assert rows.rewritten(line, {"A57": ["a.py::test_x"]}) == line.replace("old", "`a.py::test_x`")
    assert rows.rewritten(line, {}) == line.replace("old", "–")
