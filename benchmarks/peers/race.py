"""One run: all servers of a mode run side by side on loopback, and the contenders take turns, round by round."""

import contextlib
import itertools
import json
import os
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

from benchmarks.harness import commit
from benchmarks.peers.clients.roles import prefix_of
from benchmarks.peers.contenders import Contender
from benchmarks.peers.processes import ClientFailed, ClientProcess, PeerServer
from benchmarks.peers.versions import code_id

KEYS, QUEUES = 100, 4


@dataclass(frozen=True)
class Scale:
    """How much is measured. Smaller numbers make a run shorter and its figures less sure."""

    rounds: int
    """Of each path; take-over counts trials."""
    send_ms: int
    """Length of a timed send; half of it for one send at a time."""
    growth: int
    """Messages sent over 1 to 1,000 queues."""
    read_ms: int
    """Length of a timed read; as many messages are stored as a contender reads in that time."""
    read: int
    """At most so many."""
    sustained_bytes: int
    """What sustained sends store, at least."""
    keys: tuple[int, ...]
    """Numbers of keys over which the cost of reading must not grow."""
    cold: int
    """Messages of 1 KB that are read while they are not in the page cache."""
    stored: int
    """Messages whose bytes on disk are counted."""
    slow: int
    """Messages for a 5 ms handler, for contenders that handle one at a time; 30 times as many for those with lanes."""
    latency_ms: int
    rates: tuple[int, ...]
    sizes: tuple[int, ...]
    patience: float
    """Seconds that a take-over may last."""
    grpc: int
    """Messages that gRPC clients send and receive."""


FULL = Scale(
    rounds=3,
    send_ms=2_000,
    growth=200_000,
    read_ms=2_000,
    read=3_000_000,
    sustained_bytes=2_000_000_000,
    keys=(100, 10_000, 100_000, 1_000_000),
    cold=1_000_000,
    stored=200_000,
    slow=400,
    latency_ms=3_000,
    rates=(1_000, 10_000),
    sizes=(100, 1_000),
    patience=120.0,
    grpc=20_000,
)
QUICK = replace(
    FULL,
    rounds=1,
    send_ms=200,
    growth=10_000,
    read_ms=200,
    read=50_000,
    sustained_bytes=4_000_000,
    keys=(100, 10_000),
    cold=20_000,
    stored=10_000,
    slow=100,
    latency_ms=500,
    rates=(1_000,),
    sizes=(100,),
    patience=20.0,
    grpc=2_000,
)


