"""How long a broker with millions of messages takes to start: after a kill, and after a kill with its indexes deleted.

    python -m benchmarks start

`LANEMQ_START_MESSAGES` (5,000,000) messages of 100 bytes in 8 queues. `value` is the time in seconds from the start of
the process until a send and a pull of the oldest message of each queue are answered. `cpu_s` is the processor time of
the broker until then, which says more on a shared machine.
"""

import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.harness import report
from lanemq.client.admin.admin import Admin
from lanemq.client.consumer.pull_consumer import PullConsumer
from lanemq.client.producer.producer import Producer
from lanemq.log.options import StoreOptions
from lanemq.log.store import Store

MESSAGES = int(os.environ.get("LANEMQ_START_MESSAGES", "5000000"))
QUEUES, AT_ONCE, TOPIC = 8, 2_000, "bench"
_TICK = os.sysconf("SC_CLK_TCK")


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="lanemq-bench-") as name:
        data = Path(name)
        _new_topic(data)
        _fill(data)
        for what in ("after a kill", "after a kill, indexes deleted"):
            _killed(data)
            if "deleted" in what:
                shutil.rmtree(data / "index")
                shutil.rmtree(data / "keys", ignore_errors=True)
            process, seconds = _serving(data)
            more = {"messages": MESSAGES, "cpu_s": _cpu_seconds(process.pid)}
            process.kill()
            process.communicate()
            report(f"start/{what}", seconds, "s", **more)


def _new_topic(data: Path) -> None:
    process, address = _started(data)
    with Admin(address) as admin:
        admin.create_topic(TOPIC, QUEUES, ordered=True)
    process.terminate()
    process.communicate()


def _fill(data: Path) -> None:
    store = Store(data, StoreOptions(durable=False))
    store.recover()
    for first in range(0, MESSAGES, AT_ONCE):
        count = min(AT_ONCE, MESSAGES - first)
        numbers = range(first, first + count)
        properties = [b"UNIQ_KEY\x017F000001%024X\x02KEYS\x01k%d\x02TAGS\x01made" % (n, n % 1_000) for n in numbers]
        records = [(b"x" * 100, text, 0, 0, 0, 1, 0) for text in properties]
        store.append(TOPIC, first // AT_ONCE % QUEUES, records, store_time=int(time.time() * 1000))
    store.close()


def _killed(data: Path) -> None:
    """Starts the broker, sends for a second, and kills it."""
    process, address = _started(data)
    end = time.monotonic() + 1
    with Producer(address, codec="bytes") as producer:
        while time.monotonic() < end:
            producer.send_many(TOPIC, [(f"k{number}", b"x" * 100) for number in range(500)])
    process.send_signal(signal.SIGKILL)
    process.communicate()


def _serving(data: Path) -> tuple["subprocess.Popen[str]", float]:
    """A broker that has answered a send and a pull, and the seconds until then."""
    began = time.perf_counter()
    process, address = _started(data)
    with Producer(address, codec="bytes") as producer, PullConsumer(address, group="bench") as consumer:
        producer.send(TOPIC, b"first", key="k")
        queues = consumer.queues(TOPIC)
        consumer.assign(queues)
        consumer.seek_to_first()
        assert all(consumer.read(queue, 1) for queue in queues), "the oldest messages are there"
    return process, time.perf_counter() - began


def _started(data: Path) -> tuple["subprocess.Popen[str]", str]:
    command = [sys.executable, "-m", "lanemq.cli.main", "broker", "--listen", "127.0.0.1:0", "--data", str(data)]
    process = subprocess.Popen([*command, "--monitor", "off"], stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    line = process.stderr.readline()
    while line and not (found := re.search(r" on (\S+:\d+),", line)):
        line = process.stderr.readline()
    assert line, "the broker did not start"
    assert found is not None
    return process, found[1]


def _cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICK
