"""Start-up time, idle memory, and bytes on disk per message. Each server by itself, nothing else running."""

import os
import time

from benchmarks.peers.contenders import Contender
from benchmarks.peers.race import Entrant, Race

IDLE_SECONDS = 2.0
STEADY_SECONDS, STEADY_AT_MOST = 15.0, 120.0
"""How long the size on disk must stay the same before it counts: indexes are written later than messages."""
SIZE = 100


def footprint(race: Race, contenders: list[Contender]) -> None:
    """Contenders that share a kind of server count once."""
    alone = list({each.server: each for each in reversed(contenders) if not each.helper}.values())[::-1]
    for number in range(min(race.scale.rounds, 3)):
        for contender in alone:
            with race.only(contender).running(durable=False) as single:
                if not single.entrants:
                    continue  # its server did not start
                (each,) = single.entrants
                with single.attempt(each, "footprint"):
                    single.value("start-up", each, round(each.server.start_seconds, 2), "s", round=number)
                    topic = each.topic()
                    time.sleep(IDLE_SECONDS)
                    single.value("idle memory", each, round(each.server.memory_mib()), "MiB", round=number)
                    before = each.server.disk_bytes()
                    each.fill(topic, race.scale.read, SIZE)
                    used = (_on_disk(each) - before) / race.scale.read
                    single.value("disk", each, round(used), "B", bytes=SIZE, count=race.scale.read, round=number)


def _on_disk(each: Entrant) -> int:
    """The size once it no longer changes."""
    os.sync()
    size, since, began = each.server.disk_bytes(), time.monotonic(), time.monotonic()
    while time.monotonic() - since < STEADY_SECONDS and time.monotonic() - began < STEADY_AT_MOST:
        time.sleep(1)
        os.sync()
        if (now := each.server.disk_bytes()) != size:
            size, since = now, time.monotonic()
    return size
