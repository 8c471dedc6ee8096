"""A lane scheduler with a clock that the test sets, and short methods for the usual steps."""

from dataclasses import dataclass

from lanemq.core.consuming.retry_policy import FailurePolicy, HoldQueue
from lanemq.core.consuming.runs import NO_LEASE_NEEDED, Finished, LaneOptions, LaneRun, Order, Outcome, Wait
from lanemq.core.consuming.scheduler import LaneScheduler
from lanemq.model.queue import MessageQueue
from lanemq.model.units import Millis, QueueOffset

Q = MessageQueue("orders", "broker-a", 0)
R = MessageQueue("orders", "broker-a", 1)


@dataclass(frozen=True)
class Msg:
    queue_offset: int
    key: str | None = None
    size: int = 1


class SchedulerFixture:
    """A lane scheduler with a clock that the test sets."""

    def __init__(self, policy: FailurePolicy | None = None, order: Order = Order.QUEUE, **options: object) -> None:
        self.now = Millis(0)
        self.scheduler: LaneScheduler[Msg] = LaneScheduler(
            LaneOptions(policy=policy or HoldQueue(), order=order, **options)  # type: ignore[arg-type]
        )

    def assign(self, queue: MessageQueue, *keys: str | None, start: int = 0) -> None:
        self.scheduler.add(queue, QueueOffset(start), usable_until=NO_LEASE_NEEDED)
        self.put(queue, *keys)

    def put(self, queue: MessageQueue, *keys: str | None) -> None:
        start = self.scheduler[queue].next_offset
        messages = [Msg(start + i, key) for i, key in enumerate(keys)]
        end = QueueOffset(start + len(keys))
        assert self.scheduler.put(queue, messages, end, pulled_from=start)

    def run(self) -> LaneRun[Msg]:
        run = self.scheduler.next_run(now=self.now)
        assert isinstance(run, LaneRun), run
        return run

    def idle(self) -> Wait:
        wait = self.scheduler.next_run(now=self.now)
        assert isinstance(wait, Wait), wait
        return wait

    def finish(self, run: LaneRun[Msg], outcome: Outcome, done: int = 0) -> Finished[Msg]:
        return self.scheduler.finish(run, outcome, done=done, now=self.now)

    def sent_back(self, run: LaneRun[Msg], *ok: bool) -> Finished[Msg]:
        return self.scheduler.sent_back(run, ok, now=self.now)

    def pass_time(self, span: int) -> None:
        self.now = Millis(self.now + span)


def offsets(run: LaneRun[Msg]) -> list[int]:
    return [message.queue_offset for message in run.messages]
