"""One run: a cluster, producers and consumers under load, and what they wrote down."""

import contextlib
import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from interop.cluster.evidence import Verdict, judge, notes_of, stored_messages
from interop.cluster.nodes import Cluster, ClusterPlan, running_cluster
from interop.ports import eventually

TOPIC, GROUP = "orders", "billing"
QUEUES = 4
STOP_SECONDS = 150


class Client:
    """A producer or consumer process, with the file that it writes to."""

    def __init__(self, role: str, name: str, folder: Path, settings: dict[str, Any]) -> None:
        self.name = name
        self.notes = folder / f"{name}.jsonl"
        self.notes.touch()
        text = json.dumps({"name": name, "notes": str(self.notes), **settings})
        with (folder / f"{name}.log").open("ab") as output:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "interop.cluster.roles", role, text], stdout=output, stderr=output
            )

    def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()

    def stop(self) -> None:
        """Asks the process to end; a frozen one continues first."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGCONT)
            self.process.terminate()
            try:
                self.process.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:
                self.process.send_signal(signal.SIGUSR1)
                time.sleep(0.5)
                self.kill()


class Run:
    """Clients of one cluster."""

    def __init__(self, cluster: Cluster, folder: Path) -> None:
        self.cluster = cluster
        self._folder = folder / "clients"
        self._folder.mkdir(exist_ok=True)
        self.producers: list[Client] = []
        self.consumers: list[Client] = []
        self._made = 0

    def create_topic(self, *how: str) -> str:
        """`lanemq topic create`; what it printed."""
        words = ["topic", "create", TOPIC, "--queues", str(QUEUES), *how, "--server", self.cluster.address]
        done = subprocess.run(
            [sys.executable, "-c", "from lanemq.cli.main import main; main()", *words],
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        self.cluster.wait_until_routed(TOPIC)
        return done.stdout

    def producer(self, *, keys: int = 40, ahead: int = 20, rate: float = 400, **options: Any) -> Client:
        """A producer that sends `rate` messages a second, as long as no more than `ahead` of a key are unanswered."""
        self._made += 1
        settings = {"servers": self.cluster.address, "topic": TOPIC, "keys": keys, "ahead": ahead, "rate": rate}
        client = Client("produce", f"p{self._made}", self._folder, {**settings, "options": options})
        self.producers.append(client)
        return client

    def consumer(self, *, work: float = 0.0, **options: Any) -> Client:
        self._made += 1
        settings = {"servers": self.cluster.address, "topic": TOPIC, "group": GROUP, "work": work}
        client = Client("consume", f"c{self._made}", self._folder, {**settings, "options": options})
        self.consumers.append(client)
        return client

    def count(self, clients: list[Client], event: str, since: float = 0.0) -> int:
        return sum(note["e"] == event and note["t"] >= since for note in self.notes(clients))

    def notes(self, clients: list[Client]) -> Iterator[dict[str, Any]]:
        return notes_of(client.notes for client in clients)

    def wait_for(self, event: str, count: int, since: float = 0.0, within: float = 120.0) -> None:
        """Waits until clients have written down so many events since a time of the monotonic clock."""
        clients = self.producers if event == "acked" else self.consumers
        eventually(lambda: self.count(clients, event, since) >= count, within, f"{count} times {event}")

    def finish(self, *, within: float = 180.0, all_processed: bool = True) -> Verdict:
        """Ends the producers, waits until everything stored is processed, ends the consumers, and judges."""
        for producer in self.producers:
            producer.stop()
        stored = stored_messages(self.cluster.address, TOPIC)
        wanted = {(queue, offset) for queue, line in stored.items() for offset in range(len(line))}
        if all_processed:
            with contextlib.suppress(TimeoutError):
                eventually(lambda: wanted <= self._ended(), within, "all messages processed", every=1.0)
        for consumer in self.consumers:
            consumer.stop()
        return self.judge(stored, all_processed=all_processed)

    def judge(self, stored: dict[str, list[tuple[str, int]]] | None = None, *, all_processed: bool) -> Verdict:
        return judge(
            [client.notes for client in self.producers],
            [client.notes for client in self.consumers],
            stored if stored is not None else stored_messages(self.cluster.address, TOPIC),
            all_processed=all_processed,
        )

    def _ended(self) -> set[tuple[str, int]]:
        return {(note["queue"], note["offset"]) for note in self.notes(self.consumers) if note["e"] == "end"}

    def close(self) -> None:
        for client in (*self.producers, *self.consumers):
            if client.process.poll() is None:
                client.kill()


@contextlib.contextmanager
def running(plan: ClusterPlan, folder: Path) -> Iterator[Run]:
    """A cluster with clients for a `with` block."""
    with running_cluster(plan, folder) as cluster:
        run = Run(cluster, folder)
        try:
            yield run
        finally:
            run.close()


def now() -> float:
    return time.monotonic()


def after(seconds: float, act: Callable[[], object]) -> None:
    """Waits, then acts: the time of an outage."""
    time.sleep(seconds)
    act()
