"""Follows one real message through the code and prints the files that it passes, by the first call into each.

    python scripts/follow.py send       one `Producer.send`, until its receipt is there
    python scripts/follow.py consume    one message, from the pull to the handler and the accepted commit
    python scripts/follow.py batch      one message in a Spark batch, from the end of the batch before it to the table

A profiler records every call into the package, in pure mode, on an embedded broker. What also runs while nothing is
sent (keep-alives, heartbeats, housekeeping) is recorded first and left out. Of a pipeline the third batch is followed:
what runs only at the start of the query, the first time in a worker, or to show progress is not part of its path. The
counts printed at the end:

    files     distinct files, for the client's side and the broker's
    switches  how often a call leads into another file than the call before it
    returns   switches into a file that was left before: how often a reader has to turn back

`--json` prints one line for programs; `--calls` prints every call instead of every file.
"""

import argparse
import contextlib
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

os.environ["LANEMQ_PURE"] = "1"
SOURCE = Path(__file__).resolve().parent.parent / "src"
PACKAGE = str(SOURCE / "lanemq") + os.sep
BROKER_THREADS = ("lanemq-embedded", "lanemq-log", "lanemq-rows", "lanemq-search")
IDLE_SECONDS = 3.0
"""Longer than every interval at which client and broker do something unasked, except heartbeats."""
LEFT_OUT = ("testing/", "_fast/", "clock.py", "__init__.py")
"""Files that a reader does not open to follow a message."""
BATCH = "pipelines/running/runner.py", "RunningPipeline._on_batch"
"""Called by Spark in the driver for each batch."""
DISPLAY = ("cli/", "pipelines/running/session.py", "pipelines/running/runner.py:RunningPipeline._watch")
"""The threads of the driver that show progress and Spark's log lines, by their outermost function."""
PROGRESS = "pipelines/running/progress.py"
BATCHES = 6
REPLY = "Connection.data_received"
IMPORT, RETURNED = "import", "(the batch ends)"


@dataclass
class Call:
    """One call into the package."""

    at: float
    side: str
    root: str
    """The outermost function of the package on the stack: tells a background loop from the message's own path."""
    file: str
    function: str


@dataclass
class Recorder:
    """Collects calls while `on`; installed as the profiler of every thread."""

    on: bool = False
    calls: list[Call] = field(default_factory=list)

    def profile(self, frame: FrameType, event: str, _: Any) -> None:
        if not self.on or event != "call" or not frame.f_code.co_filename.startswith(PACKAGE):
            return
        side = "broker" if threading.current_thread().name.startswith(BROKER_THREADS) else "client"
        self.calls.append(Call(time.time(), side, _root(frame), _file(frame), frame.f_code.co_qualname))

    def install(self) -> None:
        threading.setprofile(self.profile)
        sys.setprofile(self.profile)

    @contextlib.contextmanager
    def recording(self) -> Iterator[list[Call]]:
        self.calls, self.on = [], True
        try:
            yield self.calls
        finally:
            self.on = False


def _file(frame: FrameType) -> str:
    return frame.f_code.co_filename.removeprefix(PACKAGE)


def _root(frame: FrameType) -> str:
    """The outermost function of the package up to the event loop, or `IMPORT` if a module is being imported."""
    root: FrameType = frame
    outer: FrameType | None = frame
    while outer is not None and "/asyncio/" not in outer.f_code.co_filename:
        if outer.f_code.co_filename.startswith(PACKAGE):
            if outer.f_code.co_name == "<module>" and outer.f_globals["__name__"] != "__main__":
                return IMPORT
            root = outer
        outer = outer.f_back
    return f"{_file(root)}:{root.f_code.co_qualname}"


def message_only(calls: list[Call], idle: list[Call]) -> list[Call]:
    """Without the calls that the same loop makes while no message is under way."""
    # Replies of every kind pass the same functions of the network layer: these belong to the message too.
    background = {(call.root, call.file, call.function) for call in idle if not call.root.startswith("net/")}
    return [
        call
        for call in calls
        if call.root != IMPORT
        and (call.root, call.file, call.function) not in background
        and not call.file.startswith(LEFT_OUT)
    ]


