"""Batches for longer than the page cache takes them: at least 2 GB on the way to the disk.

Beside the rate stands how much of the time the disk held everything up: the share in which all processes that had
something to do waited for it (Linux, `/proc/pressure/io`).
"""

from pathlib import Path

from benchmarks.peers.race import KEYS, Race

PATH = "send sustained"
PRESSURE = Path("/proc/pressure/io")


def sustained(race: Race) -> None:
    who = [each for each in race.entrants if "batch" in each.contender.ways]
    for size in race.scale.sizes:
        for number, each in race.turns(who):
            with race.attempt(each, PATH, bytes=size, round=number):
                topic, stalled = each.topic(), _stalled_seconds()
                words = {"do": "send", "ways": "batch", "keys": KEYS, "size": size, "ms": 0}
                (line,) = each.client(topic, count=race.scale.sustained_bytes // (size + HEADERS), **words).lines(600)
                more = {"disk_wait": round((_stalled_seconds() - stalled) / line["seconds"], 3)}
                verdict = each.verdicts(topic, [line])["batch"]
                race.rate(PATH, each, line, bytes=size, round=number, verdict=verdict, **more)


HEADERS = 100
"""What a stored message takes beside its body, at least; so the number of messages is the same for everyone."""


def _stalled_seconds() -> float:
    if not PRESSURE.exists():
        return 0.0
    full = PRESSURE.read_text().splitlines()[1]
    return int(full.rpartition("total=")[2]) / 1e6
