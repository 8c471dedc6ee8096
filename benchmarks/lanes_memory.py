"""What 100,000 active keys cost, and whether workers wait for each other.

    python -m benchmarks lanes_memory

10,000 queues with 10 keys each, one message of 100 B per key, all waiting in one member's lanes. Memory as
`tracemalloc` counts it, with and without the messages themselves. Then 4 workers take everything, with a handler
of 0.2 ms; nothing in the member is locked per key or queue, so what can be waited for is the board's one mutex: that
is timed. (A thread that has the mutex and waits for the interpreter's lock makes the others wait for both.)
`verdict`: every message ran once, no two of a key at a time, and every queue can be committed to its end.
"""

import threading
import time
import tracemalloc
from collections import defaultdict
from itertools import pairwise

from tests.wire.encoding import encode_record

from benchmarks.harness import report
from lanemq.client.codec import BytesCodec
from lanemq.client.consumer.turns.counting import TurnTimes
from lanemq.client.consumer.turns.scheduler import MessageWorker, Scheduler
from lanemq.client.consumer.turns.workers import run_worker
from lanemq.client.message import Message, MessageSource, read_messages
from lanemq.clock import SystemClock
from lanemq.core.consuming.runs import NO_LEASE_NEEDED, LaneOptions
from lanemq.core.consuming.scheduler import LaneScheduler
from lanemq.model.queue import MessageQueue
from lanemq.model.units import Epoch, QueueOffset
from lanemq.wire.properties import encode_properties

QUEUES, KEYS_EACH, WORKERS, BYTES = 10_000, 10, 4, 100
KEYS, HANDLER_SECONDS = QUEUES * KEYS_EACH, 0.0002

Call = tuple[str, int, int, float, float]
"""Key, queue, offset, begin and end of a call of the handler."""


class TimedLock:
    """A mutex that remembers how long it was waited for."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.waits: list[float] = []
        self.taken = 0

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        self.taken += 1
        if self._lock.acquire(blocking=False):
            return True
        if not blocking:
            return False
        began = time.perf_counter()
        got = self._lock.acquire(timeout=timeout)
        self.waits.append(time.perf_counter() - began)
        return got

    def release(self) -> None:
        self._lock.release()

    def __enter__(self) -> None:
        self.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()


def main() -> None:
    queues = [MessageQueue("bench", "lanemq", number) for number in range(QUEUES)]
    tracemalloc.start()
    pulls = [_pulled(queue) for queue in queues]
    with_messages = tracemalloc.get_traced_memory()[0]
    scheduler, mutex = _timed_scheduler()
    for queue, messages in zip(queues, pulls, strict=True):
        with scheduler as lanes:
            lanes.add(queue, QueueOffset(0), usable_until=NO_LEASE_NEEDED)
            lanes.put(queue, messages, QueueOffset(len(messages)), pulled_from=QueueOffset(0))
    lanes = tracemalloc.get_traced_memory()[0] - with_messages
    tracemalloc.stop()
    more = {"queues": QUEUES, "keys": KEYS, "target": 1000}
    report("lanes/memory_per_key", (lanes + with_messages) / KEYS, "B", lanes_alone=round(lanes / KEYS), **more)
    calls: list[Call] = []
    seconds, workers_time = _work(scheduler, calls)
    waited = sum(mutex.waits)
    more = {"longest_us": round(max(mutex.waits, default=0) * 1e6), "waits": len(mutex.waits), "taken": mutex.taken}
    share = 100 * waited / workers_time
    more["verdict"] = _verdict(scheduler, queues, calls)
    report("lanes/mutex_wait", share, "% of worker time", **more, workers=WORKERS, per_second=round(KEYS / seconds))


def _timed_scheduler() -> tuple[Scheduler, TimedLock]:
    scheduler, mutex = Scheduler(LaneScheduler(LaneOptions()), SystemClock()), TimedLock()
    setattr(scheduler, "_mutex", mutex)  # noqa: B010 - measured from outside, there is no option for it
    setattr(scheduler, "_changed", threading.Condition(mutex))  # type: ignore[arg-type]  # noqa: B010
    return scheduler, mutex


def _pulled(queue: MessageQueue) -> list[Message]:
    """What one pull brings: messages that share its buffer."""
    records = [_record(queue.queue_id, number) for number in range(KEYS_EACH)]
    return list(read_messages(MessageSource(queue, BytesCodec(), Epoch(1)), b"".join(records)))


def _record(queue: int, number: int) -> bytes:
    key = f"order-{queue * KEYS_EACH + number:08d}"
    text = encode_properties({"__SHARDINGKEY": key, "UNIQ_KEY": f"{queue:016X}{number:016X}"})
    return encode_record(
        topic="bench", body=b"x" * BYTES, properties_text=text, queue_id=queue, queue_offset=number, position=number
    )


def _work(scheduler: Scheduler, calls: list[Call]) -> tuple[float, float]:
    """Wall time, and the time of all workers together."""

    def handler(batch: tuple[Message, ...], _: object) -> None:
        began = time.perf_counter()
        time.sleep(HANDLER_SECONDS)
        calls.append((str(batch[0].key), batch[0].queue.queue_id, batch[0].queue_offset, began, time.perf_counter()))
        if len(calls) == KEYS:
            scheduler.close()

    def worker() -> None:
        worker = MessageWorker()
        while scheduler.take_runs(worker):
            run_worker(worker, handler, 1, SystemClock(), TurnTimes())

    threads = [threading.Thread(target=worker) for _ in range(WORKERS)]
    began = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    seconds = time.perf_counter() - began
    return seconds, seconds * WORKERS


def _verdict(scheduler: Scheduler, queues: list[MessageQueue], calls: list[Call]) -> str:
    lanes: dict[str, list[Call]] = defaultdict(list)
    for call in sorted(calls, key=lambda each: each[3]):
        lanes[call[0]].append(call)
    overlaps = sum(first[4] > then[3] for lane in lanes.values() for first, then in pairwise(lane))
    backwards = sum(first[2] > then[2] for lane in lanes.values() for first, then in pairwise(lane))
    once = len(calls) == len({call[:3] for call in calls}) == KEYS
    ended = all((scheduler.progress(queue) or (0,))[0] == KEYS_EACH for queue in queues)
    return "PASS" if once and ended and not overlaps and not backwards else "VIOLATION"
