"""What a reader of old messages costs the others: end-to-end latency at 1,000/s while another group reads a topic whose
files are not in the page cache.

One reader follows the other, each with a new group, and the cache is emptied of the server's files before each.
"""

import contextlib
import os
import threading
from collections.abc import Iterator
from pathlib import Path

from benchmarks.peers.paths.latency import measured
from benchmarks.peers.processes import ClientFailed
from benchmarks.peers.race import Entrant, Race

RATE, SIZE, OLD_SIZE = 1_000, 100, 1_000
PATH = "cold reader"


def cold_reader(race: Race) -> None:
    who = [each for each in race.entrants if each.contender.paces and each.contender.reads]
    old: dict[str, str] = {}
    for each in who:
        with race.attempt(each, PATH, bytes=SIZE):
            topic = each.topic()
            each.fill(topic, race.scale.cold, OLD_SIZE)
            old[each.name] = topic
    for number, each in race.turns([each for each in who if each.name in old]):
        with race.attempt(each, PATH, bytes=SIZE, round=number), _reading(race, each, old[each.name], number):
            measured(race, each, PATH, RATE, SIZE, number)


@contextlib.contextmanager
def _reading(race: Race, each: Entrant, topic: str, number: int) -> Iterator[None]:
    over, failures = threading.Event(), list[ClientFailed]()

    def read() -> None:
        group = 0
        while not over.is_set():
            _forget_cached(each.server.folder)
            try:
                each.read(topic, race.scale.cold, f"cold-{number}-{group}")
            except ClientFailed as failure:
                failures.append(failure)
                return
            group += 1

    thread = threading.Thread(target=read)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
    if failures:
        raise failures[0]


def _forget_cached(folder: Path) -> None:
    """Takes the files of a server out of the page cache."""
    os.sync()
    for path in folder.rglob("*"):
        with contextlib.suppress(OSError):
            file = os.open(path, os.O_RDONLY)
            try:
                os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
            finally:
                os.close(file)
