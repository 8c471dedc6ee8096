"""One group under load whose members are killed and frozen again and again, on one database.

A trial is one kill -9, or one SIGSTOP that lasts until the frozen member's queues have another owner. Everything waits
for what the database shows; pauses are only random moments to strike.
"""

import json
import os
import random
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.effects.member_host import SHORT_LEASES, connect

from lanemq import Admin, Producer
from lanemq.core.consuming.queue_lease import LANE_TIMES
from lanemq.model.units import to_seconds

KEYS = [f"key-{number}" for number in range(8)]
QUEUES = 2
SEND_EVERY = 0.02
FEW = 4
PATIENCE = 120.0
"""Seconds. Only a run that fails waits this long; a busy machine may need much of it."""


class MemberHost:
    """The process that forks members."""

    def __init__(self, log: Path) -> None:
        with log.open("wb") as errors:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.effects.member_host"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
            )
        self._mutex = threading.Lock()

    def start(self, **member: str | float) -> int:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with self._mutex:
            self._process.stdin.write(json.dumps(member) + "\n")
            self._process.stdin.flush()
            return int(self._process.stdout.readline())

    def close(self) -> None:
        """Ends the members, too: they are killed with their parent."""
        self._process.kill()
        self._process.communicate()


@dataclass
class Outcome:
    """What one arena found."""

    database: str
    kills: int = 0
    freezes: int = 0
    sent: int = 0
    wrong: list[str] = field(default_factory=list)
    """Keys whose effects are not each number once, in order."""
    plain_repeats: int = 0
    """Rows too many in the table that was written plainly."""
    repeats_skipped: int = 0
    stale_refused: int = 0


class Arena:
    """A topic, a database and two members; `run` strikes them and then counts."""

    def __init__(
        self,
        name: str,
        host: MemberHost,
        address: str,
        database: str,
        folder: Path,
        *,
        seed: int,
        short_leases: bool,
    ) -> None:
        self._name = name
        self._host = host
        self._address = address
        self._database = database
        self._notes = folder / f"{name}.notes"
        self._random = random.Random(seed)
        self._short_leases = short_leases
        self._members: dict[str, int] = {}
        self._started = 0
        self._commit_every = 1.0
        self._sent = 0
        self._ended = threading.Event()
        self._connection: Any = None
        self.outcome = Outcome("sqlite" if database.endswith(".db") else "postgresql")

    def run(self, trials: int) -> None:
        # In a short run nothing is committed, so that even one kill repeats something.
        self._commit_every = 1.0 if trials > FEW else 3600.0
        self._create()
        sending = threading.Thread(target=self._send)
        sending.start()
        try:
            self._start()
            newest = self._start()
            for number in range(trials):
                time.sleep(self._random.uniform(0, 0.3))
                if number == 0:
                    self._kill(newest)
                elif number % 2:
                    self._freeze(self._random.choice(sorted(self._members)))
                else:
                    self._kill(self._random.choice(sorted(self._members)))
        finally:
            self._ended.set()
            sending.join()
        self._until("everything is applied", lambda: self._count("SELECT count(*) FROM effects") >= self._sent)
        for pid in self._members.values():
            os.kill(pid, signal.SIGKILL)
        self._judge()
        self._connection.close()

    def _create(self) -> None:
        with Admin(self._address) as admin:
            admin.create_topic(self._name, queues=QUEUES, ordered=True)
        number = "INTEGER PRIMARY KEY" if self.outcome.database == "sqlite" else "BIGSERIAL PRIMARY KEY"
        self._connection = connect(self._database, autocommit=True)
        if self.outcome.database == "sqlite":
            self._connection.execute("PRAGMA journal_mode = WAL")
        for table in ("effects", "plain"):
            self._connection.execute(f"CREATE TABLE {table} (id {number}, key TEXT, number INT, queue INT, owner TEXT)")

    def _send(self) -> None:
        with Producer(self._address) as producer:
            while not self._ended.wait(SEND_EVERY):
                producer.send(self._name, self._sent // len(KEYS), key=KEYS[self._sent % len(KEYS)])
                self._sent += 1

    # striking

    def _start(self) -> str:
        self._started += 1
        name = f"{self._name}-{self._started}"
        self._members[name] = self._host.start(
            address=self._address,
            topic=self._name,
            name=name,
            database=self._database,
            notes=str(self._notes),
            commit_every=self._commit_every,
            short_leases=self._short_leases,
        )
        self._until(f"{name} has an effect", lambda: self._effects_of(name))
        return name

    def _kill(self, name: str) -> None:
        os.kill(self._members.pop(name), signal.SIGKILL)
        self.outcome.kills += 1
        self._start()

    def _freeze(self, name: str) -> None:
        """Until each queue has an effect of another member. A member that is frozen inside a transaction of SQLite
        keeps the file, and none can follow; it sleeps until its lease is over for certain."""
        pid = self._members[name]
        os.kill(pid, signal.SIGSTOP)
        self._until("it stands still", lambda: _state(pid) == "T")
        before = self._count("SELECT coalesce(max(id), 0) FROM effects")
        frozen = time.monotonic()
        limit = 2 * to_seconds((SHORT_LEASES if self._short_leases else LANE_TIMES).broker_lease)
        others = f"SELECT count(DISTINCT queue) FROM effects WHERE id > {before} AND owner <> '{name}'"
        self._until(
            "others own its queues",
            lambda: self._count(others) == QUEUES or (self._locked() and time.monotonic() - frozen > limit),
        )
        os.kill(pid, signal.SIGCONT)
        self.outcome.freezes += 1
        thawed = self._count("SELECT coalesce(max(id), 0) FROM effects")
        self._until("it works again", lambda: self._effects_of(name, thawed))

    def _locked(self) -> bool:
        if self.outcome.database != "sqlite":
            return False
        try:
            self._connection.execute("PRAGMA busy_timeout = 0")
            self._connection.execute("BEGIN IMMEDIATE")
            self._connection.execute("ROLLBACK")
        except sqlite3.OperationalError:
            return True
        return False

    # looking

    def _effects_of(self, name: str, after: int = 0) -> int:
        return self._count(f"SELECT count(*) FROM effects WHERE owner = '{name}' AND id > {after}")

    def _count(self, query: str) -> int:
        return int(self._connection.execute(query).fetchone()[0])

    def _until(self, what: str, true: Callable[[], object]) -> None:
        end = time.monotonic() + PATIENCE
        while not true():
            if time.monotonic() > end:
                raise AssertionError(f"{self._name}: waited {PATIENCE:.0f} s until {what}; {self.outcome}")
            time.sleep(0.02)

    def _judge(self) -> None:
        outcome = self.outcome
        outcome.sent = self._sent
        for at, key in enumerate(KEYS):
            rows = self._connection.execute(f"SELECT number FROM effects WHERE key = '{key}' ORDER BY id").fetchall()
            expected = [*range(len(range(at, self._sent, len(KEYS))))]
            if [number for (number,) in rows] != expected:
                outcome.wrong.append(f"{self._name} {key}")
        outcome.plain_repeats = self._count("SELECT count(*) FROM plain") - self._sent
        notes = self._notes.read_bytes() if self._notes.exists() else b""
        outcome.repeats_skipped, outcome.stale_refused = notes.count(b"R"), notes.count(b"L")


def _state(pid: int) -> str:
    """The state of a process as Linux names it: T is stopped."""
    return Path(f"/proc/{pid}/stat").read_text("utf-8").rpartition(")")[2].split()[0]
