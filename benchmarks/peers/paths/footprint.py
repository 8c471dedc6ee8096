"""Start-up time, idle memory, and bytes on disk per message. Each server by itself, nothing else running."""

import os
import time

from benchmarks.peers.contenders import Contender
from benchmarks.peers.race import Entrant, Race

IDLE_SECONDS = 2.0
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
                    before = _on_disk(each)
                    each.fill(topic, race.scale.read, SIZE)
                    used = (_on_disk(each) - before) / race.scale.read
                    single.value("disk", each, round(used), "B", bytes=SIZE, count=race.scale.read, round=number)


def _on_disk(each: Entrant) -> int:
    time.sleep(IDLE_SECONDS)
    os.sync()
    return each.server.disk_bytes()
