"""The monitor: a small HTTP server for health checks and metrics, on threads of its own.

    GET /live      200 while the process works; else 503: restart it
    GET /ready     200 while it can do its work; else 503 with the reasons
    GET /metrics   all figures, in the format of Prometheus

It runs beside the program's event loop and asks it for nothing but the figures, so `/live` is also answered when the
loop hangs. The server is the standard library's (`wsgiref`), the format comes from `prometheus-client`, which is
imported with the first request for metrics.

The threads of a process share one interpreter lock. A thread that only computes keeps it for 5 ms whenever another one
wants it, so writing the text of ten thousand groups, which takes half a second, would delay every request of that time.
So it pauses after each piece of `WORK_NS`.
"""

import contextlib
import json
import logging
import socket
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from socketserver import TCPServer, ThreadingMixIn
from typing import Any, Protocol, TypeVar, cast
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

from lanemq.clock import SystemClock
from lanemq.model.errors import LaneError
from lanemq.model.figures import Distribution, Kind, Metric, MetricSample, grouped, limit_text
from lanemq.model.units import Millis
from lanemq.net.address import Address

log = logging.getLogger(__name__)

MAX_REQUESTS = 8
"""Requests at the same time; further connections are closed. Each takes a thread, so a flood must have a limit."""
REQUEST_SECONDS = 5.0
"""How long a client may take to send its whole request, and then to read the answer."""

WORK_NS, PAUSE_SECONDS = 500_000, 0.0005
"""How long the text of the metrics is written without a pause, and the pause. Long work delays the program's event
loop, long pauses delay the answer."""

STOP_CHECK_SECONDS = 0.1
"""How long `close` takes at most. Short: the idle thread wakes up often."""

Item = TypeVar("Item")
StartResponse = Callable[..., Any]
Environ = dict[str, Any]


class Monitored(Protocol):
    """A program that a monitor shows. All calls come from the monitor's threads."""

    def live_problem(self) -> str | None:
        """Why the process should be restarted; None if it works."""
        ...

    def ready_problems(self) -> list[str]:
        """Why the program cannot do its work at the moment; empty if it can."""
        ...

    def samples(self) -> list[MetricSample]:
        """All figures; raises `LaneError` if they cannot be read now."""
        ...


class Monitor:
    """Serves one program until `close`. The port is open when the constructor returns."""

    def __init__(self, listen: Address, monitored: Monitored) -> None:
        """Raises `OSError` if it cannot listen there. Port 0 takes a free one, see `address`."""
        self._monitored = monitored
        self._server = _Server(listen, self._answer)
        self.address = Address(listen.host, self._server.server_address[1])
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(STOP_CHECK_SECONDS,), name="lanemq-monitor", daemon=True
        )
        self._thread.start()

    def close(self) -> None:
        """Stop listening. Repeating it does nothing."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def _answer(self, environ: Environ, start: StartResponse) -> Iterable[bytes]:
        if environ["REQUEST_METHOD"] not in ("GET", "HEAD"):
            return _text(start, "405 Method Not Allowed", "only GET is answered here\n")
        match environ["PATH_INFO"]:
            case "/live":
                problem = self._monitored.live_problem()
                return _health(start, "live", [] if problem is None else [problem])
            case "/ready":
                problems = self._monitored.ready_problems()
                return _health(start, "ready", problems)
            case "/metrics":
                return self._metrics(environ, start)
            case _:
                return _text(start, "404 Not Found", "/live, /ready and /metrics are here\n")

    def _metrics(self, environ: Environ, start: StartResponse) -> Iterable[bytes]:
        from prometheus_client import CollectorRegistry, make_wsgi_app

        registry = CollectorRegistry()
        try:
            self._register(registry)
        except LaneError as error:
            return _text(start, "503 Service Unavailable", f"{error}\n")
        body: Iterable[bytes] = make_wsgi_app(registry)(environ, start)
        return body

    def _register(self, registry: Any) -> None:
        """Adds the figures to a registry of Prometheus's client."""
        from prometheus_client import ProcessCollector

        registry.register(_Collected(self._monitored.samples()))
        ProcessCollector(registry=registry)


class Relayed(Protocol):
    """Several programs that one monitor shows."""

    def live_problem(self) -> str | None: ...

    def ready_problems(self) -> list[str]: ...

    def families(self) -> list[Any]:
        """All figures, as `prometheus_client` reads them."""
        ...


class RelayMonitor(Monitor):
    """Answers for other processes, which have monitors of their own."""

    def __init__(self, listen: Address, relayed: Relayed) -> None:
        self._relayed = relayed
        super().__init__(listen, _WithoutSamples(relayed))

    def _register(self, registry: Any) -> None:
        registry.register(_Families(self._relayed.families()))


class _WithoutSamples:
    """Health alone."""

    def __init__(self, relayed: Relayed) -> None:
        self.live_problem, self.ready_problems = relayed.live_problem, relayed.ready_problems

    def samples(self) -> list[MetricSample]:
        return []


class _Families:
    """Families as `prometheus_client` reads them, made before it asks."""

    def __init__(self, families: list[Any]) -> None:
        self._families = families

    def collect(self) -> Iterator[Any]:
        return iter(self._families)


