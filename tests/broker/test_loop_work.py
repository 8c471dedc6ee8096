"""Work that no request waits for does not hold the event loop either: disconnects, retention, checkpoints, and what
deleted topics and groups leave in memory.

Each test has its control: in one piece, the same work takes several times as long. `LANEMQ_LOOP_SIZE=100` takes as many
leases, groups and producers as a broker admits of one party.
"""

import gc
import os
import shutil
from collections.abc import Callable, Iterator
from functools import partial

import pytest
from tests.broker.loop_pieces import loop_pieces
from tests.broker.running import RunningBroker, retire_now
from tests.log.conftest import memory_folder

from lanemq.broker.context import BrokerContext
from lanemq.broker.storage import progress_keeper
from lanemq.core.brokering.progress_store import SavedOffset
from lanemq.core.brokering.queue_progress import CommitKind
from lanemq.core.lane_status import Failure
from lanemq.model.queue import MessageQueue
from lanemq.model.stamp import Stamp
from lanemq.model.units import Millis, QueueOffset
from lanemq.net.serving import loop_slices
from lanemq.wire.codes import RequestCode

SIZE = int(os.environ.get("LANEMQ_LOOP_SIZE", "5"))
LEASES, PRODUCERS, GROUPS = 1_000 * SIZE, min(65_500, 1_310 * SIZE), 20 * SIZE
QUEUES = 32
LIMIT_SECONDS = 0.01
RUNS = 2
"""The best of them counts: a thread that is interrupted may be charged for it."""


