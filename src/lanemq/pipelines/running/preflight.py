"""What a pipeline needs from this machine: packages, Java, and jars that Spark downloads.

Checked before Spark is started, which takes seconds, and minutes if there is something to download.
"""

import os
import re
import shutil
import subprocess
from collections.abc import Iterable, Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from lanemq.files.locate import HDFS_SCHEMES, OBJECT_SCHEMES
from lanemq.model.environment import install_extra
from lanemq.model.errors import UsageError
from lanemq.pipelines.pipeline import Pipeline

MIN_JAVA: Final = 17
JAVA_SECONDS: Final = 20.0
"""How long `java -version` may take; a machine under load needs a second."""
SPARK_PACKAGES: Final = ("pyspark", "pyarrow", "numpy", "pandas")
"""Spark imports some of them only in its workers, where a missing one is an error after minutes."""


def check_packages(pipeline: Pipeline) -> None:
    """`UsageError` if a package is missing; all missing ones are named."""
    missing = list(missing_packages(pipeline))
    if missing:
        raise UsageError(f"pipeline {pipeline.name}: {'; '.join(missing)}")


def check_java() -> None:
    """`UsageError` without a Java that Spark can use; Spark's own error is a page about a gateway."""
    home = os.environ.get("JAVA_HOME")
    own = Path(home) / "bin" / "java" if home else None
    java = str(own) if own is not None and own.exists() else shutil.which("java")
    if java is None:
        raise UsageError(
            f"Spark needs Java {MIN_JAVA} or newer, and there is none: install it, or set JAVA_HOME to its folder"
        )
    version = _java_version(java)
    if version is not None and version < MIN_JAVA:
        raise UsageError(
            f"Spark needs Java {MIN_JAVA} or newer, and {java} is Java {version}: install a newer one, or set "
            f"JAVA_HOME to its folder"
        )


def check_archives(settings: Mapping[str, str]) -> None:
    """`UsageError` if `spark.archives` names a local file that is not there; Spark says so after its start."""
    for each in settings.get("spark.archives", "").split(","):
        path = each.strip().partition("#")[0].removeprefix("file://")
        if path and "://" not in path and not Path(path).exists():
            raise UsageError(
                f"spark.archives names {path}, which does not exist: write it with `lanemq spark pack --output "
                f"{path}`, or correct the path"
            )


def missing_needs(pipelines: Iterable[Pipeline]) -> list[str]:
    """A sentence for each thing that is missing, without repetitions."""
    missing = [sentence for each in pipelines for sentence in missing_packages(each)]
    try:
        check_java()
    except UsageError as error:
        missing.append(str(error))
    return list(dict.fromkeys(missing))


def missing_packages(pipeline: Pipeline) -> Iterator[str]:
    """A sentence for each package that the pipeline needs and that is not installed."""
    needs = {name: ("Spark", "spark") for name in SPARK_PACKAGES}
    for sink in (pipeline.sink, pipeline.dead_letters):
        if sink is not None:
            needs |= {name: (str(sink), extra) for name, extra in sink.packages.items()}
    scheme = str(pipeline.folder).partition("://")[0]
    if scheme in HDFS_SCHEMES:
        needs["hdfs_native"] = (f"the checkpoint {pipeline.folder}", "hdfs")
    elif scheme in OBJECT_SCHEMES:
        needs["obstore"] = (f"the checkpoint {pipeline.folder}", "objects")
    for name, (user, extra) in needs.items():
        if find_spec(name) is None:
            remedy = install_extra(extra) if extra else f"install {name}"
            yield f"{user} needs the package {name}, which is not installed: {remedy}"


def jars_to_download(settings: Mapping[str, str]) -> list[str]:
    """The packages of `spark.jars.packages` that are not in the folder where Spark keeps what it has downloaded."""
    given = settings.get("spark.jars.ivy")
    folders = [Path(given).expanduser()] if given else list(Path.home().glob(".ivy2*"))
    names = (name.strip() for name in settings.get("spark.jars.packages", "").split(","))
    return [name for name in names if name and not any(_has_jar(folder, name) for folder in folders)]


def _has_jar(folder: Path, package: str) -> bool:
    """Whether a package, as `group:name:version`, was downloaded to this folder of Ivy."""
    group, _, rest = package.partition(":")
    return (folder / "jars" / f"{group}_{rest.replace(':', '-')}.jar").exists()


def _java_version(java: str) -> int | None:
    """The main version: 17 of `17.0.9`, 8 of `1.8.0_292`. None if the program does not say it."""
    try:
        said = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=JAVA_SECONDS, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    found = re.search(r'version "(?:1\.)?(\d+)', said.stderr + said.stdout)
    return int(found[1]) if found else None
