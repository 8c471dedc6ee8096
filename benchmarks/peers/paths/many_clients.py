"""50 clients, in 5 processes of 10 threads, that each send a message and wait for its receipt: a web back end."""

import tempfile
from pathlib import Path
from typing import Any

from benchmarks.peers.order import PASS
from benchmarks.peers.processes import ClientProcess
from benchmarks.peers.race import Entrant, Race
from benchmarks.peers.rounds import percentile

PROCESSES, THREADS = 5, 10
PATH = "send clients"


def many_clients(race: Race) -> None:
    """All processes connect, wait for a common start, and send for the same time; then everything is read back."""
    who = [each for each in race.entrants if "one" in each.contender.ways]
    for size in race.scale.sizes:
        for number, each in race.turns(who):
            with race.attempt(each, PATH, bytes=size, round=number):
                _round(race, each, size, number)


def _round(race: Race, each: Entrant, size: int, number: int) -> None:
    topic = each.topic()
    with tempfile.TemporaryDirectory(prefix="lanemq-peers-") as folder:
        go = Path(folder) / "go"
        words = {"do": "clients", "threads": THREADS, "size": size, "ms": race.scale.send_ms, "go": go}
        processes = [each.client(topic, process=index, **words) for index in range(PROCESSES)]
        try:
            for process in processes:
                process.wait_for("ready", 60)
            server_cpu = each.server.cpu_seconds()
            go.touch()
            lines = [process.lines()[-1] for process in processes]
            server_cpu = each.server.cpu_seconds() - server_cpu
        finally:
            _close(processes)
    sent = sum(line["sent"] for line in lines)
    verdict = each.read(topic, sent, "back")["verdict"]
    more = {"bytes": size, "round": number, "verdict": verdict}
    if verdict != PASS:
        race.wrong(PATH, each, **more)
        return
    race.value(PATH, each, *_rate(lines), **_costs(lines, server_cpu), **more)


def _rate(lines: list[dict[str, Any]]) -> tuple[float, str]:
    return round(sum(line["count"] / line["seconds"] for line in lines), 1), "msg/s"


def _costs(lines: list[dict[str, Any]], server_cpu: float) -> dict[str, float]:
    count = sum(line["count"] for line in lines)
    delays = [delay for line in lines for delay in line["delays_us"]]
    return {
        "count": count,
        "seconds": round(max(line["seconds"] for line in lines), 2),
        "p50": round(percentile(delays, 50) / 1000, 2),
        "p99": round(percentile(delays, 99) / 1000, 2),
        "client_cpu_us": round(sum(line["client_cpu"] for line in lines) / count * 1e6, 1),
        "server_cpu_us": round(server_cpu / count * 1e6, 1),
    }


def _close(processes: list[ClientProcess]) -> None:
    for process in processes:
        process.close()
