"""Whether the cost of a message grows: sends over more and more queues, and reads of more and more keys.

Measured by CPU time per message, of client and server, for those that say so in `contenders`. Each number of queues
gets as many messages as the others, because requests hold fewer messages the more queues share them.
"""

from benchmarks.peers.clients.roles import prefix_of
from benchmarks.peers.paths.consuming import filled
from benchmarks.peers.race import Race

BY_QUEUES = (1, 10, 100, 1_000)
BY_KEYS = (100, 10_000, 100_000, 1_000_000)
SIZE, SEND_KEYS = 100, 10_000
WAYS = ("pipelined", "batch")
PER_KEY = 2
"""Messages of each key, at least."""


def growth(race: Race) -> None:
    _by_queues(race)
    _by_keys(race)


def _by_queues(race: Race) -> None:
    who = [each for each in race.entrants if each.contender.grows and each.contender.ways]
    for queues in BY_QUEUES:
        paths = [f"send {way}, {queues} queues" for way in WAYS]
        for number, each in race.turns(who):
            with race.attempt(each, *paths, bytes=SIZE, round=number):
                topic = each.topic(queues)
                words = {"do": "send", "ways": ",".join(WAYS), "keys": SEND_KEYS, "size": SIZE}
                lines = each.client(topic, queues=queues, ms=0, count=race.scale.growth, **words).lines()
                verdicts = each.verdicts(topic, lines, queues=queues)
                for line in lines:
                    verdict = verdicts[prefix_of(line["way"])]
                    more = {"bytes": SIZE, "round": number, "verdict": verdict}
                    race.rate(f"send {line['way']}, {queues} queues", each, line, **more)


def _by_keys(race: Race) -> None:
    who = [each for each in race.entrants if each.contender.grows]
    for keys in race.scale.keys:
        path = f"consume, {keys} keys"
        topics = filled(race, who, path, SIZE, keys, least=PER_KEY * keys)
        for number, each in race.turns([each for each in who if each.name in topics]):
            with race.attempt(each, path, bytes=SIZE, round=number):
                topic, count = topics[each.name]
                line = each.read(topic, count, f"group-{number}", array_keys=keys)
                race.rate(path, each, line, bytes=SIZE, round=number, verdict=line["verdict"])
