"""The monitor of `lanemq run --workers N`: one address for all workers.

A worker whose app has `monitor=` opens its own monitor on a free port of this machine and writes two lines into a file:
where that is, and what the app asked for. The process that watches the workers opens the asked one and answers from all
of them. Every series gets the label `worker`, the number of the worker: a counter that begins again with a new process
is then a series of its own, as Prometheus expects it.
"""

import http.client
import json
import tempfile
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final, NamedTuple

from lanemq.cli.listening import cannot_listen
from lanemq.model.environment import WORKER_MONITOR
from lanemq.net.address import Address, parse_address
from lanemq.net.serving.monitor import RelayMonitor

SECONDS: Final = 2.0
"""How long a worker may take to answer; Prometheus waits ten."""
AT_ONCE: Final = 8


class WorkerAnswer(NamedTuple):
    """What a worker's monitor said; status 0 if it said nothing."""

    worker: int
    status: int
    body: bytes


class WorkerMonitors:
    """Where the monitors of all workers are, and the one that answers for them."""

    def __init__(self, count: int) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="lanemq-workers-")
        self._count = count
        self._monitor: RelayMonitor | None = None

    def environment(self, worker: int) -> dict[str, str]:
        return {WORKER_MONITOR: str(self._file(worker))}

    def ended(self, worker: int) -> None:
        self._file(worker).unlink(missing_ok=True)

    def look(self) -> Address | None:
        """Opens the monitor as soon as a worker has said its address; returns the address once, when it opens.

        Raises:
            CliError: it cannot listen there.
        """
        if self._monitor is not None:
            return None
        asked = next((lines[1] for each in range(self._count) if (lines := self._lines(each))), None)
        if asked is None:
            return None
        try:
            self._monitor = RelayMonitor(parse_address(asked), self)
        except OSError as error:
            raise cannot_listen(parse_address(asked), error, "monitor=") from error
        return self._monitor.address

    def close(self) -> None:
        if self._monitor is not None:
            self._monitor.close()
        self._folder.cleanup()

    # what the monitor asks

    def live_problem(self) -> str | None:
        return next(iter(self._problems("/live")), None)

    def ready_problems(self) -> list[str]:
        missing = [f"worker {each} is not running" for each in range(self._count) if not self._lines(each)]
        return [*missing, *self._problems("/ready")]

    def families(self) -> list[Any]:
        """The metrics of all workers, each family once."""
        from prometheus_client.parser import text_string_to_metric_families

        families: dict[str, Any] = {}
        for answer in self._ask("/metrics"):
            for family in text_string_to_metric_families(answer.body.decode("utf-8", "replace")):
                merged = families.setdefault(family.name, family)
                labelled = [
                    each._replace(labels={**each.labels, "worker": str(answer.worker)}) for each in family.samples
                ]
                merged.samples = labelled if merged is family else [*merged.samples, *labelled]
        return list(families.values())

    def _problems(self, path: str) -> list[str]:
        found = []
        for worker, status, body in self._ask(path):
            if not status:
                found.append(f"worker {worker} does not answer")
            elif status != http.client.OK:
                found += [f"worker {worker}: {reason}" for reason in json.loads(body)["reasons"]]
        return found

    def _ask(self, path: str) -> Iterable[WorkerAnswer]:
        known = [(each, parse_address(lines[0])) for each in range(self._count) if (lines := self._lines(each))]
        with ThreadPoolExecutor(AT_ONCE) as threads:
            return list(threads.map(lambda one: _asked(one[0], one[1], path), known))

    def _file(self, worker: int) -> Path:
        return Path(self._folder.name, str(worker))

    def _lines(self, worker: int) -> list[str]:
        try:
            return self._file(worker).read_text("utf-8").splitlines()
        except OSError:
            return []


def _asked(worker: int, address: Address, path: str) -> WorkerAnswer:
    connection = http.client.HTTPConnection(address.host, address.port, timeout=SECONDS)
    try:
        connection.request("GET", path)
        answer = connection.getresponse()
        return WorkerAnswer(worker, answer.status, answer.read())
    except (OSError, http.client.HTTPException):
        return WorkerAnswer(worker, 0, b"")
    finally:
        connection.close()
