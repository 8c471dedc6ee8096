"""RocketMQ 5's gRPC clients at LaneMQ's front, and at Apache's proxy: the same official Go client for both.

Each server has its processes alone: the front or the proxy, and the broker behind it. The CPU time of both kinds is
counted. A wait that is longer than the patience of the run is recorded with that as its value.
"""

import contextlib
import json
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from interop.grpc.programs import CLIENTS, ClientRun
from interop.ports import HOST, ask, eventually, free_port, listens

from benchmarks.peers.clients.job import cpu_seconds
from benchmarks.peers.packages import proxy
from benchmarks.peers.processes import ClientFailed
from benchmarks.peers.race import Records, Scale
from benchmarks.peers.servers.lane import LaneServer
from benchmarks.peers.servers.rocketmq import JVM, UPDATE_AND_CREATE_TOPIC, RocketServer

FRONT, PROXY = "LaneMQ gRPC front", "Apache proxy (gRPC)"
GROUPS, QUEUES = 100, 4
UPDATE_AND_CREATE_GROUP = 200
START_SECONDS = 90.0


class FrontServer(LaneServer):
    """`lanemq broker --relaxed`, and `lanemq grpc` before it."""

    front = ""

    def open(self) -> None:
        port = free_port()
        self.front = f"{HOST}:{port}"
        command = [sys.executable, "-m", "lanemq.cli.main", "grpc", "--server", self.address, "--listen", self.front]
        self.run(command)
        eventually(lambda: listens(port), START_SECONDS, "the front listens")

    def create(self, topic: str, group: str) -> None:
        create_topic(self.port, topic)


class ProxyServer(RocketServer):
    """RocketMQ's name server and broker with `ASYNC_FLUSH`, and its proxy before them."""

    front = ""
    timer_wheel = True  # without it, a broker refuses what the proxy asks for consumers

    def open(self) -> None:
        port, remoting = free_port(), free_port()
        self.front = f"{HOST}:{port}"
        (self.folder / "conf").mkdir(exist_ok=True)
        settings = {
            "rocketMQClusterName": "peers", "namesrvAddr": self.address, "grpcServerPort": port,
            "remotingListenPort": remoting, "proxyMode": "CLUSTER", "useEndpointPortFromRequest": True,
        }  # fmt: skip
        path = self.folder / "conf" / "rmq-proxy.json"
        path.write_text(json.dumps(settings))
        home = {"ROCKETMQ_HOME": str(self.folder), "RMQ_PROXY_HOME": str(self.folder)}
        main = "org.apache.rocketmq.proxy.ProxyStartup"
        options = ("-pm", "cluster", "-pc", str(path), "-n", self.address)
        self.run(["java", *JVM, f"-Duser.home={self.folder}", "-cp", proxy(), main, *options], home)
        eventually(lambda: listens(port), START_SECONDS, "the proxy listens")

    def create(self, topic: str, group: str) -> None:
        create_topic(self._broker, topic)
        settings = {"groupName": group, "consumeMessageOrderly": True, "consumeEnable": True}
        code, body, _ = ask(self._broker, UPDATE_AND_CREATE_GROUP, {}, json.dumps(settings).encode())
        if code != 0:
            raise ClientFailed(f"the group was not created: {body!r}")
        time.sleep(3)  # the proxy asks the broker for settings of groups every few seconds


def create_topic(port: int, topic: str) -> None:
    fields = {
        "topic": topic, "defaultTopic": "TBW102", "readQueueNums": f"{QUEUES}", "writeQueueNums": f"{QUEUES}",
        "perm": "6", "topicFilterType": "SINGLE_TAG", "topicSysFlag": "0", "order": "false",
        "attributes": "+message.type=FIFO",
    }  # fmt: skip
    code, body, _ = ask(port, UPDATE_AND_CREATE_TOPIC, fields)
    if code != 0:
        raise ClientFailed(f"the topic was not created: {body!r}")


class Side:
    """One server with its clients."""

    def __init__(self, name: str, server: FrontServer | ProxyServer, folder: Path, command: list[str]) -> None:
        self.name, self.server, self.folder, self._command = name, server, folder, command
        self._topics = 0
        self._open: list[ClientRun] = []

    def topic(self) -> str:
        self._topics += 1
        name = f"grpc{self._topics}"
        self.server.create(name, f"of-{name}")
        return name

    def client(self, role: str, topic: str, at: str = "", **options: Any) -> ClientRun:
        log = self.folder / f"{role}-{len(self._open)}.log"
        words = {"server": at or self.server.front, "topic": topic, "group": f"of-{topic}", **options}
        run = ClientRun(self._command, role, log, {}, **words)
        self._open.append(run)
        return run.ready()

    def timed(self, run: ClientRun, word: str, seconds: float) -> dict[str, Any]:
        """The line of a client's result, with the CPU seconds that the servers used meanwhile."""
        pids = self.server.pids
        before = [cpu_seconds([pid]) for pid in pids]
        run.wait(lambda each: each.column(word), word, seconds)
        used = [cpu_seconds([pid]) - start for pid, start in zip(pids, before, strict=True)]
        return {**next(line for line in run.lines if word in line), "front_cpu": used[-1], "all_cpu": sum(used)}

    def close(self) -> None:
        for run in self._open:
            run.close()


def grpc_fronts(records: Records, scale: Scale, wanted: list[str]) -> None:
    """All paths for both, round by round."""
    kinds = {FRONT: FrontServer, PROXY: ProxyServer}
    for number in range(scale.rounds):
        for name in (list(kinds), list(reversed(kinds)))[number % 2]:
            if not wanted or name in wanted:
                with _running(name, kinds[name]) as side:
                    for path in (throughput, slow_group, killed_consumer, lost_answer):
                        path(side, _Recorder(records, name, number), scale)


