"""The monitor's HTTP server against clients that misbehave."""

import errno
import select
import socket
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from socketserver import TCPServer

import pytest
from tests.chaos.members import until

from lanemq.clock import SystemClock
from lanemq.model.errors import LaneError
from lanemq.model.figures import Distribution, Kind, Metric, MetricSample, labels_of
from lanemq.net.address import Address
from lanemq.net.serving import monitor
from lanemq.net.serving.monitor import Monitor

TEMPERATURE = Metric("lanemq_temperature", Kind.GAUGE, "Of something.", ("place",))


class Program:
    def live_problem(self) -> str | None:
        return None

    def ready_problems(self) -> list[str]:
        return ["it is too early"]

    def samples(self) -> list[MetricSample]:
        return [MetricSample(TEMPERATURE, 21.5, ('a "quoted" \\ place\n',))]


@pytest.fixture
def running() -> Iterator[Monitor]:
    served = Monitor(Address("127.0.0.1", 0), Program())
    yield served
    served.close()


def status_of(running: Monitor, path: str, method: str = "GET") -> int:
    request = urllib.request.Request(f"http://{running.address}{path}", method=method)
    try:
        with urllib.request.urlopen(request, timeout=60) as reply:
            return int(reply.status)
    except urllib.error.HTTPError as refused:
        return refused.code


def test_paths_and_methods(running: Monitor) -> None:
    assert [status_of(running, path) for path in ("/live", "/ready", "/metrics", "/", "/metrics/x")] == [
        200, 503, 200, 404, 404,
    ]  # fmt: skip
    assert status_of(running, "/metrics", "POST") == 405
    assert status_of(running, "/live", "HEAD") == 200


class Crowded(Program):
    """A program with as many samples as a broker with hundreds of groups."""

    def samples(self) -> list[MetricSample]:
        return [MetricSample(TEMPERATURE, number, (f"place {number}",)) for number in range(300)]


@pytest.mark.parametrize(("work_ns", "least", "most"), [(0, 900, 900), (10**12, 0, 0)], ids=["paced", "control"])
def test_the_text_of_many_samples_is_written_with_pauses_for_the_event_loop(
    monkeypatch: pytest.MonkeyPatch, work_ns: int, least: int, most: int
) -> None:
    """In each of three passes: sorting the samples, making families, writing lines."""
    monkeypatch.setattr(monitor, "WORK_NS", work_ns)
    pauses: list[float] = []
    monkeypatch.setattr(monitor, "_pause", pauses.append)
    served = Monitor(Address("127.0.0.1", 0), Crowded())
    try:
        with urllib.request.urlopen(f"http://{served.address}/metrics", timeout=60) as reply:
            text = reply.read().decode()
    finally:
        served.close()
    assert text.count("lanemq_temperature{") == 300
    assert least <= len(pauses) <= most


def test_silent_connections_take_few_threads_and_only_for_a_while(
    running: Monitor, monkeypatch: pytest.MonkeyPatch
) -> None:
    silent = [socket.create_connection(running.address) for _ in range(monitor.MAX_REQUESTS)]
    refused = socket.create_connection(running.address, timeout=60)
    assert refused.recv(1) == b"", "no place is left"
    for each in (*silent, refused):
        each.close()

    def answered() -> bool:
        try:
            return status_of(running, "/live") == 200
        except OSError:
            return False

    until("a place is free again", answered)


def test_a_silent_connection_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(monitor._RequestHandler, "timeout", 0.05)
    served = Monitor(Address("127.0.0.1", 0), Program())
    with socket.create_connection(served.address, timeout=60) as silent:
        assert silent.recv(1) == b""
    served.close()


def drip(address: Address, done: threading.Event) -> bool:
    """Send a request byte by byte, each within the limit of one read; returns whether it was closed."""
    with socket.create_connection(address, timeout=60) as slow:
        slow.sendall(b"GET /live HTTP/1.0\r\nX: ")
        while not done.wait(0.02):
            try:
                slow.sendall(b"a")
                if select.select([slow], [], [], 0)[0] and slow.recv(1) == b"":
                    return True
            except OSError:
                return True
    return False


def test_a_request_has_one_deadline_for_all_of_its_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    """And the control: with a limit for each read alone, slow clients keep their places."""
    monkeypatch.setattr(monitor._RequestHandler, "timeout", 0.2)
    served = Monitor(Address("127.0.0.1", 0), Program())
    never = threading.Event()
    assert drip(served.address, never), "closed at its deadline"
    served.close()
    monkeypatch.setattr(monitor._RequestHandler, "timeout", 60.0)
    monkeypatch.setattr(monitor._Server, "service_actions", lambda self: None)
    served = Monitor(Address("127.0.0.1", 0), Program())
    done = threading.Event()
    threading.Timer(0.5, done.set).start()
    assert not drip(served.address, done)
    served.close()


def test_an_answer_may_take_longer_than_the_request(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(monitor._RequestHandler, "timeout", 0.3)
    passed, checked = threading.Event(), monitor._Server.service_actions

    def checking(self: monitor._Server) -> None:
        checked(self)
        if self._clock.now() > began + 500:
            passed.set()

    def slowly(self: Program) -> list[str]:
        assert passed.wait(60)
        return []

    monkeypatch.setattr(monitor._Server, "service_actions", checking)
    monkeypatch.setattr(Program, "ready_problems", slowly)
    began = SystemClock().now()
    served = Monitor(Address("127.0.0.1", 0), Program())
    assert status_of(served, "/ready") == 200
    served.close()


def test_figures_that_cannot_be_read_are_a_503(monkeypatch: pytest.MonkeyPatch, running: Monitor) -> None:
    def failing(self: Program) -> list[MetricSample]:
        raise LaneError("not now")

    monkeypatch.setattr(Program, "samples", failing)
    assert status_of(running, "/metrics") == 503


def test_labels_survive_their_title() -> None:
    (sample,) = Program().samples()
    assert labels_of(sample.title) == {"place": 'a "quoted" \\ place\n'}


def test_a_distribution_counts_each_value_once() -> None:
    times = Distribution((1.0, 2.0))
    for value in (0.5, 1.0, 1.5, 99.0):
        times.add(value)
    assert times.cumulated() == [(1.0, 2), (2.0, 3), (float("inf"), 4)]
    assert (times.count, times.sum) == (4, 102.0)
    assert (times.quantile(0.5), times.quantile(0.99)) == (1.0, float("inf"))
    assert Distribution().quantile(0.5) is None


def test_without_descriptors_the_monitor_waits_before_it_tries_again(
    running: Monitor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The connection stays in the backlog, so that its socket is ready all the time."""
    tried: list[float] = []

    def used_up(_: TCPServer) -> None:
        tried.append(time.monotonic())
        raise OSError(errno.EMFILE, "Too many open files")

    with monkeypatch.context() as patched:
        patched.setattr(TCPServer, "get_request", used_up)
        with socket.create_connection(running.address):
            until("it tries again", lambda: len(tried) > 1)
    assert tried[1] - tried[0] >= monitor.STOP_CHECK_SECONDS
    assert status_of(running, "/live") == 200
