"""The checker as a Spark job beside the plain one: events per second on the same history. One JSON line.

    python -m benchmarks.check_spark [events, default 5000000]

The plain checker uses one core and runs in a process of its own, for its memory; the Spark form uses two cores. What
Spark needs to start is listed separately: it does not grow with the history. `*_cpu_us` is CPU time per event, over all
processes, which says more than speed does on a machine that is busy with other things. `skew`: the largest file's share
of all bytes, which one task has to read alone.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.checker import PER_MESSAGE, write
from lanemq.checker.parquet_writing import convert
from lanemq.pipelines.audit.job import check_with_spark
from lanemq.spark import recommended

_PLAIN = """
import json, resource, sys, time
from pathlib import Path
from lanemq.checker.checking import check
began = time.perf_counter()
report = check([Path(sys.argv[1])])
seconds, cpu = time.perf_counter() - began, time.process_time()
rss = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
print(json.dumps({"seconds": seconds, "cpu": cpu, "rss": rss, "verdict": report.verdict.name, "events": report.events}))
"""


def main(events: int = 5_000_000) -> None:
    result: dict[str, object] = {"benchmark": "check_spark", "unit": "events/s"}
    with tempfile.TemporaryDirectory() as name:
        lines, columns = Path(name) / "lines", Path(name) / "columns"
        lines.mkdir()
        written = write(lines, events // PER_MESSAGE)
        sizes = [path.stat().st_size for path in lines.iterdir()]
        result |= {"events": written, "mib": _mib(lines), "skew": round(max(sizes) / sum(sizes), 2)}
        ran = subprocess.run([sys.executable, "-c", _PLAIN, lines], capture_output=True, text=True, check=True)
        plain = json.loads(ran.stdout)
        result |= {"plain": round(written / plain["seconds"]), "plain_peak_rss_mib": round(plain["rss"])}
        result["plain_cpu_us"] = round(plain["cpu"] / written * 1e6, 2)
        began = time.perf_counter()
        list(convert(lines, columns))
        result |= {"convert": round(written / (time.perf_counter() - began)), "parquet_mib": _mib(columns)}
        began = time.perf_counter()
        quiet = {"spark.ui.enabled": "false", "spark.ui.showConsoleProgress": "false"}
        spark = recommended().master("local[2]").config(map=quiet).getOrCreate()
        spark.sparkContext.setLogLevel("ERROR")
        result["spark_start_s"] = round(time.perf_counter() - began, 1)
        for label, folder in (("spark_lines", lines), ("spark_parquet", columns)):
            began, cpu = time.perf_counter(), _cpu_seconds(os.getpid())
            report = check_with_spark(spark, [folder])
            result[label] = round(written / (time.perf_counter() - began))
            result[f"{label}_cpu_us"] = round((_cpu_seconds(os.getpid()) - cpu) / written * 1e6, 2)
            assert (report.verdict.name, report.events) == (plain["verdict"], plain["events"])
        spark.stop()
    result["load"] = round(os.getloadavg()[0], 1)
    print(json.dumps(result))


def _cpu_seconds(process: int) -> float:
    """Of a process and everything it has started, as far as it runs or was waited for."""
    children: dict[int, list[int]] = {}
    ticks: dict[int, int] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:
            continue  # it has ended
        number = int(stat.parent.name)
        children.setdefault(int(fields[1]), []).append(number)
        ticks[number] = sum(map(int, fields[11:15]))
    family = [process]
    for member in family:
        family += children.get(member, [])
    return sum(ticks.get(member, 0) for member in family) / os.sysconf("SC_CLK_TCK")


def _mib(folder: Path) -> float:
    return round(sum(path.stat().st_size for path in folder.iterdir()) / 2**20, 1)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:2]))