class Loaded:
    """A broker with log files that are due to be deleted, and with much of everything in its tables."""

    def __init__(self, running: RunningBroker) -> None:
        self.running = running
        self.raw = running.connect()
        self.raw.create("T", QUEUES)
        self.run = 0

    @property
    def context(self) -> BrokerContext:
        return self.running.broker.running.context

    def call(self, function: Callable[[], object]) -> None:
        self.running.call(function)

    def wait_until(self, met: Callable[[], bool]) -> None:
        while not self.running.call(met):
            pass

    def longest(self, prepare: Callable[[], None], work: Callable[[], None]) -> float:
        """The longest piece of some work on the loop, without collections of garbage."""
        self.run += 1
        prepare()
        gc.disable()
        try:
            with loop_pieces() as pieces:
                work()
        finally:
            gc.enable()
        return pieces.longest

    def compare(
        self, what: str, prepare: Callable[[], None], work: Callable[[], None], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        in_slices = min(self.longest(prepare, work) for _ in range(RUNS))
        monkeypatch.setattr(loop_slices, "SLICE_NS", 10**18)
        whole = self.longest(prepare, work)
        print(f"{what}: {in_slices * 1000:.1f} ms in slices, {whole * 1000:.1f} ms in one piece")
        assert in_slices < LIMIT_SECONDS
        assert whole > 2 * in_slices


@pytest.fixture
def loaded() -> Iterator[Loaded]:
    folder = memory_folder()
    running = RunningBroker(folder, durable=False, segment_bytes=64 * 1024, retention_bytes=64 * 1024)
    yield Loaded(running)
    running.stop()
    shutil.rmtree(folder)


def test_the_disconnect_of_a_client_with_many_leases_is_handled_in_slices(
    loaded: Loaded, monkeypatch: pytest.MonkeyPatch
) -> None:
    queues, locks = [MessageQueue("T", "b", number) for number in range(LEASES)], loaded.context.locks
    member = loaded.raw

    def take() -> None:
        nonlocal member
        member = loaded.running.connect()
        member.heartbeat("member", topics={"T": "*"})
        times = {"lease": Millis(60_000), "keep_alive_timeout": Millis(800), "now": loaded.context.clock.now()}
        loaded.call(lambda: locks.acquire("g", queues, "member", **times))

    def lose() -> None:
        member.close()
        soon = loaded.context.clock.now() + 30_000
        loaded.wait_until(lambda: all(lease.expires_at < soon for lease in map(latest, (queues[0], queues[-1]))))

    def latest(queue: MessageQueue) -> object:
        return locks.latest("g", queue)

    loaded.compare(f"the disconnect of a client with {LEASES} leases", take, lose, monkeypatch)


def hold_much(loaded: Loaded, group: str, topic: str) -> None:
    """A group has leases, committed offsets and parked lanes in a topic."""
    context, queues = loaded.context, [MessageQueue(topic, "b", number) for number in range(LEASES // 2)]
    now = context.clock.now()
    context.locks.acquire(group, queues, "member", lease=Millis(60_000), keep_alive_timeout=Millis(800), now=now)
    for number in range(2 * LEASES):
        loaded.running.progress(group, topic, number).commit(QueueOffset(1), kind=CommitKind.FORWARD)
    for number in range(LEASES // 4):
        loaded.running.progress(group, topic).park(f"k{number}", [number], Failure("broken", 1), now=now)


def delete_topic(loaded: Loaded) -> None:
    loaded.raw.ask(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "D"})
    assert not loaded.context.locks.holds_any("d", now=loaded.context.clock.now())


def forget_unused_group(loaded: Loaded) -> None:
    context, unused = loaded.context, loaded.running.broker.running.housekeeping._forgotten_groups
    lanes = loaded.running.progress("d", "D")
    for key in tuple(lanes.lanes):
        loaded.call(partial(lanes.discard, key, 10**9))
    context.charges.group_use.forget("d")
    context.charges.group_use.used("d", Millis(0))
    context.charges.group_use.keep("d")
    loaded.call(lambda: unused.forget(Millis(10**12)))
    loaded.wait_until(lambda: "d" not in context.locks.groups())
    assert not context.progress.has_group("d")


@pytest.mark.parametrize("delete", [delete_topic, forget_unused_group])
def test_what_a_deleted_topic_or_group_leaves_is_freed_in_slices(
    loaded: Loaded, delete: Callable[[Loaded], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fill() -> None:
        loaded.raw.create("D", 1)
        loaded.call(lambda: hold_much(loaded, "d", "D"))

    def work() -> None:
        delete(loaded)
        loaded.wait_until(lambda: not loaded.context.slices._waiting)

    loaded.compare(f"{delete.__name__} with {LEASES // 2} leases, {2 * LEASES} offsets", fill, work, monkeypatch)


def test_many_changed_offsets_are_saved_in_several_writes(loaded: Loaded, monkeypatch: pytest.MonkeyPatch) -> None:
    table, keeper = loaded.context.progress, loaded.context.progress_keeper

    def commit() -> None:
        keeper._offsets_at = Millis(2**60)  # the housekeeping leaves them to `save`
        for number in range(LEASES):
            loaded.running.progress("many", "T", number).commit(QueueOffset(loaded.run), kind=CommitKind.FORWARD)

    def save() -> None:
        while loaded.running.call(lambda: table.has_unsaved):
            keeper._offsets_at = Millis(0)
            loaded.call(lambda: keeper.tick(loaded.context.clock.now()))
            loaded.wait_until(lambda: not keeper._writing)

    prepare = lambda: loaded.call(commit)  # noqa: E731
    monkeypatch.setattr(progress_keeper, "MAX_OFFSETS", min(progress_keeper.MAX_OFFSETS, LEASES // 5))
    in_parts = min(loaded.longest(prepare, save) for _ in range(RUNS))
    monkeypatch.setattr(progress_keeper, "MAX_OFFSETS", 10**9)
    whole = loaded.longest(prepare, save)
    print(f"{LEASES} changed offsets: {in_parts * 1000:.1f} ms in parts, {whole * 1000:.1f} ms in one piece")
    assert in_parts < LIMIT_SECONDS
    assert whole > 2 * in_parts


def fall_behind(loaded: Loaded) -> None:
    """All groups have read one message of each queue; the next log files are due to be deleted."""
    for queue in range(QUEUES):
        loaded.raw.send_batch("T", [(bytes(3_000), {})] * 2, queue=queue)
    ends = [loaded.context.store.bounds("T", queue)[1] for queue in range(QUEUES)]
    rows = [
        SavedOffset(f"g{group}", MessageQueue("T", loaded.running.options.name, queue), QueueOffset(end - 1))
        for group in range(GROUPS)
        for queue, end in enumerate(ends)
    ]
    loaded.call(lambda: loaded.context.progress.restore(rows))
    for _ in range(3):
        loaded.raw.send("T", bytes(60_000))


def test_retention_counts_in_slices_what_many_groups_have_not_read(
    loaded: Loaded, monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded.compare(
        f"what {GROUPS} groups have not read of {QUEUES} queues",
        lambda: fall_behind(loaded),
        lambda: retire_now(loaded.running),
        monkeypatch,
    )


def test_a_checkpoint_with_many_producers_is_made_in_slices(loaded: Loaded, monkeypatch: pytest.MonkeyPatch) -> None:
    checkpoints, producers = loaded.running.broker.running.checkpoints, loaded.context.producers

    def send() -> None:
        for number in range(PRODUCERS):
            stamp = Stamp(f"p{number}", loaded.run, 0)
            producers.record(f"T{number % 8}", 0, stamp, 1, QueueOffset(0), stored_at=Millis(1))

    def save() -> None:
        checkpoints._index_at = Millis(0)
        loaded.call(lambda: checkpoints.tick(loaded.context.clock.now()))
        loaded.wait_until(lambda: checkpoints._state is None)
        assert producers.dirty().rows == ()

    loaded.compare(f"a checkpoint with {PRODUCERS} producers", lambda: loaded.call(send), save, monkeypatch)