def follow_send() -> dict[str, list[Call]]:
    from lanemq import Admin, Producer
    from lanemq.testing.embedded import EmbeddedBroker

    recorder = Recorder()
    recorder.install()
    with EmbeddedBroker() as broker, Producer(broker.address) as producer:
        with Admin(broker.address) as admin:
            admin.create_topic("orders", queues=4, ordered=True)
        for number in range(3):
            producer.send("orders", {"number": number}, key="order-42")
        with recorder.recording() as idle:
            time.sleep(IDLE_SECONDS)
        with recorder.recording() as calls:
            producer.send("orders", {"number": 3}, key="order-42")
    found = message_only(calls, idle)
    return {side: [call for call in found if call.side == side] for side in ("client", "broker")}


def follow_consume() -> dict[str, list[Call]]:
    from lanemq import Admin, App, Message, Producer
    from lanemq.testing.embedded import EmbeddedBroker

    recorder = Recorder()
    recorder.install()
    handled = threading.Semaphore(0)
    with EmbeddedBroker() as broker, Producer(broker.address) as producer, Admin(broker.address) as admin:
        admin.create_topic("orders", queues=1, ordered=True)
        app = App(broker.address, group="billing")

        @app.ordered("orders")
        def on_order(event: dict[str, int], message: Message) -> None:
            handled.release()

        app.start()
        try:
            for number in range(3):
                producer.send("orders", {"number": number}, key="order-42")
                handled.acquire()
            _wait_until(lambda: _committed(admin) == 3)
            with recorder.recording() as idle:
                time.sleep(IDLE_SECONDS)
            with recorder.recording() as sent:
                producer.send("orders", {"number": 3}, key="order-42")
            with recorder.recording() as calls:
                calls += sent
                handled.acquire()
                _wait_until(lambda: _committed(admin) == 4)
        finally:
            app.stop()
    # The producer and the administration of this script use blocking connections, the consumer does not.
    others = ("client/producer", "client/admin", "net/calling/blocking", "client/routing.py:BlockingRoutes")
    found = [call for call in message_only(calls, idle) if not call.root.startswith(others)]
    return {"client": used_replies([call for call in found if call.side == "client"])}


def used_replies(calls: list[Call]) -> list[Call]:
    """Without replies after which nothing of the message runs: those to the keep-alives that run beside it."""
    used: list[Call] = []
    reply: list[Call] = []
    for call in calls:
        if call.function == REPLY:
            reply = []
        if call.root.endswith(REPLY):
            reply.append(call)
        else:
            used += [*reply, call]
            reply = []
    return used


def _committed(admin: Any) -> int:
    (queue,) = admin.describe_topic("orders").queues
    return admin.committed("billing", queue.queue) or 0


