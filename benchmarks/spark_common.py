"""What measurements with Spark share: a session, topics full of messages, CPU time and memory of all processes."""

import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from pyspark.sql import SparkSession

from lanemq.client.admin.admin import Admin
from lanemq.model.units import Millis
from lanemq.spark import recommended, register
from lanemq.spark.write.sending import OutgoingRow, TaskSender

QUEUES = 4
QUIET = {"spark.ui.enabled": "false", "spark.ui.showConsoleProgress": "false", "spark.log.level": "ERROR"}

_TICK = os.sysconf("SC_CLK_TCK")
_PAGE_MIB = os.sysconf("SC_PAGE_SIZE") / 2**20


def session(master: str = "local[2]", settings: Mapping[str, str] | None = None) -> SparkSession:
    """With the settings that we ship."""
    builder = recommended().master(master)
    for name, value in {**QUIET, **(settings or {})}.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    register(spark)
    return spark


def fill(address: str, topic: str, count: int, value: Callable[[int], bytes], keys: int = 10_000) -> None:
    """A topic with this many messages, by the way that is quickest."""
    with Admin(address) as admin:
        admin.create_topic(topic, QUEUES)
    sender = TaskSender(address, f"fill-{topic}", 0, Millis(10_000))
    for number in range(count):
        sender.send(OutgoingRow(topic, value(number), f"key-{number % keys}"))
    sender.flush()
    sender.close()


def timed(run: Callable[[], object]) -> float:
    began = time.perf_counter()
    run()
    return time.perf_counter() - began


class Process(NamedTuple):
    """One process of this measurement."""

    pid: int
    role: str
    """`driver` (this one), `jvm`, or `worker`: Python that Spark started."""
    cpu: float
    """Seconds, those of ended children included."""
    ended: float
    """Of these, the seconds of ended children: for a JVM, of Python workers."""
    resident_mib: float


def processes(*but: int) -> Iterator[Process]:
    """This process and all below it, without the processes `but` and those below them."""
    parents: dict[int, int] = {}
    found: dict[int, Process] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):  # it ended while we looked
            head, _, tail = path.read_text().rpartition(")")
            fields, pid = tail.split(), int(path.parent.name)
            parents[pid] = int(fields[1])
            role = "driver" if pid == os.getpid() else "jvm" if head.endswith("(java") else "worker"
            own, ended = (sum(map(int, part)) / _TICK for part in (fields[11:13], fields[13:15]))
            found[pid] = Process(pid, role, own + ended, ended, int(fields[21]) * _PAGE_MIB)
    ours = {os.getpid()}
    while more := {pid for pid, parent in parents.items() if parent in ours and pid not in ours and pid not in but}:
        ours |= more
    return (found[pid] for pid in ours)


def cpu_seconds(*but: int) -> float:
    """CPU time of this process and all below it; `but` are servers, which have a figure of their own."""
    return sum(each.cpu for each in processes(*but))