def _health(start: StartResponse, name: str, problems: list[str]) -> Iterable[bytes]:
    body = json.dumps({name: not problems, "reasons": problems}) + "\n"
    status = "503 Service Unavailable" if problems else "200 OK"
    start(status, [("Content-Type", "application/json"), ("Cache-Control", "no-store")])
    return [body.encode()]


def _text(start: StartResponse, status: str, text: str) -> Iterable[bytes]:
    start(status, [("Content-Type", "text/plain; charset=utf-8")])
    return [text.encode()]


class _Collected:
    """Samples as `prometheus_client` reads them."""

    def __init__(self, samples: list[MetricSample]) -> None:
        self._samples = samples

    def collect(self) -> Iterator[Any]:
        pace = _Pace()
        for metric, samples in grouped(pace.over(self._samples)).items():
            family = _family(metric, pace.over(samples))
            family.samples = _PacedList(family.samples, pace)
            yield family


_pause = time.sleep


class _Pace:
    """Lets the other threads of the process run between two samples."""

    def __init__(self) -> None:
        self._clock = SystemClock()
        self._until = self._clock.now_ns() + WORK_NS

    def over(self, items: Iterable[Item]) -> Iterator[Item]:
        for item in items:
            yield item
            if self._clock.now_ns() >= self._until:
                _pause(PAUSE_SECONDS)
                self._until = self._clock.now_ns() + WORK_NS


class _PacedList(list[Any]):
    """Samples that are written with pauses in between."""

    def __init__(self, samples: list[Any], pace: _Pace) -> None:
        super().__init__(samples)
        self._pace = pace

    def __iter__(self) -> Iterator[Any]:
        return self._pace.over(super().__iter__())


def _family(metric: Metric, samples: Iterable[MetricSample]) -> Any:
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily

    kinds: dict[Kind, Any] = {
        Kind.COUNTER: CounterMetricFamily,
        Kind.GAUGE: GaugeMetricFamily,
        Kind.HISTOGRAM: HistogramMetricFamily,
    }
    family = kinds[metric.kind](metric.name, metric.help, labels=metric.labels)
    for sample in samples:
        if isinstance(sample.value, Distribution):
            buckets = [(limit_text(limit), n) for limit, n in sample.value.cumulated()]
            family.add_metric(sample.labels, buckets, sample.value.sum)
        else:
            family.add_metric(sample.labels, sample.value)
    return family


class _Server(ThreadingMixIn, WSGIServer):
    """A thread per request, at most `MAX_REQUESTS`. A request that is not complete at its deadline loses its place."""

    daemon_threads = True
    block_on_close = False

    def __init__(self, listen: Address, application: Callable[[Environ, StartResponse], Iterable[bytes]]) -> None:
        self.address_family = socket.AF_INET6 if ":" in listen.host else socket.AF_INET
        self._places = threading.BoundedSemaphore(MAX_REQUESTS)
        self._clock = SystemClock()
        self._deadlines: dict[Any, Millis] = {}
        """Connections that have not sent their whole request, each with the time at which it is closed."""
        super().__init__((listen.host, listen.port), _RequestHandler)
        self.set_app(application)

    def server_bind(self) -> None:
        """As the base class, which also asks for the host's full name: without a name server that takes seconds."""
        TCPServer.server_bind(self)
        self.server_name, self.server_port = str(self.server_address[0]), self.server_address[1]
        self.setup_environ()

    def get_request(self) -> Any:
        """As the base class, which would try again at once, and so without end, while no descriptor is left."""
        try:
            return super().get_request()
        except OSError:
            time.sleep(STOP_CHECK_SECONDS)
            raise

    def process_request(self, request: Any, client_address: Any) -> None:
        if self._places.acquire(blocking=False):
            self._deadlines[request] = Millis(self._clock.now() + int(_RequestHandler.timeout * 1000))
            super().process_request(request, client_address)
        else:
            self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self.received(request)
            self._places.release()

    def received(self, request: Any) -> None:
        """The whole request is here; what follows is limited by the time that one write may take."""
        self._deadlines.pop(request, None)

    def service_actions(self) -> None:
        """Called every `STOP_CHECK_SECONDS`. The thread of a connection that is shut down reads its end and leaves."""
        now = self._clock.now()
        for request, deadline in list(self._deadlines.items()):
            if now >= deadline:
                self.received(request)
                with contextlib.suppress(OSError):  # closed already
                    request.shutdown(socket.SHUT_RDWR)

    def handle_error(self, request: Any, client_address: Any) -> None:
        log.debug("a request of %s to the monitor failed", client_address, exc_info=True)


class _RequestHandler(WSGIRequestHandler):
    timeout = REQUEST_SECONDS

    def get_environ(self) -> Environ:
        """Called between the request and its answer."""
        cast(_Server, self.server).received(self.request)
        return super().get_environ()

    def log_message(self, format: str, *args: Any) -> None:
        log.debug(format, *args)

    def address_string(self) -> str:
        """The address alone: looking up its name could take seconds."""
        return str(self.client_address[0])
