"""Acknowledged ordered send: one at a time, pipelined, in batches, and the same on an event loop."""

from benchmarks.peers.race import KEYS, Race


def sending(race: Race) -> None:
    """A new topic for each round, which is then read to its end: everything that was acknowledged must be there."""
    for size in race.scale.sizes:
        who = [each for each in race.entrants if each.contender.ways]
        for number, each in race.turns(who):
            with race.attempt(each, "send"):
                topic, ways = each.topic(), ",".join(each.contender.ways)
                words = {"do": "send", "ways": ways, "keys": KEYS, "size": size, "ms": race.scale.send_ms}
                *lines, last = each.client(topic, **words).lines()
                verdict = each.read(topic, last["sent"], "back")["verdict"]
                for line in lines:
                    race.rate(f"send {line['way']}", each, line, bytes=size, round=number, verdict=verdict)
