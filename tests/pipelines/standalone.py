"""A Spark standalone cluster as a user has one: a master and a worker, each a separate process without LaneMQ's code.

They get no variable of the environment of the tests beyond what Java needs, and another working directory: whatever
executors use has to come with the job, or with the Python that the job names.
"""

import os
import re
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import NamedTuple

import pyspark

SPARK_HOME = Path(pyspark.__file__).parent
PATIENCE_SECONDS = 120
CORES, MEMORY = 2, "2g"
LOCAL = "127.0.0.1"


class Cluster(NamedTuple):
    """A running cluster."""

    master: str
    """The address for `--master`."""
    worker: int
    """The process whose children are the executors; with several hosts, that of the first."""


@contextmanager
def standalone(folder: Path, path: str | None = None, hosts: Sequence[str] = (LOCAL,)) -> Iterator[Cluster]:
    """Start all processes; they end with the block, and the executors with them.

    `path`: where executors look for programs such as Python, in place of the PATH of the tests. `hosts`: a worker is
    started for each of these local addresses. Spark takes them for different machines.
    """
    with ExitStack() as running:
        master_args = ["--host", LOCAL, "--webui-port", "0", "--port", "0"]
        _, log = running.enter_context(_running(folder / "master", "master.Master", *master_args))
        master = _said(log, r"Starting Spark master at (spark://\S+)")
        pids = []
        for number, host in enumerate(hosts):
            work = ["--host", host, "--webui-port", "0", "--cores", str(CORES), "--memory", MEMORY]
            work += ["--work-dir", str(folder / f"work-{number}"), master]
            place = folder / f"worker-{number}"
            worker, log = running.enter_context(_running(place, "worker.Worker", *work, path=path))
            _said(log, r"(Successfully registered with master)")
            pids.append(worker.pid)
        yield Cluster(master, pids[0])


@contextmanager
def _running(
    folder: Path, name: str, *arguments: str, path: str | None = None
) -> Iterator[tuple[subprocess.Popen[bytes], Path]]:
    folder.mkdir(parents=True)
    log = folder / "log"
    command = [str(SPARK_HOME / "bin" / "spark-class"), f"org.apache.spark.deploy.{name}", *arguments]
    plain = {each: os.environ[each] for each in ("PATH", "HOME", "JAVA_HOME") if each in os.environ}
    if path is not None:
        plain["PATH"] = path
    with log.open("wb") as out:
        process = subprocess.Popen(
            command, cwd=folder, env=plain | {"SPARK_HOME": str(SPARK_HOME)}, stdout=out, stderr=out
        )
    try:
        yield process, log
    finally:
        process.terminate()
        process.wait(PATIENCE_SECONDS)


def _said(log: Path, pattern: str) -> str:
    """Wait for a line in the log of a process that matches the pattern."""
    end = time.monotonic() + PATIENCE_SECONDS
    while (found := re.search(pattern, log.read_text())) is None:
        assert time.monotonic() < end, log.read_text()[-3000:]
        time.sleep(0.1)
    return found[1]
