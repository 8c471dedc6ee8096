"""Ten groups that read one topic at the same time, each all of it, each in a process of its own."""

from typing import Any

from benchmarks.peers.order import PASS
from benchmarks.peers.paths.consuming import filled
from benchmarks.peers.race import KEYS, Entrant, Race

GROUPS, SIZE = 10, 100
PATH = "ten groups"


def ten_groups(race: Race) -> None:
    who = [each for each in race.entrants if each.contender.reads]
    topics = filled(race, who, PATH, SIZE, KEYS)
    for number, each in race.turns([each for each in who if each.name in topics]):
        with race.attempt(each, PATH, bytes=SIZE, round=number):
            _round(race, each, *topics[each.name], number)


def _round(race: Race, each: Entrant, topic: str, count: int, number: int) -> None:
    words = {"do": "read", "expect": count, "warm": max(1, count // 5)}
    server_cpu = each.server.cpu_seconds()
    readers = [each.client(topic, group=f"ten-{number}-{group}", **words) for group in range(GROUPS)]
    try:
        lines = [reader.lines()[-1] for reader in readers]
    finally:
        for reader in readers:
            reader.close()
    server_cpu = each.server.cpu_seconds() - server_cpu
    more = {"bytes": SIZE, "round": number}
    bad = next((line["verdict"] for line in lines if line["verdict"] != PASS), PASS)
    if bad != PASS:
        race.wrong(PATH, each, verdict=bad, **more)
        return
    race.rate(PATH, each, _together(lines, server_cpu, count * GROUPS), verdict=PASS, **more)


def _together(lines: list[dict[str, Any]], server_cpu: float, total: int) -> dict[str, float]:
    """From the first reader that is warm to the end of the last. The server's time is that of all messages, those of
    the warm-up included."""
    counted = sum(line["count"] for line in lines)
    seconds = max(line["began"] + line["seconds"] for line in lines) - min(line["began"] for line in lines)
    client_cpu = sum(line["client_cpu"] for line in lines)
    return {
        "count": counted,
        "seconds": seconds,
        "client_cpu": client_cpu,
        "server_cpu": server_cpu * counted / total,
    }
