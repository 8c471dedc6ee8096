"""Fuzzes the decoders and the log reader for a given time: `python -m tests.fuzz --seconds 600 --seed 1`.

Prints one JSON line with the number of inputs of each target, or the input that broke one; then it ends with 1.
"""

import argparse
import json
import shutil
import sys
import time

from tests.fuzz.guarded import Attack, Failure, limits
from tests.fuzz.targets import DECODERS, log_reader
from tests.log.conftest import memory_folder

STEP = 50
"""Inputs before the next target's turn; the log reader, which is slow, gets one."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=600.0)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    folder = memory_folder()
    try:
        decoders = [Attack(name, each, options.seed) for name, each in DECODERS.items()]
        log = Attack("log reader", log_reader(folder), options.seed)
        return fuzz(options.seconds, options.seed, decoders, log)
    finally:
        shutil.rmtree(folder)


def fuzz(seconds: float, seed: int, decoders: list[Attack], log: Attack) -> int:
    end = time.monotonic() + seconds
    try:
        with limits():
            while time.monotonic() < end:
                for attack in decoders:
                    attack.run(STEP)
                log.run(1)
    except Failure as failure:
        print(failure, file=sys.stderr)
        return 1
    counts = {each.name: each.cases for each in (*decoders, log)}
    refused = {each.name: each.refused for each in (*decoders, log)}
    print(json.dumps({"seed": seed, "inputs": sum(counts.values()), "by target": counts, "refused": refused}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
