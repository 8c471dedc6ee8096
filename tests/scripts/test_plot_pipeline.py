"""scripts/plot_pipeline.py draws what `lanemq pipeline run --json` prints."""

import importlib.util
import json
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

pytest.importorskip("matplotlib")

SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "plot_pipeline.py"
PNG = b"\x89PNG"


@pytest.fixture(scope="module")
def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("plot_pipeline", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def line(batch: int, **more: Any) -> str:
    second = f"2026-11-16T00:00:{batch * 2:02}Z"
    given = {
        "time": second,
        "batch": batch,
        "retry_pass": 0,
        "epoch": 1,
        "messages": 500,
        "seconds": 0.5,
        "rate": 1000.0,
    }
    return json.dumps({**given, "lag": 900 - batch, "lag_seconds": 1.5, "repeated": False, "counts": {}, **more})


@pytest.mark.slow
def test_a_progress_file_becomes_a_png(script: ModuleType, tmp_path: Path) -> None:
    """With a retry pass, a restart, repeats, parked keys, and a lag of unknown age."""
    lines = [
        line(0, counts={"repeats": 3, "lanes_held": 1, "parked": 1}),
        line(1, **{"retry_pass": 1, "messages": 0, "lag_seconds": None}),
        line(2, epoch=2, repeated=True),
    ]
    (tmp_path / "progress.jsonl").write_text("\n".join(lines))
    assert script.main([str(tmp_path / "progress.jsonl"), "-o", str(tmp_path / "out.png")]) == 0
    assert (tmp_path / "out.png").read_bytes().startswith(PNG)


def test_batches_are_placed_by_their_time_and_other_lines_are_counted(script: ModuleType, tmp_path: Path) -> None:
    (tmp_path / "log").write_text("\n".join([line(0), "12:00 WARNING something", line(1)[:40], line(3)]))
    units, other = script.read_progress(tmp_path / "log")
    assert [unit.at for unit in units] == [0.5, 6.5]
    assert other == 2


def test_without_times_batches_follow_each_other_directly(script: ModuleType, tmp_path: Path) -> None:
    (tmp_path / "log").write_text("\n".join([line(0, time=None), line(3, time=None)]))
    assert [unit.at for unit in script.read_progress(tmp_path / "log")[0]] == [0.5, 1.0]


def test_a_file_without_batches_is_an_error_and_draws_nothing(
    script: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "log").write_text("nothing\n")
    assert script.main([str(tmp_path / "log"), "-o", str(tmp_path / "out.png")]) == 1
    assert "has no line about a batch" in capsys.readouterr().err
    assert not (tmp_path / "out.png").exists()
