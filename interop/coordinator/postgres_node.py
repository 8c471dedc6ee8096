"""A PostgreSQL with a replica that can be paused, restarted, replaced by its replica, and restored from a backup."""

import contextlib
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import psycopg
from tests import postgres_server

from interop.coordinator.relay import Relay

PORT = 5432
"""Names the socket files only; nothing listens on it."""


class PostgresNode:
    """One server at a time behind a relay, so that its address stays the same."""

    def __init__(self, folder: Path) -> None:
        programs = postgres_server.programs()
        assert programs is not None
        self._programs = programs
        self._folder = folder
        self._count = 0
        self.data = self._new_folder()
        self._run("initdb", "-D", str(self.data / "data"), "-U", "lanemq", "-A", "trust", "-E", "UTF8", "--no-sync")
        self.start()
        self.relays: list[Relay] = []

    def _new_folder(self) -> Path:
        self._count += 1
        path = self._folder / f"pg{self._count}"
        path.mkdir()
        self._own(path)
        return path

    def _own(self, path: Path) -> None:
        other = postgres_server._other_user() if os.geteuid() == 0 else None
        if other is not None:
            os.chown(path, other.pw_uid, other.pw_gid)

    # the server

    def start(self) -> None:
        settings = ("listen_addresses=", "fsync=off", "shared_buffers=32MB", "max_connections=60", "wal_level=replica")
        options = f"-k {self.data} {' '.join(f'-c {each}' for each in settings)}"
        self._run("pg_ctl", "-D", str(self.data / "data"), "-w", "-l", str(self.data / "log"), "-o", options, "start")

    def stop(self, how: str = "immediate") -> None:
        self._run("pg_ctl", "-D", str(self.data / "data"), "-m", how, "stop")

    def restart(self) -> None:
        self.stop("fast")
        self.start()

    def pause(self, seconds: float) -> None:
        """Freeze every process of the server."""
        processes = self._processes()
        for each in processes:
            os.kill(each, signal.SIGSTOP)
        time.sleep(seconds)  # the fault itself
        for each in processes:
            with contextlib.suppress(ProcessLookupError):
                os.kill(each, signal.SIGCONT)

    def _processes(self) -> list[int]:
        first = int((self.data / "data" / "postmaster.pid").read_text().split()[0])
        own = subprocess.run(["ps", "-o", "pid=", "--ppid", str(first)], capture_output=True, text=True, check=False)
        return [first, *map(int, own.stdout.split())]

    # copies

    def copied(self) -> Path:
        """A copy of the server as it is now: a replica that gets nothing more, or a backup."""
        copy = self._new_folder()
        dsn = f"host={self.data} user=lanemq"
        self._run("pg_basebackup", "-d", dsn, "-D", str(copy / "data"), "-c", "fast", "--no-sync")
        return copy

    def replace_by(self, copy: Path, *, promote: bool) -> None:
        """End the server for good; the copy takes its place. `promote`: on a timeline of its own, as replicas do."""
        self.stop()
        old, self.data = self.data, copy
        if promote:
            signal_file = copy / "data" / "standby.signal"
            signal_file.touch()
            self._own(signal_file)
        self.start()
        if promote:
            self._run("pg_ctl", "-D", str(self.data / "data"), "-w", "promote")
        for relay in self.relays:
            relay.target = self.socket
            relay.mend()
        shutil.rmtree(old, ignore_errors=True)

    @property
    def socket(self) -> str:
        return str(self.data / f".s.PGSQL.{PORT}")

    def relay(self) -> Relay:
        """A way to the server that can be cut."""
        self.relays.append(Relay(("127.0.0.1", 0), self.socket))
        return self.relays[-1]

    def ask(self, query: str) -> object:
        with psycopg.connect(f"host={self.data} dbname=postgres user=lanemq", autocommit=True) as db:
            row = db.execute(query).fetchone()
        return None if row is None else row[0]

    def _run(self, program: str, *arguments: str) -> None:
        other = postgres_server._other_user() if os.geteuid() == 0 else None
        whom = {} if other is None else {"user": other.pw_uid, "group": other.pw_gid, "extra_groups": []}
        with (self._folder / "programs.log").open("ab") as output:
            subprocess.run(  # type: ignore[call-overload]
                [str(self._programs / program), *arguments],
                check=True, cwd="/", stdin=subprocess.DEVNULL, stdout=output, stderr=output, timeout=120, **whom,
            )  # fmt: skip


def state_address(relay: Relay) -> str:
    return f"postgresql://lanemq@127.0.0.1:{relay.port}/postgres"


@contextlib.contextmanager
def running_postgres() -> Iterator[PostgresNode]:
    folder = Path(tempfile.mkdtemp(prefix="lanemq-pg-"))
    folder.chmod(0o755)
    node = PostgresNode(folder)
    try:
        yield node
    finally:
        for relay in node.relays:
            relay.close()
        with contextlib.suppress(subprocess.SubprocessError):
            node.stop()
        shutil.rmtree(folder, ignore_errors=True)
