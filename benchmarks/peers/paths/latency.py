"""End-to-end latency at a fixed rate: from the moment a message is due to be sent to its handler, in two processes."""

from benchmarks.peers.race import KEYS, Race
from benchmarks.peers.rounds import percentile

SIZE = 100
WARM_UP_SECONDS = 1


def latency(race: Race) -> None:
    who = [each for each in race.entrants if each.contender.paces]
    rates = race.scale.rates if race.mode == "relaxed" else race.scale.rates[:1]
    for rate in rates:
        count, skip = rate * (WARM_UP_SECONDS + race.scale.latency_seconds), rate * WARM_UP_SECONDS
        for number, each in race.turns(who):
            with race.attempt(each, f"latency {rate}/s"):
                topic = each.topic()
                each.fill(topic, 1, SIZE, 1, prefix="probe")
                listener = each.client(topic, do="listen", expect=count, skip=skip, group="listener")
                try:
                    listener.wait_for("ready", 60)
                    (sent,) = each.client(topic, do="pace", count=count, rate=rate, size=SIZE, keys=KEYS).lines()
                    line = listener.lines(60)[-1]
                finally:
                    listener.close()
                delays = line["delays_us"]
                race.value(
                    f"latency {rate}/s",
                    each,
                    round(percentile(delays, 50) / 1000, 2),
                    "ms",
                    p99=round(percentile(delays, 99) / 1000, 2),
                    worst=round(max(delays) / 1000, 1),
                    count=count,
                    client_cpu_us=round(line["client_cpu"] / count * 1e6, 1),
                    sender_cpu_us=round(sent["client_cpu"] / count * 1e6, 1),
                    server_cpu_us=round(line["server_cpu"] / count * 1e6, 1),
                    round=number,
                    verdict=line["verdict"],
                )
