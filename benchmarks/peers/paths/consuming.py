"""Consume in order: a backlog with a handler that uses key, event and position, and one whose handler takes 5 ms."""

from collections.abc import Sequence

from benchmarks.peers.race import KEYS, Entrant, Race

SLOW_KEYS, HANDLER_MS = 1_000, 5
TRIED = 50_000
"""Messages that are stored first, to see how many a contender reads in a second."""
WARM_SHARE = 1.25
"""A reader does not count its first fifth."""


def consuming(race: Race) -> None:
    who = [each for each in race.entrants if each.contender.reads]
    for size in race.scale.sizes:
        topics = filled(race, who, "consume", size, KEYS)
        for number, each in race.turns([each for each in who if each.name in topics]):
            with race.attempt(each, "consume", bytes=size, round=number):
                topic, count = topics[each.name]
                line = each.read(topic, count, f"group-{size}-{number}")
                race.rate("consume", each, line, bytes=size, round=number, verdict=line["verdict"])


def filled(
    race: Race, who: Sequence[Entrant], path: str, size: int, keys: int, least: int = 0
) -> dict[str, tuple[str, int]]:
    """The topic of each contender, with as many messages as it reads in the time of a round, and their number."""
    topics: dict[str, tuple[str, int]] = {}
    for each in who:
        with race.attempt(each, path, bytes=size):
            topic, tried = each.topic(), max(1_000, min(TRIED, race.scale.read))
            each.fill(topic, tried, size, keys)
            line = each.read(topic, tried, f"try-{size}")
            rate = line["count"] / line["seconds"] if "seconds" in line else 0.0
            count = max(least, tried, min(race.scale.read, int(rate * race.scale.read_ms / 1_000 * WARM_SHARE)))
            count = -(-count // keys) * keys
            each.fill(topic, count - tried, size, keys, first=tried)
            topics[each.name] = topic, count
    return topics


def slow_handler(race: Race) -> None:
    """1,000 keys in one queue: who handles several keys of a queue at once is faster than 200 a second."""

    def count(each: Entrant) -> int:
        return race.scale.slow * (30 if each.contender.lanes else 1)

    who = [each for each in race.entrants if each.contender.reads]
    for size in race.scale.sizes:
        topics: dict[str, str] = {}
        for each in who:
            with race.attempt(each, "slow handler", bytes=size):
                topics[each.name] = each.topic(queues=1)
                each.fill(topics[each.name], count(each), size, SLOW_KEYS, queues=1)
        for number, each in race.turns([each for each in who if each.name in topics]):
            with race.attempt(each, "slow handler", bytes=size, round=number):
                words = {"handler_ms": HANDLER_MS, "lanes": each.contender.lanes, "queues": 1}
                line = each.read(topics[each.name], count(each), f"slow-{size}-{number}", **words)
                race.rate("slow handler", each, line, bytes=size, round=number, verdict=line["verdict"])
