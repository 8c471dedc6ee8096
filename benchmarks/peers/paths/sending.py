"""Acknowledged ordered send: one at a time, pipelined, in batches, and the same on an event loop."""

from benchmarks.peers.clients.roles import prefix_of
from benchmarks.peers.race import KEYS, Race


def sending(race: Race) -> None:
    """A new topic for each round, which is then read to its end: everything that was acknowledged must be there."""
    who = [each for each in race.entrants if each.contender.ways]
    for size in race.scale.sizes:
        for number, each in race.turns(who):
            ways = each.contender.ways
            with race.attempt(each, *(f"send {way}" for way in ways), bytes=size, round=number):
                topic = each.topic()
                words = {"do": "send", "ways": ",".join(ways), "keys": KEYS, "size": size, "ms": race.scale.send_ms}
                lines = each.client(topic, **words).lines()
                verdicts = each.verdicts(topic, lines)
                for line in lines:
                    verdict = verdicts[prefix_of(line["way"])]
                    race.rate(f"send {line['way']}", each, line, bytes=size, round=number, verdict=verdict)
