"""Consume in order: a backlog with a handler that uses key, event and position, and one whose handler takes 5 ms."""

from benchmarks.peers.race import Entrant, Race

SLOW_KEYS, HANDLER_MS = 1_000, 5


def consuming(race: Race) -> None:
    who = [each for each in race.entrants if each.contender.reads]
    for size in race.scale.sizes:
        topics: dict[str, str] = {}
        for each in who:
            with race.attempt(each, "consume"):
                topics[each.name] = each.topic()
                each.fill(topics[each.name], race.scale.read, size)
        for number, each in race.turns([each for each in who if each.name in topics]):
            with race.attempt(each, "consume"):
                line = each.read(topics[each.name], race.scale.read, f"group-{size}-{number}")
                race.rate("consume", each, line, bytes=size, round=number, verdict=line["verdict"])


def slow_handler(race: Race) -> None:
    """1,000 keys in one queue: who handles several keys of a queue at once is faster than 200 a second."""

    def count(each: Entrant) -> int:
        return race.scale.slow * (20 if each.contender.lanes else 1)

    who = [each for each in race.entrants if each.contender.reads]
    topics: dict[str, str] = {}
    for each in who:
        with race.attempt(each, "slow handler"):
            topics[each.name] = each.topic(queues=1)
            each.fill(topics[each.name], count(each), 100, SLOW_KEYS, queues=1)
    for number, each in race.turns([each for each in who if each.name in topics]):
        with race.attempt(each, "slow handler"):
            words = {"handler_ms": HANDLER_MS, "lanes": each.contender.lanes, "queues": 1}
            line = each.read(topics[each.name], count(each), f"slow-{number}", **words)
            race.rate("slow handler", each, line, bytes=100, round=number, verdict=line["verdict"])
