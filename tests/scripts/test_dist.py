"""What `make dist` builds: wheels with every file, and commands in errors and documents that work in a checkout."""

import re
import subprocess
import sys
import tomllib
import zipfile

import pytest
from hatchling.builders.wheel import WheelBuilder
from tests.documents import DOCUMENTS, ROOT, name_of

from lanemq.model.environment import EXTRAS, install_extra

SOURCES = ROOT / "src" / "lanemq"


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """The names in a pure wheel of this tree."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LANEMQ_BUILD", "pure")
        made = next(
            WheelBuilder(str(ROOT)).build(directory=str(tmp_path_factory.mktemp("wheel")), versions=["standard"])
        )
    assert made.endswith("-py3-none-any.whl")
    with zipfile.ZipFile(made) as opened:
        return opened.namelist()


def test_a_pure_wheel_has_every_source_template_asset_and_licence(wheel: list[str]) -> None:
    wanted = {
        path.relative_to(ROOT / "src").as_posix()
        for path in SOURCES.rglob("*")
        if path.is_file() and path.suffix not in {".so", ".pyc", ".new"}
    }
    assert len(wanted) > 300
    assert sorted(wanted - {*wheel}) == []


def test_a_pure_wheel_has_nothing_compiled_and_no_tests(wheel: list[str]) -> None:
    assert [name for name in wheel if name.endswith(".so") or name.startswith("tests/")] == []


def test_no_error_and_no_document_names_a_package_that_no_index_has() -> None:
    """`lanemq[spark]` in a command finds nothing, because LaneMQ is on no package index."""
    scripts = (path for path in (ROOT / "scripts").rglob("*.*") if path.suffix != ".pyc")
    files = [*SOURCES.rglob("*.py"), *scripts, *DOCUMENTS]
    found = [
        name_of(path)
        for path in files
        if re.search(r"pip install .?lanemq(\[|\b(?!-))", path.read_text("utf-8", "replace"))
    ]
    assert found == []


def test_every_extra_that_an_error_names_exists() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["optional-dependencies"]
    named = {
        extra
        for path in SOURCES.rglob("*.py")
        for extra in re.findall(r"install_extra\([\"'](\w+)[\"']\)", path.read_text("utf-8"))
    }
    assert {"spark", "console", "otel"} <= named
    assert named <= {*extras}
    assert {"spark", "console", "otel", "all"} <= {*extras}


def test_the_packages_of_every_extra_are_those_that_errors_name() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["optional-dependencies"]
    for extra, packages in EXTRAS.items():
        assert [package.partition(";")[0].strip() for package in extras[extra]] == [*packages], extra
        assert "checkout" not in install_extra(extra)


@pytest.mark.extended
@pytest.mark.timeout(1200)
def test_make_dist_builds_and_tries_every_wheel() -> None:
    done = subprocess.run([sys.executable, ROOT / "scripts" / "dist.py"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "twine accepts the metadata of all of them" in done.stdout
    made = sorted(path.name for path in (ROOT / "dist").glob("lanemq-*"))
    assert sum(name.endswith((".tar.gz", "-none-any.whl")) for name in made) == 2
    compiled = [name for name in made if not name.endswith((".tar.gz", "-none-any.whl"))]
    minor = sys.version_info.minor
    assert any(f"-cp3{minor}-cp3{minor}-" in name for name in compiled)
    if sys.platform == "linux":
        assert [name for name in compiled if "manylinux" not in name] == []
