"""Runs the contenders against each other: `make bench-peers`, or shorter: `make bench-peers ROUNDS=1 QUICK=1`.

    python -m benchmarks.peers --rounds 3 --paths sending,consuming --contenders LaneMQ,confluent-kafka

Every round is a JSON line in `var/bench-peers/rounds.jsonl`; `--append` adds to those of an earlier run. The table, the
plots and the sentences go into `benchmarks/RESULTS.md`, those of a quick run to `var/bench-peers`.
"""

import argparse
import signal
import sys
from collections.abc import Sequence
from dataclasses import replace

from benchmarks.peers.contenders import CONTENDERS, Contender
from benchmarks.peers.packages import UnavailableError
from benchmarks.peers.paths.consuming import consuming, slow_handler
from benchmarks.peers.paths.footprint import footprint
from benchmarks.peers.paths.latency import latency
from benchmarks.peers.paths.sending import sending
from benchmarks.peers.paths.take_over import take_over
from benchmarks.peers.processes import ROOT
from benchmarks.peers.race import FULL, QUICK, Race, Records
from benchmarks.peers.report import publish

RELAXED = {
    "sending": sending,
    "consuming": consuming,
    "slow": slow_handler,
    "latency": latency,
    "take-over": take_over,
}
DURABLE = {"sending": sending, "latency": latency}
FOOTPRINT = "footprint"


def available(wanted: list[str], everyone: Sequence[Contender] = CONTENDERS) -> list[Contender]:
    """Those whose packages can be had; a line for each of the others."""
    found = []
    for contender in everyone:
        if wanted and contender.name not in wanted:
            continue
        try:
            contender.command()
            contender.server.fetch()
            found.append(contender)
        except UnavailableError as reason:
            print(f"skipped: {contender.name}: {reason}", file=sys.stderr, flush=True)
    return found


def main(words: list[str]) -> None:
    options = _options(words)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("stopped"))  # so that the servers end too
    folder = ROOT / "var" / "bench-peers"
    file = folder / ("quick.jsonl" if options.quick else "rounds.jsonl")
    if not options.append:
        file.unlink(missing_ok=True)
    scale = QUICK if options.quick else FULL
    scale = replace(scale, rounds=options.rounds or scale.rounds)
    contenders, records = available(options.contenders), Records(file)
    race = Race(contenders, CONTENDERS, scale, records)
    for durable, paths in ((False, RELAXED), (True, DURABLE)):
        chosen = [run for name, run in paths.items() if _is_wanted(name, durable, options)]
        if chosen:
            with race.running(durable=durable):
                for run in chosen:
                    run(race)
    if _is_wanted(FOOTPRINT, False, options):
        footprint(race, contenders)
    records.close()
    publish(file, folder / "quick.md" if options.quick else ROOT / "benchmarks" / "RESULTS.md")


def _is_wanted(path: str, durable: bool, options: argparse.Namespace) -> bool:
    mode = "durable" if durable else "relaxed"
    return (not options.paths or path in options.paths) and options.mode in ("", mode)


def _options(words: list[str]) -> argparse.Namespace:
    def names(text: str) -> list[str]:
        return [each for each in text.split(",") if each]

    parser = argparse.ArgumentParser(prog="python -m benchmarks.peers", description="LaneMQ beside other systems")
    parser.add_argument("--rounds", type=int, default=0, help="rounds of each path (default: 5, quick: 1)")
    parser.add_argument("--quick", action="store_true", help="small numbers: minutes instead of an hour, less sure")
    parser.add_argument("--append", action="store_true", help="add to the rounds that the last run wrote")
    parser.add_argument("--mode", choices=("", "relaxed", "durable"), default="", help="only this mode")
    parser.add_argument("--paths", type=names, default=[], help=f"of {', '.join([*RELAXED, FOOTPRINT])}")
    parser.add_argument("--contenders", type=names, default=[], help=f"of {', '.join(c.name for c in CONTENDERS)}")
    return parser.parse_args(words)


if __name__ == "__main__":
    main(sys.argv[1:])
