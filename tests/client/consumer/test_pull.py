"""The pull loop: what is pulled, when, and from which offset; whole members on virtual time."""

import asyncio
from typing import Any

import pytest
from tests.client.consumer.fakes import FakeBroker, member, no_answer, queue, record, until
from tests.client.virtual_time import run_virtual

from lanemq.client.consumer.queues.pull import LANE_PULL_BYTES
from lanemq.client.message import Message
from lanemq.core.consuming.flow_control import FlowLimits
from lanemq.core.consuming.retry_policy import HoldQueue
from lanemq.core.consuming.runs import Order
from lanemq.model.units import Millis, QueueOffset
from lanemq.wire.properties import LANE_STAMP, PropertyName

WHOLE_QUEUE = {"order": Order.QUEUE, "policy": HoldQueue()}


class Seen(list[int]):
    async def __call__(self, message: Message) -> None:
        self.append(message.queue_offset)


@pytest.mark.row("A56")
def test_a_queue_whose_lease_ran_out_is_not_pulled_until_it_is_renewed() -> None:
    async def main() -> tuple[int, int]:
        broker = FakeBroker([queue(0)])
        seen = Seen()
        async with member(broker, "me", seen):
            await asyncio.sleep(0.5)
            broker.faults.append(lambda _, name, __: no_answer() if name == "lock" else None)
            await asyncio.sleep(20)  # the broker holds an empty pull for 15 s
            stopped = len(broker.what("pull"))
            await asyncio.sleep(60)
            still = len(broker.what("pull"))
            broker.faults.clear()
            broker.store(queue(0), record(0))
            await until(lambda: seen)
        return stopped, still

    stopped, still = run_virtual(main)
    assert stopped == still


@pytest.mark.row("A56")
def test_an_answer_that_comes_after_the_end_of_the_lease_is_not_followed_by_a_pull() -> None:
    async def main() -> tuple[list[int], list[int]]:
        broker = FakeBroker([queue(0)])
        seen = Seen()
        async with member(broker, "me", seen):
            broker.faults.append(lambda _, name, __: no_answer() if name == "lock" else None)
            await asyncio.sleep(5)
            broker.store(queue(0), record(0))
            await asyncio.sleep(1)
            late = [about[1] for _, _, _, about in broker.what("pull")]
            broker.faults.clear()
            await until(lambda: seen)
        return late, list(seen)

    assert run_virtual(main) == ([0], [0])


def test_a_queue_is_read_from_the_committed_offset() -> None:

    async def main() -> int:
        broker = FakeBroker([queue(0)])
        broker.store(queue(0), *(record(n) for n in range(10)))
        broker.offsets[queue(0)] = 3
        seen = Seen()
        async with member(broker, "me", seen):
            await until(lambda: len(seen) == 7)
        return seen[0]

    assert run_virtual(main) == 3


@pytest.mark.row("A17")
@pytest.mark.row("A61")
def test_filtered_messages_move_the_offset_and_keep_the_order_of_the_rest() -> None:
    async def main() -> tuple[list[int], int]:
        broker = FakeBroker([queue(0)])
        tags = "ABCDE"
        broker.store(queue(0), *(record(n, tag=tags[n % 5]) for n in range(20)))
        seen = Seen()
        async with member(broker, "me", seen, plan={"tags": "A || C || D"}):
            await until(lambda: broker.offsets.get(queue(0)) == 20)
        return list(seen), broker.offsets[queue(0)]

    seen, committed = run_virtual(main)
    assert seen == [n for n in range(20) if n % 5 in (0, 2, 3)]
    assert committed == 20


@pytest.mark.parametrize(("drops", "expected"), [(True, [3, 4]), (False, [2, 3, 4])])
def test_messages_that_a_broker_stored_twice_are_left_out_if_asked_for(drops: bool, expected: list[int]) -> None:
    """Offset 2 repeats offset 1, which was finished before: their producer stamps are the same."""

    async def main() -> tuple[list[int], int]:
        broker = FakeBroker([queue(0)], lane=False)
        numbers = [0, 1, 1, 2, 3]
        broker.store(queue(0), *(record(at, **{LANE_STAMP: f"p.1.{n}"}) for at, n in enumerate(numbers)))
        broker.offsets[queue(0)] = 2
        seen = Seen()
        async with member(broker, "me", seen, drop_repeats=drops):
            await until(lambda: broker.offsets.get(queue(0)) == 5)
        return list(seen), broker.offsets[queue(0)]

    assert run_virtual(main) == (expected, 5)


