"""Runs one role of one contender's client: `python -m benchmarks.peers.clients confluent do=send …`."""

import sys
from importlib import import_module

from benchmarks.peers.clients.job import Job
from benchmarks.peers.clients.roles import run

if __name__ == "__main__":
    run(import_module(f"benchmarks.peers.clients.{sys.argv[1]}"), Job(sys.argv[2:]))
