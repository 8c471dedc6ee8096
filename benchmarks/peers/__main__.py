"""Runs the contenders against each other: `make bench-peers`, or shorter: `make bench-peers ROUNDS=1 QUICK=1`.

    python -m benchmarks.peers --paths sending --mode durable --append
    python -m benchmarks.peers --rounds 3 --paths consuming,slow --contenders LaneMQ,confluent-kafka
    python -m benchmarks.peers --publish

Every round is a JSON line in `var/bench-peers/rounds.jsonl`; with `--append` the rounds of other paths stay, and those
of the same path too if they measured the same code. The table, the goals, the plots and the sentences go into
`benchmarks/RESULTS.md`, those of a quick run to `var/bench-peers`; `--publish` writes them again without a run.
"""

import argparse
import json
import signal
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from benchmarks.peers.contenders import CONTENDERS, Contender
from benchmarks.peers.packages import UnavailableError
from benchmarks.peers.paths.cold_reader import cold_reader
from benchmarks.peers.paths.consuming import consuming, slow_handler
from benchmarks.peers.paths.footprint import disk, start_and_memory
from benchmarks.peers.paths.growth import growth
from benchmarks.peers.paths.grpc import grpc_fronts
from benchmarks.peers.paths.latency import latency
from benchmarks.peers.paths.many_clients import many_clients
from benchmarks.peers.paths.sending import sending
from benchmarks.peers.paths.sustained import sustained
from benchmarks.peers.paths.take_over import take_over
from benchmarks.peers.paths.ten_groups import ten_groups
from benchmarks.peers.processes import ROOT
from benchmarks.peers.race import FULL, QUICK, Race, Records
from benchmarks.peers.report import publish
from benchmarks.peers.versions import MixedVersionsError, Part, code_id, kept

RELAXED = {
    "disk": disk,
    "clients": many_clients,
    "sending": sending,
    "consuming": consuming,
    "groups": ten_groups,
    "slow": slow_handler,
    "latency": latency,
    "growth": growth,
    "sustained": sustained,
    "cold": cold_reader,
    "take-over": take_over,
}
DURABLE = {"clients": many_clients, "sending": sending, "latency": latency}
START = "start"
"""Start-up and idle memory: each server by itself."""
GRPC = "grpc"
"""Clients of RocketMQ 5 at LaneMQ's front and at Apache's proxy, which have servers of their own."""
GROUPS = (*RELAXED, START, GRPC)


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
    page = folder / "quick.md" if options.quick else ROOT / "benchmarks" / "RESULTS.md"
    try:
        if not options.publish:
            _prepare(file, options)
            _run(file, options)
        publish(file, page)
    except MixedVersionsError as reason:
        sys.exit(str(reason))


def _prepare(file: Path, options: argparse.Namespace) -> None:
    """Removes the rounds of earlier runs that must not stay."""
    if not options.append or not file.exists():
        file.unlink(missing_ok=True)
        return
    records = [json.loads(line) for line in file.read_text().splitlines()]
    stay, dropped = kept(records, parts_of(options), code_id(), everyone=not options.contenders)
    if dropped:
        print(f"replaced: {dropped} rounds of these paths that measured other code", file=sys.stderr, flush=True)
    file.write_text("".join(json.dumps(record) + "\n" for record in stay))


def _run(file: Path, options: argparse.Namespace) -> None:
    scale = QUICK if options.quick else FULL
    scale = replace(scale, rounds=options.rounds or scale.rounds)
    contenders, records, parts = available(options.contenders), Records(file), parts_of(options)
    race = Race(contenders, CONTENDERS, scale, records)
    for mode, paths in (("relaxed", RELAXED), ("durable", DURABLE)):
        chosen = {name: run for name, run in paths.items() if (name, mode) in parts}
        if chosen:
            with race.running(durable=mode == "durable"):
                for name, run in chosen.items():
                    race.group, began = name, time.monotonic()
                    run(race)
                    print(f"{name}, {mode}: {time.monotonic() - began:.0f} s", file=sys.stderr, flush=True)
    if (START, "relaxed") in parts:
        race.group = START
        start_and_memory(race, contenders)
    if (GRPC, "relaxed") in parts:
        grpc_fronts(records, scale, options.contenders)
    records.close()


def parts_of(options: argparse.Namespace) -> set[Part]:
    """What a run measures."""
    everything = {(name, "relaxed") for name in GROUPS} | {(name, "durable") for name in DURABLE}
    return {
        (name, mode)
        for name, mode in everything
        if options.mode in ("", mode) and (name in options.paths or (not options.paths and name not in options.without))
    }


def _options(words: list[str]) -> argparse.Namespace:
    def names(text: str) -> list[str]:
        return [each for each in text.split(",") if each]

    def groups(text: str) -> list[str]:
        unknown = sorted(set(names(text)) - set(GROUPS))
        if unknown:
            raise argparse.ArgumentTypeError(f"no paths called {', '.join(unknown)}: choose from {', '.join(GROUPS)}")
        return names(text)

    parser = argparse.ArgumentParser(prog="python -m benchmarks.peers", description="LaneMQ beside other systems")
    parser.add_argument("--rounds", type=int, default=0, help="rounds of each path (default: 3, quick: 1)")
    parser.add_argument("--quick", action="store_true", help="small numbers: minutes instead of an hour, less sure")
    parser.add_argument("--append", action="store_true", help="keep the rounds of other paths, and of the same code")
    parser.add_argument("--publish", action="store_true", help="only write the page again from the rounds")
    parser.add_argument("--mode", choices=("", "relaxed", "durable"), default="", help="only this mode")
    parser.add_argument("--paths", type=groups, default=[], help=f"of {', '.join(GROUPS)}")
    parser.add_argument("--without", type=groups, default=[], help="all paths but these: take-over is the longest")
    parser.add_argument("--contenders", type=names, default=[], help=f"of {', '.join(c.name for c in CONTENDERS)}")
    return parser.parse_args(words)


if __name__ == "__main__":
    main(sys.argv[1:])