def test_a_delayed_message_is_no_repeat_of_newer_ones_that_were_stored_before_it_was_due() -> None:
    """An Apache broker stores it with its stamp when it is due."""

    async def main() -> list[int]:
        broker = FakeBroker([queue(0)], lane=False)
        delayed = {PropertyName.REAL_TOPIC: "t"}
        stored = [(0, {}), (2, {}), (1, delayed), (3, {}), (2, {})]
        broker.store(queue(0), *(record(at, **{LANE_STAMP: f"p.1.{n}", **more}) for at, (n, more) in enumerate(stored)))
        seen = Seen()
        async with member(broker, "me", seen, drop_repeats=True):
            await until(lambda: broker.offsets.get(queue(0)) == 5)
        return list(seen)

    assert run_virtual(main) == [0, 1, 2, 3]


@pytest.mark.row("A61")
def test_a_pull_whose_messages_are_all_filtered_is_followed_by_another_at_once() -> None:
    async def main() -> tuple[list[Any], int]:
        broker = FakeBroker([queue(0)])
        broker.store(queue(0), *(record(n, tag="B") for n in range(64)))
        async with member(broker, "me", Seen(), plan={"tags": "A"}, flow=FlowLimits(messages=32)):
            await until(lambda: broker.offsets.get(queue(0)) == 64)
        return [(at, about[1]) for at, _, _, about in broker.what("pull")], broker.offsets[queue(0)]

    pulls, committed = run_virtual(main)
    assert pulls[:3] == [(0, 0), (0, 32), (0, 64)]
    assert committed == 64


@pytest.mark.row("A62")
def test_messages_are_handled_in_the_order_of_their_offsets_across_pulls() -> None:
    async def main() -> list[int]:
        broker = FakeBroker([queue(0)])
        broker.store(queue(0), *(record(n) for n in range(100)))
        seen = Seen()
        async with member(broker, "me", seen, plan=WHOLE_QUEUE, flow=FlowLimits(messages=7)):
            await until(lambda: len(seen) == 100)
        return list(seen)

    assert run_virtual(main) == list(range(100))


def test_the_parts_of_an_answer_are_handled_in_order_and_need_one_pull() -> None:
    async def main() -> tuple[list[int], list[int]]:
        broker = FakeBroker([queue(0)])
        broker.in_parts = True
        seen = Seen()
        async with member(broker, "me", seen, plan=WHOLE_QUEUE):
            for number in range(5):
                broker.store(queue(0), record(number))
                await until(lambda count=number: len(seen) > count)
        return list(seen), [about[1] for _, _, _, about in broker.what("pull")]

    assert run_virtual(main) == ([0, 1, 2, 3, 4], [0])


def test_a_part_that_does_not_continue_the_lanes_is_ignored_and_the_next_pull_is_right() -> None:
    async def main() -> tuple[list[int], list[int]]:
        broker = FakeBroker([queue(0)])
        broker.in_parts = True
        seen = Seen()
        async with member(broker, "me", seen, plan=WHOLE_QUEUE) as engine:
            broker.store(queue(0), record(0))
            await until(lambda: seen)
            (assigned,) = engine.assignment
            with assigned.scheduler as lanes:
                lanes.drop(queue(0))
                lanes.add(queue(0), QueueOffset(2), usable_until=assigned.usable_until)
            broker.store(queue(0), record(1), record(2))
            await until(lambda: len(seen) == 2, seconds=1)  # not at the deadline of the pull
        return list(seen), [about[1] for _, _, _, about in broker.what("pull")]

    assert run_virtual(main) == ([0, 2], [0, 2])


def test_a_full_cache_stops_pulling_and_room_starts_it_again() -> None:
    async def main() -> tuple[int, int]:
        broker = FakeBroker([queue(0)])
        broker.store(queue(0), *(record(n) for n in range(100)))
        gate, seen = asyncio.Event(), []

        async def handler(message: Message) -> None:
            await gate.wait()
            seen.append(message.queue_offset)

        limits = FlowLimits(messages=10)
        async with member(broker, "me", handler, plan=WHOLE_QUEUE, flow=limits):
            await asyncio.sleep(2)
            full = len(broker.what("pull"))
            gate.set()
            await until(lambda: len(seen) == 100)
        return full, len(seen)

    assert run_virtual(main) == (2, 100)


