"""How Spark starts Python: the same interpreter as the driver's, importing PySpark from where it is installed.

Spark puts `pyspark.zip`, a copy of the installed PySpark, first on the path of every Python process that it starts.
Python keeps no compiled modules for files inside a zip, so each process compiles PySpark again: 0.5 to 0.7 s of CPU
time, at every start of a stream, because the driver's side of a stream is a new process. `worker_python.sh` removes
that entry from the path and becomes the interpreter. It is used only with a local master, since other machines need
not have the script, and where the interpreter finds the same PySpark without the zip. Elsewhere Spark starts the
interpreter itself.
"""

import importlib.util
import os
import site
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final

LAUNCHER: Final = Path(__file__).with_suffix(".sh")
PYTHON, SPARK_HOME = "LANEMQ_WORKER_PYTHON", "LANEMQ_WORKER_SPARK_HOME"
"""Variables that the launcher reads: the interpreter, and the folder whose `python/lib/*.zip` it removes."""


def worker_environment(environment: Mapping[str, str] = os.environ, *, local: bool) -> dict[str, str]:
    """Variables with which Spark starts the Python of this process; empty if `PYSPARK_PYTHON` names another one.

    `local`: whether all of Spark runs on this machine, as a child of this process.
    """
    if environment.get("PYSPARK_PYTHON") not in (None, sys.executable, str(LAUNCHER)):
        return {}
    if not local:
        return {"PYSPARK_PYTHON": sys.executable}
    from pyspark import SparkContext

    home = _home_of_installed_pyspark(environment)
    # A JVM that runs already has not got the launcher's variables.
    known = SparkContext._gateway is None or environment.get(PYTHON) == sys.executable  # noqa: SLF001
    if home is None or not known or not all(os.access(program, os.X_OK) for program in ("/bin/sh", LAUNCHER)):
        return {"PYSPARK_PYTHON": sys.executable}
    return {"PYSPARK_PYTHON": str(LAUNCHER), PYTHON: sys.executable, SPARK_HOME: home}


def interpreter_of(command: str, environment: Mapping[str, str] = os.environ) -> str:
    """The interpreter that runs if Spark starts this command."""
    return environment.get(PYTHON, command) if command == str(LAUNCHER) else command


def _home_of_installed_pyspark(environment: Mapping[str, str]) -> str | None:
    """Spark's folder, if it is the PySpark that new processes of this interpreter import without help."""
    from pyspark.find_spark_home import _find_spark_home

    places = {Path(place).resolve() for place in (*site.getsitepackages(), site.getusersitepackages())}
    places |= {Path(place).resolve() for place in environment.get("PYTHONPATH", "").split(os.pathsep) if place}
    folders = []
    for name in ("pyspark", "py4j"):
        found = importlib.util.find_spec(name)
        if found is None or not found.submodule_search_locations:
            return None
        folders.append(Path(found.submodule_search_locations[0]).resolve())
    home = _find_spark_home()
    installed = all(folder.is_dir() and folder.parent in places for folder in folders)
    return home if installed and Path(home).resolve() == folders[0] else None
