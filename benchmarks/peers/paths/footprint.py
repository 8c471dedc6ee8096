"""Start-up time, idle memory, and bytes on disk per message. Contenders that share a kind of server count once."""

import os
import time
from collections.abc import Sequence

from benchmarks.peers.contenders import Contender
from benchmarks.peers.race import Entrant, Race

IDLE_SECONDS = 2.0
SLACK = 2**16
STEADY_SECONDS, STEADY_AT_MOST, STEADY_BYTES = 12.0, 60.0, 0.5
"""The size on disk counts when it has changed by less than half a byte per message for so long: indexes are written
later than messages, and some servers rewrite small files all the time."""


def start_and_memory(race: Race, contenders: Sequence[Contender]) -> None:
    """Each server by itself, nothing else running."""
    for number in range(race.scale.rounds):
        for contender in _one_of_each_server(contenders):
            with race.only(contender).running(durable=False) as single:
                if not single.entrants:
                    continue  # its server did not start
                (each,) = single.entrants
                single.value("start-up", each, round(each.server.start_seconds, 2), "s", round=number)
                with single.attempt(each, "idle memory", round=number):
                    each.topic()
                    time.sleep(IDLE_SECONDS)
                    single.value("idle memory", each, round(each.server.memory_mib()), "MiB", round=number)


def disk(race: Race) -> None:
    """All servers together: each is filled, then all are given the time to write their indexes."""
    chosen = _one_of_each_server([each.contender for each in race.entrants])
    who = [each for each in race.entrants if each.contender in chosen]
    for size in race.scale.sizes:
        for number in range(race.scale.rounds):
            before = {each.name: each.server.disk_bytes() for each in who}
            done = []
            for each in who:
                with race.attempt(each, "disk", bytes=size, round=number):
                    each.fill(each.topic(), race.scale.stored, size)
                    done.append(each)
            after = _steady(who, max(SLACK, int(race.scale.stored * STEADY_BYTES)))
            for each in done:
                used = (after[each.name] - before[each.name]) / race.scale.stored
                more = {"bytes": size, "count": race.scale.stored, "round": number}
                race.value("disk", each, round(used), "B", **more)


def _one_of_each_server(contenders: Sequence[Contender]) -> list[Contender]:
    first: dict[type, Contender] = {}
    for each in contenders:
        if not each.helper:
            first.setdefault(each.server, each)
    return list(first.values())


def _steady(who: Sequence[Entrant], slack: int) -> dict[str, int]:
    """The sizes once none of them changes by more than `slack` bytes any more."""

    def sizes() -> dict[str, int]:
        os.sync()
        return {each.name: each.server.disk_bytes() for each in who}

    found, since, began = sizes(), time.monotonic(), time.monotonic()
    while time.monotonic() - since < STEADY_SECONDS and time.monotonic() - began < STEADY_AT_MOST:
        time.sleep(1)
        now = sizes()
        if any(abs(now[name] - found[name]) > slack for name in now):
            found, since = now, time.monotonic()
    return found
