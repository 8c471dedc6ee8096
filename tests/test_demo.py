"""What the main job says at its end, which the reader will paste into a shell."""

import io
import shutil
from pathlib import Path

import pytest
from rich.console import Console

from lanemq.checker.verdict import Report, Verdict
from lanemq.testing import demo


def last_words(folder: Path) -> list[str]:
    out = io.StringIO()
    demo._say_where_to_look(demo.Run(folder, 1), Report(Verdict.PASS, 1), Console(file=out, width=30))
    return out.getvalue().splitlines()


def test_a_command_to_paste_is_on_one_line_however_narrow_the_terminal() -> None:
    folder = Path("var") / ("demo" * 20)
    check, broker = [line for line in last_words(folder) if "lanemq " in line]
    assert check.endswith(f"lanemq check {folder}/history --drained")
    assert broker.endswith(f"lanemq broker --data {folder}/data")


def test_the_command_is_named_by_its_path_where_the_shell_would_not_find_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "lanemq").touch()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(demo.sys, "executable", str(tmp_path / "bin" / "python"))
    monkeypatch.setenv("PATH", "")
    assert shutil.which("lanemq") is None
    assert demo._command() == "bin/lanemq"


def test_redelivery_is_explained() -> None:
    assert "at least once" in " ".join(last_words(Path("var/demo")))
