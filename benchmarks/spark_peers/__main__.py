"""Measures LaneMQ's source beside Spark's Kafka source: `make bench-spark-peers`, or shorter with `QUICK=1`.

    python -m benchmarks.spark_peers --rounds 3 --paths batch,floor --sizes 100
    python -m benchmarks.spark_peers --minutes 8 --append

Every round is a JSON line in `var/bench-peers/spark.jsonl`. A run goes round by round over all paths, and `--minutes`
ends it between two rounds; `--append` continues where an earlier run ended. Table, plot and sentences go into
`benchmarks/RESULTS.md`, those of a quick run to `var/bench-peers`.
"""

import argparse
import json
import signal
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.peers.contenders import CONTENDERS
from benchmarks.peers.packages import UnavailableError
from benchmarks.peers.processes import ROOT
from benchmarks.peers.race import QUICK as PEERS_QUICK
from benchmarks.peers.race import Race, Records
from benchmarks.spark_peers.connector import fitting_jars, installed
from benchmarks.spark_peers.report import publish
from benchmarks.spark_peers.sources import FILLED_BY, sources_of

PATHS = ("batch", "available-now", "floor")


def main(words: list[str]) -> None:
    options = _options(words)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("stopped"))  # so that the servers end too
    try:
        jars = fitting_jars(words)
    except UnavailableError as reason:
        sys.exit(f"Spark's Kafka source cannot be had: {reason}")
    folder = ROOT / "var" / "bench-peers"
    file = folder / ("spark-quick.jsonl" if options.quick else "spark.jsonl")
    if not options.append:
        file.unlink(missing_ok=True)
    done = [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []
    records = Records(file)
    contenders = [each for each in CONTENDERS if each.name in FILLED_BY.values()]
    with Race(contenders, CONTENDERS, PEERS_QUICK, records).running(durable=False) as race:
        _run(race, jars, records, done, options)
    records.close()
    connector = next(jar.stem for jar in jars if jar.stem.startswith("spark-sql-kafka"))
    page = folder / "spark-quick.md" if options.quick else ROOT / "benchmarks" / "RESULTS.md"
    publish(file, page, installed(), connector)


def _run(
    race: Race, jars: list[Path], records: Records, done: list[dict[str, Any]], options: argparse.Namespace
) -> None:
    # PySpark is imported only now: `fitting_jars` may have chosen another one.
    from benchmarks.spark_common import session
    from benchmarks.spark_peers import limit
    from benchmarks.spark_peers.paths import FULL, QUICK, SparkRace, tasks_left

    until = time.monotonic() + 60 * options.minutes
    scale = QUICK if options.quick else FULL
    rows = {size: count for size, count in scale.rows.items() if not options.sizes or size in options.sizes}
    scale = replace(scale, rounds=options.rounds or scale.rounds, rows=rows)
    tasks = tasks_left(done, scale, options.paths or PATHS)
    if not tasks:
        return
    spark = session(settings={"spark.jars": ",".join(map(str, jars))})
    limit.register(spark)
    try:
        if not SparkRace(spark, sources_of(race.entrants), scale, records).run(tasks, until):
            print(f"stopped after {options.minutes:g} minutes; the same with --append continues", file=sys.stderr)
    finally:
        spark.stop()


def _options(words: list[str]) -> argparse.Namespace:
    def names(text: str) -> list[str]:
        return [each for each in text.split(",") if each]

    def numbers(text: str) -> list[int]:
        return [int(each) for each in names(text)]

    parser = argparse.ArgumentParser(prog="python -m benchmarks.spark_peers", description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=0, help="rounds of each path (default: 5, quick: 1)")
    parser.add_argument("--quick", action="store_true", help="small numbers: a few minutes, less sure")
    parser.add_argument("--append", action="store_true", help="keep the rounds of the last run, add those that lack")
    parser.add_argument("--minutes", type=float, default=float("inf"), help="start no round after so many minutes")
    parser.add_argument("--paths", type=names, default=[], help=f"of {', '.join(PATHS)}")
    parser.add_argument("--sizes", type=numbers, default=[], help="of 100, 1000")
    return parser.parse_args(words)


if __name__ == "__main__":
    main(sys.argv[1:])
