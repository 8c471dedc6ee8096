"""Building and loading twins: an install works without a compiler, and only twins of the current sources run."""

import importlib.util
import shutil
import subprocess
import sys
import sysconfig
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from tests.fast.both import needs_twins

from lanemq._fast import PARTS, VARIANT, compiled, references, twins

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "src" / "lanemq" / "_fast"


@pytest.fixture
def hook() -> Any:
    spec = importlib.util.spec_from_file_location("hatch_build", ROOT / "hatch_build.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """The sources of the twins alone, with a module that an earlier build left."""
    folder = tmp_path / "src" / "lanemq" / "_fast"
    folder.mkdir(parents=True)
    for source in FOLDER.glob("[a-z]*.p*"):
        shutil.copy(source, folder)
    (folder / f"records{sysconfig.get_config_var('EXT_SUFFIX')}").write_bytes(b"stale")
    return tmp_path


@pytest.mark.parametrize("missing", ["compiler", "Cython"])
def test_without_its_tools_an_install_is_pure_and_says_so_in_one_line(
    hook: Any, copy: Path, missing: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def run(command: list[str]) -> None:
        if ("cython" in command) == (missing == "Cython"):
            subprocess.run(["lanemq-no-such-program"], check=True)

    monkeypatch.setattr(hook, "_run", run)
    assert hook.build(copy) == []
    said = [line for line in capsys.readouterr().err.splitlines() if "compiling" not in line]
    assert len(said) == 1
    assert list(copy.rglob("*.so")) == []


@pytest.mark.slow
def test_a_source_that_does_not_compile_leaves_the_references(hook: Any, copy: Path) -> None:
    """All or none: a build with only some of the twins is not used."""
    (copy / "src" / "lanemq" / "_fast" / "sends.pyx").write_text("this is not Cython", "utf-8")
    assert hook.build(copy) == []
    assert list(copy.rglob("*.so")) == []


def test_every_source_is_loaded() -> None:
    assert sorted(PARTS) == sorted(path.stem for path in FOLDER.glob("*.pyx"))


@needs_twins
@pytest.mark.parametrize("part", PARTS)
def test_the_loaded_modules_were_built_from_the_current_sources(hook: Any, part: str) -> None:
    """If this fails, build again: python hatch_build.py"""
    assert hook.source_mark(FOLDER, part) == import_module(f"lanemq._fast.{part}").SOURCES


@needs_twins
def test_every_twin_has_a_reference_and_every_reference_a_twin() -> None:
    pytest.importorskip("pyarrow")
    for name in twins:
        import_module(f"lanemq.{name.rpartition('.')[0]}")
    assert sorted(twins) == sorted(references)


@needs_twins
def test_a_function_that_was_moved_away_from_its_twin_is_refused() -> None:
    """It would otherwise run as slow as the reference, unnoticed."""

    def seal_records() -> None:
        """The same name in another module."""

    with pytest.raises(RuntimeError, match="seal_records has no compiled twin"):
        compiled(seal_records)


@pytest.mark.parametrize(("value", "expected"), [("1", "pure"), ("0", VARIANT), ("", VARIANT)])
def test_the_environment_selects_the_references(value: str, expected: str) -> None:
    if value != "1" and VARIANT == "pure":
        pytest.skip("nothing is compiled here")
    code = "from lanemq._fast import VARIANT; print(VARIANT)"
    environment = {"LANEMQ_PURE": value, "PYTHONPATH": str(ROOT / "src")}
    out = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert out.stdout.strip() == expected


AT_ONCE = """
import importlib.util, os, sys, threading
from pathlib import Path

spec = importlib.util.spec_from_file_location("hatch_build", sys.argv[1])
module = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
os.cpu_count = lambda: 8
together = threading.Barrier(8)

def compile(source, scratch):
    together.wait()
    return Path(module._module_name(source))

module._compile = compile
print(*module._compile_all([Path(f"m{n}.pyx") for n in range(8)], Path()))
"""


def test_modules_that_are_built_at_the_same_time_get_the_names_that_python_looks_for() -> None:
    """Python's table of build settings is filled by the first question, and other threads see it half filled."""
    for _ in range(3):
        words = [sys.executable, "-c", AT_ONCE, ROOT / "hatch_build.py"]
        done = subprocess.run(words, capture_output=True, text=True, check=True)
        suffix = sysconfig.get_config_var("EXT_SUFFIX")
        assert done.stdout.split() == [f"m{n}{suffix}" for n in range(8)]
