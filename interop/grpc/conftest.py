"""`pytest interop/grpc`: a broker, a front, and the official gRPC clients. The checker judges every history."""

import contextlib
import itertools
from collections.abc import Iterator
from pathlib import Path

import pytest

from interop.grpc.programs import CLIENTS, ONLY_SIMPLE, WITHOUT_TLS, ClientRun, FrontRun
from interop.maven import UnavailableError
from interop.ports import eventually
from lanemq.broker.config import BrokerOptions
from lanemq.checker.checking import check
from lanemq.checker.verdict import Verdict
from lanemq.client.admin.admin import Admin
from lanemq.net.address import Address
from lanemq.testing.embedded import EmbeddedBroker

_NUMBERS = itertools.count(1)


class Scene:
    """What a case works with."""

    def __init__(self, broker: EmbeddedBroker, folder: Path, language: str, command: list[str]) -> None:
        self.broker, self.folder = broker, folder
        self.server = broker.address
        self.admin = Admin(self.server)
        self.history = folder / "history"
        self.topic, self.group = f"orders{next(_NUMBERS)}", f"g{next(_NUMBERS)}"
        self._command = command
        self.consuming = "simple" if language in ONLY_SIMPLE else "push"
        """The role of a consumer, where a case does not depend on it."""
        self.has_tls = language not in WITHOUT_TLS
        self.environment: dict[str, str] = {}
        """For clients, in addition."""
        self._open: list[ClientRun | FrontRun] = []
        self.admin.create_topic(self.topic, 4, ordered=True)
        self.front = self.new_front().start()

    def new_front(self, *options: str) -> FrontRun:
        front = FrontRun(self.server, self.folder, "--retries", "3", "--history", str(self.history), *options)
        self._open.append(front)
        return front

    def client(self, role: str, command: list[str] | None = None, **options: object) -> ClientRun:
        if role == "push" and command is None and self.consuming != "push":
            pytest.skip("the package has no push consumer")
        log = self.folder / f"{role}-{next(_NUMBERS)}.log"
        given = {"server": self.front.address, "topic": self.topic, **options}
        if role != "send":
            given.setdefault("group", self.group)
        run = ClientRun(command or self._command, role, log, self.environment, **given)
        self._open.append(run)
        return run.ready()

    def all_done(self, count: int, seconds: float = 40) -> None:
        """Waits until the group has finished so many messages of the topic, as the broker sees it."""

        def finished() -> bool:
            progress = self.admin.describe_group(self.group)
            return sum(queue.lag or 0 for queue in progress.queues if queue.queue.topic == self.topic) == 0

        eventually(finished, seconds, f"all {count} messages finished")

    def verdict(self) -> None:
        """Stops everything, and asks the checker."""
        for each in reversed(self._open):
            each.stop()
        report = check([self.history])
        assert report.verdict is Verdict.PASS, (report.violations, report.reasons)
        assert report.coverage.get("turns", 0) > 0, report.coverage

    def close(self) -> None:
        for each in self._open:
            each.close()
        self.admin.close()


def command_of(language: str) -> list[str]:
    try:
        return CLIENTS[language]()
    except UnavailableError as reason:
        pytest.skip(str(reason))


@pytest.fixture(scope="session", params=sorted(CLIENTS))
def language(request: pytest.FixtureRequest) -> str:
    found: str = request.param
    return found


@pytest.fixture(scope="session")
def command(language: str) -> list[str]:
    return command_of(language)


@pytest.fixture
def scene(language: str, command: list[str], tmp_path: Path) -> Iterator[Scene]:
    with staged(tmp_path, language, command) as made:
        yield made


@contextlib.contextmanager
def staged(folder: Path, language: str, command: list[str]) -> Iterator[Scene]:
    """A broker and a front, in a folder."""
    options = BrokerOptions(folder / "data", listen=Address("127.0.0.1", 0), history=folder / "history")
    with EmbeddedBroker(options) as broker:
        made = Scene(broker, folder, language, command)
        yield made
        made.close()
