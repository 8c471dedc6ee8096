"""The archive for executors has LaneMQ and what it needs, and works without anything that is installed."""

import subprocess
import sys
import zipfile
from importlib.metadata import Distribution, PackageNotFoundError, PackagePath
from pathlib import Path
from typing import Any

import pytest

from lanemq.model.errors import InvalidOption, UsageError
from lanemq.spark import packing
from lanemq.spark.packing import CONTENTS, FOLDER, closure, installed_files, module_files, pack, requirements


class Installed(Distribution):
    """A distribution as an index describes it."""

    def __init__(self, folder: Path, *required: str, files: tuple[str, ...] = ()) -> None:
        self._folder, self._required, self._files = folder, required, files

    @property
    def requires(self) -> list[str]:
        return list(self._required)

    @property
    def files(self) -> list[PackagePath]:
        return [PackagePath(name) for name in self._files]

    def read_text(self, filename: str) -> str | None:
        return None

    def locate_file(self, path: Any) -> Path:
        return self._folder / path


LANEMQ = (
    "msgspec>=0.19",
    "lz4[full]>=4.3",
    "tomli; python_version < '3.11'",
    "pyspark<5,>=4.0 ; extra == 'spark'",
    'pyarrow>=20; extra == "spark"',
    "obstore>=0.8; extra == 'objects'",
    "psycopg[binary]>=3.2; extra == 'postgres'",
    "uvloop>=0.19; (sys_platform != 'win32') and extra == 'fast'",
)


def finding(missing: tuple[str, ...] = ()) -> Any:
    required = {
        "lanemq": LANEMQ, "pyspark": ("py4j",), "pyarrow": ("numpy>=1", "cffi; extra == 'x'"),
        "psycopg": ("psycopg-binary==3.2; extra == 'binary'", "psycopg-pool; extra == 'pool'"),
    }  # fmt: skip

    def find(name: str) -> Distribution:
        if name in missing:
            raise PackageNotFoundError(name)
        return Installed(Path(), *required.get(name, ()))

    return find


def test_everything_that_is_required_is_packed_but_spark() -> None:
    whole = ["lz4", "msgspec", "numpy", "obstore", "psycopg", "psycopg-binary", "pyarrow"]
    assert list(closure(find=finding(("tomli",)))) == whole
    assert list(closure(["PyArrow"], find=finding(("tomli", "obstore", "psycopg")))) == ["lz4", "msgspec"]


def test_what_is_required_and_missing_is_an_error() -> None:
    with pytest.raises(UsageError, match="numpy is not installed"):
        closure(find=finding(("tomli", "numpy")))
    with pytest.raises(InvalidOption, match="nowhere is not installed"):
        closure(["nowhere"], find=finding(("tomli", "nowhere")))


def test_conditions_of_requirements_are_told_from_extras() -> None:
    found = {name: always for name, always, _ in requirements(Installed(Path(), *LANEMQ), ("spark", "fast"))}
    assert found == {"msgspec": True, "lz4": True, "tomli": False, "pyspark": True, "pyarrow": True, "uvloop": False}


def test_only_files_that_python_needs_are_packed(tmp_path: Path) -> None:
    for name in ("own/__init__.py", "own/data.txt", "own/fast.pyx", "own/__pycache__/x.cpython.pyc", "steps.py"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("")
    assert [name for name, _ in module_files(tmp_path / "own")] == ["own/__init__.py", "own/data.txt"]
    assert [name for name, _ in module_files(tmp_path / "steps.py")] == ["steps.py"]
    listed = Installed(tmp_path, files=("own/data.txt", "../bin/tool", "own/gone.py", "own/__pycache__/x.cpython.pyc"))
    assert [name for name, _ in installed_files(listed)] == ["own/data.txt"]


def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pack LaneMQ and one dependency; the others take half a minute."""
    whole = closure()
    monkeypatch.setattr(packing, "closure", lambda _: {"msgspec": whole["msgspec"]})


def test_the_archive_works_in_a_python_that_has_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    small(monkeypatch)
    step = tmp_path / "my_step.py"
    step.write_text("ANSWER = 42\n")
    packed = pack(tmp_path / "pack.zip", [step])
    assert packed.settings == {
        "spark.archives": f"{tmp_path}/pack.zip#{FOLDER}",
        "spark.executorEnv.PYTHONPATH": FOLDER,
    }
    again = pack(tmp_path / "again.zip", [step])
    assert packed.path.read_bytes() == again.path.read_bytes(), "the same files give the same archive"
    with zipfile.ZipFile(packed.path) as archive:
        archive.extractall(tmp_path / FOLDER)
    code = "import lanemq, lanemq.core, lanemq.wire, my_step, sys; from lanemq._fast import VARIANT; "
    code += "print(lanemq.__file__, VARIANT, my_step.ANSWER, 'pyarrow' in sys.modules)"
    found = subprocess.run(
        [sys.executable, "-S", "-c", code],
        env={"PYTHONPATH": FOLDER},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )
    file, variant, answer, _ = found.stdout.split()
    from lanemq._fast import VARIANT

    assert Path(file).is_relative_to(tmp_path / FOLDER)
    assert (variant, answer) == (VARIANT, "42")
    assert (tmp_path / FOLDER / CONTENTS).exists()


@pytest.mark.parametrize(
    ("output", "own", "why"), [("pack.tar", [], r"\.zip"), ("pack.zip", ["data.csv"], "not a Python file")]
)
def test_what_spark_or_python_could_not_use_is_refused(tmp_path: Path, output: str, own: list[str], why: str) -> None:
    (tmp_path / "data.csv").write_text("")
    with pytest.raises(InvalidOption, match=why):
        pack(tmp_path / output, [tmp_path / name for name in own])
    assert not list(tmp_path.glob("*.partial"))