@contextlib.contextmanager
def _running(name: str, kind: type[FrontServer] | type[ProxyServer]) -> Iterator[Side]:
    command = CLIENTS["go"]()
    with tempfile.TemporaryDirectory(prefix="lanemq-peers-") as folder, kind(durable=False) as server:
        server.open()
        side = Side(name, server, Path(folder), command)
        try:
            yield side
        finally:
            side.close()


class _Recorder:
    def __init__(self, records: Records, name: str, number: int) -> None:
        self._records, self._name, self._number = records, name, number

    def value(self, path: str, value: float, unit: str, **more: Any) -> None:
        self._records.add(
            group="grpc", path=path, contender=self._name, mode="relaxed", value=value, unit=unit, round=self._number,
            **more,
        )  # fmt: skip


def throughput(side: Side, record: _Recorder, scale: Scale) -> None:
    """Sends of 16 threads over 100 message groups, and then a push consumer that handles them all."""
    warm, count = scale.grpc // 4, scale.grpc
    topic = side.topic()
    side.timed(side.client("load", topic, count=warm, groups=GROUPS), "sent", 300)
    side.timed(side.client("drain", topic, count=warm), "handled", 300)
    topic = side.topic()
    sent = side.timed(side.client("load", topic, count=count, groups=GROUPS), "sent", 300)
    _rate(record, "grpc send", sent, count)
    _rate(record, "grpc consume", side.timed(side.client("drain", topic, count=count), "handled", 300), count)


def _rate(record: _Recorder, path: str, line: dict[str, Any], count: int) -> None:
    per_message = {name: round(line[f"{name}_cpu"] / count * 1e6, 1) for name in ("front", "all")}
    more = {"front_cpu_us": per_message["front"], "server_cpu_us": per_message["all"]}
    is_complete = count in (line.get("sent"), line.get("handled"))
    verdict = "pass" if is_complete and not line.get("wrong") and not line.get("failed") else json.dumps(line)
    record.value(
        path, round(count / line["seconds"], 1), "msg/s", seconds=round(line["seconds"], 2), verdict=verdict, **more
    )
    record.value(f"{path} per core", round(count / line["front_cpu"], 1), "msg/s", verdict=verdict)


def slow_group(side: Side, record: _Recorder, scale: Scale) -> None:
    """One of 100 groups needs a second for each message; how long the messages of the others wait."""
    topic, each = side.topic(), 10
    consumer = side.client("drain", topic, count=(GROUPS - 1) * each, slow="g0", pause=1, patience=scale.patience)
    time.sleep(3)
    side.client("load", topic, count=GROUPS * each, groups=GROUPS, rate=100)
    line = side.timed(consumer, "handled", scale.patience + 30)
    verdict = (
        "pass" if line["handled"] == (GROUPS - 1) * each else f"{line['handled']} of {(GROUPS - 1) * each} handled"
    )
    record.value(
        "grpc slow group", round(line.get("most", 0) / 1000, 3), "s", p50=round(line.get("p50", 0), 1), verdict=verdict
    )


def killed_consumer(side: Side, record: _Recorder, scale: Scale) -> None:
    """A consumer is killed while it handles a message; when another one has it."""
    topic = side.topic()
    first = side.client("push", topic, seconds=600)
    side.client("load", topic, count=1, groups=1, threads=1)
    if not _gets_it(first, scale):
        record.value("grpc killed consumer", scale.patience, "s", verdict="no consumer got the message")
        return
    second = side.client("push", topic)
    time.sleep(3)
    first.kill()
    record.value("grpc killed consumer", *_waited(second, scale))


def lost_answer(side: Side, record: _Recorder, scale: Scale) -> None:
    """The answer with a message is lost with its connection, and the client connects again; when it has the message."""
    topic = side.topic()
    with Relay(side.server.front) as relay:
        consumer = side.client("push", topic, at=relay.address)
        time.sleep(3)
        relay.swallow = True
        side.client("load", topic, count=1, groups=1, threads=1)
        time.sleep(1)
        if consumer.column("got"):
            record.value("grpc lost answer", 0, "s", verdict="the client has the answer: it does not use the relay")
            return
        relay.swallow = False
        relay.cut()
        record.value("grpc lost answer", *_waited(consumer, scale))


def _waited(run: ClientRun, scale: Scale) -> tuple[float, str]:
    began = time.monotonic()
    if _gets_it(run, scale):
        return round(time.monotonic() - began, 2), "s"
    return scale.patience, "s or more"


def _gets_it(run: ClientRun, scale: Scale) -> bool:
    with contextlib.suppress(AssertionError):
        run.wait(lambda each: each.column("got"), "the message", scale.patience)
        return True
    return False


class Relay:
    """Passes connections on to an address that clients were told; it may swallow what comes back, and cut them."""

    def __init__(self, target: str) -> None:
        host, _, port = target.partition(":")
        self._target = host, int(port)
        self._listening = socket.create_server((HOST, 0))
        self.address = f"{HOST}:{self._listening.getsockname()[1]}"
        self.swallow = False
        self._open: list[socket.socket] = []

    def __enter__(self) -> "Relay":
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._listening.close()
        self.cut()

    def cut(self) -> None:
        for each in self._open:
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
        self._open.clear()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listening.accept()
                server = socket.create_connection(self._target)
                self._open += [client, server]
                threading.Thread(target=self._pass, args=(client, server, False), daemon=True).start()
                threading.Thread(target=self._pass, args=(server, client, True), daemon=True).start()

    def _pass(self, source: socket.socket, to: socket.socket, answers: bool) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                if not (answers and self.swallow):
                    to.sendall(data)
        for each in (source, to):
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