class Records:
    """One JSON line per round and figure, in a file, as they are measured, with the version that was measured."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = path.open("a")
        self._about = {"version": commit(), "code": code_id(), "run": round(time.time())}

    def add(self, **record: Any) -> None:
        about = {"load": round(os.getloadavg()[0], 1), "time": round(time.time()), **self._about}
        self._file.write(json.dumps({**record, **about}) + "\n")
        self._file.flush()
        short = {name: value for name, value in record.items() if name not in ("round", "count")}
        print(json.dumps(short), flush=True)

    def close(self) -> None:
        self._file.close()


class Entrant:
    """A contender whose server runs."""

    _numbers = itertools.count()

    def __init__(self, contender: Contender, server: PeerServer, command: list[str], helper: list[str]) -> None:
        self.contender, self.server = contender, server
        self._number = next(self._numbers)
        self._command, self._helper = command, helper
        self._topics = itertools.count()

    @property
    def name(self) -> str:
        return self.contender.name

    def client(self, topic: str, **words: Any) -> ClientProcess:
        return self._start(self._command, topic, words)

    def helper(self, topic: str, **words: Any) -> ClientProcess:
        """The client that creates topics and fills them."""
        return self._start(self._helper, topic, words)

    def _start(self, command: list[str], topic: str, words: dict[str, Any]) -> ClientProcess:
        pids = ",".join(map(str, self.server.pids))
        common = {"address": self.server.address, "topic": topic, "queues": QUEUES, "pids": pids}
        return ClientProcess(command, {**common, **self.contender.options, **words})

    def topic(self, queues: int = QUEUES) -> str:
        """Creates a new topic; its name."""
        name = f"bench-{self.name.split()[0].lower()}-{self._number}-{next(self._topics)}"
        create = getattr(self.server, "create_topic", None)
        if create is not None:
            create(name, queues)
        else:
            self.helper(name, do="create", queues=queues, durable=int(self.server.durable)).lines()
        return name

    def fill(self, topic: str, count: int, size: int, keys: int = KEYS, **words: Any) -> None:
        self.helper(topic, do="fill", count=count, size=size, keys=keys, **words).lines()

    def read(self, topic: str, expect: int, group: str, **words: Any) -> dict[str, Any]:
        """Reads the whole topic; the figures without the first fifth, in which compilers warm up, and the verdict."""
        warm = max(1, expect // 5)
        return self.client(topic, do="read", expect=expect, warm=warm, group=group, **words).lines()[-1]

    def verdicts(self, topic: str, sent: Sequence[dict[str, Any]], **words: Any) -> dict[str, str]:
        """Reads back what each way of sending has sent; the verdict on each, by the prefix of its keys."""
        counts = {prefix_of(line["way"]): line["sent"] for line in sent}
        parts = ",".join(f"{prefix}:{count}" for prefix, count in counts.items())
        line = self.read(topic, sum(counts.values()), "back", parts=parts, **words)
        verdicts: dict[str, str] = line["verdicts"]
        return verdicts


class Race:
    """The entrants of one mode, and what was measured."""

    def __init__(self, contenders: Sequence[Contender], everyone: Sequence[Contender], scale: Scale, records: Records):
        self._contenders, self._everyone = contenders, {each.name: each for each in everyone}
        self.scale, self._records = scale, records
        self.entrants: list[Entrant] = []
        self.group = ""
        """The group of paths that runs, as `--paths` names it."""

    def only(self, contender: Contender) -> "Race":
        """The same race with one contender."""
        race = Race([contender], list(self._everyone.values()), self.scale, self._records)
        race.group = self.group
        return race

    @contextlib.contextmanager
    def running(self, *, durable: bool) -> Iterator[Self]:
        """Starts the servers, one of each kind. A contender whose server does not start is skipped."""
        self.mode = "durable" if durable else "relaxed"
        with contextlib.ExitStack() as stack:
            servers: dict[type[PeerServer], PeerServer | None] = {}
            for contender in self._contenders:
                if contender.server not in servers:
                    servers[contender.server] = self._started(stack, contender.server(durable=durable))
                server = servers[contender.server]
                if server is not None:
                    helper = self._everyone[contender.helper or contender.name].command()
                    self.entrants.append(Entrant(contender, server, contender.command(), helper))
            yield self
        self.entrants = []

    def _started(self, stack: contextlib.ExitStack, server: PeerServer) -> PeerServer | None:
        try:
            return stack.enter_context(server)
        except ClientFailed as failure:
            why = " ".join(str(failure).split())
            print(f"skipped: all that need {server.name}, {self.mode}: {why[-300:]}", file=sys.stderr, flush=True)
            return None

    def turns(self, who: Sequence[Entrant], rounds: int | None = None) -> Iterator[tuple[int, Entrant]]:
        """Alternating rounds: each round starts with another contender."""
        for number in range(self.scale.rounds if rounds is None else rounds):
            shift = number % len(who) if who else 0
            yield from ((number, each) for each in [*who[shift:], *who[:shift]])

    @contextlib.contextmanager
    def attempt(self, entrant: Entrant, *paths: str, **more: Any) -> Iterator[None]:
        """A contender that fails on these paths gets a line for each that says so; the others continue."""
        try:
            yield
        except ClientFailed as failure:
            why = " ".join(str(failure).split())
            print(f"failed: {entrant.name}, {', '.join(paths)}, {self.mode}: {why}", file=sys.stderr, flush=True)
            for path in paths:
                self._add(path, entrant, failed=why[-200:], **more)

    def rate(self, path: str, entrant: Entrant, line: dict[str, Any], **more: Any) -> None:
        """Records messages per second, and CPU microseconds per message of client and server.

        A reader that did not get all messages has no time: its verdict is recorded alone.
        """
        if "seconds" not in line:
            self.wrong(path, entrant, **more)
            return
        count = line["count"]
        self.value(
            path,
            entrant,
            round(count / line["seconds"], 1),
            "msg/s",
            count=count,
            seconds=round(line["seconds"], 2),
            client_cpu_us=round(line["client_cpu"] / count * 1e6, 3),
            server_cpu_us=round(line["server_cpu"] / count * 1e6, 3),
            **more,
        )

    def value(self, path: str, entrant: Entrant, value: float, unit: str, **more: Any) -> None:
        self._add(path, entrant, value=value, unit=unit, **more)

    def wrong(self, path: str, entrant: Entrant, verdict: str, **more: Any) -> None:
        """Records a round that has a verdict and no figure."""
        self._add(path, entrant, verdict=verdict, **more)

    def _add(self, path: str, entrant: Entrant, **more: Any) -> None:
        self._records.add(group=self.group, path=path, contender=entrant.name, mode=self.mode, **more)