def _wait_until(true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 30
    while not true():
        if time.monotonic() > deadline:
            raise SystemExit("the message was not committed within 30 s")
        time.sleep(0.1)


PIPELINE = """
from lanemq.pipelines import DeltaSink, Event, Pipeline, Topic, Transitions

def step(state, event: Event):
    return event.value, [{"id": event.key, "number": event.value["number"]}]

pipeline = Pipeline(
    name="orders",
    source=Topic("SERVERS", "orders", startingOffsets="earliest", maxOffsetsPerTrigger="1"),
    stage=Transitions(step=step, outputs="id string, number bigint"),
    sink=DeltaSink("FOLDER/table"),
    checkpoint="FOLDER/checkpoint",
)
"""


def follow_batch() -> dict[str, list[Call]]:
    """The third batch of a pipeline, from the end of the second one. Each batch has one message of the same key.

    Spark plans a batch in another process than the one that runs it, so calls are put in order by their time.
    """
    from lanemq import Admin, Producer
    from lanemq.testing.embedded import EmbeddedBroker

    with tempfile.TemporaryDirectory(prefix="lanemq-follow-") as name, EmbeddedBroker() as broker:
        folder = Path(name)
        with Admin(broker.address) as admin, Producer(broker.address) as producer:
            admin.create_topic("orders", queues=1, ordered=True)
            producer.send_many("orders", [("order-42", {"number": n}) for n in range(BATCHES)])
        (folder / "orders.py").write_text(PIPELINE.replace("SERVERS", broker.address).replace("FOLDER", name))
        (folder / "sitecustomize.py").write_text("import follow\nfollow.record_process()\n")
        path = os.pathsep.join([name, str(Path(__file__).parent), str(SOURCE)])
        (folder / "calls").mkdir()
        command = [sys.executable, "-m", "lanemq.cli.main", "pipeline", "run", str(folder / "orders.py")]
        ended = subprocess.run(
            [*command, "--once", "--json"],
            env={**os.environ, "PYTHONPATH": path, "LANEMQ_FOLLOW": str(folder / "calls")},
            capture_output=True,
            text=True,
            check=False,
        )
        calls = [Call(**json.loads(line)) for file in (folder / "calls").iterdir() for line in file.open()]
        ends = sorted(call.at for call in calls if call.function == RETURNED)
        if ended.returncode or len(ends) < BATCHES:
            raise SystemExit(f"the pipeline did not run {BATCHES} batches:\n{ended.stdout}\n{ended.stderr}")
    calls = sorted((call for call in calls if ends[1] < call.at < ends[2]), key=lambda call: call.at)
    found = [call for call in message_only(calls, []) if not call.root.startswith(DISPLAY) and call.file != PROGRESS]
    sides = {call.side: f"process {number}" for number, call in enumerate(_first_of_each_side(found), 1)}
    by_process = {name: [call for call in found if sides[call.side] == name] for name in sides.values()}
    return {**by_process, "all processes": found}


def _first_of_each_side(calls: list[Call]) -> list[Call]:
    return list({call.side: call for call in reversed(calls)}.values())[::-1]


def record_process() -> None:
    """Called by `sitecustomize` in the driver and in Spark's Python workers, which end without a clean exit."""
    folder = Path(os.environ["LANEMQ_FOLLOW"])
    files: dict[int, Any] = {}

    def profile(frame: FrameType, event: str, _: Any) -> None:
        if not frame.f_code.co_filename.startswith(PACKAGE):
            return
        function = frame.f_code.co_qualname
        if event == "return" and (_file(frame), function) == BATCH:
            function = RETURNED
        elif event != "call":
            return
        pid = os.getpid()
        if pid not in files:
            files[pid] = (folder / str(pid)).open("a", buffering=1)
        call = Call(time.time(), str(pid), _root(frame), _file(frame), function)
        files[pid].write(json.dumps(vars(call)) + "\n")

    threading.setprofile(profile)
    sys.setprofile(profile)


def report(found: dict[str, list[Call]], *, calls: bool) -> dict[str, Any]:
    """Prints the path of the message and returns the counts."""
    counts: dict[str, Any] = {}
    total_switches = total_returns = 0
    for side, of_side in found.items():
        print(f"{side}:")
        seen: list[str] = []
        last, switches, returns = "", 0, 0
        for call in of_side:
            if calls:
                print(f"    {call.file:45} {call.function}")
            if call.file == last:
                continue
            switches += 1 if last else 0
            returns += call.file in seen
            if call.file not in seen:
                seen.append(call.file)
                if not calls:
                    print(f"  {len(seen):3}  {call.file}")
            last = call.file
        counts[side] = {"files": len(seen), "switches": switches, "returns": returns}
        total_switches, total_returns = total_switches + switches, total_returns + returns
        print(f"  {len(seen)} files, {switches} switches, {returns} returns\n")
    if "broker" in found:
        counts["switches"], counts["returns"] = total_switches, total_returns
    return counts


def main() -> int:
    parser = argparse.ArgumentParser(description="Print the files that one message passes.")
    parser.add_argument("what", choices=("send", "consume", "batch"))
    parser.add_argument("--json", action="store_true", help="print the counts as one line of JSON at the end")
    parser.add_argument("--calls", action="store_true", help="print every call, not only the first into each file")
    given = parser.parse_args()
    sys.path.insert(0, str(SOURCE))
    paths = {"send": follow_send, "consume": follow_consume, "batch": follow_batch}
    counts = report(paths[given.what](), calls=given.calls)
    if given.json:
        print(json.dumps({"follow": given.what, **counts}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
