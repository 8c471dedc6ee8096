"""Starts members of a group as processes of their own, quickly: it has imported everything and forks.

A line of JSON on standard input starts a member, and its process id is printed. The members end by signals only, or
with this process.
"""

import ctypes
import json
import os
import random
import signal
import sqlite3
import sys
import threading
import time
from typing import Any

import psycopg

from lanemq import App, Backoff, HoldKey, LeaseTimes, Message
from lanemq.effects import AlreadyApplied, once
from lanemq.errors import LeaseLost

SHORT_LEASES = LeaseTimes(
    renew_every=0.3, client_lease=1.0, broker_lease=1.5, keep_alive_timeout=0.5, keep_alive_every=0.15
)
NEVER_PARKED = HoldKey(retries=1_000_000, backoff=Backoff(0.05, 1.0, 0.05))
ROW = "INSERT INTO {} (key, number, queue, owner) VALUES ({})"


def main() -> None:
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    for line in sys.stdin:
        pid = os.fork()
        if pid == 0:
            end_with_the_parent()
            member(**json.loads(line))
        print(pid, flush=True)


def end_with_the_parent() -> None:
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)


def member(
    address: str, topic: str, name: str, database: str, notes: str, commit_every: float, short_leases: bool
) -> None:
    """Writes each message twice: plainly, and with `once`. The group is named after its topic."""
    local = threading.local()
    written = os.open(notes, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def connection(kind: str, **options: Any) -> Any:
        found = getattr(local, kind, None)
        if found is None or getattr(found, "closed", False):
            found = connect(database, **options)
            setattr(local, kind, found)
        return found

    marks = ", ".join(["?"] * 4 if database.endswith(".db") else ["%s"] * 4)
    leases = SHORT_LEASES if short_leases else None
    app = App(address, group=topic, client_id=name, lease_times=leases, commit_every=commit_every)

    @app.ordered(topic, lanes=2, on_fail=NEVER_PARKED)
    def handle(message: Message) -> None:
        row = (message.key, message.value(), message.queue.queue_id, name)
        connection("plain", autocommit=True).execute(ROW.format("plain", marks), row)
        time.sleep(random.uniform(0, 0.02))
        try:
            with once(message, connection("own")) as own:
                own.execute(ROW.format("effects", marks), row)
                time.sleep(random.uniform(0, 0.005))
        except AlreadyApplied:
            os.write(written, b"R")
            raise
        except LeaseLost:
            os.write(written, b"L")
            raise

    app.run()


def connect(database: str, autocommit: bool = False) -> Any:
    if database.endswith(".db"):
        return sqlite3.connect(database, timeout=5, isolation_level=None if autocommit else "")
    return psycopg.connect(database, autocommit=autocommit)


if __name__ == "__main__":
    main()
