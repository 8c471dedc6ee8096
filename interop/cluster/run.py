"""One run: a cluster, producers and consumers under load, and what they wrote down."""

import contextlib
import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import Any

from interop.cluster.evidence import Note, Stored, Verdict, judge, stored_messages
from interop.cluster.nodes import Cluster, ClusterPlan, running_cluster
from interop.ports import eventually
from lanemq.checker.checking import CheckOptions, check
from lanemq.checker.explain import describe
from lanemq.checker.verdict import Report
from lanemq.checker.verdict import Verdict as CheckVerdict
from lanemq.history import open_history

TOPIC, GROUP = "orders", "billing"
QUEUES = 4
RATE = 200.0
"""Messages a second: enough to see a pause, and little work on a machine that also starts brokers."""
STOP_SECONDS = 150
FORGETS_NS = 600 * 10**9
"""The age of a commit that a fail-over may undo: a replica copies offsets from its master every 10 s, and may be away
for a while before it becomes the master. A broker writes offsets to disk every 5 s, if it is not killed before."""


class Client:
    """A producer or consumer process, with the file that it writes to."""

    def __init__(self, role: str, name: str, folder: Path, settings: dict[str, Any]) -> None:
        self.name = name
        self.notes = folder / f"{name}.jsonl"
        self.notes.touch()
        self._read = 0
        self._seen: list[Note] = []
        self.frozen: list[float] = []
        """When it was frozen."""
        text = json.dumps({"name": name, "notes": str(self.notes), **settings})
        with (folder / f"{name}.log").open("ab") as output:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "interop.cluster.roles", role, text], stdout=output, stderr=output
            )

    def seen(self) -> list[Note]:
        """What the process has written down so far. Reads only what is new since the last call."""
        with self.notes.open("rb") as file:
            file.seek(self._read)
            whole, newline, _ = file.read().rpartition(b"\n")
        self._read += len(whole) + len(newline)
        self._seen += [{**json.loads(line), "who": self.name} for line in whole.splitlines()]
        return self._seen

    def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()

    def freeze(self) -> None:
        self.process.send_signal(signal.SIGSTOP)
        self.frozen.append(time.monotonic())

    def thaw(self) -> None:
        self.process.send_signal(signal.SIGCONT)

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
        self.history = folder / "history"
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
        self.cluster.wait_until_replicated(TOPIC)
        return done.stdout

    def producer(self, *, keys: int = 40, ahead: int = 20, rate: float = RATE, **options: Any) -> Client:
        """A producer that sends `rate` messages a second, as long as no more than `ahead` of a key are unanswered."""
        self._made += 1
        settings = {"servers": self.cluster.address, "topic": TOPIC, "keys": keys, "ahead": ahead, "rate": rate}
        client = Client("produce", f"p{self._made}", self._folder, {**settings, "options": self._recorded(options)})
        self.producers.append(client)
        return client

    def consumer(self, *, work: float = 0.0, **options: Any) -> Client:
        """A member, which has the name of its process in the group too."""
        self._made += 1
        name = f"c{self._made}"
        settings = {"servers": self.cluster.address, "topic": TOPIC, "group": GROUP, "work": work}
        recorded = self._recorded({"client_id": name, **options})
        client = Client("consume", name, self._folder, {**settings, "options": recorded})
        self.consumers.append(client)
        return client

    def _recorded(self, options: dict[str, Any]) -> dict[str, Any]:
        return {"history": str(self.history), **options}

    def count(self, clients: list[Client], event: str, since: float = 0.0) -> int:
        return sum(note["e"] == event and note["t"] >= since for note in self.notes(clients))

    def notes(self, clients: list[Client]) -> Iterator[Note]:
        return chain.from_iterable(client.seen() for client in clients)

    def wait_for(self, event: str, count: int, since: float = 0.0, within: float = 120.0) -> None:
        """Waits until clients have written down so many events since a time of the monotonic clock."""
        clients = self.producers if event == "acked" else self.consumers
        eventually(lambda: self.count(clients, event, since) >= count, within, f"{count} times {event}")

    def finish(self, *, within: float = 180.0, all_processed: bool = True) -> Verdict:
        """Ends the producers, waits until everything stored is processed, ends the consumers, and judges."""
        for producer in self.producers:
            producer.stop()
        harness = open_history(self.history, "harness", time.monotonic_ns)
        stored = stored_messages(self.cluster.address, TOPIC, harness)
        harness.close()
        wanted = {message for line in stored.values() for message in line}  # a repeat is left out
        if all_processed:
            with contextlib.suppress(TimeoutError):
                eventually(lambda: wanted <= self._ended(), within, "all messages processed", every=1.0)
        for consumer in self.consumers:
            consumer.stop()
        return self.judge(stored, all_processed=all_processed)

    def judge(self, stored: Stored | None = None, *, all_processed: bool) -> Verdict:
        return judge(
            [client.notes for client in self.producers],
            [client.notes for client in self.consumers],
            stored if stored is not None else stored_messages(self.cluster.address, TOPIC),
            {client.name: client.frozen for client in self.consumers},
            all_processed=all_processed,
        )

    def check(self, **options: Any) -> Report:
        """The checker's verdict over the histories of all clients, after `finish`.

        An Apache broker stores a message again when its answer was lost, and has no history of its own. A coordinator
        has one.
        """
        return check([self.history], CheckOptions(drained=True, idempotent=False, **options))

    def finish_clean(self, **options: Any) -> None:
        """Asks both judges: the notes that the clients took, compared with the log, and the checker over the histories.

        `options` are those of the checker."""
        verdict = self.finish()
        print(verdict, flush=True)
        report = self.check(**options)
        print(describe(report), flush=True)
        assert verdict.is_clean, {
            name: found[:5] for name, found in vars(verdict).items() if isinstance(found, list) and found
        }
        assert report.verdict is CheckVerdict.PASS, describe(report)

    def _ended(self) -> set[tuple[str, int]]:
        return {(note["key"], note["n"]) for note in self.notes(self.consumers) if note["e"] == "end"}

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
