"""End-to-end latency at a fixed rate: from the moment a message is due to be sent to its handler, in two processes.

The sender follows a schedule that does not wait for anything: each message carries the moment it was due, so a sender
that falls behind makes its messages late instead of sending fewer. A listener is ready when it has read a message of
each queue. The messages of the first `WARM_UP_MS` are not counted, the same for everyone.
"""

from benchmarks.peers.clients.roles import PROBES
from benchmarks.peers.order import PASS
from benchmarks.peers.race import KEYS, Entrant, Race
from benchmarks.peers.rounds import percentile

WARM_UP_MS = 1_500


def latency(race: Race) -> None:
    """Relaxed at every rate, with 1 KB and durable at the first one."""
    who = [each for each in race.entrants if each.contender.paces]
    small, *larger = race.scale.sizes
    first, *others = race.scale.rates
    cases = [(first, small)]
    if race.mode == "relaxed":
        cases += [(rate, small) for rate in others] + [(first, size) for size in larger]
    for rate, size in cases:
        for number, each in race.turns(who):
            path = f"latency {rate}/s"
            with race.attempt(each, path, bytes=size, round=number):
                measured(race, each, path, rate, size, number)


def measured(race: Race, each: Entrant, path: str, rate: int, size: int, number: int) -> None:
    """One round, recorded under this path."""
    count = rate * (WARM_UP_MS + race.scale.latency_ms) // 1_000
    topic = each.topic()
    each.fill(topic, PROBES, size, PROBES, prefix="probe")
    listener = each.client(topic, do="listen", expect=count, skip_ms=WARM_UP_MS, group="listener")
    try:
        listener.wait_for("ready", 60)
        sent = each.client(topic, do="pace", count=count, rate=rate, size=size, keys=KEYS).lines()[-1]
        line = listener.lines(90)[-1]
    finally:
        listener.close()
    more = {"bytes": size, "round": number, "verdict": line["verdict"]}
    if line["verdict"] != PASS:
        race.wrong(path, each, **more)
        return
    delays = line["delays_us"]
    race.value(
        path,
        each,
        round(percentile(delays, 50) / 1000, 2),
        "ms",
        p99=round(percentile(delays, 99) / 1000, 2),
        worst=round(max(delays) / 1000, 1),
        count=len(delays),
        client_cpu_us=round(line["client_cpu"] / count * 1e6, 1),
        sender_cpu_us=round(sent["client_cpu"] / count * 1e6, 1),
        server_cpu_us=round(line["server_cpu"] / count * 1e6, 1),
        **more,
    )
