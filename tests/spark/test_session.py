"""Errors of a first start: missing packages, another Python."""

import subprocess
import sys
from pathlib import Path

import pytest

from lanemq.spark.session import python_mismatch


@pytest.mark.parametrize("module", ["pyspark", "pyarrow", "numpy"])
def test_a_missing_package_is_named_with_the_pip_command(module: str) -> None:
    code = f"import sys; sys.modules[{module!r}] = None; from lanemq.spark import register"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert f"lanemq.spark needs {module}: install what the extra `spark` has" in run.stderr


def test_workers_with_another_python_are_warned_about(tmp_path: Path) -> None:
    other = tmp_path / "python"
    other.write_text("")
    other.chmod(0o755)
    assert python_mismatch(sys.executable, sys.executable) is None
    assert "PYSPARK_PYTHON" in str(python_mismatch(str(other), sys.executable))
    assert "PYSPARK_PYTHON" in str(python_mismatch("no-such-python", sys.executable))