def test_a_failed_pull_is_tried_again_from_the_same_offset_after_a_pause() -> None:
    async def main() -> list[Any]:
        broker = FakeBroker([queue(0)])
        broker.store(queue(0), record(0))
        failures = iter(range(2))

        def fail(_: str, name: str, __: Any) -> None:
            if name == "pull" and next(failures, None) is not None:
                no_answer()

        broker.faults.append(fail)
        seen = Seen()
        async with member(broker, "me", seen):
            await until(lambda: seen)
        return [(at, about[1]) for at, _, _, about in broker.what("pull")][:3]

    assert run_virtual(main) == [(0, 0), (1_000, 0), (2_000, 0)]


def test_after_a_failed_pull_the_member_looks_soon_where_the_broker_is() -> None:
    """A new master may be in the routes only after the round that followed the lost connection. The next one would come
    20 s later."""

    async def main() -> list[int]:
        broker = FakeBroker([queue(0)])
        async with member(broker, "me", Seen()):
            await asyncio.sleep(5)
            broker.faults.append(lambda _, name, __: no_answer() if name == "pull" else None)
            broker.store(queue(0), record(0))
            await asyncio.sleep(5)
        return [at for at, *_ in broker.what("members") if at > 5_000]

    looks = run_virtual(main)
    assert looks[:3] == [5_500, 6_500, 7_500]


def test_a_moved_offset_waits_for_the_running_handler_before_it_is_used() -> None:
    """The broker has deleted the messages at the offset: the member continues where the broker says."""

    async def main() -> tuple[list[str], list[str]]:
        broker = FakeBroker([queue(0)])
        broker.store(queue(0), record(0))
        events: list[str] = []
        go_on = asyncio.Event()

        async def handler(message: Message) -> None:
            events.append(f"start {message.queue_offset}")
            await go_on.wait()
            events.append(f"end {message.queue_offset}")

        async with member(broker, "me", handler, plan=WHOLE_QUEUE):
            await until(lambda: events)
            broker.first = 5
            broker.store(queue(0), *(record(n) for n in range(1, 7)))
            await asyncio.sleep(60)
            before = list(events)
            go_on.set()
            await until(lambda: len(events) == 6)
            return before, events

    before, events = run_virtual(main)
    assert before == ["start 0"]
    assert events == ["start 0", "end 0", "start 5", "end 5", "start 6", "end 6"]


def test_empty_answers_at_once_do_not_make_the_loop_spin() -> None:
    """Some brokers do not hold pulls and answer "nothing new" at once."""

    async def main() -> int:
        broker = FakeBroker([queue(0)])
        broker.holds_pulls = False
        async with member(broker, "me", Seen()):
            await asyncio.sleep(1)
            return len(broker.what("pull"))

    assert run_virtual(main) <= 21


@pytest.mark.row("A60")
def test_a_lease_revoked_between_pull_and_turn_keeps_the_handler_from_starting() -> None:
    """The lease is checked before a pull and again before a turn."""

    async def main() -> list[int]:
        broker = FakeBroker([queue(0)])
        seen = Seen()
        async with member(broker, "me", seen) as engine:
            (assigned,) = engine.assignment
            with assigned.scheduler as lanes:
                lanes.set_usable_until(queue(0), Millis(broker.clock.now()))
            broker.store(queue(0), record(0))
            await asyncio.sleep(0.2)
            return list(seen)

    assert run_virtual(main) == []


@pytest.mark.parametrize(("compat", "most"), [("auto", LANE_PULL_BYTES), ("rocketmq", None)])
def test_only_a_lanemq_broker_is_asked_for_large_answers(compat: str, most: int | None) -> None:
    async def main() -> int | None:
        broker = FakeBroker([queue(0)])
        broker.store(queue(0), record(0))
        seen = Seen()
        async with member(broker, "me", seen, compat=compat):
            await until(lambda: seen)
        assert broker.last_pull is not None
        return broker.last_pull.lane_max_bytes

    assert run_virtual(main) == most
