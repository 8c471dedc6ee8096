"""How fast the checker reads: one JSON line with events per second on one core.

    python benchmarks/checker.py --events 2000000

Writes a correct history of one producer and four members with leases into a temporary folder and judges
it. CPU time is what counts on a shared machine; wall time is printed beside it.
"""

import argparse
import json
import resource
import tempfile
import time
from itertools import count
from pathlib import Path

from lanemq.checker.checking import check

QUEUES = 16
MEMBERS = 4
KEYS_PER_QUEUE = 64
PER_MESSAGE = 4


def write(folder: Path, messages: int) -> int:
    """A run in which each message is sent, acknowledged, run and ended, with a commit every 32 messages."""
    files = [(folder / f"{name}.jsonl").open("w") for name in ("p", *(f"c{i}" for i in range(MEMBERS)))]
    numbers = [count() for _ in files]
    clock = count(1)
    lines = 0

    def put(who: int, event: str, rest: str) -> None:
        nonlocal lines
        lines += 1
        t = 1_000_000_000_000 + next(clock) * 1000
        files[who].write(f'{{"e":"{event}","n":{next(numbers[who])},"t":{t},{rest}}}\n')

    put(0, "begin", '"name":"p","role":"producer"')
    for member in range(MEMBERS):
        put(member + 1, "begin", f'"name":"c{member}","role":"consumer"')
    for queue in range(QUEUES):
        who = queue % MEMBERS
        lease = f'"group":"billing","topic":"orders","queue":{queue},"member":"c{who}","epoch":1'
        put(who + 1, "lease_granted", lease)
    for number in range(messages):
        queue, offset = number % QUEUES, number // QUEUES
        key, id = f"order-{queue}-{offset % KEYS_PER_QUEUE}", f"7F000001{number:016X}"
        who = queue % MEMBERS + 1
        place = f'"group":"billing","topic":"orders","queue":{queue},"offset":{offset}'
        put(0, "send", f'"topic":"orders","key":"{key}","id":"{id}"')
        put(0, "acked", f'"topic":"orders","queue":{queue},"offset":{offset},"key":"{key}","id":"{id}"')
        put(who, "turn", f'{place},"key":"{key}","id":"{id}","epoch":1,"attempt":0,"batch":0')
        put(who, "turn_end", f'{place},"key":"{key}","outcome":"ok","epoch":1')
        if offset % 32 == 31:
            next_one = f'"group":"billing","topic":"orders","queue":{queue},"offset":{offset + 1}'
            put(who, "committed", f'{next_one},"epoch":1,"asked":0')
    for file in files:
        file.close()
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--events", type=int, default=1_000_000)
    events = parser.parse_args().events
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        lines = write(folder, events // PER_MESSAGE)
        size = sum(path.stat().st_size for path in folder.iterdir())
        wall, cpu = time.perf_counter(), time.process_time()
        report = check([folder])
        wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    result = {
        "benchmark": "checker",
        "verdict": report.verdict.name.lower(),
        "events": lines,
        "mib": round(size / 2**20, 1),
        "cpu_s": round(cpu, 2),
        "wall_s": round(wall, 2),
        "events_per_cpu_s": round(lines / cpu),
        "ten_million_cpu_s": round(10_000_000 * cpu / lines, 1),
        "peak_rss_mib": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024, 1),
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main()
