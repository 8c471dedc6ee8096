"""Work that no request waits for does not hold the event loop either: disconnects, retention, checkpoints.

Each test has its control: in one piece, the same work takes several times as long. `LANEMQ_LOOP_SIZE=100` takes as many
leases, groups and producers as a broker admits of one party.
"""

import gc
import os
import shutil
from collections.abc import Callable, Iterator

import pytest
from tests.broker.loop_pieces import loop_pieces
from tests.broker.running import RunningBroker, retire_now
from tests.log.conftest import memory_folder

from lanemq.broker.parts import Parts
from lanemq.core.brokering.group_offsets import SavedOffset
from lanemq.model.queue import MessageQueue
from lanemq.model.stamp import Stamp
from lanemq.model.units import Millis, QueueOffset
from lanemq.net import turns

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
    def parts(self) -> Parts:
        return self.running.broker.running.parts

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
        in_turns = min(self.longest(prepare, work) for _ in range(RUNS))
        monkeypatch.setattr(turns, "TURN_NS", 10**18)
        whole = self.longest(prepare, work)
        print(f"{what}: {in_turns * 1000:.1f} ms in turns, {whole * 1000:.1f} ms in one piece")
        assert in_turns < LIMIT_SECONDS
        assert whole > 2 * in_turns


@pytest.fixture
def loaded() -> Iterator[Loaded]:
    folder = memory_folder()
    running = RunningBroker(folder, durable=False, segment_bytes=64 * 1024, retention_bytes=64 * 1024)
    yield Loaded(running)
    running.stop()
    shutil.rmtree(folder)


def test_the_disconnect_of_a_client_with_many_leases_is_handled_in_turns(
    loaded: Loaded, monkeypatch: pytest.MonkeyPatch
) -> None:
    queues, locks = [MessageQueue("T", "b", number) for number in range(LEASES)], loaded.parts.locks
    member = loaded.raw

    def take() -> None:
        nonlocal member
        member = loaded.running.connect()
        member.heartbeat("member", topics={"T": "*"})
        times = {"lease": Millis(60_000), "keep_alive_timeout": Millis(800), "now": loaded.parts.clock.now()}
        loaded.call(lambda: locks.acquire("g", queues, "member", **times))

    def lose() -> None:
        member.close()
        soon = loaded.parts.clock.now() + 30_000
        loaded.wait_until(lambda: all(lease.expires_at < soon for lease in map(latest, (queues[0], queues[-1]))))

    def latest(queue: MessageQueue) -> object:
        return locks.latest("g", queue)

    loaded.compare(f"the disconnect of a client with {LEASES} leases", take, lose, monkeypatch)


def fall_behind(loaded: Loaded) -> None:
    """All groups have read one message of each queue; the next log files are due to be deleted."""
    for queue in range(QUEUES):
        loaded.raw.send_batch("T", [(bytes(3_000), {})] * 2, queue=queue)
    ends = [loaded.parts.store.bounds("T", queue)[1] for queue in range(QUEUES)]
    rows = [
        SavedOffset(f"g{group}", "T", queue, QueueOffset(end - 1), False)
        for group in range(GROUPS)
        for queue, end in enumerate(ends)
    ]
    loaded.call(lambda: loaded.parts.offsets.restore(rows))
    for _ in range(3):
        loaded.raw.send("T", bytes(60_000))


def test_retention_counts_in_turns_what_many_groups_have_not_read(
    loaded: Loaded, monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded.compare(
        f"what {GROUPS} groups have not read of {QUEUES} queues",
        lambda: fall_behind(loaded),
        lambda: retire_now(loaded.running),
        monkeypatch,
    )


def test_a_checkpoint_with_many_producers_is_made_in_turns(loaded: Loaded, monkeypatch: pytest.MonkeyPatch) -> None:
    checkpoints, producers = loaded.running.broker.running.checkpoints, loaded.parts.producers

    def send() -> None:
        for number in range(PRODUCERS):
            stamp = Stamp(f"p{number}", loaded.run, 0)
            producers.record(f"T{number % 8}", 0, stamp, 1, QueueOffset(0), stored_at=Millis(1))

    def save() -> None:
        checkpoints._last_index = Millis(0)
        loaded.call(lambda: checkpoints.tick(loaded.parts.clock.now()))
        loaded.wait_until(lambda: checkpoints._mark is None and not checkpoints._saving_index)
        assert producers.dirty().rows == ()

    loaded.compare(f"a checkpoint with {PRODUCERS} producers", lambda: loaded.call(send), save, monkeypatch)
